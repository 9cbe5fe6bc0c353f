"""Runs: what is kept of them, when one may be recorded, and what differs between two."""

import json
from dataclasses import asdict, replace

import pytest

from book import asking, files, runs, sources
from book.model import BookError, Recorded, Result, Run
from tests.unit.conftest import changed


def result(lesson, provenance, **text):
    """A lesson as if executed: its code cells printed `text`, or their ids."""
    outputs = {
        cell.id: [{"output_type": "stream", "name": "stdout", "text": text.get(cell.id.replace("-", "_"), cell.id)}]
        for cell in lesson.code
    }
    return Result(lesson.id, "key", "code", provenance, outputs)


@pytest.fixture
def executed(small, provenance):
    """The small book with a run of all its lessons."""
    found = {lesson: result(lesson, provenance) for lesson in small.lessons}
    runs.write_run(small, runs.run_folder(small.root), found)
    return small


def run_of(book):
    return runs.from_folder(runs.run_folder(book.root))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("x = 1", "x = 1  # one", True),
        ("x = 1  # one\n# two\ny = 2", "x = 1\n#\ny = 2", True),
        ("x = '# no comment'", "x = '# another'", False),
        ("x = 1", "x = 2", False),
        ("x = 1\n\n# a\ny = 2", "x = 1\ny = 2", False),  # errors name line numbers
        ("x = (1", "x = (1  # a", False),  # not Python: nothing is removed
        ("", "# nothing", True),
    ],
)
def test_comments_do_not_count(one, other, same):
    assert (runs.code_hash(one) == runs.code_hash(other)) is same


def test_a_run_is_read_as_it_was_written(executed, provenance):
    run = run_of(executed)
    assert list(run.lessons) == [lesson.id for lesson in executed.lessons]
    assert all(found == provenance for found in run.lessons.values())
    kept = run.cells["zh/02_total"]["total"]
    cell = next(cell for cell in executed.page("zh/02_total").cells if cell.id == "total")
    assert kept == Recorded(runs.code_hash(cell.source), [{"output_type": "stream", "name": "stdout", "text": "total"}])
    assert runs.not_executed(executed, run) == []


def test_what_stays_the_same_keeps_its_date(executed, provenance):
    """By that Sphinx knows that its page need not be made anew."""
    folder = runs.run_folder(executed.root)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.rglob("*.*")}
    lesson = executed.page("en/01_count")
    runs.write_run(executed, folder, {lesson: result(lesson, provenance)})
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.rglob("*.*")} == before
    runs.write_run(executed, folder, {lesson: result(lesson, provenance, count_rows="other")})
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*.ipynb")}
    assert [path for path in after if after[path] != before[path][0]] == [folder / "en" / "01_count.ipynb"]


@pytest.mark.parametrize("content", ["", "{", None])
def test_a_record_that_cannot_be_read_is_none(executed, content):
    path = runs.run_folder(executed.root) / "run.json"
    path.unlink() if content is None else path.write_text(content)
    assert run_of(executed) is None
    with pytest.raises(BookError, match="no run is called run; there are: none"):
        runs.find(executed, "run")


@pytest.mark.parametrize("content", ["{}", '{"lessons": {"en/01_count": {}}}', "[]", '{"lessons": 3}'])
def test_a_record_of_another_form_is_none(executed, content):
    (runs.run_folder(executed.root) / "run.json").write_text(content)
    assert runs.not_executed(executed, run_of(executed)) == executed.lessons


@pytest.mark.parametrize("content", ["", "{", None])
def test_a_lesson_of_the_run_that_cannot_be_read_counts_as_not_executed(executed, provenance, content):
    path = runs.run_folder(executed.root) / "en" / "01_count.ipynb"
    path.unlink() if content is None else path.write_text(content)
    assert [lesson.id for lesson in runs.not_executed(executed, run_of(executed))] == ["en/01_count"]
    lesson = executed.page("zh/02_total")
    runs.write_run(executed, runs.run_folder(executed.root), {lesson: result(lesson, provenance, total="6")})
    assert [lesson.id for lesson in runs.not_executed(executed, run_of(executed))] == ["en/01_count"]


def test_a_lesson_with_other_code_is_not_executed(executed):
    book = changed(executed, "en/01_count", count_rows="rows = []\nprint(rows)")
    assert runs.not_executed(book, run_of(book)) == [book.page("en/01_count")]
    book = changed(executed, "en/01_count", predict="Other words.", count_rows="rows = [3, 1, 2]  # 3")
    assert runs.not_executed(changed(executed, "en/01_count", predict="Other words."), run_of(book)) == []


