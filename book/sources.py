"""The sources of the book: loads them all into a `Book`, and writes what authors ask for into them."""

import difflib
import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from sphinx_external_toc.parsing import MalformedError, parse_toc_data

from . import files, runs
from .model import Book, BookError, Cell, Edition, Lesson, Page, Problem

NOTEBOOKS = "notebooks"
ADDRESS = "BOOK_ADDRESS"  # an environment variable: where the site will be
SETTINGS = "edition.yml"  # what makes a folder in notebooks/ an edition
CELL_ID = r"[a-z][a-z0-9-]*"
SHARED = "shared"  # the folder in notebooks/ with cells that several lessons repeat, a file for each


def find_root(start: Path | None = None) -> Path:
    """The folder of the book that `start` (default: the working folder) is in; outside of any, that of this package."""
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents, Path(__file__).resolve().parent.parent):
        if (folder / "_toc.yml").exists() and (folder / NOTEBOOKS).is_dir():
            return folder
    raise BookError(f"{start}: no book is here; its folder has _toc.yml and {NOTEBOOKS}")


def load(root: Path | None = None) -> Book:
    """The whole book (default: the one that `find_root` finds), each of its files read once.

    Raises BookError with a line for each problem of its files.
    """
    root = root or find_root()
    problems: list[str] = []
    toc = files.read_yaml(root / "_toc.yml", root)
    order = reading_order(toc)
    editions = []
    for settings in sorted((root / NOTEBOOKS).glob(f"*/{SETTINGS}")):
        with collecting(problems):
            editions.append(load_edition(settings, order, root, problems))
    if [edition.source for edition in editions].count(True) != 1 and not problems:
        problems.append(f"{NOTEBOOKS}/*/{SETTINGS}: exactly one edition is to have `source: true`")
    if problems:
        raise BookError(*problems)
    editions.sort(key=lambda edition: (not edition.source, edition.name))
    config = files.read_yaml(root / "_config.yml", root) or {}
    if not isinstance(config, dict):
        raise BookError(Problem("_config.yml", "not settings, each with a name and a value"))
    if address := os.environ.get(ADDRESS):
        config["html"] = {**(config.get("html") or {}), "baseurl": address}
    by_name = {edition.name: edition for edition in editions}
    return Book(root, config, toc, by_name, load_shared(root), runs.recorded(root))


@contextmanager
def collecting(problems: list[str]) -> Iterator[None]:
    """Adds the lines of a BookError to the list, so that the author hears of all problems at once."""
    try:
        yield
    except BookError as error:
        problems += error.lines


def reading_order(toc: dict[str, Any]) -> list[str]:
    """The names of the pages in reading order, as _toc.yml has them for all editions."""
    try:
        return list(parse_toc_data(toc))
    except MalformedError as error:
        raise BookError(Problem("_toc.yml", str(error))) from None


def load_edition(settings: Path, order: list[str], root: Path, problems: list[str]) -> Edition:
    folder = settings.parent
    found = {path.stem: path for path in sorted(folder.glob("[!.]*")) if path.suffix in (".ipynb", ".md")}
    composed = {unicodedata.normalize("NFC", name): name for name in found}
    missing = [name for name in order if name not in found]
    for name in missing:
        if twin := composed.get(unicodedata.normalize("NFC", name)):
            text = "the file's name is in another Unicode form than in _toc.yml; rename the file"
            problems.append(f"{files.relative(found.pop(twin), root)}: {text}")
        else:
            problems.append(f"{files.relative(folder / name, root)}.ipynb: no such file, though _toc.yml names it")
    for name in sorted(set(found) - set(order)):
        near = difflib.get_close_matches(name, missing, 1)
        hint = f"it has {near[0]}" if near else "add it there, or remove the file"
        problems.append(f"{files.relative(found[name], root)}: not in _toc.yml; {hint}")
    pages: dict[str, Page] = {}
    for name in [name for name in order if name in found]:
        with collecting(problems):
            page = load_page(found[name], folder.name, root)
            number = sum(isinstance(other, Lesson) for other in pages.values()) + 1
            pages[name] = replace(page, number=number) if isinstance(page, Lesson) else page
    try:
        return Edition(folder.name, pages=pages, **files.read_yaml(settings, root))
    except TypeError as error:
        fields = "to be given are label, language, tag, title, author and, for one edition, source: true"
        raise BookError(Problem(files.relative(settings, root), f"{fields} ({error})")) from None


