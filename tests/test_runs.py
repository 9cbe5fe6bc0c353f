"""Runs as evidence: recorded, listed, compared, and shown beside the page's own."""

import json

import pytest
from bs4 import BeautifulSoup

from tests.conftest import EDITIONS, run_book, set_code
from tests.test_site import serving

CELL = ("04_data_parallel", "run-2")


@pytest.fixture
def recorded(repository):
    """The built book with its run recorded, under the name of a GPU that does not exist: a label, not a result."""
    assert "recorded: runs/cpu.json" in run_book(repository, "record", "run").stdout
    path = repository / "runs" / "cpu.json"
    run = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    for provenance in run["lessons"].values():
        provenance.update(gpus=["Made-up GPU"] * 2, executed="2025-01-02T03:04:05+00:00")
    (repository / "runs" / "made-up.json").write_text(json.dumps(run), encoding="utf-8")
    return repository


def page(repository, edition, name):
    return BeautifulSoup((repository / "_build" / "html" / edition / f"{name}.html").read_text("utf-8"), "html.parser")


def test_a_recorded_run_stands_beside_the_pages_own(recorded):
    assert run_book(recorded, "render").returncode == 0
    for edition, here in (("en", "This page"), ("zh", "本页")):
        groups = page(recorded, edition, CELL[0]).select(".runs")
        assert len(groups) == 4  # run(1), run(2), run(3), run(8)
        for group in groups:
            mine, other = group.select(".run")
            assert (mine["data-title"], other["data-title"]) == (here, "2 × Made-up GPU")
            assert "CPU" in mine.select_one(".run-name").text
            assert "2025-01-02" in other.select_one(".run-name").text
            assert mine.select_one("pre").text == other.select_one("pre").text != ""
        assert not page(recorded, edition, CELL[0]).select(".run-stale")


def test_what_was_recorded_from_an_older_cell_is_marked(recorded):
    set_code(recorded, *CELL, "run(2)\nprint()")
    done = run_book(recorded, "build")
    assert done.returncode == 0, done.stderr
    for edition, words in (("en", "Recorded from an older version of this cell."), ("zh", "旧版本")):
        assert f"note: runs/made-up.json: {edition}/{CELL[0]}, cell {CELL[1]}: recorded from an older" in done.stdout
        marks = page(recorded, edition, CELL[0]).select(".run-stale")
        assert len(marks) == 1 and words in marks[0].text
    assert "2 cells have changed since" in run_book(recorded, "runs").stdout


def test_runs_are_listed(recorded):
    said = run_book(recorded, "runs").stdout
    assert "run " in said and "CPU" in said
    assert "made-up" in said and "2 × Made-up GPU" in said and "2025-01-02" in said and "recorded" in said


def test_diff_names_the_one_cell_that_differs(recorded):
    same = run_book(recorded, "diff", "run", "made-up")
    assert (same.returncode, same.stdout) == (0, "cells that differ: 0\n")
    set_code(recorded, "03_model", "exercise-1", "answer = None\nprint('something else')", ["en"])
    assert run_book(recorded, "execute", "03_model", "--language", "en").returncode == 0
    before = recorded / "before"
    (recorded / "_build" / "run").rename(before)
    set_code(recorded, "03_model", "exercise-1", "answer = None\nprint('another thing')", ["en"])
    assert run_book(recorded, "execute", "--language", "en").returncode == 0
    done = run_book(recorded, "diff", str(before), "run")
    assert done.returncode == 1
    assert "en/03_model, cell exercise-1:" in done.stdout
    assert "-something else" in done.stdout and "+another thing" in done.stdout
    assert done.stdout.endswith("cells that differ: 1\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["diff", "run", "nowhere"], "error: no run is called nowhere; there are: run, made-up"),
        (["execute", "--gpus", "0,1000"], "error: --gpus 1000 asks for more GPUs than this machine shows"),
        (["build", "--gpus", "0,1"], "error: the pages show one run; for several GPU counts"),
    ],
)
def test_what_cannot_be(recorded, arguments, message):
    done = run_book(recorded, *arguments)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr
    assert not (recorded / "_build" / "runs").exists(), "nothing was executed"


def test_a_recorded_run_that_is_none(recorded):
    (recorded / "runs" / "broken.json").write_text("{}")
    done = run_book(recorded, "render")
    assert done.returncode == 1 and "error: runs/broken.json: not a recorded run" in done.stderr


def test_a_run_for_each_count_of_gpus(repository):
    """With the one count that every machine has, twice."""
    assert run_book(repository, "execute", "01_device", "--gpus", "0,0").returncode == 0
    run = json.loads((repository / "_build" / "runs" / "0-gpus" / "run.json").read_text(encoding="utf-8"))
    assert sorted(run["lessons"]) == ["en/01_device", "zh/01_device"]
    assert run_book(repository, "diff", "run", "0-gpus").stdout.endswith("cells that differ: 0\n")


def test_tabs(recorded, browser):
    assert run_book(recorded, "render").returncode == 0
    with serving(recorded / "_build" / "html") as address:
        context = browser.new_context()
        tab = context.new_page()
        tab.goto(f"{address}/en/04_data_parallel.html")
        panels = tab.locator(".run:visible")
        assert panels.count() == 4 and "CPU" in panels.first.inner_text()
        tab.locator(".runs").nth(1).get_by_role("tab", name="Made-up").click()
        assert panels.count() == 4 and all("2025-01-02" in text for text in panels.all_inner_texts())
        chosen = tab.locator('[role="tab"][aria-selected="true"]').nth(1)
        chosen.press("ArrowRight")  # from the last one to the first
        assert all("CPU" in text for text in panels.all_inner_texts())
        tab.locator('[role="tab"][aria-selected="true"]').nth(1).press("ArrowLeft")
        tab.goto(f"{address}/zh/09_cost.html")  # the choice holds on another page
        assert panels.count() and all("2025-01-02" in text for text in panels.all_inner_texts())
        context.close()
        plain = browser.new_context(java_script_enabled=False)
        without = plain.new_page()
        without.goto(f"{address}/en/04_data_parallel.html")
        assert without.locator(".run:visible").count() == 8
        plain.close()


def test_editions_compare_the_same_cells(repository):
    for edition in EDITIONS:
        tags = 0
        for path in (repository / "notebooks" / edition).glob("*.ipynb"):
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            tags += sum("compare" in cell["metadata"].get("tags", []) for cell in cells)
        assert tags >= 10
