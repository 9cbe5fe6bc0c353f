"""What a lesson asks its readers. A code cell asks in its metadata, and the kernel that ran the cell knows the truth:

"ask": [{"question": "10 rows on 3 GPUs, the rows of each", "truth": "sizes"}]

`truth` is an expression, whose value is a number, yes or no, a text, or a list of them; in it, `printed` is what the
cell wrote. With `choices`, {"value": "its words"}, it is one of their values; with "any": true it is a list of all right
answers. After a prediction, the page keeps back what the cell puts out until the reader has answered; in an exercise's
check, it tells right from wrong, and a question's "hint" is for those who are wrong there; without hints, what the
check prints then is the hint for all its questions.
"""

import ast
import json
import re
from typing import Any

from . import played
from .model import Cell, Lesson

TRUTHS = "application/vnd.book.truths+json"  # the MIME type of an output that no page shows
KINDS = {bool: "choice", int: "number", float: "number", list: "list", tuple: "list"}  # how an answer is given


def questions(cell: Cell) -> list[dict[str, Any]]:
    return list(cell.metadata.get("ask", []))


def expressions(lesson: Lesson) -> dict[str, list[str]]:
    """What the kernel is to be asked after a cell, by its id."""
    asked = {cell.id: [text for texts in parts(cell).values() for text in texts] for cell in lesson.code}
    return {id: texts for id, texts in asked.items() if texts}


def parts(cell: Cell) -> dict[str, list[str]]:
    """The expressions of a cell, by what asks for them: its questions, its calculator, its player."""
    return {"ask": [each["truth"] for each in questions(cell)], **played.expressions(cell)}


def output(values: list[Any]) -> dict[str, Any]:
    """An output that keeps the values of a cell's questions, in their order."""
    return {"output_type": "display_data", "data": {TRUTHS: values}, "metadata": {}}


def without_values(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The outputs that readers see."""
    return [each for each in outputs if TRUTHS not in each.get("data", {})]


def values_of(cell: Cell, outputs: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The values of a cell's expressions, as `parts` has them; nothing if the cell was not executed with them."""
    values: list[Any] = next((each["data"][TRUTHS] for each in outputs if TRUTHS in each.get("data", {})), [])
    found, start = {}, 0
    for name, texts in parts(cell).items():
        found[name] = values[start : start + len(texts)]
        start += len(texts)
    return found if start == len(values) else {}


def asked(cell: Cell, outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The questions of a cell, each with all its right answers, and how an answer is given."""
    truths, found = values_of(cell, outputs).get("ask", []), []
    for each, truth in zip(questions(cell), truths, strict=False):
        right = list(truth) if each.get("any") else [truth]
        kind = "choice" if "choices" in each else KINDS.get(type(right[0]), "text")
        found.append({**each, "right": right, "kind": kind})
    return found


def hint(cell: Cell) -> str:
    """What an exercise's check prints for every wrong answer, if its questions have no hints of their own."""
    given = any("hint" in each for each in questions(cell))
    printed = [node.args[0] for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call) and node.args]
    texts = [str(text.value) for text in printed if isinstance(text, ast.Constant)]
    wrong = [re.split("[:：]", text, maxsplit=1)[-1].strip() for text in texts if text.startswith("✗")]
    return wrong[0] if len(wrong) == 1 and not given else ""


def wrong(cell: Cell) -> str:
    """What is wrong with the expressions of a cell, if anything."""
    for text in [*(text for texts in parts(cell).values() for text in texts), *played.in_the_page(cell)]:
        try:
            ast.parse(text, mode="eval")
        except SyntaxError:
            return f"no expression: {text}"
    return ""


def impossible(cell: Cell, outputs: list[dict[str, Any]]) -> str:
    """What is wrong with the truths that the kernel knew, if anything; choices are as JavaScript writes them: true, 3."""
    for each, truth in zip(questions(cell), values_of(cell, outputs).get("ask", []), strict=False):
        if each.get("any") and not (truth and isinstance(truth, (list, tuple))):
            return f"`any` needs a list of right answers; {each['truth']} is {truth!r}"
    offered = [each for each in asked(cell, outputs) if "choices" in each]
    said = [{x if isinstance(x, str) else json.dumps(x).removesuffix(".0") for x in each["right"]} for each in offered]
    strange = [each["right"] for each, words in zip(offered, said, strict=True) if words.isdisjoint(each["choices"])]
    return f"none of its choices is the truth, {strange[0][0]!r}" if strange else ""


def structure(cell: Cell) -> list[Any]:
    """What editions have in common in what they ask: all but the words."""
    asked = [(each.get("truth"), [*each.get("choices", {})], each.get("any")) for each in questions(cell)]
    return [asked, played.structure(cell)]
