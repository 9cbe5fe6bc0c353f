"""What a page can have by a directive: the table of lessons, the split explorer, calculators, step players."""

import json
from typing import ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.locale import _
from sphinx.util.docutils import SphinxDirective

from .model import EXPLORER, Book, Edition
from .texts import text_of

CALCULATOR, PLAYER = "lesson-calculator", "step-player"


def add_directives(app: Sphinx, book: Book, edition: Edition) -> None:
    LessonTable.book, LessonTable.edition = book, edition
    directives = {"lesson-table": LessonTable, EXPLORER: SplitExplorer, CALCULATOR: Played, PLAYER: Played}
    for name, directive in directives.items():
        app.add_directive(name, directive)


class Scripted(SphinxDirective):
    """What a page's scripts bring to life; each is loaded once in a page."""

    def scripts(self, *names: str) -> None:
        self.env.metadata[self.env.docname].setdefault("scripts", []).extend(names)


class LessonTable(Scripted):
    """A table of all lessons: topic, and the question that its title asks."""

    book: ClassVar[Book]
    edition: ClassVar[Edition]

    def run(self) -> list[nodes.Node]:
        lines = [f"| {_('lesson')} | {_('the question it answers')} | {_('minutes')} |", "|---|---|--:|"]
        for lesson in self.edition.lessons:
            source = self.book.source.pages[lesson.name]
            for path in (lesson.path, source.path):
                self.env.note_dependency(str(self.book.root / path))
            name = f"{lesson.number}. {lesson.cells[0].metadata.get('topic')}"
            title = text_of(lesson.cells[0]).title.partition(" ")[2]
            boxes = sum(cell.id.endswith("-check") and "ask" in cell.metadata for cell in lesson.code)
            solved = f'<solved-count data-lesson="{lesson.name}" data-all="{boxes}"></solved-count>'
            lines.append(f"| [{name}]({lesson.file}) {solved} | {title} | {source.minutes} |")
        box = nodes.Element()
        self.state.nested_parse(StringList(lines, self.env.docname), self.content_offset, box)
        self.scripts("ask.js")
        kept = self.env.app.builder.templates.render("kept-answers.html", {})
        return [*box.children, nodes.raw("", kept, format="html")]


class SplitExplorer(Scripted):
    """The split explorer: who gets which rows of a batch."""

    def run(self) -> list[nodes.Node]:
        self.scripts("explorer.js")
        return [nodes.raw("", self.env.app.builder.templates.render("explorer.html", {}), format="html")]


class Played(Scripted):
    """Calculators and step players: made by a template, which is to know the directive's content, as JSON."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        about, kind = json.loads("\n".join(self.content)), self.name.partition("-")[2]
        self.scripts(*about.get("scripts", []), f"{kind}.js")
        html = self.env.app.builder.templates.render(f"{kind}.html", about)
        return [nodes.raw("", html, format="html", kind=kind)]
