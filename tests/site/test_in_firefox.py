"""Switch, search, explorer, menu and reading in a second browser."""

import os

import pytest
import torch

from tests.conftest import EDITIONS
from tests.site.firefox import firefox
from tests.site.reading import LOOKS, PAGES


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    try:
        with firefox(tmp_path_factory.mktemp("profile")) as page:
            yield page
    except FileNotFoundError as reason:
        if os.environ.get("CI"):
            pytest.fail(str(reason))
        pytest.skip(str(reason))


@pytest.fixture
def page(started):
    started.complaints.clear()
    yield started
    assert not started.complaints


@pytest.mark.parametrize("edition", EDITIONS)
def test_pages_open(page, html, edition):
    width, _scheme = LOOKS[edition]
    for name in [*PAGES, "search"]:
        page.open(f"{html.as_uri()}/{edition}/{name}.html", width)
        assert page.evaluate("document.querySelector('h1').offsetHeight > 0")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name


@pytest.mark.parametrize("width", [390, 1280])
def test_language_link_leads_to_the_same_place(page, html, width):
    page.open(f"{html.as_uri()}/zh/09_cost.html", width)
    page.evaluate("document.getElementById('cost-memory').scrollIntoView({ behavior: 'instant' })")
    page.click("a[data-edition=en]")
    assert page.wait_for("location.href.includes('/en/') && document.readyState === 'complete' && location.hash")
    page.wait_for("Math.abs(document.getElementById('cost-memory').getBoundingClientRect().top) < innerHeight / 2")


@pytest.mark.parametrize(
    "address, leads_to",
    [("en/search.html?q=why is GPU 0 full", "09_cost.html"), ("zh/search.html?q=学习率", "11_training_for_real.html")],
)
def test_search(page, html, address, leads_to):
    page.open(f"{html.as_uri()}/{address}")
    found = page.evaluate("[...document.querySelectorAll('#search-results a')].map((a) => a.getAttribute('href'))")
    pages = list(dict.fromkeys(link.partition("#")[0] for link in found))
    assert leads_to in pages[:3]


@pytest.mark.parametrize("rows, gpus", [(30, 8), (10, 8), (9, 8), (4096, 64), (1, 3)])
def test_explorer(page, html, rows, gpus):
    # The query loads the page anew: after a new fragment alone, the old strips may still be there.
    page.open(f"{html.as_uri()}/en/explorer.html?{rows}#rows={rows}&gpus={gpus}")
    shown = page.evaluate(
        "[...document.querySelectorAll('.explorer-strip .explorer-gpu > span:last-child')].map((s) => +s.textContent)"
    )
    assert shown == [len(chunk) for chunk in torch.ones(rows).chunk(gpus)]


def test_explorer_by_keyboard(page, html):
    page.open(f"{html.as_uri()}/zh/explorer.html")
    page.evaluate("document.querySelector('input[type=number]').select()")
    page.press("6", "4", "Enter")
    assert page.wait_for("location.hash") == "#rows=64&gpus=8&dim=0"
    assert page.evaluate("document.querySelector('.explorer-strip').innerText").count("8") >= 8


def test_menu_by_keyboard(page, html):
    page.open(f"{html.as_uri()}/en/04_data_parallel.html", 390)
    page.evaluate("document.querySelector('button.nav-overlay-icon').focus()")
    page.press("Enter")
    page.wait_for("document.activeElement.closest('.sidebar-drawer') !== null")
    page.press("Escape")
    page.wait_for("document.activeElement.matches('button.nav-overlay-icon')")


def test_a_term_says_what_it_means(page, html):
    page.open(f"{html.as_uri()}/zh/04_data_parallel.html")
    page.press("Tab")
    page.evaluate("document.querySelector('article p:not(.page-note) a[href=\"glossary.html#term-chunk\"]').focus()")
    assert "数据块 · chunk" in page.wait_for("document.querySelector('.meaning:popover-open')?.textContent")
