"""Reads pages of the site in tests."""

from functools import cache

from bs4 import BeautifulSoup

from tests.conftest import BOOK

PAGES = list(BOOK.source.pages)


def parse(path):
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


soup = cache(parse)  # for reading only; parsing a page takes a while
