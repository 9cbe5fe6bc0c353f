"""What the outputs of a lesson depend on. No kernel is started."""

from dataclasses import replace

import pytest

from book import execute
from book import machine as hardware
from book.model import BookError, Cell
from tests.unit.conftest import changed


@pytest.fixture
def machine(monkeypatch):
    """A machine without GPUs, wherever the tests run."""
    monkeypatch.setattr(execute, "gpus", lambda: [])
    monkeypatch.setattr(hardware, "gpus", lambda: [])


@pytest.fixture
def key(machine, small):
    """The key under which the result of a lesson is kept."""

    def find(book=small, id="en/01_count", **found):
        execution = execute.Execution(book)
        vars(execution).update(found)
        return execution.key(book.page(id))

    return find


def test_the_key_is_made_of_code_and_machine(key, small):
    assert key() == key()
    others = [
        key(id="zh/01_count"),
        key(changed(small, "en/01_count", count_rows="print(1)")),
        key(versions={"python": "3.99", "torch": "9"}),
        key(gpus=[hardware.Gpu("GPU-a", "A", "1")]),
        key(gpus=[hardware.Gpu("GPU-b", "A", "1")]),
        key(gpus=[hardware.Gpu("GPU-a", "A", "2")]),
    ]
    assert len({key(), *others}) == 1 + len(others)


def test_the_key_is_not_made_of_words_or_commits(key, small):
    assert key() == key(changed(small, "en/01_count", predict="Other words."))
    assert key() == key(changed(small, "en/01_count", count_rows=source_with_comment(small)))
    assert key() == key(commit="another")


def source_with_comment(book):
    source = next(cell for cell in book.page("en/01_count").cells if cell.id == "count-rows").source
    assert "# three of them" in source
    return source.replace("# three of them", "# just three")


def test_a_lesson_that_reads_its_own_source_depends_on_its_comments(small):
    book = changed(small, "en/01_count", words="import inspect\nprint(inspect.getsource(print))")
    other = changed(book, "en/01_count", count_rows=source_with_comment(small))
    codes = [execute.code_of(each.page("en/01_count")) for each in (book, other)]
    assert codes[0] != codes[1]


def test_the_order_of_cells_counts(small):
    lesson = small.page("en/01_count")
    assert execute.code_of(lesson) != execute.code_of(replace(lesson, cells=lesson.cells[::-1]))


def test_a_lesson_that_measures_time_runs_alone(small):
    lesson = small.page("en/01_count")
    assert not lesson.runs_alone
    assert replace(lesson, cells=(*lesson.cells, Cell("time", "code", "", {"tags": ["runs-alone"]}))).runs_alone


def test_limits_come_from_the_settings(machine, small):
    def limits(**settings):
        return execute.Execution(replace(small, config={"execute": settings or None})).limits

    assert limits(timeout=7, deadline=15, execute_notebooks="cache") == {"timeout": 7, "deadline": 15}
    assert limits(timeout=7) == {**hardware.LIMITS, "timeout": 7}
    assert limits() == hardware.LIMITS


def test_more_gpus_than_there_are(machine, small):
    with pytest.raises(BookError, match=r"--gpus 1 asks for more GPUs than this machine shows: 0 \(none\)"):
        execute.Execution(small, count=1)


@pytest.mark.parametrize("content", [None, "", "{", "{}", "[]", '{"lesson": "en/01_count"}', '"text"'])
def test_a_damaged_entry_of_the_cache_is_unknown(machine, small, content):
    execution = execute.Execution(small)
    lesson = small.page("en/01_count")
    execution.cache.mkdir(parents=True)
    if content is not None:
        (execution.cache / f"{execution.key(lesson)}.json").write_text(content)
    assert execution.known(lesson) is None


def test_results_that_nobody_used_are_forgotten(tmp_path):
    import os
    import time

    for name, days in (("old", execute.CACHE_DAYS + 1), ("new", 1)):
        (tmp_path / f"{name}.json").write_text("{}")
        os.utime(tmp_path / f"{name}.json", (time.time() - days * 86400,) * 2)
    execute.forget(tmp_path)
    assert os.listdir(tmp_path) == ["new.json"]
