"""Elements of a page, and how they are written as HTML, where the book wants something else than Sphinx."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.locale import _
from sphinx.transforms import SphinxTransform

from .model import CELL_ANCHOR


def add_elements(app: Sphinx) -> None:
    app.add_node(RunPanel, html=(visit_panel, lambda self, node: self.body.append("</section>\n")))
    app.add_node(nodes.image, override=True, html=(visit_image, lambda self, node: None))
    app.add_node(nodes.section, override=True, html=(visit_section, None))
    app.add_node(nodes.title, override=True, html=(visit_title, None))
    app.add_transform(MarkCells)


class MarkCells(SphinxTransform):
    """Marks predictions, gives each code cell an id to which links can lead, puts outputs of several runs into panels."""

    default_priority = 500

    def apply(self, **kwargs: Any) -> None:
        for strong in self.document.findall(nodes.strong):
            if strong.astext() == _("Predict") and isinstance(strong.parent, nodes.paragraph):
                strong.parent["classes"].append("predict")
        cells = [node for node in self.document.findall(nodes.container) if node.get("nb_element") == "cell_code"]
        for node in cells:
            about = node["cell_metadata"]
            if "run" in about:
                self.into_panel(node, about["run"])
            elif "id" in about:
                node["ids"].append(f"{CELL_ANCHOR}{about['id']}")

    def into_panel(self, node: Any, about: dict[str, Any]) -> None:
        panel = RunPanel("", nodes.paragraph("", about["detail"], classes=["run-name"]), **about)
        if about["stale"]:
            panel += nodes.paragraph("", _("Recorded from an older version of this cell."), classes=["run-stale"])
        parent, place = node.parent, node.parent.index(node)
        parent.remove(node)
        panel += node
        if about["key"] == "here":
            parent.insert(place, nodes.container("", panel, classes=["runs"], is_div=True))
        else:
            parent[place - 1] += panel


class RunPanel(nodes.General, nodes.Element):
    """The outputs of one run; page.js makes tabs of all that stand side by side."""


def visit_panel(self: Any, node: RunPanel) -> None:
    data = {"data-run": node["key"], "data-title": node["title"]}
    self.body.append(self.starttag(node, "section", CLASS="run", **data))


def visit_image(self: Any, node: nodes.image) -> None:
    """An image that says how large it is, so that the text below it keeps its place while it loads."""
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
    """A heading has its label as id, the same in all editions; the ids that Sphinx makes of its words are within it."""
    if isinstance(node.parent, nodes.section):
        node["ids"] = anchors(node.parent)
    type(self).visit_title(self, node)


def anchors(section: Any) -> list[str]:
    """The ids of a section, the label that the source gives it first."""
    document = section.document
    labels = {document.nameids[name] for name, given in document.nametypes.items() if given}
    return sorted(section["ids"], key=lambda id: (id not in labels, id))
