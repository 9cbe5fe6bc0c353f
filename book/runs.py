"""Runs as evidence: read and written, recorded for the site to show, listed and compared.

A run is a folder: the executed notebooks, ``en/*.ipynb`` and so on, and ``run.json``, which says for each of them on
what it was executed and when. What the book ships of a run is one file, ``runs/NAME.json``: that same record, and the
outputs of the cells with the tag ``compare``, each with a hash of the code that put it out.
"""

import difflib
import hashlib
import json
import re
import shutil
import tokenize
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from . import asking, files
from .model import ALONE_TAG, COMPARE_TAG, Book, BookError, Cell, Lesson, Problem, Provenance, Recorded, Result, Run

UNKNOWN = 5.0  # seconds, for a lesson that no recorded run has


def run_folder(root: Path) -> Path:
    """The last run: what the pages show."""
    return root / "_build" / "run"


def runs_folder(root: Path) -> Path:
    """The runs for several GPU counts."""
    return root / "_build" / "runs"


@cache
def code_hash(source: str) -> str:
    """What a recorded output remembers of the code that put it out; comments do not count."""
    return hashlib.sha256(without_comments(source).encode()).hexdigest()[:12]


def without_comments(source: str) -> str:
    """Code without the text of its comments; every line stays, since errors name line numbers."""
    lines = source.splitlines()
    try:
        tokens = list(tokenize.generate_tokens(iter(source.splitlines(True)).__next__)) if "#" in source else []
    except (tokenize.TokenError, SyntaxError):  # a cell with %magic
        return source
    for token in tokens:
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    return "\n".join(lines)


def result_from(data: dict[str, Any]) -> Result:
    return Result(**{**data, "provenance": Provenance(**data["provenance"]), "outputs": dict(data["outputs"])})


def provenances_in(folder: Path) -> dict[str, Any] | None:
    """What run.json says of each lesson, or None if there is none that can be read."""
    content = files.read_json(folder / "run.json")
    lessons = content.get("lessons") if isinstance(content, dict) else None
    return lessons if isinstance(lessons, dict) else None


def from_folder(folder: Path) -> Run | None:
    """The run in a folder, with all its code cells, or None if there is none. A notebook that cannot be read counts
    as not executed."""
    if (provenances := provenances_in(folder)) is None:
        return None
    lessons, cells = {}, {}
    for id, provenance in provenances.items():
        try:
            notebook = files.parse_notebook(files.read_text(folder / f"{id}.ipynb", folder), id)
            lessons[id] = Provenance(**provenance)
        except (BookError, KeyError, TypeError):
            continue
        cells[id] = {c.id: Recorded(code_hash(c.source), list(c.outputs)) for c in notebook if c.kind == "code"}
    return Run(folder.name, lessons, cells)


def from_file(path: Path, root: Path) -> Run:
    """A recorded run. Raises BookError if the file is none."""
    try:
        content = json.loads(files.read_text(path, root))
        lessons = {id: Provenance(**data) for id, data in content["lessons"].items()}
        cells = {id: {cell: Recorded(**data) for cell, data in kept.items()} for id, kept in content["cells"].items()}
        return Run(path.stem, lessons, cells)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BookError(Problem(files.relative(path, root), f"not a recorded run: {error!r}")) from None


def to_json(run: Run) -> dict[str, Any]:
    lessons = {id: asdict(provenance) for id, provenance in sorted(run.lessons.items())}
    cells = {id: {cell: asdict(kept) for cell, kept in found.items()} for id, found in run.cells.items()}
    return {"lessons": lessons, "cells": cells}


def write_run(book: Book, folder: Path, results: dict[Lesson, Result]) -> None:
    """Completes the run in this folder with these results; lessons of the book not among them stay as they were.

    A notebook that stays the same keeps its date, by which Sphinx knows that its page need not be made anew.
    """
    old = provenances_in(folder) or {}
    new: dict[str, str] = {}
    provenances = {}
    for lesson in book.lessons:
        path = f"{lesson.id}.ipynb"
        if lesson in results:
            outputs = results[lesson].outputs
            cells = [replace(c, outputs=tuple(outputs.get(c.id, ()))) for c in lesson.cells]
            new[path] = files.json_text(files.notebook_json(cells, executed=True))
            provenances[lesson.id] = asdict(results[lesson].provenance)
        elif lesson.id in old and (folder / path).exists():
            new[path] = (folder / path).read_text("utf-8", "replace")
            provenances[lesson.id] = old[lesson.id]
    same = {
        path for path in new if (folder / path).exists() and (folder / path).read_text("utf-8", "replace") == new[path]
    }
    if len(same) == len(new) and files.json_text(provenances) == files.json_text(old):
        return
    with files.new_folder(folder) as fresh:
        for path, text in new.items():
            if path in same:
                (fresh / path).parent.mkdir(exist_ok=True)
                shutil.copy2(folder / path, fresh / path)
            else:
                files.write_text(fresh / path, text)
        files.write_json(fresh / "run.json", {"lessons": provenances})


def not_executed(book: Book, run: Run | None) -> list[Lesson]:
    """The lessons that the run lacks, or has with other code than is here."""

    def same(lesson: Lesson) -> bool:
        known = run.cells.get(lesson.id, {}) if run else {}
        return {c.id: code_hash(c.source) for c in lesson.code} == {id: kept.code for id, kept in known.items()}

    return [lesson for lesson in book.lessons if not same(lesson)]


