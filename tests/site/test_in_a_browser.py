"""Pages in a browser: as they look, for those who cannot see them, under a strict policy, on paper."""

import re

import pytest
import torch

from tests.conftest import EDITIONS
from tests.site.reading import LOOKS, PAGES, violations


@pytest.mark.parametrize("edition", EDITIONS)
def test_pages_open_without_complaints(visit, html, served, edition):
    """On a desktop and on a phone, in the light and in the dark; one under a strict policy, the other from files."""
    scrolls = "[...document.querySelectorAll('article pre')].filter(p => p.scrollWidth > p.clientWidth)"
    # axe takes seconds for a page: one of each kind, in one edition on a desktop, in the other on a phone.
    kinds = ["index", "04_data_parallel", "14_sharding", "questions", "glossary", "explorer", "search"]
    looks = sorted(LOOKS.values(), key=lambda look: look != LOOKS[edition])
    pages = {look: visit(f"{edition}/index.html", site) for look, site in zip(looks, (served, None), strict=True)}
    for name in [*PAGES, "search"]:
        for (width, scheme), page in pages.items():
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            first = (width, scheme) == looks[0]
            page.goto(f"{served if first else html.as_uri()}/{edition}/{name}.html")
            assert page.locator("h1").is_visible()
            assert page.evaluate("document.body.dataset.theme") == "auto", "the theme's script ran"
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} scrolls sideways"
            wide = page.evaluate(f"{scrolls}.map(p => p.innerText)") if width == 1280 else []
            assert wide == [], f"{name}: code scrolls on a desktop"
            page.evaluate("localStorage.setItem('show-all', 'true')")  # from the next page on nothing is kept back
            if first and name in kinds:
                page.evaluate("new Promise(requestIdleCallback)")  # page.js waits for it, too
                assert not violations(page), name
        for image in page.locator("article img").filter(visible=True).all():
            image.scroll_into_view_if_needed()
            assert not image.get_attribute("alt").endswith((".svg", ".png")), "the file's name says nothing"
            page.wait_for_function("image => image.complete && image.naturalWidth > 0", arg=image.element_handle())


@pytest.mark.parametrize("edition", EDITIONS)
def test_no_title_has_an_empty_line(visit, edition):
    """The sign behind a title, which leads to it, would break into a line of its own where the title fills one."""
    page = visit(f"{edition}/questions_errors.html", viewport={"width": 390, "height": 900})
    heights = "[...document.querySelectorAll('h2')].map(title => title.getBoundingClientRect().height)"
    before = page.evaluate(heights)
    page.add_style_tag(content=".headerlink { display: none !important }")
    assert page.evaluate(heights) == before


def test_copy_button(visit, served):
    page = visit("zh/04_data_parallel.html", site=served, permissions=["clipboard-read", "clipboard-write"])
    page.locator("#cell-split-law .cell_input").hover()
    page.locator("#cell-split-law .cell_input button.copybtn").click()
    assert page.evaluate("navigator.clipboard.readText()").startswith("import math\n\n\ndef split(rows, n):")
    assert not page.locator(".cell_output button.copybtn").count()


