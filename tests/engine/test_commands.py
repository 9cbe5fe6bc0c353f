"""`python -m book` as its users meet it: what it says, what it refuses, and what it leaves alone."""

import json
import os
import shutil
from base64 import b64decode

import pytest
from bs4 import BeautifulSoup

from tests.engine.conftest import EDITIONS, TESTS, changed, commit

OUTPUT = {"output_type": "stream", "name": "stdout", "text": ["an old output\n"]}


def leave_outputs(book):
    """A save of an editor that has run the cells."""
    path = book.path("en", "01_count.ipynb")
    notebook = json.loads(path.read_text("utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[OUTPUT], execution_count=7)
    notebook["metadata"]["language_info"]["version"] = "3.99"
    path.write_text(json.dumps(notebook), "utf-8")


def test_outputs_of_an_editor_stop_no_build_and_check_refuses_them(book):
    before = book.site()
    leave_outputs(book)
    untidy = (
        "notebooks/en/01_count.ipynb: has outputs, or is not as tidy writes it; before you commit: python -m book tidy"
    )
    out = book.good("build")
    assert f"note: {untidy}" in out and "lessons: 0 executed, 4 unchanged" in out
    assert changed(before, book.site()) == [], "the site shows what the run has put out"
    assert book.bad("check") == f"error: {untidy}\n"
    assert book.good("tidy") == "wrote: notebooks/en/01_count.ipynb\n"
    assert book.good("check") == ""


def test_an_execution_says_where_its_outputs_are(book):
    last = book.good("execute", "02_total", "--edition", "zh").splitlines()[-1]
    assert last.startswith("outputs: ") and (book.folder / last.split()[1]).is_file()


def test_a_picture_that_is_no_svg(book):
    dot = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=")
    for edition in EDITIONS:
        book.path(edition, "dot.png").write_bytes(dot)
        with book.path(edition, "index.md").open("a", encoding="utf-8") as page:
            page.write("\n![A dot](dot.png)\n")
    book.good("build")
    page = BeautifulSoup(book.page("en/index.html"), "html.parser")
    assert page.select_one("img[alt='A dot']")["src"] == "_images/dot.png"
    assert "_images/dot.png" in {path.removeprefix("en/") for path in book.site()}


def test_what_goes_to_stderr_is_noted(book):
    code = "import warnings\nwarnings.warn('careful')\nprint('as ever')"
    book.set_cell("count-rows", code)
    out = book.good("execute", "01_count")
    for edition in EDITIONS:
        assert f"note: notebooks/{edition}/01_count.ipynb, cell count-rows: writes to stderr" in out
    assert "cell words" not in out
    assert "writes to stderr" in book.good("execute", "01_count"), "and again, when nothing is executed"


def test_a_build_writes_nothing_among_the_sources(book):
    def files():
        return {
            path for path in book.folder.rglob("*") if "_build" not in path.parts and path.suffix not in (".mo", ".pyc")
        }

    before = files()
    book.good("build", "--force")
    assert {path for path in files() - before if path.name != "__pycache__"} == set()


@pytest.mark.parametrize("case", ["other-code", "toc-fiel", "half-a-notebook", "dead-links", "config-not-yaml"])
def test_broken_sources_stop_a_build(book, case):
    """What is said of each of them is tested without a process: tests/data/bad.yml."""
    shutil.copytree(TESTS / "data" / "bad" / case, book.folder, dirs_exist_ok=True)
    said = book.bad("build")
    assert said and all(line.startswith("error: ") for line in said.splitlines())


def test_a_warning_of_jupyter_book_stops_a_build(book):
    book.set_cell("rule", "(total-rule)=\n## Rule\n\n[the total](#total)\n\n```{nonsense}\n```", "02_total")
    said = book.bad("build")
    assert "notebooks/en/02_total.ipynb" in said and "nonsense" in said
    assert str(book.folder) not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["execute", "01_cuont"], "error: no lesson is called 01_cuont; did you mean 01_count?"),
        (["execute", "--edition", "fr"], "error: no edition is called fr; there are: en, zh"),
        (["execute", "--gpus", "0,1000"], "error: --gpus 1000 asks for more GPUs than this machine shows"),
        (["build", "--gpus", "0,1"], "error: the pages show one run; for several GPU counts"),
        (["diff", "run", "nowhere"], "error: no run is called nowhere; there are: run"),
        (["translated", "indexes"], "error: no lesson or page is called indexes; did you mean index?"),
        (["new", "02_total", "--like", "01_count"], "error: 02_total: the next lesson is called 03_name"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be(book, arguments, said):
    assert book.bad(*arguments).startswith(said)
    assert not (book.folder / "_build" / "runs").exists(), "nothing was executed"


@pytest.mark.parametrize("name", ["timeout: 120", "deadline: 300"])
def test_a_time_limit_that_is_no_number(book, name):
    book.replace("_config.yml", name, f"{name.partition(':')[0]}: fast")
    said = f"error: _config.yml: execute.{name.partition(':')[0]} must be number\n"
    for command in ("execute", "check", "build"):
        assert book.bad(command) == said


@pytest.mark.parametrize("gpus", ["1,2", "all"])
def test_results_on_simulated_gpus_are_none(book, gpus):
    said = book.bad("execute", "--gpus", gpus, SIMULATED_GPUS="2")
    assert said.startswith("error: --gpus ") and said.endswith(
        "simulated GPUs print is no result; unset SIMULATED_GPUS\n"
    )
    assert not (book.folder / "_build" / "runs").exists(), "nothing was executed"


def test_pages_show_nothing_of_simulated_gpus(book):
    record = book.folder / "_build" / "run" / "run.json"
    content = json.loads(record.read_text("utf-8"))
    next(iter(content["lessons"].values()))["gpus"] = ["simulated GPU"]
    record.write_text(json.dumps(content), "utf-8")
    assert "executed on simulated GPUs, whose outputs are no results" in book.bad("render")


def test_arguments_that_nobody_knows(book):
    for arguments in (["execute", "--gpus", "many"], ["bake"], ["execute", "--edition"]):
        done = book.run(*arguments)
        assert done.code == 2 and "Traceback" not in done.err and "Error: " in done.err


def test_help_names_every_command(book):
    said = book.good("--help")
    for command in "build check diff execute new record render rename-cell runs serve tidy translated try".split():
        assert f"\n  {command} " in said


@pytest.fixture
def two_gpus(book):
    """A machine with two GPUs, as its nvidia-smi and the stand-in for PyTorch say. They stand in for the count."""
    tool = book.folder / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'GPU-aa, Made-up, 1.0'\necho 'GPU-bb, Made-up, 1.0'\n")
    tool.chmod(0o755)
    return {"PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb"}


def test_a_run_for_each_count_of_gpus(book, two_gpus):
    assert "--gpus 3 asks for more GPUs than this machine shows: 2 (Made-up, Made-up)" in book.bad(
        "execute", "--gpus", "0,3", **two_gpus
    )
    run = book.record()
    book.good("execute", "02_total", "--gpus", "0,2", **two_gpus)
    assert book.record() == run, "the run of the pages is another one"
    for count, names in ((0, []), (2, ["Made-up GPU-aa", "Made-up GPU-bb"])):
        folder = book.folder / "_build" / "runs" / f"{count}-gpus"
        found = json.loads((folder / "run.json").read_text("utf-8"))["lessons"]
        assert sorted(found) == ["en/02_total", "zh/02_total"]
        assert {tuple(lesson["gpus"]) for lesson in found.values()} == {tuple(names)}
        assert {lesson["driver"] for lesson in found.values()} == {"1.0" if count else None}
    assert book.good("diff", "0-gpus", "2-gpus") == "cells that differ: 0\n"
    said = book.good("runs")
    assert "0-gpus" in said and "2 × Made-up GPU-aa" in said


def test_record_wants_one_commit_without_changes(committed):
    book = committed
    refused = "run: executed while files differed from commit"
    assert "recorded: runs/cpu.json" in book.good("record", "run"), "it was executed outside of git"
    (book.folder / "runs" / "cpu.json").unlink()
    book.set_cell("count-rows", "print('first')")
    book.good("execute", "--force")
    assert refused in book.bad("record", "run")
    commit(book)
    assert refused in book.bad("record", "run"), "it does not help to commit afterwards"
    book.good("execute", "01_count", "--force")
    assert "run: executed at several commits" in book.bad("record", "run")
    assert not (book.folder / "runs" / "cpu.json").exists()
    book.good("execute", "--force")
    book.good("record", "run")
    assert "recorded" in book.good("runs")
    book.good("execute", "--force")
    assert book.bad("record", "run").startswith("error: runs/cpu.json: of another execution; to replace it: ")
    book.good("record", "run", "--force")
    kept = json.loads((book.folder / "runs" / "cpu.json").read_text("utf-8"))
    assert {id: list(cells) for id, cells in kept["cells"].items()} == {
        "en/02_total": ["total"],
        "zh/02_total": ["total"],
    }
    # A recorded cell whose code changes is noted, and counted.
    book.set_cell("total", "rows = [3]\nprint(add_up(rows))", "02_total")
    assert "note: runs/cpu.json: en/02_total, cell total: recorded from an older version of the cell" in book.good(
        "check"
    )
    assert "2 cells have changed since" in book.good("runs")


def test_diff_names_the_one_cell_that_differs(book):
    shutil.copytree(book.folder / "_build" / "run", book.folder / "before")
    book.set_cell("count-rows", "print('another thing')", editions=["zh"])
    book.good("execute", "01_count", "--edition", "zh")
    done = book.run("diff", "before", "run")
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith("zh/01_count, cell count-rows:\n--- before\n+++ run\n")
    assert "-行数: 3\n+another thing\n" in done.out and done.out.endswith("cells that differ: 1\n")


def test_runs_without_a_lesson_are_passed_over(book):
    (book.folder / "_build" / "run" / "run.json").write_text('{"lessons": {}}')
    (book.folder / "runs").mkdir(exist_ok=True)
    (book.folder / "runs" / "empty.json").write_text('{"lessons": {}, "cells": {}}')
    assert "empty" not in book.good("runs")


def test_a_port_that_cannot_be(book):
    done = book.run("serve", "--port", "80000")
    assert done.code == 2 and "80000 is not in the range" in done.err
