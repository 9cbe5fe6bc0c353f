"""Every lesson, as a reader meets it: alone in an empty folder, and with its exercises."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.alone import ALONE
from tests.conftest import EDITIONS, LESSONS, ROOT
from tests.notebook import cells, run_cells, solutions
from tests.wrong_answers import WRONG

PUBLISHED = json.loads((ROOT / "tests" / "published_results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("edition, name", ALONE)
def test_lesson_runs_alone(alone, edition, name):
    done = alone[edition, name]
    assert (done.returncode, done.stderr) == (0, "")
    outputs = [output for cell in done.outputs.values() for output in cell]
    assert outputs
    assert [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"] == []
    assert done.files == [f"{name}.ipynb"], "a lesson leaves nothing behind"


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("name", ["02_random_dataset", "04_data_parallel"])
def test_figures_keep_their_text_as_text(alone, edition, name):
    figures = [
        "".join(output["data"]["image/svg+xml"])
        for cell in alone[edition, name].outputs.values()
        for output in cell
        if "image/svg+xml" in output.get("data", {})
    ]
    assert figures
    for figure in figures:
        texts = "".join(re.findall(r"<text[^>]*>(.*?)</text>", figure, re.DOTALL))
        assert texts, "letters drawn as outlines need a font at execution, and boxes follow where it lacks one"
        assert bool(re.search("[\u4e00-\u9fff]", texts)) == (edition == "zh")


@pytest.mark.parametrize("edition, name", ALONE)
def test_a_lesson_prints_the_same_whenever_it_runs(alone, book, edition, name):
    executed = json.loads((book / "_build" / "run" / edition / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    for cell in executed:
        printed = "".join("".join(output.get("text", "")) for output in cell.get("outputs", []))
        assert printed == alone[edition, name].printed(cell["id"]), cell["id"]


def test_lessons_run_as_scripts(book, tmp_path):
    """Some of them, in English: the editions' code is the same but for words (see book/check.py)."""

    def run(name):
        script = book / "_build" / "html" / "en" / f"{name}.py"
        environment = {**os.environ, "MPLBACKEND": "agg", "PYTHONWARNINGS": "ignore:FigureCanvasAgg"}
        return subprocess.run(
            [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(run, ["01_device", "04_data_parallel", "09_cost"]):
            assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("name", LESSONS)
def test_solutions_pass_and_wrong_answers_do_not(answered, edition, name):
    exercises = [id for id in cells(edition, name) if re.fullmatch(r"exercise-\d+", id)]
    assert len(exercises) >= 2
    assert set(exercises) == set(solutions(edition, name)) == set(WRONG[name])

    for exercise in exercises:
        for suffix, mark in (("check", "练E"), ("solved", "✓"), ("wrong", "✗")):
            verdict = answered(edition, name).printed(f"{exercise}-{suffix}")
            assert len(verdict.splitlines()) == 1
            assert verdict[0] in mark, (exercise, suffix)


# Cells that several lessons need, repeated so that each lesson stands alone.
SHARED = ["figures", "virtual-devices"]


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("id", SHARED)
def test_copies_of_a_shared_cell_are_equal(edition, id):
    copies = {name: cells(edition, name)[id] for name in LESSONS if id in cells(edition, name)}
    assert copies
    assert len(set(copies.values())) == 1, list(copies)


@pytest.mark.parametrize("edition", EDITIONS)
def test_lesson_4_leaves_the_published_splits(edition):
    variables, _ = run_cells(edition, "04_data_parallel")
    splits = variables["splits"]
    assert list(splits) == [1, 2, 3, 8]
    assert splits[1] == PUBLISHED["no_or_one_gpu"]["replica_rows"]
    for count, published in PUBLISHED["gpus"].items():
        assert splits[int(count)] == published["replica_rows"]


@pytest.mark.parametrize("edition", EDITIONS)
def test_lesson_5_has_the_published_anatomy(edition):
    variables, _ = run_cells(edition, "05_four_steps")
    for rows, published in ((int(key), value) for key, value in PUBLISHED["anatomy"].items() if key.isdigit()):
        found = variables["anatomy"][rows]
        assert {key: found[key] for key in published if key in found} == {
            key: value for key, value in published.items() if not key.endswith("_returns")
        }
    assert type(variables["chunks"]).__name__ == PUBLISHED["anatomy"]["16"]["scatter_returns"]
    assert type(variables["outputs"]).__name__ == PUBLISHED["anatomy"]["16"]["apply_returns"]


def published_lines(published):
    inside, outside = (PUBLISHED["line_formats"][place].replace("\\t", "\t") for place in ("inside", "outside"))
    lines = [inside.replace("[R", f"[{rows}") for batch in published["replica_rows"] for rows in batch]
    return lines + [outside.replace("[B", f"[{batch}") for batch in PUBLISHED["parameters"]["batches"]]


def test_lesson_4_prints_the_published_lines():
    _, printed = run_cells("en", "04_data_parallel")
    cases = {"1": PUBLISHED["no_or_one_gpu"], **PUBLISHED["gpus"]}
    for count, published in cases.items():
        lines = printed[f"run-{count}"].splitlines()
        label = lines.pop(1 if "banner" in published else 0)
        assert label.startswith(("(virtual, on ", "(measured, on "))
        banner = [published["banner"]] if "banner" in published else []
        assert Counter(lines) == Counter(banner + published_lines(published))


def test_lesson_4_prints_the_same_sizes_in_chinese():
    printed = [run_cells(edition, "04_data_parallel")[1] for edition in EDITIONS]
    for count in (1, 2, 3, 8):
        english, chinese = (re.findall(r"torch\.Size\(.*?\)", output[f"run-{count}"]) for output in printed)
        assert Counter(english) == Counter(chinese)
        assert "模型内" in printed[1][f"run-{count}"]
