"""Elements of a page: what other pages need to know of them, and their HTML where the book wants another than Sphinx's."""

from itertools import takewhile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from markdown_it import MarkdownIt
from pygments.formatters import HtmlFormatter
from pygments.token import Name, Operator, Punctuation, Text, Whitespace
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.highlighting import PygmentsBridge
from sphinx.locale import _
from sphinx.transforms import SphinxTransform
from sphinx.util.nodes import clean_astext

from .model import CELL_ANCHOR

INLINE = MarkdownIt("commonmark")
PLAIN = (Name, Operator, Punctuation, Whitespace)


def add_elements(app: Sphinx) -> None:
    app.add_node(RunPanel, html=(visit_panel, lambda self, node: self.body.append("</div>\n")))
    app.add_node(AskBox, html=(visit_ask_box, depart_ask_box))
    app.add_node(nodes.image, override=True, html=(visit_image, lambda self, node: None))
    app.add_node(nodes.section, override=True, html=(visit_section, None))
    app.add_node(nodes.title, override=True, html=(visit_title, None))
    app.add_transform(MarkCells)
    PygmentsBridge.html_formatter = LightFormatter


class LightFormatter(HtmlFormatter):  # type: ignore[misc]
    """Marks no name, bracket, sign or space, of which a page has most: code is half of its weight."""

    def format_unencoded(self, tokensource: Any, outfile: Any) -> None:
        marked = ((Text if kind in PLAIN else kind, text) for kind, text in tokensource)
        super().format_unencoded(marked, outfile)


class MarkCells(SphinxTransform):
    """Marks predictions, gives headings and code cells ids to which links can lead, makes panels of several runs."""

    default_priority = 500

    def apply(self, **kwargs: Any) -> None:
        # The label first, the same in all editions; then what Sphinx makes of the heading's words.
        labels = {self.document.nameids[name] for name, given in self.document.nametypes.items() if given}
        for section in self.document.findall(nodes.section):
            section["ids"].sort(key=lambda id: id not in labels)
        for strong in self.document.findall(nodes.strong):
            if strong.astext() == _("Predict") and isinstance(strong.parent, nodes.paragraph):
                mark_prediction(strong.parent)
        cells = [node for node in self.document.findall(nodes.container) if is_code(node)]
        for node in cells:
            about = node["cell_metadata"]
            if "run" in about:
                self.into_panel(node, about["run"])
            elif "id" in about:
                node["ids"].append(f"{CELL_ANCHOR}{about['id']}")
                for figure in node.findall(nodes.figure):  # Sphinx counts figures, in each edition otherwise
                    figure["ids"] = [f"figure-{about['id']}"]

        for node in cells:
            if about := node["cell_metadata"].get("asked"):
                into_box(node, about)
            elif (id := node["cell_metadata"].get("id", "")).startswith("exercise-") and id.endswith("-check"):
                words = _("This exercise is done in the notebook: open it with one of the links below the title.")
                node.parent.insert(node.parent.index(node) - 1, nodes.paragraph("", words, classes=["page-note"]))
                fold(node.parent, node.parent.index(node), 1)

    def into_panel(self, node: Any, about: dict[str, Any]) -> None:
        panel = RunPanel("", nodes.paragraph("", about["detail"], classes=["run-name"]), **about)
        if about["stale"]:
            panel += nodes.paragraph("", _("Recorded from an older version of this cell."), classes=["run-stale"])
        parent, place = node.parent, node.parent.index(node)
        parent.remove(node)
        panel += node
        if about["first"]:
            parent.insert(place, nodes.container("", panel, classes=["runs"], is_div=True))
        else:
            parent[place - 1] += panel