def load_page(path: Path, edition: str, root: Path) -> Page:
    """A page or, if it is a notebook, a lesson; outputs that an editor has left in it are dropped."""
    raw, where = files.read_text(path, root, "utf-8"), files.relative(path, root)  # tidy removes a byte order mark
    text, about = raw.removeprefix("\ufeff"), None
    if path.suffix == ".ipynb":
        cells = tuple(replace(cell, outputs=()) for cell in files.parse_notebook(text, where))
        return Lesson(path.stem, edition, where, raw, cells)
    if text.startswith("---"):
        front, closed, text = text.partition("\n---\n")
        about = files.parse_yaml(front.removeprefix("---"), where) if closed else None
        if not isinstance(about, dict):
            text = "its front matter is to be settings (name: value) between two ---"
            raise BookError(Problem(f"{where}, line 1", text))
    return Page(path.stem, edition, where, raw, (Cell("", "markdown", text, about or {}),))


def load_shared(root: Path) -> dict[str, str]:
    """The cells that several lessons repeat, so that each stands alone: path under notebooks/shared -> source.

    `virtual-devices.py` holds for all editions, `zh/figures.py` for one.
    """
    folder = root / NOTEBOOKS / SHARED
    paths = sorted(folder.rglob("*.py"))
    return {path.relative_to(folder).as_posix(): files.read_text(path, root).rstrip("\n") for path in paths}


def shared_source(book: Book, cell: Cell, edition: str) -> str | None:
    """What notebooks/shared has for this cell, or None."""
    shared = book.shared if cell.kind == "code" else {}
    return shared.get(f"{edition}/{cell.id}.py", shared.get(f"{cell.id}.py"))


def tidy(book: Book, names: list[str]) -> list[str]:
    """Removes outputs and editor metadata from lessons, and writes shared cells into them; returns the files changed."""
    changed = []
    for lesson in select(book, names):
        cells = [replace(c, source=shared_source(book, c, lesson.edition) or c.source) for c in lesson.cells]
        changed += rewrite(book, lesson, cells)
    return changed


def rewrite(book: Book, page: Page, cells: list[Cell]) -> list[str]:
    """Writes a page's file if its text changes; returns its path if so."""
    if isinstance(page, Lesson):
        text = files.json_text(files.notebook_json(cells))
    else:
        front = yaml.safe_dump(cells[0].metadata, allow_unicode=True)
        text = f"---\n{front}---\n{cells[0].source}" if cells[0].metadata else cells[0].source
    if text == page.raw:
        return []
    files.write_text(book.root / page.path, text)
    return [page.path]


def select(book: Book, names: list[str], editions: list[str] | None = None) -> list[Lesson]:
    """The lessons with these names (all, if none are named) in these editions."""
    known = [lesson.name for lesson in book.source.lessons]
    wanted = [Path(name).stem for name in names]
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
            raise BookError(f"no lesson is called {name}; {hint}")
    lessons = [lesson for lesson in book.lessons if not wanted or lesson.name in wanted]
    return [lesson for lesson in lessons if not editions or lesson.edition in editions]


def mark_translated(book: Book, name: str, cells: list[str]) -> list[str]:
    """Notes that a page or these cells of a lesson (or all) translate the source edition of today; returns the files."""
    if (source := book.source.pages.get(name)) is None:
        near = difflib.get_close_matches(name, list(book.source.pages), 1)
        raise BookError(f"no lesson or page is called {name}" + (f"; did you mean {near[0]}?" if near else ""))
    if unknown := set(cells) - {cell.id for cell in source.cells}:
        raise BookError(Problem(source.path, f"no such cell: {', '.join(sorted(unknown))}"))
    for edition in book.translations:
        page = edition.pages[name]
        rewrite(book, page, [up_to_date(c, source) if not cells or c.id in cells else c for c in page.cells])
    return [edition.pages[name].path for edition in book.translations]


