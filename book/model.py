"""What a book is made of: plain data, without input or output. `sources` reads and writes it."""

import hashlib
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CELL_ANCHOR = "cell-"  # a link to LESSON.ipynb#cell-ID leads to the code cell with this id
COMPARE_TAG = "compare"  # cells with this tag are recorded, and shown beside those of other machines
EXPLORER = "split-explorer"  # the split explorer's directive, and the tag of a cell that it stands after
ALONE_TAG = "runs-alone"  # of a cell that measures time: nothing else runs beside its lesson


@dataclass(frozen=True, order=True)
class Problem:
    """Something that an author can mend. A note is worth a line, but stops nothing."""

    where: str  # the file, and where in it: "notebooks/en/03_model.ipynb, cell wrap-model"
    text: str
    note: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


class BookError(Exception):
    """Something that the author or reader can mend; its text says where and how, one line each."""

    def __init__(self, *problems: Problem | str):
        super().__init__("\n".join(map(str, problems)))
        self.lines = [str(problem) for problem in problems]


@dataclass(frozen=True)
class Provenance:
    """On what a lesson was executed, and when."""

    executed: str  # ISO 8601, UTC
    seconds: float
    accelerator: str | None
    gpus: list[str]  # names
    cuda: str | None
    driver: str | None
    system: str
    versions: dict[str, str]
    commit: str | None  # with a + if files differed from it

    @property
    def machine(self) -> str:
        """ "2 × NVIDIA H200", "mps" or "CPU"."""
        return f"{len(self.gpus)} × {self.gpus[0]}" if self.gpus else self.accelerator or "CPU"


@dataclass(frozen=True)
class Result:
    """A lesson executed: its outputs by cell id, as a notebook has them."""

    lesson: str  # id, such as en/01_device
    key: str  # the hash of all that the outputs depend on
    code: str  # the hash of what they depend on of the book itself
    provenance: Provenance
    outputs: dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Recorded:
    """What a cell put out in a run, and the hash of the code that did it."""

    code: str
    outputs: list[dict[str, Any]]


@dataclass(frozen=True)
class Run:
    """One execution of lessons on one machine."""

    name: str
    lessons: dict[str, Provenance]  # by lesson id
    cells: dict[str, dict[str, Recorded]]  # by lesson id and cell id


@dataclass(frozen=True, eq=False)
class Cell:
    """A cell of a lesson."""

    id: str  # empty for a Markdown page
    kind: str  # "code" or "markdown"
    source: str
    metadata: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[dict[str, Any], ...] = ()

    @property
    def tags(self) -> list[str]:
        return list(self.metadata.get("tags", []))


@dataclass(frozen=True, eq=False)  # hashed by identity: its dictionaries have no hash
class Page:
    """A Markdown page of one edition."""

    name: str
    edition: str
    path: str  # within the repository, such as notebooks/en/index.md
    raw: str  # the file's text
    cells: tuple[Cell, ...]  # a Markdown page is one cell, whose metadata is the YAML block at its top

    @property
    def id(self) -> str:
        return f"{self.edition}/{self.name}"

    @property
    def file(self) -> str:
        return Path(self.path).name

    @property
    def hashes(self) -> dict[str, str]:
        """What a translation of each cell remembers of its text."""
        return {cell.id: hashlib.sha256(cell.source.encode()).hexdigest()[:12] for cell in self.cells}

    @property
    def translates(self) -> dict[str, str | None]:
        """What each cell remembers of the text that it translates."""
        return {cell.id: cell.metadata.get("translates") for cell in self.cells}

    @property
    def minutes(self) -> int:
        """About how long it takes to read: 220 words or 30 unfolded lines of code a minute, rounded up to 5 minutes."""
        words = sum(len(cell.source.split()) for cell in self.cells if cell.kind == "markdown")
        code = [cell for cell in self.cells if cell.kind == "code" and not {"hide-input", "hide-cell"} & {*cell.tags}]
        lines = sum(cell.source.count("\n") + 1 for cell in code)
        return 5 * math.ceil((words / 220 + lines / 30) / 5)

    def where(self, cell: Cell | None = None, line: int | None = None) -> str:
        """How messages name a place in this page."""
        if cell and cell.id:
            return f"{self.path}, cell {cell.id}"
        before = self.raw.count("\n") - self.cells[0].source.count("\n")  # the lines of its front matter
        return f"{self.path}, line {before + line}" if line else self.path


@dataclass(frozen=True, eq=False)
class Lesson(Page):
    """A notebook of one edition."""

    number: int = 0

    @property
    def code(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.kind == "code"]

    @property
    def exercises(self) -> list[Cell]:
        return [cell for cell in self.cells if re.fullmatch(r"exercise-\d+", cell.id)]

    @property
    def runs_alone(self) -> bool:
        return any(ALONE_TAG in cell.tags for cell in self.cells)


@dataclass(frozen=True, eq=False)
class Edition:
    """A folder in notebooks/, in one language. What edition.yml says, and its pages in reading order."""

    name: str  # of the folder, and of the site's folder
    label: str  # the language's own name
    language: str  # as Sphinx names it, such as zh_CN
    tag: str  # as HTML names it, such as zh
    title: str
    author: str
    source: bool = False  # the edition that the others translate
    pages: dict[str, Page] = field(default_factory=dict)

    @property
    def lessons(self) -> list[Lesson]:
        return [page for page in self.pages.values() if isinstance(page, Lesson)]


@dataclass(frozen=True, eq=False)
class Book:
    root: Path
    config: dict[str, Any]  # _config.yml
    toc: dict[str, Any]  # _toc.yml
    editions: dict[str, Edition]  # by name; the source edition first
    shared: dict[str, str] = field(default_factory=dict)  # cells that several lessons repeat: see sources.load_shared
    recorded: list[Run] = field(default_factory=list)  # what machines have recorded of the book's results

    @property
    def source(self) -> Edition:
        return next(iter(self.editions.values()))

    @property
    def translations(self) -> list[Edition]:
        return list(self.editions.values())[1:]

    @property
    def lessons(self) -> list[Lesson]:
        return [lesson for edition in self.editions.values() for lesson in edition.lessons]

    def page(self, id: str) -> Page | None:
        edition, _, name = id.partition("/")
        return self.editions[edition].pages.get(name) if edition in self.editions else None

    def behind(self, page: Page) -> list[Cell]:
        """The cells of a page whose source text has changed since they were translated, or that it lacks."""
        source = self.source.pages[page.name]
        if page.edition == self.source.name:
            return []
        return [cell for cell in source.cells if page.translates.get(cell.id) != source.hashes[cell.id]]

    @property
    def address(self) -> str:
        """Where the site will be, as _config.yml or BOOK_ADDRESS has it; if neither has, pages name no full addresses."""
        return ((self.config.get("html") or {}).get("baseurl") or "").rstrip("/")
