"""Executes lessons with nbclient, several at once; their outputs form a run.

A run is the folder ``_build/run``: the executed notebooks, ``en/*.ipynb`` and
``zh/*.ipynb``, and ``run.json``, which says for each of them on what it was
executed and when. A lesson whose outputs cannot have changed is not executed
again: ``_build/cache`` keeps outputs under a key made of all they depend on.
"""

import atexit
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from . import machine
from .lessons import BUILD, EDITIONS, BookError, config, read_notebook, select, shown

RUN = BUILD / "run"
CACHE = BUILD / "cache"
FAILED = BUILD / "failed"
DEFAULT_TIMEOUT = 120

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


def execute(names=(), editions=EDITIONS, gpus=None):
    """Executes the selected lessons, and completes the run with them.

    gpus: how many GPUs CUDA shows to the lessons; None leaves that as it is.
    Returns a list of (lesson, its provenance, whether it was executed just now).
    Raises BookError, naming file and cell, if any lesson fails; the run is then as it was.
    """
    lessons = select(names, editions)
    sources = {lesson: read_notebook(lesson.path) for lesson in lessons}
    chosen = machine.choose_gpus(gpus) if gpus is not None else None
    base = {
        "versions": machine.versions(),
        "gpus": [vars(gpu) for gpu in (machine.gpus() if chosen is None else chosen)],
    }
    keys = {lesson: cache_key(sources[lesson], base) for lesson in lessons}
    todo = [lesson for lesson in lessons if cached(keys[lesson]) is None]
    if todo:
        run_all(todo, sources, keys, chosen)
    results = {lesson: cached(keys[lesson]) for lesson in lessons}
    write_run(sources, results)
    return [(lesson, results[lesson]["provenance"], lesson in todo) for lesson in lessons]


