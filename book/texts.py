"""What stands in texts: labels and links in Markdown, statements in code. Found once in each, and kept."""

import ast
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from mdit_py_plugins.deflist import deflist_plugin
from mdit_py_plugins.myst_blocks import myst_block_plugin

from .files import read_json, write_text
from .model import Cell

MAGIC = re.compile(r"^(\s*)(%%?[a-z].*|!(?!=).*)", re.MULTILINE)  # not the operators % and !=, continuing a line
PARSERS = ("markdown-it-py", "mdit-py-plugins")
MARKDOWN = MarkdownIt("commonmark").enable("table").use(deflist_plugin).use(myst_block_plugin)

found: dict[str, Any] = {}  # what `kept` functions have found, by a hash of their names and texts
asked: set[str] = set()  # of these, what this process has asked for


def kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a function of texts be called once for each; its results are JSON, which `keeping` keeps in a file."""

    @wraps(function)
    def known(*texts: str) -> Any:
        key = hashlib.sha256("\0".join((function.__name__, *texts)).encode()).hexdigest()[:24]
        asked.add(key)
        if key not in found:
            found[key] = function(*texts)
        return found[key]

    return known


@contextmanager
def keeping(path: Path, made_by: str) -> Iterator[None]:
    """Begins with what `kept` functions found the last time, if they were the same, and keeps what they were asked for."""
    asked.clear()
    made_by, last = " ".join([made_by, sys.version, *map(version, PARSERS)]), read_json(path)
    if isinstance(last, dict) and last.get("made by") == made_by and isinstance(last.get("found"), dict):
        found.update(last["found"])
    before = {*found}
    yield
    if asked != before:
        write_text(path, json.dumps({"made by": made_by, "found": {key: found[key] for key in sorted(asked)}}))


class Text(NamedTuple):
    """What stands in a Markdown text."""

    title: str
    labels: list[str]  # of headings, `(split-law)=`, and the glossary's `<span id="term-replica">`
    links: list[tuple[str, int]]  # where links and pictures lead, and the line in which their paragraph begins
    code_blocks: list[str]


def text_of(cell: Cell) -> Text:
    return Text(*parsed(cell.source if cell.kind == "markdown" else ""))


@kept
def parsed(source: str) -> Text:
    tokens = MARKDOWN.parse(source)
    titles = [text.content for opening, text in pairwise(tokens) if opening.tag == "h1" and text.type == "inline"]
    inlines = [(token, (block.map or [0])[0] + 1) for block in tokens for token in block.children or []]
    spans = [token.content.split('"') for token, _ in inlines if token.content.startswith('<span id="')]
    targets = [(token.attrs.get("href", token.attrs.get("src")), line) for token, line in inlines]
    return Text(
        title=next(iter(titles), ""),
        labels=[token.content for token in tokens if token.type == "myst_target"] + [span[1] for span in spans],
        links=[(str(target), line) for target, line in targets if target],
        code_blocks=[token.content for token in tokens if token.type == "fence" and token.info.strip() == "python"],
    )


def unreadable(code: str) -> str:
    """Why this is no Python, if it is none."""
    try:
        parts(code)
    except SyntaxError as error:
        return f"not Python: {error.msg} (line {error.lineno})"
    return ""


@kept
def difference(source: str, code: str) -> str:
    pairs = zip(parts(code), parts(source), strict=False)
    other = [line for (line, part), (_, expected) in pairs if part != expected]
    return f"the code differs from the source edition's, first in line {other[0]}" if other else ""


@cache
def parts(code: str) -> list[tuple[int, Any]]:
    """What a cell's code consists of, in reading order, each with its line, without the contents of strings."""
    try:
        tree = ast.parse(code)
    except SyntaxError:  # a cell with magics, perhaps: what IPython alone understands counts as a string
        tree = ast.parse(MAGIC.sub(lambda magic: magic[1] + repr(magic[2]), code))
    return [*masked(tree.body, 1)]


def masked(node: Any, line: int) -> Iterator[tuple[int, Any]]:
    line = getattr(node, "lineno", line)
    if isinstance(node, ast.Constant):
        yield line, str if isinstance(node.value, str) else repr(node.value)
    elif isinstance(node, ast.JoinedStr):
        # Languages differ in word order: the formatted values count, their places do not.
        values = [value for value in node.values if isinstance(value, ast.FormattedValue)]
        yield line, sorted(str([part for _, part in masked(value, line)]) for value in values)
    elif isinstance(node, ast.FormattedValue):  # .2f is no word
        yield from masked(node.value, line)
        yield line, (node.conversion, node.format_spec and ast.unparse(node.format_spec))
    elif isinstance(node, ast.AST):
        yield from masked([type(node), *(getattr(node, field) for field in node._fields)], line)
    elif isinstance(node, list):
        for each in node:
            yield from masked(each, line)
        yield getattr(node[-1], "end_lineno", line) if node else line, list  # its end: one may be longer
    else:
        yield line, node
