"""Runs as evidence: recorded for the site to show, listed, and compared.

A run is a folder with ``run.json`` and executed notebooks (see ``execute``). What the book ships of a run is one file,
``runs/NAME.json``: on what each lesson was executed and when, and the outputs of the cells with the tag ``compare``,
each with a hash of the code that put it out. The site shows these beside its own.
"""

import difflib
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from .execute import RUN, RUNS, without_comments, write_json
from .lessons import ROOT, BookError, Lesson, lesson_names, read_notebook, shown

RECORDED = ROOT / "runs"
TAG = "compare"
UNKNOWN = 5  # seconds, for a lesson that no recorded run has


@dataclass
class Run:
    name: str
    lessons: dict  # "en/01_device" -> on what it was executed and when, as in run.json
    cells: dict  # "en/01_device" -> cell id -> {"code": hash of its code, "outputs": as in a notebook}


def code_hash(source):
    """What a recorded output remembers of the code that put it out; comments do not count."""
    return hashlib.sha256(without_comments(source).encode()).hexdigest()[:12]


def machine_name(provenance):
    """What a lesson was executed on: "2 × NVIDIA H200", "mps" or "CPU"."""
    gpus = provenance["gpus"]
    return f"{len(gpus)} × {gpus[0]}" if gpus else provenance["accelerator"] or "CPU"


def from_folder(folder):
    """The run in a folder, with all its code cells. Raises BookError if there is none."""
    try:
        lessons = json.loads((folder / "run.json").read_text(encoding="utf-8"))["lessons"]
    except FileNotFoundError:
        raise BookError(f"{shown(folder)}: no run is there; run: python -m book execute") from None
    cells = {}
    for id in lessons:
        notebook = read_notebook(folder / f"{id}.ipynb")
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        cells[id] = {c["id"]: {"code": code_hash(c["source"]), "outputs": c["outputs"]} for c in code}
    return Run(folder.name, lessons, cells)


def from_file(path):
    """A recorded run. Raises BookError if the file is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Run(path.stem, content["lessons"], content["cells"])
    except (ValueError, KeyError, TypeError) as error:
        raise BookError(f"{shown(path)}: not a recorded run: {error!r}") from None


def recorded():
    """All recorded runs, by name."""
    return [from_file(path) for path in sorted(RECORDED.glob("*.json"))]


def expected_seconds():
    """A function that says how long a lesson will take: as long as in the recorded runs, by its id."""
    known = {id: provenance["seconds"] for run in recorded() for id, provenance in run.lessons.items()}
    return lambda id: known.get(id, UNKNOWN)


def find(name):
    """A run by its name, or by the path of its file or folder; "run" is the last one."""
    for path in (Path(name), RECORDED / f"{name}.json", RUNS / name):
        if path.is_file():
            return from_file(path)
        if (path / "run.json").is_file():
            return from_folder(path)
    if name == RUN.name:
        return from_folder(RUN)
    known = [run.name for run in [*local(), *recorded()]]
    raise BookError(f"no run is called {name}; there are: {', '.join(known) or 'none'}")


def local():
    """The runs of this machine: the last one, and those for several GPU counts."""
    folders = [RUN, *sorted(RUNS.glob("*"))]
    return [from_folder(folder) for folder in folders if (folder / "run.json").exists()]


def record(name):
    """Writes what the site shows of a run to runs/; returns the file."""
    run = find(name)
    cells = {}
    for id in run.lessons:
        kept = {cell["id"]: run.cells[id][cell["id"]] for cell in tagged(id) if cell["id"] in run.cells[id]}
        if kept:
            cells[id] = kept
    if not cells:
        raise BookError(f"{name}: none of its lessons has a cell with the tag {TAG}")
    machines = {machine_name(provenance) for provenance in run.lessons.values()}
    if len(machines) > 1:
        raise BookError(
            f"{name}: executed on several machines ({', '.join(sorted(machines))}); execute it with --force"
        )
    target = RECORDED / (re.sub(r"\W+", "-", machines.pop().replace("×", "x")).lower() + ".json")
    write_json(target, {"lessons": run.lessons, "cells": cells})
    return target


def tagged(id):
    """The cells of a lesson, as it is now, that are to be compared between runs."""
    edition, name = id.split("/")
    if name not in lesson_names():
        return []
    cells = read_notebook(Lesson(name, edition).path)["cells"]
    return [cell for cell in cells if TAG in cell["metadata"].get("tags", [])]


def stale(run):
    """The recorded cells whose code has changed since: [(lesson id, cell id)]."""
    found = []
    for id, cells in run.cells.items():
        now = {cell["id"]: code_hash(cell["source"]) for cell in tagged(id)}
        found += [(id, cell) for cell, known in cells.items() if known["code"] != now.get(cell)]
    return found


def compare(first, second):
    """What differs between two runs: [(lesson id, cell id, difference as text)]. Images count as their bytes."""
    found = []
    for id in sorted(set(first.cells) & set(second.cells)):
        for cell in first.cells[id]:
            if cell in second.cells[id]:
                before, after = (text_of(run.cells[id][cell]["outputs"]) for run in (first, second))
                if before != after:
                    lines = difflib.unified_diff(before, after, first.name, second.name, lineterm="")
                    found.append((id, cell, "\n".join(lines)))
    return found


def text_of(outputs):
    """Outputs as lines of text."""
    lines = []
    for output in outputs:
        for kind, value in output.get("data", {"text": output.get("text", output.get("traceback"))}).items():
            lines += [f"({kind})"] if kind != "text" else []
            lines += "".join(value).splitlines() if isinstance(value, (list, str)) else [json.dumps(value)]
    return lines
