"""Step players: every step is what the notebook noted."""

import pytest

from book import asking
from tests.conftest import BOOK, EDITIONS
from tests.site.reading import LOOKS, soup, violations

CELLS = [(lesson.id, cell) for lesson in BOOK.lessons for cell in lesson.code if "player" in cell.metadata]
PLAYERS = pytest.mark.parametrize("id, cell", CELLS, ids=[f"{id}-{cell.id}" for id, cell in CELLS])


def test_there_are_players_in_each_edition():
    assert len(CELLS) >= 8 * len(EDITIONS)


SHOWN = """player => {
    const text = (place) => player.querySelector(place).innerText;
    const boxes = [...player.querySelectorAll('.player-devices section')];
    const words = (box, kind) => [...box.querySelectorAll(kind)].map((word) => word.innerText);
    const held = boxes.map((box) => [box.querySelector('b').innerText, words(box, 'i, mark'), words(box, 'mark')]);
    return [text('[role=status]'), text('.player-line'), held, text('.player-count')];
}"""


@PLAYERS
def test_every_step_is_what_the_notebook_noted(visit, run, id, cell):
    width, scheme = LOOKS[id.partition("/")[0]]
    (steps,) = asking.values_of(cell, run.cells[id][cell.id].outputs)["player"]
    address = f"{id}.html#player-{cell.id}?step=1"
    page = visit(address, viewport={"width": width, "height": 900}, color_scheme=scheme)
    player = page.locator(f"#player-{cell.id}")
    player.get_by_role("button").nth(2).focus()
    count = {"en": "picture {} of {}", "zh": "画面 {} / {}"}[id[:2]]
    for number, (sentence, line, held) in enumerate(steps, start=1):
        before = dict(steps[max(0, number - 2)][2])
        boxes = [[n, (now := words.split()), [w for w in now if w not in before[n].split()]] for n, words in held]
        assert player.evaluate(SHOWN) == [sentence, line, boxes, count.format(number, len(steps))]
        page.keyboard.press("ArrowRight")
    assert f"step={len(steps)}" in page.url
    for key, at in (("Home", 1), ("ArrowLeft", 1), ("End", len(steps)), ("ArrowLeft", len(steps) - 1)):
        page.keyboard.press(key)
        assert player.locator(".player-count").inner_text() == count.format(at, len(steps))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not violations(page, f"#player-{cell.id}")


def test_a_link_to_a_step_marks_what_that_step_changed(visit):
    """It marked what differs from the first one."""
    page = visit("en/10_distributed.html#player-ring?step=3", viewport={"width": 1280, "height": 900})
    linked = page.locator("#player-ring .player-devices").inner_html()
    page.locator("#player-ring button[value=back]").click()
    page.locator("#player-ring button[value=next]").click()
    assert page.locator("#player-ring .player-devices").inner_html() == linked
    assert page.locator("#player-ring mark").count() == 4, "each rank has added one part"


@PLAYERS
def test_the_table_has_every_step(html, run, id, cell):
    (steps,) = asking.values_of(cell, run.cells[id][cell.id].outputs)["player"]
    table = soup(html / f"{id}.html").select_one(f"#player-{cell.id} table")
    names = [th.text for th in table.select("thead th")][2:]
    assert names == [name for name, _ in steps[0][2]], "in the order of the notebook"
    rows = table.select("tbody tr")
    assert [[td.text for td in row.select("td")][1:] for row in rows] == [
        [words for _, words in held] for _, _, held in steps
    ]


@pytest.mark.parametrize("step", ["0", "99", "-1", "many", ""])
def test_odd_addresses(visit, step):
    id, cell = CELLS[0]
    page = visit(f"{id}.html#player-{cell.id}?step={step}")
    count = page.locator(f"#player-{cell.id} .player-count").inner_text()
    assert count.split()[1] == ("5" if step == "99" else "1")


def test_without_scripts_and_on_paper_there_is_the_table(browser, html):
    id, cell = CELLS[0]
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{html.as_uri()}/{id}.html")
    assert not page.locator(f"#player-{cell.id} .player").is_visible()
    assert page.locator(f"#player-{cell.id} table").is_visible()
    context.close()
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{html.as_uri()}/{id}.html")
    page.emulate_media(media="print")
    assert not page.locator(f"#player-{cell.id} .player").is_visible()
    assert page.locator(f"#player-{cell.id} table").evaluate("table => table.checkVisibility()")
    context.close()
