"""Executes lessons with nbclient, several at once; their outputs form a run.

A run is the folder ``_build/run``: the executed notebooks, ``en/*.ipynb`` and
``zh/*.ipynb``, and ``run.json``, which says for each of them on what it was
executed and when. A lesson whose outputs cannot have changed is not executed
again: ``_build/cache`` keeps outputs under a key made of all they depend on.
"""

import hashlib
import io
import json
import os
import shutil
import tempfile
import threading
import time
import tokenize
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import datetime, timezone
from pathlib import Path

from . import machine
from .lessons import BUILD, EDITIONS, BookError, config, read_notebook, select, shown

RUN = BUILD / "run"  # what the pages show
RUNS = BUILD / "runs"  # for several GPU counts, a run each
CACHE = BUILD / "cache"
FAILED = BUILD / "failed"
DEFAULT_TIMEOUT = 120  # seconds for one cell
DEFAULT_DEADLINE = 300  # seconds for a lesson
# A lesson that reads its own source prints comments, too.
READS_ITSELF = ("getsource", "traceback")

# What changes outputs if it changes.
ENGINE = ("execute.py", "kernels.py", "machine.py", "matplotlibrc")

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


def execute(names=(), editions=EDITIONS, gpus=None, force=False, cold=False, into=RUN, meanwhile=None):
    """Executes the selected lessons, and completes the run in the folder `into` with them.

    Returns a list of (lesson, its provenance, whether it was executed just now); the rest is as for `results_of`.
    """
    sources = read_lessons(select(names, editions))
    results, todo = results_of(sources, gpus, force, cold, meanwhile)
    write_run(into, sources, results)
    return [(lesson, results[lesson]["provenance"], lesson in todo) for lesson in sources]


def read_lessons(lessons):
    """Their notebooks, as they are now: a dict, lesson -> notebook."""
    return {lesson: read_notebook(lesson.path) for lesson in lessons}


def results_of(sources, gpus=None, force=False, cold=False, meanwhile=None):
    """Executes those of the lessons whose outputs are not known yet.

    sources: a dict, lesson -> notebook.
    gpus: how many GPUs CUDA shows to the lessons; None leaves that as it is.
    force: execute lessons whose outputs are known, too. cold: no kernel is forked from a warm process.
    meanwhile: called once, if there is anything to execute, to do what can be done at the same time; returns the ids
    of the processes that it has started.
    Returns a dict, lesson -> its result as `_build/cache` keeps it, and the lessons that were executed just now.
    Raises BookError, naming file and cell, if any lesson fails.
    """
    chosen = machine.choose_gpus(gpus) if gpus is not None else None
    if chosen:
        machine.assert_visible(chosen)
    shown_gpus = [vars(gpu) for gpu in (machine.gpus() if chosen is None else chosen)]
    keys = {lesson: cache_key(notebook, shown_gpus) for lesson, notebook in sources.items()}
    todo = [lesson for lesson in sources if force or cached(keys[lesson]) is None]
    if todo:
        run_all(todo, sources, keys, chosen, cold, meanwhile)
    return {lesson: {**cached(key), "key": key} for lesson, key in keys.items()}, todo


def cache_key(notebook, gpus):
    """Hash of all that the outputs of a notebook depend on."""
    return hash_of([source_hash(notebook), machine.versions(), gpus])


def source_hash(notebook):
    """Hash of what, of the book itself, the outputs of a notebook depend on: its code and what executes it."""
    code = [(cell["id"], cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    if not any(word in source for _, source in code for word in READS_ITSELF):
        code = [(id, without_comments(source)) for id, source in code]
    engine = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ENGINE]
    return hash_of([code, engine])


def hash_of(data):
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]


def without_comments(source):
    """Code without the text of its comments; every line stays, since errors name line numbers."""
    lines = source.splitlines()
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):  # a cell with %magic
        return source
    for token in tokens:
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    return "\n".join(lines)