def test_copy_button_for_a_finger(visit):
    """It cannot hover, so the button is there, and large enough."""
    page = visit("en/04_data_parallel.html", viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    button = page.locator(".cell_input .copybtn").first
    assert float(button.evaluate("b => getComputedStyle(b).opacity")) > 0.5
    assert button.bounding_box()["width"] >= 32


@pytest.mark.parametrize("width", [390, 1280])
def test_the_menu_shows_the_page_that_one_reads(visit, width):
    page = visit("zh/explorer.html", viewport={"width": width, "height": 800})
    if width == 390:
        page.get_by_role("button", name="显示或隐藏全书目录").click()
    box = page.locator(".sidebar-tree [aria-current]").bounding_box()
    assert 0 < box["y"] < 800


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
    page.set_viewport_size({"width": 718, "height": 1047})  # that sheet within its margins
    page.emulate_media(media="print")
    heights = "boxes => boxes.map((box) => box.clientHeight)"
    whole = page.locator("article pre").evaluate_all(heights)
    page.add_style_tag(content="article pre { white-space: pre !important; }")
    assert page.locator("article pre").evaluate_all(heights) == whole, "no line of code is broken"
    examples = re.findall(r"^(\[.*\])\n# (\[.*\])$", page.locator("article").inner_text(), re.MULTILINE)
    assert len(examples) == 2
    for code, result in examples:
        assert eval(code, {"torch": torch}) == eval(result)


@pytest.mark.parametrize("edition, button", [("en", "Toggle site navigation sidebar"), ("zh", "显示或隐藏全书目录")])
def test_menu_of_a_narrow_page_by_keyboard(visit, edition, button):
    """Finding 12 of the site's review: only a finger could open it, and the tab key walked its invisible links."""
    page = visit(f"{edition}/04_data_parallel.html", viewport={"width": 390, "height": 800})
    menu = page.get_by_role("button", name=button)
    inside = "document.activeElement.closest('.sidebar-drawer, .toc-drawer') !== null"
    for _ in range(8):
        page.keyboard.press("Tab")
        assert not page.evaluate(inside)
    menu.focus()
    assert menu.get_attribute("aria-expanded") == "false"
    page.keyboard.press("Enter")
    assert menu.get_attribute("aria-expanded") == "true" and page.evaluate(inside)
    page.keyboard.press("Escape")
    assert menu.get_attribute("aria-expanded") == "false" and menu.evaluate("m => m === document.activeElement")


def test_contents_of_a_page_by_keyboard(visit):
    page = visit("en/04_data_parallel.html", viewport={"width": 1280, "height": 800})
    button = page.get_by_role("button", name="Toggle table of contents sidebar")
    button.focus()
    page.keyboard.press("Space")
    page.keyboard.press("Enter")  # on the first link of the contents
    assert "#" in page.url
    assert button.get_attribute("aria-expanded") == "false", "what was looked for is not covered"


def test_what_has_the_focus_is_seen(visit):
    page = visit("en/04_data_parallel.html")
    page.locator(".copybtn").first.focus()
    page.wait_for_function("getComputedStyle(document.activeElement).opacity === '1'")
    page.locator(".sidebar-search").focus()
    assert page.locator(".sidebar-search").evaluate("i => getComputedStyle(i).outlineStyle") != "none"


@pytest.mark.parametrize("edition, words", [("en", "chunk The rows of"), ("zh", "数据块 · chunk")])
def test_a_term_says_what_it_means(visit, edition, words):
    page = visit(f"{edition}/04_data_parallel.html")
    link = page.locator('article p:not(.page-note) a[href="glossary.html#term-chunk"]').first
    link.hover()
    page.locator(".meaning:popover-open", has_text=words).wait_for()
    page.mouse.move(0, 0)
    page.wait_for_function("document.querySelector('.meaning:popover-open') === null")
    page.keyboard.press("Tab")  # from here on, the focus shows
    link.focus()
    page.locator(".meaning:popover-open", has_text=words).wait_for()
    page.keyboard.press("Escape")
    assert page.locator(".meaning:popover-open").count() == 0
    assert words in page.locator(f"#{link.get_attribute('aria-describedby')}").text_content()


def test_a_term_on_a_phone_opens_at_the_first_tap_and_leads_on_at_the_second(visit):
    page = visit("zh/04_data_parallel.html", viewport={"width": 390, "height": 800}, has_touch=True)
    link = page.locator('article p:not(.page-note) a[href="glossary.html#term-chunk"]').first
    link.tap()
    box = page.locator(".meaning:popover-open").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    link.tap()
    page.wait_for_url("**/glossary.html#term-chunk")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("edition", EDITIONS)
def test_home_page_shows_the_idea_in_its_first_screen(visit, edition, width):
    """Finding 14 of the site's review: the first link to lesson 1 was 1,519 pixels down, the explorer 1,120."""
    page = visit(f"{edition}/index.html", viewport={"width": width, "height": 800})
    for element in (page.locator('.start a[href="01_device.html"]'), page.locator(".explorer-strip")):
        box = element.bounding_box()
        assert box["y"] + box["height"] < 800


def test_a_link_to_a_rule_shows_the_rule(visit):
    page = visit("en/index.html", reduced_motion="reduce")
    link = page.locator('a[href="04_data_parallel.html#split-law"]').first
    link.scroll_into_view_if_needed()
    page.wait_for_timeout(200)  # what scrolls hides it
    link.hover()
    page.locator(".meaning:popover-open", has_text="the last chunk may have fewer").wait_for()


@pytest.mark.parametrize("name", ["04_data_parallel", "12_hangs"])
def test_a_printed_lesson_is_whole(visit, name):
    """Findings 6 and 7 of the site's review: links over the text, code cut off, black figures, solutions folded."""
    page = visit(f"en/{name}.html", viewport={"width": 720, "height": 1000}, color_scheme="dark")
    page.emulate_media(media="print")
    assert not page.locator(".skip-to-content").is_visible()
    wide = "[...document.querySelectorAll('article pre')].filter(p => p.scrollWidth > p.clientWidth).length"
    assert page.evaluate(wide) == 0
    assert page.locator("article img").first.evaluate("i => getComputedStyle(i).filter") == "none"
    solutions = page.locator("article details:not(.hide, .notebook)")
    assert solutions.count() >= 2
    assert all(solution.evaluate("d => d.lastElementChild.checkVisibility()") for solution in solutions.all())
    assert not any(folded.is_visible() for folded in page.locator("article details.hide").all())


def test_code_that_scrolls_on_a_phone_says_so(visit):
    page = visit("en/04_data_parallel.html", viewport={"width": 390, "height": 844})
    scrolling = page.locator(".cell_input pre").filter(visible=True)
    grounds = scrolling.evaluate_all(
        "boxes => boxes.filter(b => b.scrollWidth > b.clientWidth).map(b => getComputedStyle(b).backgroundImage)"
    )
    assert len(grounds) > 5 and all("linear-gradient" in ground for ground in grounds)
