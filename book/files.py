"""Reads and writes files: text, YAML, JSON and notebooks, whole or not at all."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastjsonschema
import yaml

from .model import BookError, Cell, Problem

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
METADATA = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
CELL_SCHEMA = yaml.safe_load(Path(__file__).with_name("cell.schema.yml").read_text("utf-8"))
KEPT_METADATA = tuple(CELL_SCHEMA["properties"]["metadata"]["properties"])
assert_cell = fastjsonschema.compile(CELL_SCHEMA)


def relative(path: Path, root: Path) -> str:
    """A path as messages name it: from the book's folder on."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def read_text(path: Path, root: Path, encoding: str = "utf-8-sig") -> str:
    """A text file; Windows line ends do not count, nor a byte order mark, unless the encoding is utf-8."""
    try:
        return path.read_bytes().decode(encoding).replace("\r\n", "\n")
    except FileNotFoundError:
        raise BookError(Problem(relative(path, root), "no such file")) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise BookError(Problem(f"{relative(path, root)}, line {line}", "not UTF-8; save the file as UTF-8")) from None


def parse_yaml(text: str, where: str) -> Any:
    try:  # the loader in C, if there is one, is ten times as fast
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}, line {mark.line + 1}" if mark else where
        raise BookError(Problem(place, f"not valid YAML: {getattr(error, 'problem', error)}")) from None


def read_yaml(path: Path, root: Path) -> Any:
    return parse_yaml(read_text(path, root), relative(path, root))


def read_json(path: Path) -> Any:
    """The content of a JSON file, or None if there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def parse_notebook(text: str, where: str) -> tuple[Cell, ...]:
    """The cells of a notebook of format 4.5."""
    try:
        cells = json.loads(text)["cells"]
        problems = [] if cells else [Problem(where, "it has no cells")]
        for number, cell in enumerate(cells, start=1):
            cell["source"] = "".join(cell["source"])
            json.dumps([cell["source"], cell.get("metadata")], ensure_ascii=False).encode()
            try:
                assert_cell(cell, name_prefix="the cell")
            except fastjsonschema.JsonSchemaValueException as error:
                place = cell.get("id") or f"{number} ({cell['source'].partition(chr(10))[0]})"
                text = f"not as {CELL_SCHEMA['title']} has it: {error.message}"
                problems.append(Problem(f"{where}, cell {place}", text))
    except json.JSONDecodeError as error:
        conflict = "has marks of a merge conflict" if "<<<<<<<" in text else f"not a notebook: {error.msg}"
        raise BookError(Problem(f"{where}, line {error.lineno}", conflict)) from None
    except (AttributeError, KeyError, TypeError, UnicodeEncodeError) as error:
        raise BookError(Problem(where, f"not a notebook of format 4.5 ({error})")) from None
    if problems:
        raise BookError(*problems)
    return tuple(Cell(c["id"], c["cell_type"], c["source"], c["metadata"], (*(c.get("outputs") or ()),)) for c in cells)


def git(root: Path, *arguments: str) -> str | None:
    """What git says of the repository, or None outside one."""
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True) if shutil.which("git") else None
    return done.stdout.strip() if done and done.returncode == 0 else None


def notebook_json(cells: Iterable[Cell], executed: bool = False) -> dict[str, Any]:
    """A notebook of format 4.5 without editor metadata, as nbformat has it; executed cells are counted 1, 2, 3 …"""
    written: list[dict[str, Any]] = []
    count = 0
    for cell in cells:
        metadata = {key: value for key, value in cell.metadata.items() if key in KEPT_METADATA}
        entry: dict[str, Any] = {"id": cell.id, "cell_type": cell.kind, "metadata": metadata}
        entry["source"] = cell.source.splitlines(keepends=True)
        if cell.kind == "code":
            count += 1
            entry |= {"outputs": list(cell.outputs), "execution_count": count if executed else None}
        written.append(entry)
    return {"cells": written, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def json_text(data: Any) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def write_text(path: Path, text: str) -> None:
    """Writes beside the target and renames, so that nobody sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except BaseException as error:  # a full disk, an interrupt
        beside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise


def write_json(path: Path, data: Any) -> None:
    write_text(path, json_text(data))


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of the target if all goes well; if not, the target is as it was."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-", suffix=".part"))
    fresh.chmod(0o755)
    old = target.with_name(f".{target.name}.old")
    try:
        yield fresh
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


@contextmanager
def lock(build: Path) -> Iterator[None]:
    """Keeps two builds from writing to _build at once; the lock goes with the process, however that ends.

    Removes what builds that were killed have left of `new_folder`.
    """
    from filelock import FileLock, Timeout

    build.mkdir(exist_ok=True)
    try:
        with FileLock(build / "lock", timeout=0):
            for place in (build, build / "runs"):
                for old in place.glob(".*.old"):
                    if not (target := old.with_name(old.stem[1:])).exists():  # killed between the two renames
                        old.rename(target)
                for folder in [*place.glob(".*.old"), *place.glob(".*.part")]:
                    shutil.rmtree(folder, ignore_errors=True)
            yield
    except Timeout:
        raise BookError("another build is at work in this folder; wait until it has ended, or stop it") from None