def up_to_date(cell: Cell, source: Page) -> Cell:
    return replace(cell, metadata={**cell.metadata, "translates": source.hashes.get(cell.id)})


def rename_cell(book: Book, name: str, old: str, new: str) -> list[str]:
    """Gives a cell another id in all editions, and mends the links to it; returns the files changed."""
    found = [lesson for lesson in select(book, [name]) if old in [cell.id for cell in lesson.cells]]
    if not found:
        raise BookError(f"{name}: no cell is called {old}")
    if not re.fullmatch(CELL_ID, new):
        raise BookError(f"{new}: a cell's id has small letters, digits and hyphens, and begins with a letter")
    if new in [cell.id for lesson in found for cell in lesson.cells]:
        raise BookError(f"{name}: there is a cell called {new} already")
    link = re.compile(rf"(?<={re.escape(found[0].file)}#cell-){re.escape(old)}(?![\w-])")
    changed = []
    for edition in book.editions.values():
        for page in edition.pages.values():
            ids = {old: new} if page in found else {}
            cells = [replace(c, id=ids.get(c.id, c.id), source=link.sub(new, c.source)) for c in page.cells]
            if [(c.id, c.source) for c in cells] != [(c.id, c.source) for c in page.cells]:
                changed += rewrite(book, page, cells)
    return changed


def new_lesson(book: Book, name: str, like: str) -> list[str]:
    """Makes a lesson in every edition from one that is like it, and names it in _toc.yml; returns the files made.

    Ids of cells, words and code are those of the other lesson, to be written over; labels begin with the new name.
    """
    last, made, source = book.source.lessons[-1], [], book.source.lessons[-1]
    if not re.fullmatch(rf"{(number := last.number + 1):02}_[a-z][a-z0-9_]*", name):
        raise BookError(f"{name}: the next lesson is called {number:02}_name, in small letters, after {last.name}")
    toc = files.read_text(book.root / "_toc.yml", book.root)
    if not (line := re.search(rf"^.*file: *[\"']?{last.name}\b.*\n?", toc, re.MULTILINE)):
        raise BookError(Problem("_toc.yml", f"no line of its own is for {last.name}, after which {name} is to stand"))
    for model in select(book, [like]):
        lesson = replace(model, name=name, path=f"{NOTEBOOKS}/{model.edition}/{name}.ipynb", raw="", number=number)
        cells = [replace(cell, source=relabelled(cell, model, lesson)) for cell in model.cells]
        lesson = replace(lesson, cells=tuple(cells))
        source = lesson if model.edition == book.source.name else source
        made += rewrite(book, lesson, cells if lesson is source else [up_to_date(cell, source) for cell in cells])
    files.write_text(book.root / "_toc.yml", toc.replace(line[0], line[0] + line[0].replace(last.name, name)))
    return [*made, "_toc.yml"]


def relabelled(cell: Cell, model: Lesson, new: Lesson) -> str:
    """A text cell with labels of its own and the number of the new lesson; links to what is in its lesson follow."""
    if cell.kind != "markdown":
        return cell.source
    labels = {label for each in model.cells for label in re.findall(r"(?m)^\(([\w-]+)\)=$", each.source)}
    prefix, place = new.name[3:].replace("_", "-"), rf"(^\((?=[\w-]+\)=$)|\]\((?:{re.escape(new.file)})?#)([\w-]+)"
    source = cell.source.replace(f"]({model.file}#", f"]({new.file}#")
    source = re.sub(place, lambda m: m[1] + f"{prefix}-" * (m[2] in labels) + m[2], source, flags=re.MULTILINE)
    return re.sub(r"^# \d+\. ", f"# {new.number}. ", source, flags=re.MULTILINE)