def mark_prediction(paragraph: Any) -> None:
    """Marks what leads to it, too: the paragraphs of its cell, if it comes after a text. After code it begins with what
    that code shows."""
    paragraph["classes"].append("predict")
    before = paragraph.parent.children[: paragraph.parent.index(paragraph)]
    same = [node for node in before if (node.line or 0) // 10_000 == paragraph.line // 10_000]  # MyST-NB's lines
    if len(same) < len(before) and not is_code(before[-len(same) - 1]):
        for node in same:
            node["classes"].append("leads-on")


def is_code(node: Any) -> bool:
    """Whether it is a code cell, or what stands under one: a calculator, a player."""
    return bool(isinstance(node, nodes.Element) and (node.get("nb_element") == "cell_code" or "kind" in node))


def into_box(cell: Any, about: dict[str, Any]) -> None:
    """Puts a form after a cell, and into it what shows the answer: of a prediction, what the cell puts out and all that
    follows but calculators, up to the next heading or to what leads to the next prediction; of an exercise, nothing."""
    box, parent, place = AskBox("", **about), cell.parent, cell.parent.index(cell)
    if about["exercise"]:
        parent.insert(place - 1, box)  # before the cell with the answer, which the one that checks it follows
        fold(parent, place, 2)
        return

    def follows(node: Any) -> bool:
        ends = isinstance(node, (nodes.section, nodes.target, AskBox))
        return not ends and not {"predict", "leads-on"} & {*node.get("classes", ())}

    rest = takewhile(follows, parent.children[place + 1 :])
    follow = [node for node in rest if node.get("kind") != "calculator"]
    for node in follow:
        parent.remove(node)
    box += [nodes.container("", *cell.children[1:], classes=cell["classes"], is_div=True), *follow]
    del cell.children[1:]
    parent.insert(place + 1, box)


def fold(parent: Any, place: int, count: int) -> None:
    """So many cells, from this place on, become one line to open."""
    summary = f"<details class='notebook'><summary>{_('The cells of the notebook')}</summary>"
    parent.insert(place, nodes.raw("", summary, format="html"))
    parent.insert(place + count + 1, nodes.raw("", "</details>", format="html"))


class AskBox(nodes.General, nodes.Element):
    """Questions to the reader, and what is shown when they are answered; ask.js tells right from wrong."""


def unasked(doctree: nodes.document) -> Any:
    """The predictions for which no box follows before the next one."""
    paragraphs = [node for node in doctree.findall(nodes.paragraph) if "predict" in node["classes"]]
    boxes = [node for node in doctree.findall(AskBox) if not node["exercise"]]
    marks = [node for node in doctree.findall() if node in paragraphs or node in boxes]
    return [one for one, after in zip(marks, [*marks[1:], None], strict=False) if {one, after}.isdisjoint(boxes)]


def visit_ask_box(self: Any, node: AskBox) -> None:
    if self.builder.name != "html":
        return
    questions = []
    for each in node["questions"]:
        choices = each.get("choices") or (each["kind"] == "choice" and {"true": _("yes"), "false": _("no")}) or {}
        words = {value: INLINE.renderInline(text) for value, text in choices.items()}
        questions.append({**each, "question": INLINE.renderInline(each["question"]), "choices": words})
    truths = [{"kind": each["kind"], "right": each["right"]} for each in node["questions"]]
    about = {key: node[key] for key in ("name", "exercise", "hint")}
    self.body.append(self.builder.templates.render("ask.html", {**about, "questions": questions, "truths": truths}))
    if not node["exercise"]:
        self.body.append("<answer-part>\n")


def depart_ask_box(self: Any, node: AskBox) -> None:
    if self.builder.name == "html":
        self.body.append("</ask-box>\n" if node["exercise"] else "</answer-part></ask-box>\n")


class RunPanel(nodes.General, nodes.Element):
    """The outputs of one run; page.js makes tabs of all that stand side by side."""


def visit_panel(self: Any, node: RunPanel) -> None:
    data = {"data-run": node["key"], "data-title": node["title"]}
    self.body.append(self.starttag(node, "div", CLASS="run", **data))


def visit_image(self: Any, node: nodes.image) -> None:
    """An image, and if it is an SVG, its size, so that the text below it keeps its place while it loads."""
    points: list[str] = []
    if node["uri"].endswith(".svg"):
        _event, root = next(ElementTree.iterparse(Path(self.builder.srcdir, node["uri"]), ["start"]))
        points = root.get("viewBox", "").split()[2:]  # as Matplotlib writes it: 3 points are 4 pixels
    size = {key: f"{float(n) * 4 / 3:.0f}" for key, n in zip(("width", "height"), points, strict=False)}
    src = f"{self.builder.imgpath}/{self.builder.images[node['uri']]}"
    self.body.append(self.emptytag(node, "img", "\n", alt=node.get("alt", ""), src=src, **size, loading="lazy"))


def visit_section(self: Any, node: nodes.section) -> None:
    """Without an id: the heading has it, which is what links and the language switch look for."""
    ids, node["ids"] = node["ids"], []
    type(self).visit_section(self, node)
    node["ids"] = ids


def visit_title(self: Any, node: nodes.title) -> None:
    if isinstance(node.parent, nodes.section):
        node["ids"] = node.parent["ids"]
    type(self).visit_title(self, node)


def terms_of(doctree: Any) -> Any:
    """The entries of a glossary: (anchor, term, names of the pages to which it leads)."""
    for item in doctree.findall(nodes.definition_list_item):
        anchors = [raw.astext().split('"')[1] for raw in item.findall(nodes.raw) if 'id="' in raw.astext()]
        names = [strong.astext().split(" · ")[0] for strong in item.findall(nodes.strong)]
        targets = [xref["reftarget"] for xref in item.findall(addnodes.pending_xref)]
        yield from [(anchor, names[0], targets) for anchor in anchors[:1]]


def lookups_of(doctree: nodes.document) -> Any:
    """What search takes for one: the names of a glossary's entry in all languages, and, in emphasis, what people say for
    it; with the addresses to which the entry leads. An entry for several, such as "memory / disk", is taken apart."""
    for item in doctree.findall(nodes.definition_list_item):
        if not any(terms_of(item)):
            continue
        names = next(item.findall(nodes.strong)).astext().lower().replace("，", ", ").split(" · ")
        links = [xref for xref in item.findall(addnodes.pending_xref) if xref.get("reftargetid")]
        urls = [f"{link['reftarget']}.html#{link['reftargetid']}" for link in links]
        said = [alias.astext().lower() for alias in item[-1].findall(nodes.emphasis)]
        for each in zip(*(name.split(" / ") for name in names), strict=False):
            yield [name.partition(" (")[0] for part in each for name in part.split(", ")] + said, urls
            said = []


def definitions_of(doctree: nodes.document) -> Any:
    """What a link to here shows: (anchor, (names in all languages, what it means)), of terms and of rules."""
    for item in doctree.findall(nodes.definition_list_item):
        for anchor, _term, _targets in terms_of(item):
            names, meaning = (next(item.findall(kind)).astext() for kind in (nodes.strong, nodes.definition))
            yield anchor, (names.split(" · "), meaning)
    for rule in doctree.findall(nodes.block_quote):
        section = nearest(rule)
        yield section["ids"][0], ([section[0].astext()], rule.astext())


def nearest(node: Any) -> nodes.section:
    return node.parent if isinstance(node.parent, nodes.section) else nearest(node.parent)


def sections_of(doctree: nodes.document) -> Any:
    """The sections of a page: (anchor, title, text, its words in the index); of groups, only their parts.

    The text has no code, HTML or notes, and of an answer's last line, which begins with a link, only that: not who asked.
    """
    for section in doctree.findall(nodes.section):
        here = [p for p in section.findall(nodes.paragraph) if section is nearest(p)]
        said = [(p, clean_astext(p)) for p in here if {"page-note", "run-name"}.isdisjoint(p["classes"])]
        texts = [text if isinstance(p.next_node(), nodes.Text) else text.partition(" · ")[0] for p, text in said]
        index = "; ".join(e[1] for i in section.findall(addnodes.index) if section is nearest(i) for e in i["entries"])
        if any(texts) or section.parent is doctree:
            yield section["ids"][0], section[0].astext(), " ".join(texts), index