def cache_key(notebook, base):
    """Hash of all that the outputs of a notebook depend on."""
    code = [(cell["id"], cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    engine = Path(__file__).read_text(encoding="utf-8")
    return hashlib.sha256(json.dumps([code, base, engine], sort_keys=True).encode()).hexdigest()[:32]


def cached(key):
    """The result kept under this key, or None if there is none that can be read."""
    try:
        return json.loads((CACHE / f"{key}.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def run_all(lessons, sources, keys, chosen):
    """Executes lessons side by side and keeps each result as soon as it is there."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    timeout = config().get("execute", {}).get("timeout", DEFAULT_TIMEOUT)
    failures = []
    columns = [TextColumn("executing"), BarColumn(), MofNCompleteColumn(), TextColumn("cells"), TimeElapsedColumn()]
    cells = len(lessons) + sum(cell["cell_type"] == "code" for lesson in lessons for cell in sources[lesson]["cells"])
    shutil.rmtree(FAILED, ignore_errors=True)
    with Progress(*columns, console=Console(stderr=True)) as progress, ThreadPoolExecutor(os.cpu_count()) as pool:
        task = progress.add_task("", total=cells)
        futures = {
            pool.submit(run_lesson, lesson, sources[lesson], chosen, timeout, lambda: progress.advance(task)): lesson
            for lesson in lessons
        }
        try:
            for future in as_completed(futures):
                try:
                    write_json(CACHE / f"{keys[futures[future]]}.json", future.result())
                except BookError as error:
                    failures.append(str(error))
        finally:
            stop(futures)
    if failures:
        raise BookError("\n".join(sorted(failures)))


def stop(futures):
    """Ends what still runs, and leaves no process behind, however we came here."""
    import psutil

    for future in futures:
        future.cancel()
    while True:
        # A lesson that is just starting its kernel is caught by the next round.
        for child in psutil.Process().children(recursive=True):
            child.kill()
        if all(future.done() for future in futures):
            break
        time.sleep(0.1)


class KernelNeverStarted(BookError):
    """Most often because another program took the ports that were chosen for it."""


def run_lesson(lesson, source, chosen, timeout, on_cell):
    """Executes one lesson; returns its outputs by cell id, and its provenance. A kernel gets three tries to start."""
    for _ in range(2):
        with suppress(KernelNeverStarted):
            return run_once(lesson, source, chosen, timeout, on_cell)
    return run_once(lesson, source, chosen, timeout, on_cell)


def run_once(lesson, source, chosen, timeout, on_cell):
    """Executes one lesson in an empty folder with a fresh kernel."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    # At shutdown jupyter_client sometimes reads from a socket that it has closed, and tornado tells the reader.
    logging.getLogger("tornado").setLevel(logging.CRITICAL)
    notebook = nbformat.from_dict(json.loads(json.dumps(source)))
    notebook.cells.append(nbformat.v4.new_code_cell(PROBE, id=PROBE_ID))
    current = {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lesson-") as folder, tempfile.TemporaryFile("w+") as log:
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=timeout,
            resources={"metadata": {"path": folder}},
            shutdown_kernel="immediate",
            record_timing=False,
            coalesce_streams=True,
            on_cell_start=lambda cell, cell_index: current.update(cell),
            on_cell_executed=lambda **_: on_cell(),
            extra_arguments=["--log-level=ERROR"],
        )
        try:
            client.execute(env=machine.kernel_environment(chosen), stderr=log)
        except CellExecutionError as error:
            reason = f"{error.ename}: {error.evalue}"
        except CellTimeoutError:
            reason = f"still running after {timeout} s (execute: timeout in _config.yml)"
        except (DeadKernelError, RuntimeError):
            reason = "the kernel died; did this cell exit, or run out of memory?"
            if not current:
                atexit.unregister(client._cleanup_kernel)  # nbclient forgets to, and trips over the missing kernel
                log.seek(0)
                said = log.read().strip() or "it said nothing"
                raise KernelNeverStarted(
                    f"{shown(lesson.path)}: the kernel did not start: {said.splitlines()[-1]}"
                ) from None
        else:
            seconds = round(time.monotonic() - began, 1)
            return result_of(lesson, notebook, chosen, seconds)
    kept = FAILED / f"{lesson.id}.ipynb"
    notebook.cells.pop()
    write_json(kept, notebook)
    first_line = reason.strip().splitlines()[0]
    raise BookError(f"{shown(lesson.path)}, cell {current['id']}: {first_line}\n    outputs so far: {shown(kept)}")


def result_of(lesson, notebook, chosen, seconds):
    probe = notebook.cells.pop()
    saw = json.loads(probe.outputs[-1].text)
    if chosen is not None and len(saw["gpus"]) != len(chosen):
        raise BookError(
            f"{shown(lesson.path)}: {len(chosen)} GPUs were asked for, but torch {machine.versions()['torch']} "
            f"saw {len(saw['gpus'])}; is it a build without CUDA?"
        )
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
    return {"lesson": lesson.id, "provenance": provenance, "outputs": outputs}


def write_run(sources, results):
    """Writes the run anew, beside the old one; lessons not among the results stay as they were."""
    BUILD.mkdir(exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=BUILD, prefix="run-"))
    try:
        record = last_run()["lessons"] if (RUN / "run.json").exists() else {}
        kept = {lesson.id for lesson in select()} & set(record)
        for id in kept:
            (fresh / id).parent.mkdir(exist_ok=True)
            shutil.copy(RUN / f"{id}.ipynb", fresh / f"{id}.ipynb")
        record = {id: record[id] for id in kept}
        for lesson, result in results.items():
            write_json(fresh / f"{lesson.id}.ipynb", with_outputs(sources[lesson], result["outputs"]))
            record[lesson.id] = result["provenance"]
        write_json(fresh / "run.json", {"lessons": dict(sorted(record.items()))})
        replace_folder(fresh, RUN)
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


def last_run():
    """run.json of the last run."""
    try:
        return json.loads((RUN / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BookError("nothing has been executed yet; run: python -m book execute") from None


def write_json(path, data):
    """Writes beside the target and renames, so that nobody sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    beside.write_text(json.dumps(data, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    beside.replace(path)


def replace_folder(fresh, target):
    """Puts a folder in the place of another; if the process dies, one of the two is whole."""
    old = target.with_name(f"{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    fresh.rename(target)
    shutil.rmtree(old, ignore_errors=True)
