"""Executes lessons with nbclient, several at once; their outputs form a run (see `runs`).

A lesson whose outputs cannot have changed is not executed again: ``_build/cache`` keeps outputs under a key made of
all they depend on.
"""

import hashlib
import json
import os
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from . import asking, files, runs
from .machine import LIMITS, Gpu, assert_visible, choose_gpus, environment, gpus, versions
from .model import Book, BookError, Cell, Lesson, Problem, Provenance, Result

CACHE_VERSION = 1  # to be raised when a change of this package changes what lessons put out
CACHE_DAYS = 30  # a result that has not been used for so long is forgotten

# A last cell, never published: the kernel that ran the lesson says what it saw.
PROBE_ID = "what-the-kernel-saw"
PROBE = """
import json, torch
accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
print(json.dumps({
    "accelerator": accelerator and accelerator.type,
    "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    "cuda": torch.version.cuda,
}))
"""


class Execution:
    """One execution of lessons: what it finds once, about the machine and the sources, holds for all of them.

    count: how many GPUs CUDA shows to the lessons; None leaves that as it is. cold: no kernel is forked.
    """

    def __init__(self, book: Book, count: int | None = None, cold: bool = False):
        self.book, self.cold = book, cold
        self.cache = book.root / "_build" / "cache"
        self.chosen = choose_gpus(count) if count is not None else None
        if self.chosen:
            assert_visible(self.chosen)
        self.gpus: list[Gpu] = gpus() if self.chosen is None else self.chosen
        self.versions = versions()
        # The commit of the sources, with a + if files differ from it; None outside a git checkout.
        self.commit = files.git(book.root, "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*")
        settings: dict[str, Any] = book.config.get("execute") or {}
        self.limits: dict[str, Any] = {name: settings.get(name) or limit for name, limit in LIMITS.items()}

    def key(self, lesson: Lesson) -> str:
        """Hash of all that the outputs of a lesson depend on."""
        found = [CACHE_VERSION, code_of(lesson), self.versions, *map(vars, self.gpus), os.environ.get("SIMULATED_GPUS")]
        return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:32]

    def known(self, lesson: Lesson) -> Result | None:
        """The result kept for this lesson, or None if there is none that can be read."""
        path = self.cache / f"{self.key(lesson)}.json"
        try:
            result = runs.result_from(files.read_json(path))
        except (TypeError, KeyError):
            return None
        os.utime(path)
        return result

    def run(self, lessons: list[Lesson], force: bool = False) -> tuple[dict[Lesson, Result], list[Lesson]]:
        """Executes those of the lessons whose outputs are not known yet; force: the others, too.

        Returns the results of all, and the lessons that were executed just now. Raises BookError, naming file and
        cell, if any of them fails.
        """
        results = {lesson: result for lesson in lessons if not force and (result := self.known(lesson))}
        todo = [lesson for lesson in lessons if lesson not in results]
        failures: list[str] = []
        if todo:
            for lesson, outcome in self.executed(todo):
                if isinstance(outcome, BookError):
                    failures += outcome.lines
                else:
                    files.write_json(self.cache / f"{outcome.key}.json", asdict(outcome))
                    results[lesson] = outcome
            forget(self.cache)
        for lesson, result in results.items():
            for cell in lesson.code:
                if text := asking.impossible(cell, result.outputs.get(cell.id, [])):
                    failures.append(f"{lesson.where(cell)}: {text}")
        if failures:
            raise BookError(*sorted(failures))
        return {lesson: results[lesson] for lesson in lessons}, todo

    def executed(self, lessons: list[Lesson]) -> Iterator[tuple[Lesson, Result | BookError]]:
        """Executes lessons side by side, those that measure time alone; yields each with what came of it."""
        from warm_kernel import prewarm

        shutil.rmtree(self.book.root / "_build" / "failed", ignore_errors=True)
        seconds = runs.expected_seconds(self.book)
        # The longest first, so that none runs alone at the end.
        in_order = sorted(lessons, key=lambda lesson: -seconds.get(lesson.id, runs.UNKNOWN))
        over = threading.Event()
        settings = environment(self.chosen, self.cold)
        with prewarm(settings) as warm, progress(lessons) as on_cell:
            if not warm.wait() and not self.cold:
                print(f"note: kernels start cold: {warm.reason}")
            # A kernel that was forked waits longer than it computes; a cold one computes.
            workers = (os.cpu_count() or 1) * (3 if warm.wait() else 1)
            with ThreadPoolExecutor(workers) as pool:
                try:
                    alone = [[x] for x in in_order if x.runs_alone]
                    for together in ([x for x in in_order if not x.runs_alone], *alone):
                        futures = {pool.submit(self.attempt, x, settings, on_cell, over): x for x in together}
                        for future in as_completed(futures):
                            yield futures[future], future.result()
                finally:
                    over.set()
                    pool.shutdown(cancel_futures=True)

    def attempt(
        self, lesson: Lesson, settings: dict[str, str], on_cell: Callable[[], None], over: threading.Event
    ) -> Result | BookError:
        """Executes one lesson in an empty folder with a fresh kernel."""
        import nbformat
        from warm_kernel.notebook import CellFailed, KernelNeverStarted, run_notebook

        probe = Cell(PROBE_ID, "code", PROBE)
        text = files.json_text(files.notebook_json([*lesson.cells, probe]))
        notebook = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="lesson-", ignore_cleanup_errors=True) as folder:
            try:
                limits = {**self.limits, "on_cell": on_cell, "over": over}
                values = run_notebook(notebook, folder, settings, **limits, expressions=asking.expressions(lesson))
                return self.result(lesson, notebook, values, round(time.monotonic() - began, 1))
            except KernelNeverStarted as error:
                return BookError(Problem(lesson.path, str(error)))
            except CellFailed as error:
                return self.failure(lesson, notebook, error)

    def result(self, lesson: Lesson, notebook: Any, values: dict[str, list[Any]], seconds: float) -> Result:
        saw = json.loads(notebook.cells.pop().outputs[-1].text)
        driver = self.gpus[0].driver if self.gpus else None
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        about = {**saw, "driver": driver, "versions": self.versions, "commit": self.commit}
        origin = Provenance(executed=now, seconds=seconds, system=f"{platform.system()} {platform.machine()}", **about)
        outputs = {cell.id: list(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"}
        for cell, truths in values.items():
            outputs[cell].append(asking.output(truths))
        return Result(lesson.id, self.key(lesson), code_of(lesson), origin, outputs)

    def failure(self, lesson: Lesson, notebook: Any, error: Any) -> BookError:
        """Keeps the notebook of a lesson that failed, as far as it came."""
        kept = self.book.root / "_build" / "failed" / f"{lesson.id}.ipynb"
        notebook.cells.pop()
        files.write_json(kept, notebook)
        first_line = str(error).strip().partition("\n")[0]
        outputs = f"    outputs so far: {files.relative(kept, self.book.root)}"
        return BookError(f"{Problem(f'{lesson.path}, cell {error.cell}', first_line)}\n{outputs}")


def code_of(lesson: Lesson) -> str:
    """Hash of all code of a lesson, as far as its outputs depend on it."""
    sources = {cell.id: cell.source for cell in lesson.code}
    # A lesson that reads its own source prints comments, too.
    if not any(word in source for source in sources.values() for word in ("getsource", "traceback")):
        sources = {id: runs.without_comments(source) for id, source in sources.items()}
    return hashlib.sha256(json.dumps([sources, asking.expressions(lesson)]).encode()).hexdigest()[:32]


def forget(cache: Path) -> None:
    """Removes results that have not been used for long."""
    for path in cache.glob("*.json"):
        if path.stat().st_mtime < time.time() - CACHE_DAYS * 86400:
            path.unlink(missing_ok=True)


@contextmanager
def progress(lessons: list[Lesson]) -> Iterator[Callable[[], None]]:
    """Shows a bar; to be called after each cell."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("executing", total=sum(len(lesson.code) + 1 for lesson in lessons))
        yield lambda: bar.advance(task)
