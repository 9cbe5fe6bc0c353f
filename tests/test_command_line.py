"""`python -m book` as its users meet it: as a process, given good and bad input."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from tests.conftest import EDITIONS, LESSONS, MARK, ROOT, processes_of, run_book


def edit(repository, edition, name, change):
    """Applies a change to the cells of a lesson."""
    path = repository / "notebooks" / edition / f"{name}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    change(notebook["cells"])
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


def set_code(repository, name, cell_id, code, editions=EDITIONS):
    def change(cells):
        cell = next(cell for cell in cells if cell["id"] == cell_id)
        cell["source"] = code.splitlines(keepends=True)

    for edition in editions:
        edit(repository, edition, name, change)


def notes_on_sources(repository):
    """What `check` notes, but for recorded runs, which may well be of older cells."""
    lines = run_book(repository, "check").stdout.splitlines()
    return [line for line in lines if not line.startswith("note: runs/")]


def site(repository):
    """The site as a dict: path -> bytes."""
    folder = repository / "_build" / "html"
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def spoiled(repository):
    """Builds a spoiled book: it must fail in good order. Returns what it said."""
    site_before = site(repository)

    def build(*arguments):
        done = run_book(repository, *(arguments or ("build",)))
        assert done.returncode == 1
        assert "Traceback" not in done.stdout + done.stderr
        assert site(repository) == site_before, "the last good site stays whole"
        assert not processes_of(repository), "no process is left behind"
        return done.stderr

    return build


def test_a_cell_that_raises(repository, spoiled):
    set_code(repository, "03_model", "run-model", "1 / 0")
    said = spoiled()
    for edition in EDITIONS:
        assert f"error: notebooks/{edition}/03_model.ipynb, cell run-model: ZeroDivisionError: division by zero" in said
        failed = repository / "_build" / "failed" / edition / "03_model.ipynb"
        outputs = {cell["id"]: cell.get("outputs") for cell in json.loads(failed.read_text(encoding="utf-8"))["cells"]}
        assert outputs["setup"] and outputs["run-model"][0]["ename"] == "ZeroDivisionError"


# Put on the path of the kernels: each ends at its start, as it does when another program has taken its port.
ENDS_AT_ITS_START = """
import os, sys
if "ipykernel_launcher" in " ".join(sys.orig_argv):
    tries = len(os.listdir({folder!r}))
    if tries < {times}:
        open({folder!r} + "/" + str(tries), "w").close()
        sys.stderr.write("Address already in use\\n")
        os._exit(1)
"""


@pytest.mark.parametrize("times", [2, 3])
def test_a_kernel_that_does_not_start_gets_three_tries(repository, tmp_path, times):
    tries, path = tmp_path / "tries", tmp_path / "path"
    tries.mkdir()
    path.mkdir()
    (path / "sitecustomize.py").write_text(ENDS_AT_ITS_START.format(folder=str(tries), times=times))
    set_code(repository, "03_model", "exercise-1", "answer = 15")
    done = run_book(repository, "execute", "03_model", "--language", "en", "--cold", PYTHONPATH=str(path))
    if times == 2:
        assert (done.returncode, "Address" in done.stderr) == (0, False)
    else:
        assert done.returncode == 1 and "Traceback" not in done.stderr
        said = "error: notebooks/en/03_model.ipynb: the kernel did not start: Address already in use"
        assert said in done.stderr


# Ignores what should end it, and so does what it has started, in a session of its own.
STUBBORN = """
import signal, subprocess, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen(["sleep", "12345"], start_new_session=True)
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("cold", [[], ["--cold"]])
def test_cells_that_misbehave(repository, spoiled, cold):
    config = repository / "_config.yml"
    limits = {"timeout: 120": "timeout: 7", "deadline: 300": "deadline: 15"}
    text = config.read_text(encoding="utf-8")
    for old, new in limits.items():
        text = text.replace(old, new)
    config.write_text(text, encoding="utf-8")
    cells = {
        "01_device": "while True:\n    print('x' * 1000)",
        "02_random_dataset": "input('Your name? ')",
        "03_model": "breakpoint()  # passed by\nimport pdb; pdb.set_trace()",
        "04_data_parallel": STUBBORN,
        "05_four_steps": "import os\nos._exit(1)",
    }
    for name, code in cells.items():
        set_code(repository, name, "setup", code)
    # Each cell in time, all of them not.
    for cell in ("setup", "figures", "data", "one-device"):
        set_code(repository, "06_gradients", cell, "import time\ntime.sleep(4)")
    said = spoiled("execute", *cells, "06_gradients", "--language", "en", *cold)
    for name, reason in {
        "01_device": "put out more than 1,000,000 characters",
        "02_random_dataset": "StdinNotImplementedError",
        "03_model": "StdinNotImplementedError",
        "04_data_parallel": "still running after 7 s",
        "05_four_steps": "the kernel died; did this cell exit, or run out of memory?",
    }.items():
        assert f"error: notebooks/en/{name}.ipynb, cell setup: {reason}" in said
    assert re.search(r"06_gradients.ipynb, cell [\w-]+: the lesson takes longer than 15 s in all", said)
    flood = json.loads((repository / "_build" / "failed" / "en" / "01_device.ipynb").read_text(encoding="utf-8"))
    assert len(json.dumps(flood)) < 1_500_000