def test_a_lesson_that_has_left_the_book_leaves_the_run(executed, provenance):
    edition = executed.editions["zh"]
    pages = {name: page for name, page in edition.pages.items() if name != "02_total"}
    book = replace(executed, editions={**executed.editions, "zh": replace(edition, pages=pages)})
    runs.write_run(book, runs.run_folder(book.root), {})
    assert list(run_of(book).lessons) == ["en/01_count", "en/02_total", "zh/01_count"]


def test_record(executed):
    path = runs.record(executed, "run")
    assert path == executed.root / "runs" / "cpu.json"
    run = sources.load(executed.root).recorded[0]
    assert run.name == "cpu" and list(run.lessons) == ["en/01_count", "en/02_total", "zh/01_count", "zh/02_total"]
    assert {id: list(cells) for id, cells in run.cells.items()} == {"en/02_total": ["total"], "zh/02_total": ["total"]}
    assert runs.expected_seconds(replace(executed, recorded=[run]))["zh/01_count"] == 1.5


def test_a_recorded_run_of_another_execution_is_replaced_only_by_force(executed, provenance):
    path = runs.record(executed, "run")
    before = path.read_text("utf-8")
    runs.record(sources.load(executed.root), "run")
    assert path.read_text("utf-8") == before, "the same execution again"
    later = replace(provenance, executed="2026-02-03T04:05:06+00:00")
    found = {lesson: result(lesson, later) for lesson in executed.lessons}
    runs.write_run(executed, runs.run_folder(executed.root), found)
    book = sources.load(executed.root)
    said = r"^runs/cpu\.json: of another execution; to replace it: python -m book record run --force$"
    with pytest.raises(BookError, match=said):
        runs.record(book, "run")
    assert path.read_text("utf-8") == before
    runs.record(book, "run", force=True)
    assert later.executed in path.read_text("utf-8")


@pytest.mark.parametrize(
    ("gpus", "accelerator", "name"),
    [
        (["NVIDIA H200", "NVIDIA H200"], "cuda", "2-x-nvidia-h200"),
        ([], "mps", "mps"),
        ([], None, "cpu"),
    ],
)
def test_a_recorded_run_is_called_after_its_machine(small, provenance, gpus, accelerator, name):
    at = replace(provenance, gpus=gpus, accelerator=accelerator)
    runs.write_run(small, runs.run_folder(small.root), {lesson: result(lesson, at) for lesson in small.lessons})
    assert runs.record(small, "run").stem == name


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"commit": "0123456789ab+"},
            "run: executed while files differed from commit 0123456789ab; commit, then: python -m book execute --force",
        ),
        (
            {"commit": "ba9876543210"},
            r"run: executed at several commits \(0123456789ab, ba9876543210\); python -m book execute --force",
        ),
        ({"gpus": ["simulated GPU"] * 2}, "run: executed on 2 × simulated GPU; what simulated GPUs print is no result"),
        ({"gpus": ["A"]}, r"run: executed on several machines \(1 × A, CPU\); python -m book execute --force"),
    ],
)
def test_a_run_that_is_no_evidence_is_not_recorded(small, provenance, change, text):
    whole = "+" in change.get("commit", "") or "simulated GPU" in change.get("gpus", [])
    at = {
        lesson: replace(provenance, **change) if whole or lesson.number == 2 else provenance for lesson in small.lessons
    }
    runs.write_run(small, runs.run_folder(small.root), {lesson: result(lesson, at[lesson]) for lesson in small.lessons})
    with pytest.raises(BookError, match=text):
        runs.record(small, "run")
    assert not (small.root / "runs").exists()


def test_one_lesson_from_a_tree_with_changes_is_enough_to_refuse(small, provenance):
    """A commit, and the same commit with changes, are two."""
    dirty = replace(provenance, commit="0123456789ab+")
    found = {lesson: result(lesson, dirty if lesson.id == "zh/01_count" else provenance) for lesson in small.lessons}
    runs.write_run(small, runs.run_folder(small.root), found)
    with pytest.raises(BookError):
        runs.record(small, "run")


def test_a_run_outside_of_git_is_recorded(small, provenance):
    at = replace(provenance, commit=None)
    runs.write_run(small, runs.run_folder(small.root), {lesson: result(lesson, at) for lesson in small.lessons})
    assert runs.record(small, "run").exists()


def test_a_run_without_cells_to_compare(small, provenance):
    lesson = small.page("en/01_count")
    runs.write_run(small, runs.run_folder(small.root), {lesson: result(lesson, provenance)})
    with pytest.raises(BookError, match="run: none of its lessons has a cell with the tag compare"):
        runs.record(small, "run")


