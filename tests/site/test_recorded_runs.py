"""What another machine has recorded stands beside the page's own output, in tabs."""

import pytest

from tests.conftest import BOOK
from tests.site.conftest import serving
from tests.site.reading import parse

LESSON, CELL = "02_total", "total"


EDITIONS = pytest.mark.parametrize(
    ("edition", "here", "older"),
    [("en", "This page", "Recorded from an older version of this cell."), ("zh", "本页", "修改之前")],
)


@EDITIONS
def test_a_recorded_run_stands_beside_the_pages_own(elsewhere, edition, here, older):
    groups = parse(elsewhere / edition / f"{LESSON}.html").select(".runs")
    assert len(groups) == 2
    for group in groups:
        mine, other = group.select(".run")
        assert (mine["data-title"], other["data-title"]) == (here, "2 × Made-up GPU")
        assert "2025-01-02" not in mine.select_one(".run-name").text
        assert "2025-01-02" in other.select_one(".run-name").text
        assert mine.select_one("pre").text == other.select_one("pre").text != ""


@EDITIONS
def test_what_was_recorded_from_an_older_cell_is_marked(elsewhere, edition, here, older):
    (mark,) = parse(elsewhere / edition / f"{LESSON}.html").select(".run-stale")
    assert older in mark.text
    assert mark.find_parent(class_="runs").find_previous(class_="cell", id=True)["id"] == f"cell-{CELL}"


def test_links_to_cells_with_tabs_lead_to_them(elsewhere):
    page = parse(elsewhere / "en" / f"{LESSON}.html")
    for id in ("cell-total", "cell-exercise-1-check"):
        assert page.find(id=id)


def test_tabs(elsewhere, browser):
    with serving(elsewhere) as address:
        context = browser.new_context()
        context.add_init_script("localStorage.setItem('show-all', 'true')")  # a prediction keeps back what follows
        tab = context.new_page()
        tab.goto(f"{address}/en/{LESSON}.html")
        panels = tab.locator(".run:visible")
        assert panels.count() == 2 and "2025-01-02" not in panels.first.inner_text()
        tab.locator(".runs").nth(1).get_by_role("tab", name="Made-up").click()
        assert panels.count() == 2 and all("2025-01-02" in text for text in panels.all_inner_texts())
        chosen = tab.locator('[role="tab"][aria-selected="true"]').nth(1)
        chosen.press("ArrowRight")  # from the last one to the first
        assert not any("2025-01-02" in text for text in panels.all_inner_texts())
        tab.locator('[role="tab"][aria-selected="true"]').nth(1).press("ArrowLeft")
        tab.goto(f"{address}/zh/{LESSON}.html")  # the choice holds in the other edition, too
        assert panels.count() and all("2025-01-02" in text for text in panels.all_inner_texts())
        context.close()
        plain = browser.new_context(java_script_enabled=False)
        without = plain.new_page()
        without.goto(f"{address}/en/{LESSON}.html")
        assert without.locator(".run:visible").count() == 4
        plain.close()


def test_the_home_page_says_that_no_machine_had_two_gpus():
    """True until such a run is recorded: then this sentence of the home pages is to go."""
    assert BOOK.recorded
    assert all(len(provenance.gpus) < 2 for run in BOOK.recorded for provenance in run.lessons.values())
    for edition, words in (("en", "None had two GPUs so far"), ("zh", "还没有一台装有 2 个或更多 GPU")):
        assert words in BOOK.editions[edition].pages["index"].raw


def test_the_home_page_says_which_lesson_no_gpu_has_run():
    """True until a run on a GPU has it: then these words of the home pages are to go."""
    on_gpus = [run.lessons for run in BOOK.recorded if any(provenance.gpus for provenance in run.lessons.values())]
    missing = {lesson.id for lesson in BOOK.lessons if not any(lesson.id in lessons for lessons in on_gpus)}
    assert missing == {"en/15_sharded_training", "zh/15_sharded_training"}
    for edition, words in (("en", "every lesson but the newest, [lesson 15]"), ("zh", "除了最新的[第 15 课]")):
        assert words in BOOK.editions[edition].pages["index"].raw
