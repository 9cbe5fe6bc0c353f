"""The split explorer, in a browser."""

import re

import pytest
import torch

from tests.conftest import EDITIONS


def test_explorer_follows_the_law(visit):
    page = visit("en/explorer.html")
    splits = page.evaluate(
        """() => {
            const { split } = customElements.get("split-explorer");
            const range = (n) => Array.from({ length: n }, (_, i) => i + 1);
            return range(256).map((rows) => range(64).map((gpus) => split(rows, gpus)));
        }"""
    )
    for rows in range(1, 257):
        for gpus in range(1, 65):
            assert splits[rows - 1][gpus - 1] == [len(chunk) for chunk in torch.ones(rows).chunk(gpus)]


def test_the_slider_knows_numbers_beyond_its_fine_part(visit):
    """From 4096 rows, one step to the right and back led to 255."""
    page = visit("en/explorer.html#rows=4096&gpus=8")
    slider = page.locator("split-explorer input[type=range]").first
    slider.press("ArrowLeft")
    assert page.locator("split-explorer input[type=number]").first.input_value() == "4095"


@pytest.mark.parametrize("edition", EDITIONS)
def test_lesson_asks_who_gets_which_rows_before_the_explorer_tells(visit, edition):
    page = visit(f"{edition}/04_data_parallel.html")
    last_split_asked = page.locator("ask-box[data-name='04_data_parallel/run-8']")
    explorer = page.locator("split-explorer")
    assert last_split_asked.bounding_box()["y"] < explorer.bounding_box()["y"]


@pytest.mark.parametrize("edition, words", [("en", "GPUs at work: 5 of 8"), ("zh", "工作的 GPU：5 / 8")])
@pytest.mark.parametrize("name", ["explorer", "04_data_parallel"])
def test_explorer_by_keyboard_and_by_link(visit, edition, name, words):
    page = visit(f"{edition}/{name}.html")
    explorer = page.locator("split-explorer")
    rows = explorer.locator("input[type=number]").first
    rows.focus()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("9")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")  # over the slider to the number of GPUs
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("7")
    page.keyboard.press("Tab")  # and on to its slider
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**#rows=9&gpus=8&dim=1")
    assert explorer.get_by_text(words).is_visible()
    assert explorer.locator(".explorer-idle").count() == 3
    assert explorer.locator("td", has_text="(5, 2)").count() == 4

    linked = visit(f"{edition}/{name}.html#rows=9&gpus=8&dim=1").locator("split-explorer")
    for part in (".explorer-law", "table", ".explorer-strip"):
        assert linked.locator(part).inner_text() == explorer.locator(part).inner_text()
    assert linked.evaluate("e => e.getBoundingClientRect().top < innerHeight"), "the link leads to the explorer"


def test_explorer_survives_nonsense(visit):
    explorer = visit("en/explorer.html#rows=-3&gpus=999&dim=x").locator("split-explorer")
    assert explorer.get_by_text("GPUs at work: 1 of 64").is_visible()


@pytest.mark.parametrize("edition", EDITIONS)
def test_explorer_says_the_law_without_javascript(visit, edition):
    page = visit(f"{edition}/explorer.html", java_script_enabled=False)
    assert "c = ⌈B/n⌉" in page.locator("split-explorer").inner_text()
    asked = page.locator("article p", has_text=re.compile("Choose a batch|选定批次"))
    assert asked.count() == 1 and not asked.is_visible(), "there is nothing to choose"
    assert visit(f"{edition}/explorer.html").locator("article p", has_text=re.compile("Choose|选定")).first.is_visible()


@pytest.mark.parametrize(
    "edition, words",
    [
        ("en", "Rows in the batch: write a whole number from 1 to 4096; what is shown is for 12."),
        ("zh", "批次的行数：要写 1 到 4096 之间的整数；下面仍按 12 计算。"),
    ],
)
def test_explorer_says_what_does_not_count(visit, edition, words):
    """A reader's 0 counted as 1, and 5000 as 4096, without a word."""
    explorer = visit(f"{edition}/explorer.html").locator("split-explorer")
    rows, gpus = explorer.locator("input[type=number]").all()
    problem, law = explorer.locator("[role=alert]"), explorer.locator(".explorer-law")
    rows.fill("12")
    shown = law.inner_text()
    for typed in ("0", "", "-7", "2.5", "5000"):
        rows.fill(typed)
        rows.press("Enter")
        assert problem.inner_text() == words and rows.input_value() == typed
        assert rows.get_attribute("aria-invalid") == "true" and law.inner_text() == shown
    gpus.fill("4")
    assert problem.inner_text() == words, "what is wrong stays said until it is mended"
    rows.fill("1024")
    assert not problem.inner_text() and rows.get_attribute("aria-invalid") is None
    assert "1024" in law.inner_text() and explorer.locator(".explorer-gpu").count() == 4
    explorer.locator("input[type=range]").first.press("ArrowLeft")
    assert rows.input_value() == explorer.locator("input[type=range]").first.input_value()


def test_explorer_draws_where_the_address_cannot_be_written(visit):
    """Safari refuses after 100 changes in half a minute."""
    page = visit("en/explorer.html")
    page.evaluate("() => { history.replaceState = () => { throw new DOMException('too many'); }; }")
    rows = page.locator("split-explorer input[type=number]").first
    for number in range(10, 20):
        rows.fill(str(number))
    assert page.get_by_text("Chunk: ⌈19/8⌉ = 3").is_visible()


def test_explorer_says_once_what_has_changed(visit):
    page = visit("en/explorer.html")
    status = page.locator("split-explorer [role=status]")
    assert status.inner_text() == ""
    page.locator("split-explorer input[type=number]").first.fill("255")
    page.wait_for_url("**#rows=255*")
    assert status.inner_text() == "A size of 255, GPUs: 8. Chunks of 32, the last one of 31. GPUs at work: 8."
    assert page.get_by_text("Used: 255 / (8 × 32) = 99.6 %").is_visible()


@pytest.mark.parametrize("address, gpus", [("#gpus=3", "3"), ("#rows=10", "8")])
def test_half_an_address_leaves_the_rest_as_it_was(visit, address, gpus):
    explorer = visit(f"en/explorer.html{address}").locator("split-explorer")
    assert explorer.locator("input[type=number]").nth(1).input_value() == gpus


def test_what_is_typed_replaces_the_number_that_was_there(visit):
    """A new reader tapped the field, typed 10, and had 1010 rows."""
    page = visit("en/explorer.html", viewport={"width": 390, "height": 800}, has_touch=True)
    field = page.locator("input[type=number]").first
    field.tap()
    page.keyboard.type("12")
    assert field.input_value() == "12"
