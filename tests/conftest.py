"""What the tests of the real book share: its lessons, executed once, and the book as it ships."""

import gc
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from book import files, runs, sources
from tests.appended import append, without_appended

# Tests, and the kernels that they start, have more threads than cores: those of OpenMP are to sleep while they wait.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_configure(config):
    """GPUs are for `make gpu-check`: from a process that has used one, no ranks can be forked."""
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(wrapper=True)
def pytest_xdist_auto_num_workers():
    """One more than there are cores: many tests wait for processes to end, and compute nothing."""
    return (yield) + 1


def pytest_collection_finish():
    """What is imported by now stays: the collector need not look at it again, nor copy it in forked processes."""
    gc.freeze()
    gc.set_threshold(50_000)  # nor look so often at the rest: parsing pages makes many objects


ROOT = Path(__file__).resolve().parent.parent
BOOK = sources.load(ROOT)
EDITIONS = list(BOOK.editions)
NAMES = [lesson.name for lesson in BOOK.source.lessons]
LESSONS = [lesson.id for lesson in BOOK.lessons]  # en/01_device and so on

# Put on the path of the kernels: whatever leaves this machine fails.
NO_NETWORK = """
import socket
connect = socket.socket.connect
def local_only(self, address):
    if self.family in (socket.AF_INET, socket.AF_INET6) and not str(address[0]).startswith(("127.", "::1", "localhost")):
        raise OSError(f"no network in this test: {address}")
    return connect(self, address)
socket.socket.connect = local_only
"""


def copy_repository(target):
    """A copy of the sources, without anything built."""
    ignore = shutil.ignore_patterns(".git", ".venv", "_build", "__pycache__", ".ipynb_checkpoints", "*.mo")
    shutil.copytree(ROOT, target, ignore=ignore)
    return target


def program(path, script):
    """Writes a program, by default of the shell, that stands in for another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def run_book(folder, *arguments, timeout=180, **environment):
    """`python -m book` in this copy of the repository, as a process."""
    command = [sys.executable, "-m", "book", *arguments]
    kept = {key: value for key, value in os.environ.items() if key not in ("MATPLOTLIBRC", "MPLBACKEND")}
    environment = {**kept, "COLUMNS": "160", **environment}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout)


def execute(folder, names, *options):
    """Executes these lessons of a copy of the repository without a network; returns what went wrong, or nothing.

    Tests share the machine with each other: the limits of time, which are for lessons that hang, are wider here.
    """
    config = (folder / "_config.yml").read_text(encoding="utf-8")
    wider = re.sub(r"(timeout|deadline): (\d+)", lambda match: f"{match[1]}: {4 * int(match[2])}", config)
    (folder / "_config.yml").write_text(wider, encoding="utf-8")
    guard = folder.parent / "no-network"
    guard.mkdir(exist_ok=True)
    (guard / "sitecustomize.py").write_text(NO_NETWORK)
    path = os.pathsep.join(filter(None, [str(guard), os.environ.get("PYTHONPATH")]))
    done = run_book(folder, "execute", *names, *options, timeout=1200, PYTHONPATH=path)
    return done.stderr if done.returncode else ""


def needed(request, fixture):
    """The names of the lessons that those tests look at that use this fixture: what their ids name, or else all."""
    ids = [item.nodeid for item in request.session.items if fixture in item.fixturenames]
    found = {name for id in ids for name in [name for name in NAMES if name in id] or NAMES}
    return sorted(found)


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder that all processes of this run of the tests have."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "book"
    place.mkdir(exist_ok=True)
    return place


def once(place, name, make):
    """The folder that `make` fills in the first process that asks for it; it returns what went wrong, for all of them."""
    said = place / f"{name}.txt"
    with FileLock(place / f"{name}.lock"):
        if not said.exists():
            try:
                wrong = make(place / name)
            except AssertionError as error:
                wrong = str(error) or repr(error)
            said.write_text(wrong, encoding="utf-8")
    if text := said.read_text(encoding="utf-8"):
        pytest.fail(text, pytrace=False)
    return place / name


@pytest.fixture(scope="session")
def executed(place, request):
    """A copy of the repository whose lessons have been executed, with their exercises answered."""

    def make(folder):
        append(BOOK, copy_repository(folder))
        return execute(folder, needed(request, "executed"))

    return once(place, "executed", make)


@pytest.fixture(scope="session")
def run(executed):
    """What the lessons have put out, and the cells that tests have appended to them."""
    return runs.from_folder(runs.run_folder(executed))


@pytest.fixture(scope="session")
def shipped(place, executed):
    """A copy of the repository with that execution, as if nothing had been appended to the lessons."""

    def make(folder):
        copy_repository(folder)
        for path in runs.run_folder(executed).rglob("*.ipynb"):
            notebook = without_appended(json.loads(path.read_text(encoding="utf-8")))
            files.write_json(runs.run_folder(folder) / path.relative_to(runs.run_folder(executed)), notebook)
        shutil.copy(runs.run_folder(executed) / "run.json", runs.run_folder(folder))
        return ""

    return once(place, "shipped", make)