def cached(key):
    """The result kept under this key, or None if there is none that can be read."""
    try:
        return json.loads((CACHE / f"{key}.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def run_all(lessons, sources, keys, chosen, cold, meanwhile):
    """Executes lessons side by side and keeps each result as soon as it is there."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from .kernels import children, prepare
    from .runs import expected_seconds

    settings = config().get("execute", {})
    limits = settings.get("timeout", DEFAULT_TIMEOUT), settings.get("deadline", DEFAULT_DEADLINE)
    environment = machine.kernel_environment(chosen)
    others = children()
    prepare(cold, environment)
    if meanwhile:
        others |= meanwhile()
    workers = os.cpu_count() * (1 if cold else 3)  # a warm kernel waits longer than it computes
    seconds = expected_seconds()
    in_order = sorted(lessons, key=lambda lesson: -seconds(lesson.id))  # so that no long one runs alone at the end
    failures, over = [], threading.Event()
    columns = [TextColumn("executing"), BarColumn(), MofNCompleteColumn(), TextColumn("cells"), TimeElapsedColumn()]
    cells = len(lessons) + sum(cell["cell_type"] == "code" for lesson in lessons for cell in sources[lesson]["cells"])
    shutil.rmtree(FAILED, ignore_errors=True)
    with Progress(*columns, console=Console(stderr=True)) as progress, ThreadPoolExecutor(workers) as pool:
        task = progress.add_task("", total=cells)
        futures = {
            pool.submit(
                run_lesson, lesson, sources[lesson], environment, limits, lambda: progress.advance(task), over
            ): lesson
            for lesson in in_order
        }
        try:
            for future in as_completed(futures):
                try:
                    write_json(CACHE / f"{keys[futures[future]]}.json", future.result())
                except BookError as error:
                    failures.append(str(error))
        finally:
            stop(futures, others, over)
    if failures:
        raise BookError("\n".join(sorted(failures)))


def stop(futures, others, over):
    """Ends what still runs, and leaves no process behind, however we came here; `others` are not ours."""
    from .kernels import kill_leftovers

    over.set()
    for future in futures:
        future.cancel()
    while not all(future.done() for future in futures):
        kill_leftovers(others)  # a lesson that is just starting its kernel is caught by the next round
        time.sleep(0.1)
    kill_leftovers(others)


def run_lesson(lesson, source, environment, limits, on_cell, over):
    """Executes one lesson in an empty folder with a fresh kernel; returns its outputs by cell id, and its provenance.

    A kernel gets three tries to start, until `over` is set.
    """
    import nbformat

    from .kernels import CellFailed, KernelNeverStarted, run_notebook

    for tries_left in (2, 1, 0):
        notebook = nbformat.from_dict(json.loads(json.dumps(source)))
        notebook.cells.append(nbformat.v4.new_code_cell(PROBE, id=PROBE_ID))
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="lesson-") as folder:
            try:
                run_notebook(notebook, folder, environment, *limits, on_cell)
                return result_of(lesson, source, notebook, round(time.monotonic() - began, 1))
            except KernelNeverStarted as error:
                if over.is_set() or not tries_left:
                    raise BookError(f"{shown(lesson.path)}: {error}") from None
            except CellFailed as error:
                kept = FAILED / f"{lesson.id}.ipynb"
                notebook.cells.pop()
                write_json(kept, notebook)
                first_line = str(error).strip().splitlines()[0]
                message = f"{shown(lesson.path)}, cell {error.cell}: {first_line}\n    outputs so far: {shown(kept)}"
                raise BookError(message) from None


def result_of(lesson, source, notebook, seconds):
    saw = json.loads(notebook.cells.pop().outputs[-1].text)
    provenance = {
        "executed": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": seconds,
        **saw,
        "driver": next((gpu.driver for gpu in machine.gpus()), None),
        "system": machine.system(),
        "versions": machine.versions(),
        "commit": machine.commit(),
    }
    outputs = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    return {"lesson": lesson.id, "sources": source_hash(source), "provenance": provenance, "outputs": outputs}


def write_run(folder, sources, results):
    """Writes a run anew, beside the old one; lessons not among the results stay as they were."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=BUILD, prefix="run-"))
    try:
        record = last_run(folder)["lessons"] if (folder / "run.json").exists() else {}
        kept = {lesson.id for lesson in select()} & set(record)
        for id in kept:
            (fresh / id).parent.mkdir(exist_ok=True)
            shutil.copy(folder / f"{id}.ipynb", fresh / f"{id}.ipynb")
        record = {id: record[id] for id in kept}
        for lesson, result in results.items():
            write_json(fresh / f"{lesson.id}.ipynb", with_outputs(sources[lesson], result["outputs"]))
            record[lesson.id] = result["provenance"]
        write_json(fresh / "run.json", {"lessons": dict(sorted(record.items()))})
        replace_folder(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def with_outputs(source, outputs):
    """The notebook with these outputs; its execution counts are 1, 2, 3 …"""
    cells, count = [], 0
    for cell in source["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell = {**cell, "outputs": outputs[cell["id"]], "execution_count": count}
        cells.append(cell)
    return {**source, "cells": cells}


def last_run(folder=RUN):
    """run.json of the run in a folder."""
    try:
        return json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BookError("nothing has been executed yet; run: python -m book execute") from None


def write_json(path, data):
    """Writes beside the target and renames, so that nobody sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        beside.write_text(json.dumps(data, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
        beside.replace(path)
    except BaseException:  # a full disk, an interrupt
        beside.unlink(missing_ok=True)
        raise


def replace_folder(fresh, target):
    """Puts a folder in the place of another; if the process dies, one of the two is whole."""
    old = target.with_name(f"{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    fresh.rename(target)
    shutil.rmtree(old, ignore_errors=True)
