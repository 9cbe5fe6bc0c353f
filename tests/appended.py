"""Cells that tests append to lessons: exercises answered, values that tests look at, files left behind."""

import json
import re

from book import files
from book.model import Cell

# What a lesson leaves, for tests to look at: Python expressions.
KEPT = {
    "04_data_parallel": ["splits", "labels"],
    "05_four_steps": "anatomy type(chunks).__name__ type(outputs).__name__".split(),
    "14_sharding": """held differences traffic sent model_bytes forward early backward changed
        changed_early kept_early kept_after gathers whole_at_once""".split(),
    "15_sharded_training": ["agrees", "saved_after", "reads", "whole"],
}
PREFIX = "test-"  # of their ids


def append(book, folder):
    """Appends the cells to all lessons of a copy of the repository."""
    for lesson in book.lessons:
        extra = [Cell(PREFIX + id, "code", source) for id, source in cells_for(book, lesson).items()]
        files.write_json(folder / lesson.path, files.notebook_json([*lesson.cells, *extra]))


def without_appended(notebook):
    return {**notebook, "cells": [cell for cell in notebook["cells"] if not cell["id"].startswith(PREFIX)]}


def cells_for(book, lesson):
    """Code to run after a lesson, by id: values, each exercise solved and answered wrongly, and the files that are there."""
    checks = {cell.id.removesuffix("-check"): cell.source for cell in lesson.cells if cell.id.endswith("-check")}
    source = book.source.pages[lesson.name]
    wrong = {cell.id: cell.metadata["wrong"] for cell in source.cells if "wrong" in cell.metadata}
    found = {}
    if asked := KEPT.get(lesson.name):
        found["kept"] = f"import json\n\nprint(json.dumps({{asked: eval(asked) for asked in {asked}}}))"
    for kind, answers in (("solved", solutions(lesson)), ("wrong", wrong)):
        for exercise, answer in answers.items():
            found[f"{exercise}-{kind}"] = f"{answer}\n\n{checks[exercise]}"
    found["left"] = "import os\n\nprint(os.listdir())"
    return found


def solutions(lesson):
    """The folded solutions: exercise cell id -> code."""
    found = {
        cell.id.removesuffix("-solution"): re.search(r"<details>.*?```python\n(.*?)```", cell.source, re.DOTALL)
        for cell in lesson.cells
        if cell.id.endswith("-solution")
    }
    return {exercise: match[1] for exercise, match in found.items() if match}


def printed(run, lesson, cell):
    """What a cell of a lesson (en/03_model) has printed in a run."""
    return "".join("".join(output.get("text", "")) for output in run.cells[lesson][cell].outputs)


def kept(run, lesson):
    """What a lesson has left, as far as KEPT asks for it: expression -> value."""
    return json.loads(printed(run, lesson, f"{PREFIX}kept"))
