"""Rules that the sources keep, each from a book to the problems found: whole, tidy, and editions that agree.

Two lessons are a pair if their cells have the same ids in the same order, of the same kinds, with the same labels and
links, and the same code once comments and the contents of strings are masked: a printed word may be translated, a
variable may not.
"""

import difflib
import json
import re
from collections.abc import Iterator
from importlib.resources import files as package_files
from unicodedata import east_asian_width
from urllib.parse import unquote

import fastjsonschema

from . import asking, played
from .files import KEPT_METADATA, json_text, notebook_json, parse_yaml
from .machine import LIMITS
from .model import ALONE_TAG, CELL_ANCHOR, COMPARE_TAG, EXPLORER, Book, Cell, Lesson, Page, Problem
from .runs import stale
from .sources import CELL_ID, shared_source
from .texts import Text, difference, text_of, unreadable

RANDOM_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f-]+)?|[0-9a-f]{6,}")  # as editors give them
TAGS = {COMPARE_TAG, ALONE_TAG, EXPLORER, "raises-exception", "hide-cell", "remove-cell"}
TAGS |= {"hide-input", "hide-output", "remove-input", "remove-output"}  # as MyST-NB has them
WIDTH = 79  # columns of code that fit a page; Chinese letters take two


def check(book: Book, ahead: bool = False) -> list[Problem]:
    """Problems of each edition by itself; those that are notes stop no build. ahead: what is only missing is a note."""
    pages = [page for edition in book.editions.values() for page in edition.pages.values()]
    texts = [(page.where(cell), cell.source) for page in pages for cell in page.cells]
    found = [Problem(where, "has marks of a merge conflict") for where, text in texts if "\n<<<<<<< " in f"\n{text}"]
    found += [Problem(lesson.where(cell), text) for lesson in book.lessons for cell, text in faults(lesson)]
    found += [Problem(x.where(cell), text, note=ahead) for x in book.lessons for cell, text in gaps(book, x)]
    places = [f"runs/{run.name}.json: {id}, cell {cell}" for run in book.recorded for id, cell in stale(book, run)]
    found += [Problem(place, "recorded from an older version of the cell", note=True) for place in places]
    return [*settings(book), *found, *links(book), *outdated_translations(book)]


def pairs(book: Book) -> list[Problem]:
    """Where editions differ by more than languages do."""
    both = [(page, edition.pages[name]) for name, page in book.source.pages.items() for edition in book.translations]
    return [*dict.fromkeys(problem for source, page in both for problem in pair(source, page))]


def settings(book: Book) -> Iterator[Problem]:
    """Settings of _config.yml with wrong values, or names that neither Jupyter Book nor this package knows."""
    package = package_files("jupyter_book")
    schema = json.loads((package / "config_schema.json").read_text(encoding="utf-8"))
    known, limit = schema["properties"], {"type": "number", "exclusiveMinimum": 0}
    known["execute"]["properties"] |= dict.fromkeys(LIMITS, limit)
    given = {name: part for name, part in book.config.items() if part is not None}  # not `execute:` or `url:`
    inner = {name: part.items() for name, part in given.items() if isinstance(part, dict)}
    given |= {name: {k: v for k, v in parts if v is not None} for name, parts in inner.items()}
    try:
        fastjsonschema.validate(schema, given, use_default=False)
    except fastjsonschema.JsonSchemaValueException as error:
        yield Problem("_config.yml", error.message.removeprefix("data."))
        return
    defaults = parse_yaml((package / "default_config.yml").read_text(encoding="utf-8"), "default_config.yml")
    execute = {*known["execute"]["properties"], *defaults["execute"]}
    for found, names in ((book.config, {*known, *defaults}), (book.config.get("execute") or {}, execute)):
        for name in sorted(set(found) - names):
            near = [f"; did you mean {near}?" for near in difflib.get_close_matches(name, names, 1)]
            yield Problem("_config.yml", f"no setting is called {name}{''.join(near)}")


