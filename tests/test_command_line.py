"""`python -m book` as its users meet it: as a process, given good and bad input."""

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.conftest import EDITIONS, LESSONS, ROOT, edit, notes_on_sources, run_book, set_code, site


def test_a_cell_that_raises(repository, spoiled):
    set_code(repository, "03_model", "run-model", "1 / 0")
    said = spoiled()
    for edition in EDITIONS:
        assert f"error: notebooks/{edition}/03_model.ipynb, cell run-model: ZeroDivisionError: division by zero" in said
        failed = repository / "_build" / "failed" / edition / "03_model.ipynb"
        outputs = {cell["id"]: cell.get("outputs") for cell in json.loads(failed.read_text(encoding="utf-8"))["cells"]}
        assert outputs["setup"] and outputs["run-model"][0]["ename"] == "ZeroDivisionError"


def test_a_build_writes_nothing_among_the_sources(book):
    def files(folder):
        left_out = {"_build", "__pycache__", ".git", ".venv", ".pytest_cache", ".ruff_cache"}
        paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        return {path for path in paths if not left_out & set(path.parts) and path.suffix not in (".mo", ".pyc")}

    assert files(book) <= files(ROOT)


@pytest.mark.parametrize("text", [b"{not json", b"[]", b'{"cells": [{}]}', "é".encode("latin-1")])
def test_a_notebook_that_is_none(repository, spoiled, text):
    (repository / "notebooks" / "en" / "03_model.ipynb").write_bytes(text)
    assert "error: notebooks/en/03_model.ipynb: not " in spoiled()


def test_a_lesson_in_the_toc_without_a_file(repository, spoiled):
    with (repository / "_toc.yml").open("a") as toc:
        toc.write("  - file: notebooks/en/99_missing\n")
    said = spoiled()
    assert "error: notebooks/en/99_missing.ipynb: no such file, though _toc.yml names it" in said
    assert "error: notebooks/zh/99_missing.ipynb: no such file, though _toc.yml names it" in said


def test_a_file_without_a_toc_entry(repository, spoiled):
    (repository / "notebooks" / "en" / "05_extra.ipynb").write_text("{}")
    assert "error: notebooks/en/05_extra.ipynb: not in _toc.yml" in spoiled()


def test_an_edition_that_lacks_a_lesson(repository, spoiled):
    (repository / "notebooks" / "zh" / "02_random_dataset.ipynb").unlink()
    assert "error: notebooks/zh/02_random_dataset.ipynb: no such file" in spoiled()


def test_a_toc_that_is_no_yaml(repository, spoiled):
    (repository / "_toc.yml").write_text("root: [")
    assert "error: _toc.yml: not valid YAML" in spoiled()


def test_pairs_with_other_cells(repository, spoiled):
    edit(repository, "zh", "03_model", lambda cells: cells.pop(2))
    assert "error: notebooks/*/03_model.ipynb, cell model: only in the English edition" in spoiled()


def test_pairs_in_another_order(repository, spoiled):
    edit(repository, "zh", "03_model", lambda cells: cells.insert(3, cells.pop(2)))
    assert "error: notebooks/*/03_model.ipynb: the cells are not in the same order" in spoiled()


def test_pairs_with_other_code(repository, spoiled):
    set_code(repository, "03_model", "run-model", "print('hello')", ["en"])
    assert "error: notebooks/*/03_model.ipynb, cell run-model: the code differs" in spoiled()


def test_pairs_may_differ_in_words(repository):
    set_code(repository, "03_model", "fixed-size", "x = 1  # one\nprint('one', f'{x} and {x + 1}')", ["en"])
    set_code(repository, "03_model", "fixed-size", "x = 1  # 一\nprint('一', f'{x + 1} 和 {x}')", ["zh"])
    assert run_book(repository, "check").returncode == 0


@pytest.mark.parametrize("english", ["(model-rule)=\n## The rule", "(rule)=\n[4](04_data_parallel.ipynb)"])
def test_pairs_with_other_labels_or_links(repository, spoiled, english):
    set_code(repository, "03_model", "rule", english, ["en"])
    set_code(repository, "03_model", "rule", "(rule)=\n## 规则", ["zh"])
    said = spoiled()
    assert "cell rule: the labels differ" in said or "cell rule: the links differ" in said


