"""Every number that the prose writes in digits: cells near it show it, or its metadata `numbers` has it.

Near a text of a lesson are the two code cells before it and the two after it, with what they print and draw. The
text at a lesson's start and end is about the whole lesson, and so is what another page says with a link to it.

The metadata `numbers` stands in the source edition: of a cell, or of a section in a page's front matter. `calculated`
is Python that gives what no cell near by shows, from numbers that some cell of the lesson shows; `given` is the result of
nothing: what a text assumes, how many things it lists itself, facts from elsewhere.
"""

import math
import re
from dataclasses import dataclass, field
from functools import cached_property

import pytest
import torch

from book.model import Lesson
from tests.conftest import BOOK


def chunks(rows, n):
    return [len(chunk) for chunk in torch.ones(rows).chunk(n)]


NUMBER = re.compile(r"(?<![\w.#/-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w/-])", re.ASCII)
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\((\w+)\.ipynb")
SECTION = re.compile(r"^\(([\w-]+)\)=\n(.*?)(?=^\([\w-]+\)=\n|\Z)", re.DOTALL | re.MULTILINE)
NO_CLAIM = re.compile(
    r"""```.*?``` | \]\([^)]*\)  # code blocks; addresses
        | ^\([\w-]+\)=$ | ^\#\ \d+\. | ^\d+\.\   # labels; the lesson's own number; the numbers of a list
        | [Ll]essons?\ \d+(\ (to|and)\ \d+)? | 第\ \d+(\ ?[到至和、]\ ?\d+)*\ [课章]
        | \*\*(Exercise|练习)\ .*  # a question: it assumes what it likes, up to the end of its cell
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)


def written(text):
    """The numbers of a Markdown text, as they are written, but 0 and 1, which claim too little to be wrong."""
    numbers = [number.replace(",", "") for number in NUMBER.findall(NO_CLAIM.sub(" ", text))]
    return [number for number in numbers if float(number) not in (0, 1)]


@dataclass(frozen=True)
class Witness:
    """A code cell, with what it has put out."""

    source: str
    outputs: list = field(default_factory=list)

    @cached_property
    def numbers(self):
        """Those in its source, in what it prints and in the words of its figures."""
        texts = [self.source]
        for output in self.outputs:
            data = output.get("data", {})
            texts += ["".join(output.get("text", "")), "".join(data.get("text/plain", "")), output.get("evalue", "")]
            texts += re.findall(r"<text[^>]*>([^<]*)", "".join(data.get("image/svg+xml", "")))
        return {float(number) for number in re.findall(r"\d+(?:\.\d+)?", "\n".join(texts).replace(",", ""))}


@dataclass(frozen=True)
class Text:
    """A text cell of a lesson, or a section of a page."""

    id: str  # of the cell, or the section's label
    source: str
    near: list[Witness]  # that may show its numbers
    all: list[Witness]  # those of the lessons that it is about

    @property
    def not_shown(self):
        known = set().union(*(witness.numbers for witness in self.near))
        return [number for number in written(self.source) if float(number) not in known]

    def problems(self, given=(), calculated=""):
        results = eval(f"[{calculated}]", {"chunks": chunks, "math": math, "torch": torch})
        for number in self.not_shown:
            rounded = {round(result, len(number.partition(".")[2])) for result in results}
            if float(number) not in {*given, *rounded}:
                yield f"{self.id}: {number}"
        known = set(given).union(*(witness.numbers for witness in self.all))
        for number in written(calculated):
            if float(number) not in known:
                yield f"{self.id}: {number}, in {calculated}"


def texts(page, run):
    if isinstance(page, Lesson):
        witnesses = witnesses_of(page, run)
        for place, cell in enumerate(page.cells):
            if cell.kind == "markdown":
                yield Text(cell.id, cell.source, near_by(page.cells, place, witnesses), list(witnesses.values()))
    else:
        for label, section in SECTION.findall(page.cells[0].source):
            linked = [BOOK.page(f"{page.edition}/{name}") for name in sorted(set(LINK.findall(section)))]
            witnesses = [witness for lesson in linked for witness in witnesses_of(lesson, run).values()]
            yield Text(label, section, witnesses, witnesses)


def exceptions(name):
    """What the source edition says of the numbers of this page: id of the text -> `given`, `calculated`."""
    page = BOOK.source.pages[name]
    if isinstance(page, Lesson):
        return {cell.id: cell.metadata["numbers"] for cell in page.cells if "numbers" in cell.metadata}
    return page.cells[0].metadata.get("numbers", {})  # the front matter


def witnesses_of(lesson, run):
    return {cell.id: Witness(cell.source, run.cells[lesson.id][cell.id].outputs) for cell in lesson.code}


def near_by(cells, place, witnesses):
    """The cells that may show what the text at this place of a lesson says."""
    text = cells[place]
    if text.id.endswith("-solution"):  # its question, the cell for the answer, the check; and the answer
        around = [witnesses.get(cell.id, Witness(cell.source)) for cell in cells[place - 3 : place]]
        return [*around, Witness("\n".join(CODE.findall(text.source)))]
    if text.id in ("title", "next"):
        return list(witnesses.values())
    before = [cell.id for cell in cells[:place] if cell.kind == "code"][-2:]
    after = [cell.id for cell in cells[place:] if cell.kind == "code"][:2]
    return [witnesses[id] for id in before + after]


PAGES = [page for edition in BOOK.editions.values() for page in edition.pages.values()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.id)
def test_numbers_come_from_code(run, page):
    known = exceptions(page.name)
    assert not [problem for text in texts(page, run) for problem in text.problems(**known.get(text.id, {}))]


@pytest.mark.parametrize("page", BOOK.source.pages)
def test_no_exception_is_left_over(run, page):
    """One that no text needs any more would hide a mistake some day."""
    found = [text for edition in BOOK.editions.values() for text in texts(edition.pages[page], run)]
    not_needed = set(exceptions(page)) - {text.id for text in found if text.not_shown}
    assert not not_needed, f"{page}: the `numbers` of {', '.join(sorted(not_needed))} are not needed; remove them"