def untidy(book: Book) -> Iterator[Problem]:
    """What is not to be committed as it is. Editors leave notebooks so; a build does not mind."""
    for lesson in book.lessons:
        if lesson.raw != json_text(notebook_json(lesson.cells)):
            text = "has outputs, or is not as tidy writes it; before you commit: python -m book tidy"
            yield Problem(lesson.path, text)
        for cell in lesson.code:
            for number, line in enumerate(cell.source.splitlines(), 1):
                if (columns := len(line) + sum(east_asian_width(letter) in "WF" for letter in line)) > WIDTH:
                    yield Problem(lesson.where(cell), f"line {number} has {columns} columns; a page shows {WIDTH}")


def faults(lesson: Lesson) -> Iterator[tuple[Cell, str]]:
    """What makes a lesson's page impossible: (cell, what)."""
    ids = [cell.id for cell in lesson.cells]
    for cell in lesson.cells:
        twice = "two cells have this id" if ids.count(cell.id) > 1 else ""
        if text := twice or asking.wrong(cell) or played.wrong(lesson, cell):
            yield cell, text


def gaps(book: Book, lesson: Lesson) -> Iterator[tuple[Cell | None, str]]:
    """What is missing from a lesson, or not yet as it is to be: (cell, what)."""
    ids, first = [cell.id for cell in lesson.cells], lesson.cells[0]
    for cell in lesson.cells:
        if not re.fullmatch(CELL_ID, cell.id) or RANDOM_ID.fullmatch(cell.id):
            yield cell, f"name it for what it does: python -m book rename-cell {lesson.name} {cell.id} NEW-ID"
        if shared_source(book, cell, lesson.edition) not in (None, cell.source):
            yield cell, "differs from notebooks/shared; change it there, and: python -m book tidy"
        for name in sorted({*cell.metadata} - {*KEPT_METADATA}):  # editors leave others
            if near := difflib.get_close_matches(name, KEPT_METADATA, 1, 0.65):
                yield cell, f"nothing in its metadata is called {name}; did you mean {near[0]}?"
        if unknown := {*cell.tags} - TAGS:
            yield cell, f"no tag is called {', '.join(sorted(unknown))}; there are: {', '.join(sorted(TAGS))}"
        figure = cell.metadata.get("mystnb", {})
        if cell.kind == "code" and "plt.show()" in cell.source:
            if not figure.get("image", {}).get("alt"):
                yield cell, "its figure needs words for those who cannot see it, in its metadata: mystnb, image, alt"
            if not figure.get("figure", {}).get("caption"):
                yield cell, "its figure needs a caption, in its metadata: mystnb, figure, caption"
    if not text_of(first).title.startswith(f"{lesson.number}. "):
        yield first, f"by _toc.yml this is lesson {lesson.number}; its title differs"
    if not first.metadata.get("topic"):
        yield first, "its metadata has no `topic` for the table of lessons"
    if len(lesson.exercises) < 2:
        yield None, "it needs two exercises: cells exercise-2, exercise-2-check, exercise-2-solution, and so with 1"
    for cell in lesson.exercises:
        for part in {f"{cell.id}-check", f"{cell.id}-solution"} - set(ids):
            yield cell, f"there is no cell {part}"
        if lesson.edition == book.source.name and not cell.metadata.get("wrong"):
            yield cell, "its metadata has no `wrong`: code of an answer that the check must refuse"


def pair(source: Page, page: Page) -> list[Problem]:
    """Where a page differs from the one that it translates by more than languages do."""
    ids, theirs = ([cell.id for cell in each.cells] for each in (source, page))
    if ids != theirs:
        lone = [(source.where(cell), page) for cell in source.cells if cell.id not in theirs]
        lone += [(page.where(cell), source) for cell in page.cells if cell.id not in ids]
        lines = [Problem(where, f"there is no such cell in {other.path}") for where, other in lone]
        return lines or [Problem(page.path, f"the cells are not in the order of {source.path}")]
    problems: list[Problem] = []
    for mine, cell in zip(source.cells, page.cells, strict=True):
        where, places = page.where(cell), (source.where(mine), page.where(cell))
        if mine.kind != cell.kind:
            problems.append(Problem(where, f"a {cell.kind} cell here, a {mine.kind} cell in {source.path}"))
        elif mine.kind == "code":
            problems += code_pair(places, (mine.source, cell.source))
        else:
            problems += text_pair(places, text_of(mine), text_of(cell))
        if asking.structure(mine) != asking.structure(cell):
            problems.append(Problem(where, f"asks for another truth, or with other choices, than in {source.path}"))
        if mine.tags != cell.tags:
            problems.append(Problem(where, f"the tags are {cell.tags}, and in {source.path} {mine.tags}"))
    return problems