def test_a_full_disk(repository, spoiled):
    """A limit on the size of files stands in for the end of the disk: writing fails in the same way."""
    set_code(repository, "03_model", "run-model", "print('x' * 100_000)")
    limit = f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({50_000}, {50_000}))"
    command = [
        sys.executable,
        "-c",
        f"{limit}; runpy.run_module('book', run_name='__main__')",
        "execute",
        "03_model",
        "--language",
        "en",
    ]
    run_before = (repository / "_build" / "run" / "run.json").read_bytes()
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ") and "File too large" in done.stderr
    assert (repository / "_build" / "run" / "run.json").read_bytes() == run_before
    assert not list((repository / "_build").rglob("*.part")), "half a file is left behind"


def test_two_builds_at_once(repository):
    started = repository / "started"
    set_code(repository, "03_model", "run-model", f"import time\nopen({str(started)!r}, 'w').close()\ntime.sleep(60)")
    command = [sys.executable, "-m", "book", "execute", "03_model"]
    first = subprocess.Popen(command, cwd=repository, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while not started.exists():
        assert first.poll() is None
        time.sleep(0.1)
    second = run_book(repository, "build")
    assert second.returncode == 1
    assert "error: another build is at work in this folder; wait until it has ended, or stop it" in second.stderr
    first.kill()
    first.communicate()
    assert run_book(repository, "render").returncode == 0, "the lock went with the process"


def test_a_locale_without_utf8(repository, book):
    plain = {"LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    assert run_book(repository, "execute", "03_model", "--force", **plain).returncode == 0
    for edition in EDITIONS:
        path = f"_build/run/{edition}/03_model.ipynb"
        assert (repository / path).read_bytes() == (book / path).read_bytes()
    assert run_book(repository, "render", **plain).returncode == 0


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


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_build(repository, how):
    site_before = site(repository)
    started = repository / "started"
    set_code(repository, "03_model", "run-model", f"import time\nopen({str(started)!r}, 'w').close()\ntime.sleep(60)")
    command = [sys.executable, "-m", "book", "build"]
    environment = {**os.environ, MARK: str(repository)}
    process = subprocess.Popen(
        command, cwd=repository, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not started.exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(how)
    _, said = process.communicate(timeout=30)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[how]
    assert "Traceback" not in said
    # A kernel whose parent was killed notices by itself, within seconds.
    deadline = time.monotonic() + 20
    while processes_of(repository) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not processes_of(repository)
    assert site(repository) == site_before


def test_a_damaged_cache_is_made_anew(repository):
    for entry in (repository / "_build" / "cache").iterdir():
        if json.loads(entry.read_text(encoding="utf-8"))["lesson"] == "en/03_model":
            entry.write_text("{")
    done = run_book(repository, "execute")
    assert done.returncode == 0
    fresh = [line for line in done.stdout.splitlines() if "03_model" in line and "unchanged" not in line]
    assert len(fresh) == 1 and " en " in fresh[0]


def test_nothing_changed_means_nothing_to_do(repository):
    before = site(repository)
    done = run_book(repository, "build")
    assert done.returncode == 0
    assert done.stdout.count("unchanged since") == 2 * len(LESSONS)
    assert "already rendered" in done.stdout
    assert site(repository) == before


def test_changed_prose_is_rendered_and_not_executed(repository):
    set_code(repository, "03_model", "any-model", "(any-model)=\n## It works for every model", ["en"])
    done = run_book(repository, "build")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("unchanged since") == 2 * len(LESSONS)
    assert b"It works for every model" in site(repository)["en/03_model.html"]
    # The translation is behind now: the author hears of it, and so does the reader.
    assert "note: notebooks/zh/03_model.ipynb, cell any-model: the English text has changed" in done.stdout
    assert "本页的英文版在翻译之后有改动" in site(repository)["zh/03_model.html"].decode()
    assert run_book(repository, "translated", "03_model", "any-model").returncode == 0
    assert notes_on_sources(repository) == []


def test_changed_comments_are_rendered_and_not_executed(repository):
    def change(cells):
        cell = next(cell for cell in cells if cell["id"] == "setup")
        cell["source"][0] = cell["source"][0].rstrip("\n") + "  # a remark made just now\n"

    for edition in EDITIONS:
        edit(repository, edition, "03_model", change)
    done = run_book(repository, "build")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("unchanged since") == 2 * len(LESSONS)
    assert b"a remark made just now" in site(repository)["en/03_model.html"]


def test_force_executes_what_has_not_changed(repository):
    done = run_book(repository, "execute", "01_device", "--force")
    assert done.returncode == 0 and "unchanged since" not in done.stdout


def test_a_changed_style_reaches_every_page(repository):
    """Sphinx by itself does not notice that only a style has changed."""
    with (repository / "book" / "static" / "book.css").open("a", encoding="utf-8") as changed:
        changed.write("/* changed just now */")
    before = site(repository)["zh/01_device.html"]
    assert run_book(repository, "build").returncode == 0
    after = site(repository)
    assert b"changed just now" in after["zh/_static/book.css"]
    assert before != after["zh/01_device.html"], "the page names the style with its checksum"


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


def test_warm_and_cold_builds_are_equal(book, repository):
    """The whole book byte for byte, notebooks, figures and site; run.json, which says when and how long, apart."""
    for made in ("cache", "stage", "sphinx", "html"):
        shutil.rmtree(repository / "_build" / made)
    done = run_book(repository, "execute", "--cold", "--language", "en", timeout=500)
    assert done.returncode == 0, done.stderr
    for name in LESSONS:
        path = f"_build/run/en/{name}.ipynb"
        assert (repository / path).read_bytes() == (book / path).read_bytes(), path
    shutil.copy(book / "_build" / "run" / "run.json", repository / "_build" / "run" / "run.json")
    assert run_book(repository, "render").returncode == 0
    before, after = site(book), site(repository)
    assert [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)] == []


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