def test_stale_cells(executed):
    runs.record(executed, "run")
    book = sources.load(executed.root)
    (run,) = book.recorded
    assert runs.stale(book, run) == []
    other = "rows = [1]\nprint(add_up(rows))"
    assert runs.stale(changed(book, "zh/02_total", total=other), run) == [("zh/02_total", "total")]
    comment = next(c for c in book.page("zh/02_total").cells if c.id == "total").source + "  # sum"
    assert runs.stale(changed(book, "zh/02_total", total=comment), run) == []
    gone = Run(run.name, run.lessons, {**run.cells, "en/99_gone": run.cells["en/02_total"]})
    assert runs.stale(book, gone) == [("en/99_gone", "total")]


def recorded(**text):
    return {id: Recorded("", [{"output_type": "stream", "name": "stdout", "text": said}]) for id, said in text.items()}


def test_compare(small, provenance):
    lessons = {"en/a": provenance, "en/b": provenance}
    first = Run("one", lessons, {"en/a": recorded(x="1\n2\n", y="same"), "en/b": recorded(x="only here")})
    second = Run("two", lessons, {"en/a": recorded(x="1\n3\n", y="same", z="only there")})
    ((lesson, cell, difference),) = runs.compare(small, first, second)
    assert (lesson, cell) == ("en/a", "x")
    assert difference.splitlines()[:2] == ["--- one", "+++ two"] and difference.endswith(" 1\n-2\n+3")
    assert runs.compare(small, first, first) == []


def test_cells_that_measure_time_are_not_compared(small, provenance):
    lesson = small.page("en/01_count")
    first, second = (
        Run("run", {lesson.id: provenance}, {lesson.id: recorded(**{lesson.code[0].id: text})})
        for text in ("1 s", "2 s")
    )
    assert runs.compare(small, first, second) != []
    lesson.code[0].metadata["tags"] = ["runs-alone"]
    assert runs.compare(small, first, second) == []


def test_compare_looks_at_pictures_and_errors(small, provenance):
    def run(name, outputs):
        return Run(name, {"en/a": provenance}, {"en/a": {"x": Recorded("", [outputs])}})

    def picture(data):
        return {"output_type": "display_data", "metadata": {}, "data": {"image/png": data, "text/plain": ["<F>"]}}

    assert runs.compare(small, run("1", picture("abc")), run("2", picture("abc"))) == []
    assert runs.compare(small, run("1", picture("abc")), run("2", picture("xyz"))) != []
    error = {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["line one", "line two"]}
    assert runs.compare(small, run("1", error), run("2", {**error, "traceback": ["line one"]})) != []


def test_compare_looks_at_the_answers_that_a_cell_keeps(small, provenance):
    def run(*truths):
        return Run("run", {"en/a": provenance}, {"en/a": {"x": Recorded("", [asking.output([*truths])])}})

    assert runs.compare(small, run([10, 2], True, "sum"), run([10, 2], True, "sum")) == []
    assert runs.compare(small, run([10, 2], True, "sum"), run([10, 3], True, "sum")) != []
    assert (
        runs.compare(small, run([10, 2]), Run("recorded", {"en/a": provenance}, {"en/a": {"x": Recorded("", [])}}))
        == []
    )


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"lessons": {"en/a": {}}, "cells": {}}'])
def test_a_recorded_run_that_is_none(folder, content):
    (folder / "runs").mkdir()
    (folder / "runs" / "broken.json").write_text(content)
    with pytest.raises(BookError, match=r"^runs/broken\.json: not a recorded run: "):
        sources.load(folder)


def test_a_run_is_found_by_name_and_by_path(executed):
    runs.record(executed, "run")
    book = sources.load(executed.root)
    for name in ("run", str(runs.run_folder(book.root))):
        assert runs.find(book, name).name == "run"
    for name in ("cpu", str(book.root / "runs" / "cpu.json")):
        assert runs.find(book, name).name == "cpu"
    with pytest.raises(BookError, match="no run is called gpu; there are: run, cpu"):
        runs.find(book, "gpu")


def test_cells_that_write_to_stderr(small, provenance):
    lesson = small.page("en/01_count")
    found = result(lesson, provenance)
    found.outputs["count-rows"].append({"output_type": "stream", "name": "stderr", "text": "careful"})
    assert [(noisy.id, cell.id) for noisy, cell in runs.noisy({lesson: found})] == [("en/01_count", "count-rows")]


def test_results_survive_json(small, provenance):
    before = result(small.page("en/01_count"), replace(provenance, gpus=["A", "B"]))
    assert runs.result_from(json.loads(files.json_text(asdict(before)))) == before