def test_a_link_that_leads_nowhere(repository, spoiled):
    text = "[gone](99_gone.ipynb) [nowhere](#nowhere) [lost](04_data_parallel.ipynb#cell-lost)"
    set_code(repository, "03_model", "rule", text)
    said = spoiled()
    assert "error: notebooks/zh/03_model.ipynb, cell rule: no file 99_gone.ipynb" in said
    assert "error: notebooks/zh/03_model.ipynb, cell rule: no label nowhere" in said
    assert "cell rule: nothing is called cell-lost in 04_data_parallel.ipynb" in said


def test_outputs_in_a_committed_notebook(repository, spoiled):
    def change(cells):
        cell = next(cell for cell in cells if cell["id"] == "setup")
        cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["hello\n"]}]
        cell["metadata"]["collapsed"] = True

    edit(repository, "en", "03_model", change)
    assert "error: notebooks/en/03_model.ipynb, cell setup: has outputs; run: python -m book tidy" in spoiled()
    assert run_book(repository, "tidy", "03_model").returncode == 0
    assert notes_on_sources(repository) == []


def test_more_gpus_than_there_are(spoiled):
    assert "--gpus 1000 asks for more GPUs than this machine shows" in spoiled("execute", "--gpus", "1000")


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """A machine whose nvidia-smi lists two GPUs. It stands in for the count, never for a result."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU-aa, NVIDIA Test, 1.0'\necho 'GPU-bb, NVIDIA Test, 1.0'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_gpus_are_counted_as_cuda_shows_them(two_gpus, spoiled, monkeypatch):
    assert "--gpus 3 asks for more GPUs than this machine shows: 2 (NVIDIA Test, NVIDIA Test)" in spoiled(
        "execute", "--gpus", "3"
    )
    for shown, count in (("1", 1), ("GPU-bb", 1), ("1,0", 2), ("0,7,1", 1), ("", 0), ("-1", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        assert f"than this machine shows: {count} (" in spoiled("execute", "--gpus", "3")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a PyTorch that sees no GPU")
def test_a_pytorch_that_does_not_see_the_gpus(two_gpus, spoiled):
    said = spoiled("execute", "03_model", "--gpus", "2")
    assert "error: 2 GPUs were asked for, but torch" in said
    assert "sees 0; is it a build without CUDA?" in said


def test_a_lesson_that_does_not_exist(spoiled):
    assert "error: no lesson is called 42_answer; there are: 01_device" in spoiled("execute", "42_answer")


def test_a_warning_of_jupyter_book(repository, spoiled):
    set_code(repository, "03_model", "rule", "(model-rule)=\n## A rule\n\n```{nonsense}\n```")
    said = spoiled()
    assert "notebooks/en/03_model.ipynb" in said and "nonsense" in said


def test_execute_one_lesson_of_one_edition(repository):
    set_code(
        repository,
        "03_model",
        "setup",
        "import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader, Dataset\ndevice = 'cpu'",
    )
    done = run_book(repository, "execute", "03_model", "--language", "zh", "--gpus", "0")
    assert done.returncode == 0, done.stderr
    assert "zh" in done.stdout and " en " not in done.stdout
    run = json.loads((repository / "_build" / "run" / "run.json").read_text(encoding="utf-8"))
    assert len(run["lessons"]) == 2 * len(LESSONS), "the other lessons stay in the run"
    assert run["lessons"]["zh/03_model"]["gpus"] == []


def test_render_needs_a_run(repository):
    (repository / "_build" / "run" / "run.json").unlink()
    done = run_book(repository, "render")
    assert (done.returncode, done.stderr) == (1, "error: nothing has been executed yet; run: python -m book execute\n")


def test_help_teaches(book):
    for command in ((), ("execute",), ("render",), ("build",), ("serve",), ("check",)):
        done = run_book(book, *command, "--help")
        assert done.returncode == 0 and "python -m book" in done.stdout
    assert "python -m book execute --gpus 2" in run_book(book, "--help").stdout


def test_plain_jupyter_book_gives_the_english_edition(repository):
    toc = repository / "_toc.yml"
    whole = toc.read_text(encoding="utf-8")
    kept = [line for line in whole.splitlines() if "/en/0" not in line or "04_data_parallel" in line]
    toc.write_text("\n".join(line for line in kept if "/en/1" not in line), encoding="utf-8")  # one lesson: it is slow
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", "."]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    page = (repository / "_build" / "html" / "notebooks" / "en" / "04_data_parallel.html").read_text(encoding="utf-8")
    assert "use 8 GPUs!" in page
    # It puts a page of its own in the place of ours, and the next build puts that right.
    toc.write_text(whole, encoding="utf-8")
    assert "rendered" in run_book(repository, "build").stdout
    assert b"zh/index.html" in site(repository)["index.html"]
