"""The split explorer, in a browser."""

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


@pytest.mark.parametrize("edition, words", [("en", "GPUs at work: 5 of 8"), ("zh", "工作的 GPU：5 / 8")])
@pytest.mark.parametrize("name", ["explorer", "04_data_parallel"])
def test_explorer_by_keyboard_and_by_link(visit, edition, name, words):
    page = visit(f"{edition}/{name}.html")
    explorer = page.locator("split-explorer")
    rows = explorer.locator("input[type=number]").first
    rows.focus()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("9")
    for key in ("Tab", "Tab", "Tab"):  # over the slider to the number of GPUs, and on to its slider
        page.keyboard.press(key)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.url.endswith("#rows=9&gpus=8&dim=1")
    assert explorer.get_by_text(words).is_visible()
    assert explorer.locator(".explorer-idle").count() == 3
    assert explorer.locator("td", has_text="(5, 2)").count() == 4

    linked = visit(f"{edition}/{name}.html#rows=9&gpus=8&dim=1").locator("split-explorer")
    assert linked.inner_text() == explorer.inner_text()
    assert linked.evaluate("e => e.getBoundingClientRect().top < innerHeight"), "the link leads to the explorer"


def test_explorer_survives_nonsense(visit):
    explorer = visit("en/explorer.html#rows=-3&gpus=999&dim=x").locator("split-explorer")
    assert explorer.get_by_text("GPUs at work: 1 of 64").is_visible()


@pytest.mark.parametrize("edition", EDITIONS)
def test_explorer_says_the_law_without_javascript(visit, edition):
    page = visit(f"{edition}/explorer.html", java_script_enabled=False)
    assert "c = ⌈B/n⌉" in page.locator("split-explorer").inner_text()
