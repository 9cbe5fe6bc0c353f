"""Reads pages of the site in tests."""

from functools import cache
from itertools import cycle

from bs4 import BeautifulSoup

from tests.conftest import BOOK, EDITIONS

PAGES = list(BOOK.source.pages)

# The width and the scheme in which a test looks at each edition, where one of them is enough: all pages are opened in
# each of them by test_pages_open_without_complaints.
LOOKS = dict(zip(EDITIONS, cycle([(1280, "light"), (390, "dark")])))


def parse(path):
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


soup = cache(parse)  # for reading only; parsing a page takes a while