def code_pair(places: tuple[str, str], both: tuple[str, str]) -> list[Problem]:
    if wrong := [Problem(at, text) for at, code in zip(places, both, strict=True) if (text := unreadable(code))]:
        return wrong
    return [Problem(places[1], text)] if (text := difference(*both)) else []


def text_pair(places: tuple[str, str], source: Text, text: Text) -> list[Problem]:
    where = places[1]
    problems, links = [], [sorted(link for link, _ in each.links) for each in (source, text)]
    for what, mine, theirs in (("labels", source.labels, text.labels), ("links", *links)):
        if mine != theirs:
            lone = sorted(set(mine) ^ set(theirs)) or mine
            problems.append(Problem(where, f"the {what} differ from the source edition's: {', '.join(lone)}"))
    if len(source.code_blocks) != len(text.code_blocks):
        return [*problems, Problem(where, "not as many code blocks as in the source edition")]
    for mine_code, code in zip(source.code_blocks, text.code_blocks, strict=True):
        problems += code_pair(places, (mine_code, code))
    return problems


def links(book: Book) -> Iterator[Problem]:
    """Links to files, labels or cells that do not exist, labels given twice, and lessons to which nothing leads."""
    for edition in book.editions.values():
        places: dict[str, set[str]] = {}  # file -> the labels and cells in it
        labels: set[str] = set()
        for page in edition.pages.values():
            mine = [label for cell in page.cells for label in text_of(cell).labels]
            for label in sorted({label for label in mine if label in labels or mine.count(label) > 1}):
                yield Problem(page.path, f"the label {label} is given twice")
            labels.update(mine)
            places[page.file] = {*mine, *(CELL_ANCHOR + cell.id for cell in page.cells if cell.kind == "code")}
        led_to: set[str] = set()  # the lessons to which Markdown pages lead
        for page in edition.pages.values():
            for cell in page.cells:
                for link, line in text_of(cell).links:
                    if not isinstance(page, Lesson):
                        led_to.add(link.partition("#")[0])
                    if text := dead(link, book, page, labels, places):
                        yield Problem(page.where(cell, line), text)
        for lesson in edition.lessons:
            if lesson.file not in led_to:
                text = "no page leads to it; add its terms to the glossary, and what people ask to the questions"
                yield Problem(lesson.path, text, note=True)


def dead(link: str, book: Book, page: Page, labels: set[str], places: dict[str, set[str]]) -> str | None:
    """What is wrong with a link, if anything."""
    file, _, place = unquote(link).partition("#")
    if "://" in link or link.startswith("mailto:"):
        return None
    if file and file not in places and not (book.root / page.path).parent.joinpath(file).exists():
        return f"no file {file}"
    if not file and place not in labels:
        return f"no label {place}"
    return f"nothing is called {place} in {file}" if file and place and place not in places.get(file, ()) else None


def outdated_translations(book: Book) -> Iterator[Problem]:
    """The cells that are behind; of a page that is so for the most part, one line."""
    for page in [page for edition in book.translations for page in edition.pages.values()]:
        behind = book.behind(page)
        whole = 2 * len(behind) > len(page.cells)
        for cell in behind[:1] if whole else behind:
            known = any(page.translates.values()) if whole else page.translates.get(cell.id)
            text = "the source has changed" if known else "not translated yet, as far as is noted"
            again = f"python -m book translated {page.name if whole else f'{page.name} {cell.id}'}"
            yield Problem(
                page.path if whole else page.where(cell), f"{text}; when it is translated: {again}", note=True
            )
