"""Pages in a browser: as they look, for those who cannot see them, under a strict policy, on paper."""

import re

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe

from tests.conftest import EDITIONS
from tests.site.reading import PAGES


@pytest.mark.parametrize("width, scheme", [(1280, "light"), (390, "dark")])
@pytest.mark.parametrize("edition", EDITIONS)
def test_pages_open_without_complaints(visit, html, edition, width, scheme):
    # axe takes seconds for a page: one of each kind.
    kinds = ["index", "04_data_parallel", "14_sharding", "questions", "glossary", "explorer", "search"]
    page = visit(f"{edition}/index.html", viewport={"width": width, "height": 900}, color_scheme=scheme)
    for name in [*PAGES, "search"]:
        page.goto(f"{html.as_uri()}/{edition}/{name}.html")
        assert page.locator("h1").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "no page scrolls sideways"
        for image in page.locator("article img").all():
            image.scroll_into_view_if_needed()
            assert not image.get_attribute("alt").endswith((".svg", ".png")), "the file's name says nothing"
            page.wait_for_function("image => image.complete && image.naturalWidth > 0", arg=image.element_handle())
        if name in kinds and (edition == "en") == (scheme == "light"):
            violations = Axe().run(page, options={"preload": False}).response["violations"]
            assert not [(v["id"], [node["html"][:200] for node in v["nodes"][:3]]) for v in violations], name


@pytest.mark.parametrize("edition", EDITIONS)
def test_pages_meet_a_strict_policy(visit, served, edition):
    page = visit(f"{edition}/index.html", site=served)
    for name in [*PAGES, "search"]:
        page.goto(f"{served}/{edition}/{name}.html")
        assert page.evaluate("document.body.dataset.theme") == "auto", "the theme's script ran"


def test_copy_button(visit, served):
    page = visit("zh/04_data_parallel.html", site=served, permissions=["clipboard-read", "clipboard-write"])
    page.locator("#cell-split-law .cell_input").hover()
    page.locator("#cell-split-law .cell_input button.copybtn").click()
    assert page.evaluate("navigator.clipboard.readText()").startswith("import math\n\n\ndef split(rows, n):")
    assert not page.locator(".cell_output button.copybtn").count()


def test_theme_is_remembered(visit, served):
    page = visit("en/01_device.html", site=served, color_scheme="light")
    button = page.locator(".theme-toggle-content button")
    while page.evaluate("document.body.dataset.theme") != "dark":
        button.click()
    page.goto(f"{served}/en/02_random_dataset.html")
    assert page.evaluate("document.body.dataset.theme") == "dark"


@pytest.mark.parametrize("edition", EDITIONS)
def test_solutions_are_folded(visit, edition):
    page = visit(f"{edition}/04_data_parallel.html")
    solution = page.locator("details", has=page.locator("summary", has_text=re.compile("Solution 1|参考答案 1")))
    code = solution.locator("pre")
    assert not code.is_visible()
    solution.locator("summary").click()
    assert code.is_visible()


@pytest.mark.parametrize("edition", EDITIONS)
def test_cheat_sheet_is_one_page_and_right(visit, edition):
    page = visit(f"{edition}/cheatsheet.html")
    assert (
        page.pdf(format="A4", margin=dict.fromkeys(("top", "bottom", "left", "right"), "10mm")).count(b"/Type /Page\n")
        == 1
    )
    examples = re.findall(r"^(\[.*\])  # (\[.*\])$", page.locator("article").inner_text(), re.MULTILINE)
    assert len(examples) == 2
    for code, result in examples:
        assert eval(code, {"torch": torch}) == eval(result)
