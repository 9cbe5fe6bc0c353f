"""Starts the Chromium that prints the book, and in which tests open the site."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

# The first has no windows that nobody would see, and needs less than half of the others' processor time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def launch(playwright: Playwright) -> Browser:
    """The first that this machine has, else Playwright's own; raises its Error if there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return playwright.chromium.launch(executable_path=found, args=FLAGS)