def noisy(results: dict[Lesson, Result]) -> list[tuple[Lesson, Cell]]:
    """The cells that write to stderr."""
    found = [(lesson, cell, results[lesson].outputs.get(cell.id, [])) for lesson in results for cell in lesson.code]
    return [(lesson, cell) for lesson, cell, outputs in found if any(o.get("name") == "stderr" for o in outputs)]


def recorded(root: Path) -> list[Run]:
    """All recorded runs, by name."""
    return [from_file(path, root) for path in sorted((root / "runs").glob("*.json"))]


def local(root: Path) -> list[Run]:
    """The runs of this machine: the last one, and those for several GPU counts."""
    return [run for run in map(from_folder, [run_folder(root), *sorted(runs_folder(root).glob("[!.]*"))]) if run]


def expected_seconds(book: Book) -> dict[str, float]:
    """How long lessons have taken in the recorded runs, by lesson id."""
    return {id: provenance.seconds for run in book.recorded for id, provenance in run.lessons.items()}


def find(book: Book, name: str) -> Run:
    """A run by its name, or by the path of its file or folder; "run" is the last one."""
    root = book.root
    for path in (Path(name), root / "runs" / f"{name}.json", runs_folder(root) / name, root / "_build" / name):
        if path.is_file():
            return from_file(path, root)
        if run := from_folder(path):
            return run
    known = [run.name for run in [*local(root), *book.recorded]]
    raise BookError(f"no run is called {name}; there are: {', '.join(known) or 'none'}")


def record(book: Book, name: str, force: bool = False) -> Path:
    """Writes what the site shows of a run to runs/; returns the file.

    Raises BookError if the run was not executed on one machine at one commit, without other changes; or if another
    execution is recorded, which only force replaces.
    """
    run = find(book, name)
    cells = {id: to_record(known, compared(book, id)) for id, known in run.cells.items()}
    if not (kept := {id: found for id, found in cells.items() if found}):
        raise BookError(f"{name}: none of its lessons has a cell with the tag {COMPARE_TAG}")
    machines = sorted({provenance.machine for provenance in run.lessons.values()})
    commits = sorted({str(provenance.commit) for provenance in run.lessons.values()})
    again = "python -m book execute --force"
    for what, found in (("on several machines", machines), ("at several commits", commits)):
        if len(found) > 1:
            raise BookError(f"{name}: executed {what} ({', '.join(found)}); {again}")
    if "simulated" in machines[0]:
        raise BookError(f"{name}: executed on {machines[0]}; what simulated GPUs print is no result")
    if commits[0].endswith("+"):
        raise BookError(f"{name}: executed while files differed from commit {commits[0][:-1]}; commit, then: {again}")
    target = book.root / "runs" / (re.sub(r"\W+", "-", machines[0].replace("×", "x")).lower() + ".json")
    if not force and any(other.name == target.stem and other.lessons != run.lessons for other in book.recorded):
        text = f"of another execution; to replace it: python -m book record {name} --force"
        raise BookError(Problem(files.relative(target, book.root), text))
    files.write_json(target, to_json(Run(target.stem, run.lessons, kept)))
    return target


def to_record(known: dict[str, Recorded], cells: dict[str, str]) -> dict[str, Recorded]:
    """These cells, without what only the page's own run has: the answers to its questions."""
    return {c: replace(known[c], outputs=asking.without_values(known[c].outputs)) for c in cells if c in known}


def compared(book: Book, id: str) -> dict[str, str]:
    """The cells of a lesson, as it is now, that are to be compared between runs, each with the hash of its code."""
    page = book.page(id)
    return {cell.id: code_hash(cell.source) for cell in page.cells if COMPARE_TAG in cell.tags} if page else {}


def stale(book: Book, run: Run) -> list[tuple[str, str]]:
    """The recorded cells whose code has changed since: [(lesson id, cell id)]."""
    now = {id: compared(book, id) for id in run.cells}
    return [(id, cell) for id, cells in run.cells.items() for cell in cells if cells[cell].code != now[id].get(cell)]


def compare(book: Book, first: Run, second: Run) -> list[tuple[str, str, str]]:
    """Where two runs differ, but for times measured: [(lesson id, cell id, difference)]. Images count as their bytes."""
    timed = {(lesson.id, cell.id) for lesson in book.lessons for cell in lesson.code if ALONE_TAG in cell.tags}
    found = []
    for id in sorted(set(first.cells) & set(second.cells)):
        for cell in [c for c in first.cells[id] if c in second.cells[id] and (id, c) not in timed]:
            outputs = [run.cells[id][cell].outputs for run in (first, second)]
            shown = [asking.without_values(each) for each in outputs]  # a recorded run has no other
            before, after = map(lines_of, shown if any(map(list.__eq__, shown, outputs)) else outputs)
            if before != after:
                lines = difflib.unified_diff(before, after, first.name, second.name, lineterm="")
                found.append((id, cell, "\n".join(lines)))
    return found


def lines_of(outputs: list[dict[str, Any]]) -> list[str]:
    """Outputs as lines of text."""
    lines: list[str] = []
    for output in outputs:
        for kind, value in output.get("data", {"text": output.get("text", output.get("traceback"))}).items():
            lines += [f"({kind})"] if kind != "text" else []
            lines += [json.dumps(value)] if kind.endswith("json") else "".join(value).splitlines()
    return lines
