"""The site of the book as it ships, and a browser."""

import os
import shutil
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from book.site import site_folder
from tests.conftest import once, run_book


def render(folder):
    """Renders a copy of the repository that has been executed; returns what went wrong, or nothing."""
    done = run_book(folder, "render", timeout=600)
    return done.stderr if done.returncode else ""


@pytest.fixture(scope="session")
def html(place, shipped):
    """The folder of the site."""
    once(place, "rendered", lambda _: render(shipped))
    return site_folder(shipped)


@pytest.fixture(scope="module")
def repository(shipped, html, tmp_path_factory):
    """A copy of the rendered book that the tests of a module may change."""
    return Path(shutil.copytree(shipped, tmp_path_factory.mktemp("copy") / "repository", symlinks=True))


# What a server may forbid without harming the site.
POLICY = "default-src 'self'; img-src 'self' data:"


@contextmanager
def serving(folder):
    """The address of a server that has a site under a path, and forbids what the policy forbids."""

    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path):
            path = path.split("?")[0]
            return str(folder / path.removeprefix("/some/where/")) if path.startswith("/some/where/") else "/nowhere"

        def end_headers(self):
            self.send_header("Content-Security-Policy", POLICY)
            super().end_headers()

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/some/where"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def served(html):
    with serving(html) as address:
        yield address


@pytest.fixture
def visit(browser, html):
    """Opens a page of the site; whatever the console complains of fails the test."""
    complaints, contexts = [], []

    def open_page(address, site=None, **options):
        site = site or html.as_uri()
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith((site, "data:")) or complaints.append(request.url))
        page.goto(f"{site}/{address}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium."""
    from playwright.sync_api import Error, sync_playwright

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        try:
            flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
            chromium = playwright.chromium.launch(executable_path=found, args=flags)
        except Error as error:
            reason = f"no browser: {str(error).splitlines()[0]}"
            if os.environ.get("CI"):
                pytest.fail(reason)
            pytest.skip(reason)
        yield chromium
        chromium.close()
