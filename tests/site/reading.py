"""Reads pages of the site in tests."""

from functools import cache
from itertools import cycle

from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup

from tests.conftest import BOOK, EDITIONS

PAGES = list(BOOK.source.pages)

# The width and the scheme in which a test looks at each edition, where one of them is enough: all pages are opened in
# each of them by test_pages_open_without_complaints.
LOOKS = dict(zip(EDITIONS, cycle([(1280, "light"), (390, "dark")])))


def parse(path):
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


soup = cache(parse)  # for reading only; parsing a page takes a while


def violations(page, place=None):
    """What axe finds wrong for those who cannot see a page, or this place of it."""
    options = {"preload": False, "resultTypes": ["violations"]}  # what passes is not described: that takes seconds
    found = Axe().run(page, place, options=options).response["violations"]
    return [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found]
