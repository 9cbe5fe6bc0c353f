"""The small book of tests/data, built once; each test gets it back, in the same folder, as it was then.

It stays in one folder because Sphinx makes all pages anew in another, and much of what is tested is what is not made
anew. It has a copy of the package, which a test may change. PyTorch, which its lessons do not need, has a stand-in that
is imported at once.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

TESTS = Path(__file__).resolve().parent.parent
PACKAGE = TESTS.parent / "book"
STAND_INS = Path(__file__).with_name("stand_ins")
EDITIONS = ("en", "zh")
MARK = "BOOK_UNDER_TEST"  # a variable by which processes are found again


@dataclass
class Done:
    code: int
    out: str
    err: str


@dataclass
class SmallBook:
    """A book in a folder, used as its authors use it: as files, and by `python -m book` as a process."""

    folder: Path

    def environment(self, path=(), **variables):
        """path: folders for the front of PYTHONPATH."""
        paths = [*map(str, path), str(STAND_INS), *filter(None, [os.environ.get("PYTHONPATH")])]
        # The fewer modules are imported beforehand, the sooner the few cells of a test run.
        found = {"COLUMNS": "160", "WARM_KERNEL_MODULES": "json", MARK: str(self.folder), **variables}
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **found}

    def run(self, *arguments, path=(), timeout=120, where=".", **variables):
        """`python -m book` with these arguments."""
        command = [sys.executable, "-m", "book", *arguments]
        environment = self.environment([*path, self.folder], **variables)
        with subprocess.Popen(
            command, cwd=self.folder / where, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            finally:
                process.kill()
        return Done(process.returncode, out, err)

    def good(self, *arguments, **options):
        done = self.run(*arguments, **options)
        assert done.code == 0, done.out + done.err
        assert "Traceback" not in done.err
        return done.out

    def bad(self, *arguments, **options):
        """What a command says that must fail in good order: the last site stays, and no process does."""
        before = self.site()
        done = self.run(*arguments, **options)
        assert done.code == 1, done.out + done.err
        assert "Traceback" not in done.out + done.err
        assert self.site() == before, "the last good site stays whole"
        assert not self.processes(), "no process is left behind"
        return done.err

    @contextmanager
    def running(self, *arguments, path=(), **variables):
        """The command as a process that is still at work, in a group of its own, with what SIGINT does by default."""
        command = [sys.executable, "-m", "book", *arguments]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment([*path, self.folder], **variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def path(self, edition, name):
        return self.folder / "notebooks" / edition / name

    def set_cell(self, id, source, lesson="01_count", editions=EDITIONS):
        """Gives a cell another source."""
        for edition in editions:
            path = self.path(edition, f"{lesson}.ipynb")
            notebook = json.loads(path.read_text("utf-8"))
            cell = next(cell for cell in notebook["cells"] if cell["id"] == id)
            cell["source"] = source.splitlines(keepends=True)
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n", "utf-8")

    def replace(self, path, old, new):
        """Replaces text in a file of the book."""
        text = (self.folder / path).read_text("utf-8")
        assert old in text
        (self.folder / path).write_text(text.replace(old, new), "utf-8")

    def outputs(self, id, lesson="01_count", edition="en", folder="run"):
        """The outputs of a cell in the last run."""
        path = self.folder / "_build" / folder / edition / f"{lesson}.ipynb"
        cells = json.loads(path.read_text("utf-8"))["cells"]
        return next(cell["outputs"] for cell in cells if cell["id"] == id)

    def record(self):
        return json.loads((self.folder / "_build" / "run" / "run.json").read_text("utf-8"))["lessons"]

    def site(self):
        """The site as a dictionary: path -> bytes."""
        site = self.folder / "_build" / "html"
        return {path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*") if path.is_file()}

    def page(self, path):
        return (self.folder / "_build" / "html" / path).read_text("utf-8")

    def processes(self):
        """The processes that commands in this folder have started, and all that these have started."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == str(self.folder) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def wait_until_alone(self, seconds=20):
        end = time.monotonic() + seconds
        while self.processes() and time.monotonic() < end:
            time.sleep(0.1)
        assert not self.processes(), "no process is left behind"


def changed(before, after):
    """The pages of lessons and texts that differ."""
    paths = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    return sorted(path for path in paths if re.fullmatch(r"\w+/\w+\.html", path))


def wait_for(path, process, seconds=60):
    """Waits until a file is there that a process is to make."""
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


def small_book(folder):
    """The sources of the small book, and of the package, in a new folder."""
    shutil.copytree(TESTS / "data" / "minibook", folder)
    shutil.copytree(PACKAGE, folder / "book", ignore=shutil.ignore_patterns("__pycache__"))
    return SmallBook(folder)


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The folder of the built book, and that of its copy."""
    base = tmp_path_factory.mktemp("engine")
    folder, kept = base / "book", base / "kept"
    small_book(folder).good("build")
    shutil.copytree(folder, kept)
    return folder, kept


@pytest.fixture
def book(built):
    folder, kept = built
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)
    yield SmallBook(folder)
    for process in SmallBook(folder).processes():  # of a test that failed
        with suppress(psutil.Error):
            process.kill()


@pytest.fixture
def committed(book):
    """The book in a git repository of its own, all of it committed."""
    commit(book)
    return book


def commit(book):
    settings = ["-c", "user.name=Nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "--quiet"], ["add", "."], [*settings, "commit", "--quiet", "--message", "All"]):
        subprocess.run(["git", *command], cwd=book.folder, check=True)
