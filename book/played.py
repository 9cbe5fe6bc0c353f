"""What readers play with after a cell, which describes it in its metadata.

A calculator: functions of the lesson that the page runs, translated to JavaScript by PScript:

"calculator": {"title": "Which tool?", "functions": ["choose"], "values": ["latency"],
 "inputs": [{"name": "gpus", "words": "GPUs", "value": 8}],
 "results": [{"words": "Tool", "value": "choose(gpus)"}]}

`functions` are defined in cells of the lesson; `values` are names whose values the kernel gives; an input is a number
or yes or no, by the type of its value, from `least` to `most`, each a number or the name of an input before it; a result
is an expression of the inputs. `presets`, an expression, too, is a dictionary: {"Llama 3.1 8B": {input: value}}.

A step player: the page plays what the cell has noted, step by step:

"player": {"title": "One call, step by step", "recording": "steps"}

`recording` is an expression whose value is a list of steps: [sentence, line of code, {device: what it holds, words with
spaces between}]. All steps name the same devices.
"""

import ast
import json
from functools import cache
from typing import Any

from .model import Cell, Lesson

NAMES = "const math = { ceil: Math.ceil, floor: Math.floor, sqrt: Math.sqrt };"  # what lessons import


def expressions(cell: Cell) -> dict[str, list[str]]:
    """What the kernel is to be asked: the devices of a step as pairs, for the order of keys is lost in a file."""
    about, player = cell.metadata.get("calculator", {}), cell.metadata.get("player")
    steps = [f"[[sentence, line, [*held.items()]] for sentence, line, held in {player['recording']}]"] if player else []
    values = [*about.get("values", []), *([about["presets"]] if "presets" in about else [])]
    return {"calculator": values, "player": steps}


def in_the_page(cell: Cell) -> list[str]:
    """The expressions that the page works out itself, and their names."""
    about = cell.metadata.get("calculator", {})
    return [*(each["name"] for each in about.get("inputs", [])), *(each["value"] for each in about.get("results", []))]


def wrong(lesson: Lesson, cell: Cell) -> str:
    """What is wrong with the calculator of a cell, if anything."""
    wanted = cell.metadata.get("calculator", {}).get("functions", [])
    unknown = ", ".join(name for name in wanted if name not in functions(lesson))
    return f"no function of the lesson is called {unknown}" if unknown else ""


def structure(cell: Cell) -> Any:
    """What editions have in common: all but the words."""
    about = cell.metadata.get("calculator", {})
    parts = [*about.get("inputs", []), *about.get("results", [])]
    parts = [{k: v for k, v in each.items() if k not in ("words", "unit", "choices")} for each in parts]
    return [parts, about.get("functions"), expressions(cell)]


@cache
def functions(lesson: Lesson) -> dict[str, str]:
    """The functions that the lesson defines at the top of its cells, by name."""
    found: dict[str, str] = {}
    for cell in lesson.code:
        try:
            tree = ast.parse(cell.source)
        except SyntaxError:  # a cell with magics
            continue
        found |= {node.name: ast.unparse(node) for node in tree.body if isinstance(node, ast.FunctionDef)}
    return found


def python(lesson: Lesson, cell: Cell) -> str:
    """The functions, and `results`, which takes the inputs and returns all results: as the page runs them."""
    about = cell.metadata["calculator"]
    inputs = ", ".join(each["name"] for each in about["inputs"])
    results = ", ".join(each["value"] for each in about["results"])
    defined = functions(lesson)
    return "\n".join([*(defined[name] for name in about["functions"]), f"def results({inputs}):\n return [{results}]"])


def calculator(lesson: Lesson, cell: Cell, values: list[Any]) -> dict[str, Any]:
    """What a page knows of the calculator of a cell."""
    known = cell.metadata["calculator"]
    presets = values[-1] if "presets" in known else None
    return {"vary": None, **known, "presets": presets, "scripts": [f"{lesson.name}.js"], "cell": cell.id}


def player(cell: Cell, values: list[Any]) -> dict[str, Any]:
    """What a page knows of the player of a cell."""
    steps = [{"sentence": sentence, "line": line, "held": dict(held)} for sentence, line, held in values[0]]
    devices = list(steps[0]["held"])
    return {"title": cell.metadata["player"]["title"], "id": cell.id, "devices": devices, "steps": steps}


def script(lesson: Lesson, cell: Cell, values: list[Any]) -> str:
    """A script that registers the calculator of a cell under its id."""
    from pscript import py2js

    about = cell.metadata["calculator"]
    constants = [f"const {n} = {json.dumps(v)};" for n, v in zip(about.get("values", []), values, strict=False)]
    body = "\n".join([NAMES, *constants, py2js(python(lesson, cell), docstrings=False), "return results;"])
    return f"(globalThis.calculators ??= {{}})[{json.dumps(cell.id)}] = (() => {{\n{body}\n}})();\n"
