"""What several test modules need: a copy of the repository, its built site, a browser."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from book.machine import WARM

pytest_plugins = ["tests.alone"]

ROOT = Path(__file__).resolve().parent.parent
EDITIONS = ("en", "zh")
MARK = "BOOK_UNDER_TEST"  # an environment variable, by which processes are found again
LESSONS = sorted(path.stem for path in (ROOT / "notebooks" / "en").glob("*.ipynb"))


def copy_repository(target):
    """A copy of the sources, without anything built."""
    ignore = shutil.ignore_patterns(".git", ".venv", "_build", "__pycache__", ".ipynb_checkpoints", "*.mo")
    shutil.copytree(ROOT, target, ignore=ignore)
    return target


def run_book(folder, *arguments, timeout=180, **environment):
    """`python -m book` in this copy of the repository, as a process."""
    command = [sys.executable, "-m", "book", *arguments]
    # The fewer modules are imported beforehand, the sooner the few cells of a test run.
    environment = {**os.environ, "COLUMNS": "160", "WARM_KERNEL_MODULES": "torch", MARK: str(folder), **environment}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout)


def processes_of(folder):
    """The processes that `run_book` has started for this copy, and all that these have started."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.fixture(scope="session")
def book(tmp_path_factory):
    """A copy of the repository in which the book has been built, once for all processes that run the tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "book" / "repository"
    folder.parent.mkdir(exist_ok=True)
    with FileLock(folder.parent / "lock"):
        if not folder.exists():
            from tests.alone import NO_NETWORK, answer_in

            answer_in(copy_repository(folder))
            (folder.parent / "sitecustomize.py").write_text(NO_NETWORK)
            environment = {"WARM_KERNEL_MODULES": ",".join(WARM), "PYTHONPATH": str(folder.parent)}
            built = run_book(folder, "build", timeout=600, **environment)
            (folder.parent / "said.txt").write_text(f"{built.returncode}\n{built.stdout}{built.stderr}")
    said = (folder.parent / "said.txt").read_text()
    assert said.startswith("0\n"), said
    return folder


@pytest.fixture
def repository(book, tmp_path):
    """A copy of the built book that a test may spoil."""
    return Path(shutil.copytree(book, tmp_path / "repository", symlinks=True))


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


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium."""
    from playwright.sync_api import Error, sync_playwright

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        try:
            flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
            chromium = playwright.chromium.launch(executable_path=found, args=flags)
        except Error as error:
            reason = f"no browser: {str(error).splitlines()[0]}"
            if os.environ.get("CI"):
                pytest.fail(reason)
            pytest.skip(reason)
        yield chromium
        chromium.close()
