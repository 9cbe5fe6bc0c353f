"""Step players: a page plays what a lesson's cell has noted, step by step.

"player": {"title": "One call, step by step", "recording": "steps"}

`recording` is an expression whose value the kernel gives: a list of steps, [sentence, line of code, {device: what it
holds, words with spaces between}]. All steps name the same devices.
"""

from __future__ import annotations

from typing import Any

from .model import Cell


def expressions(cell: Cell) -> list[str]:
    """What the kernel is to be asked: the devices as pairs, for the order of keys is lost in a file."""
    if "player" not in cell.metadata:
        return []
    recording = cell.metadata["player"]["recording"]
    return [f"[[sentence, line, [*held.items()]] for sentence, line, held in {recording}]"]


def about(name: str, cell: Cell, values: list[Any]) -> dict[str, Any]:
    """What a page knows of the player of a cell."""
    steps = [{"sentence": sentence, "line": line, "held": dict(held)} for sentence, line, held in values[0]]
    devices = list(steps[0]["held"])
    return {"title": cell.metadata["player"]["title"], "id": cell.id, "devices": devices, "steps": steps}


def structure(cell: Cell) -> list[str]:
    """What editions have in common."""
    return expressions(cell)
