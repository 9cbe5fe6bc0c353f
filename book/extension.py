"""The Sphinx extension: what the site adds to a page, by Sphinx's own events.

It finds the book above the folder that is built, and in ``_build/run``, if that is there, the outputs of its lessons.
So a plain ``jupyter-book build notebooks/zh --toc _toc.yml`` shows the pages that ``python -m book build`` shows.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.locale import _
from sphinx.util.logging import getLogger

from . import asking, files, played, runs
from .directives import CALCULATOR, PLAYER, add_directives
from .elements import AskBox, add_elements, definitions_of, lookups_of, sections_of, terms_of, unasked
from .model import EXPLORER, Cell, Lesson, Recorded, Run
from .site import HERE, LOADED, NEVER_EXECUTE, prints, repository
from .sources import find_root, load

logger = getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    pages = Pages(Path(app.srcdir))
    app.connect("config-inited", pages.configure, priority=1)
    app.connect("builder-inited", lambda app: setattr(app.builder, "search", False))  # the book has one of its own
    app.connect("source-read", pages.add_outputs)
    app.connect("doctree-read", pages.note_facts)
    app.connect("env-updated", pages.rewrite_all)
    app.connect("html-page-context", pages.add_context)
    app.connect("build-finished", pages.write_downloads)
    add_directives(app, pages.book, pages.edition)
    add_elements(app)
    # Sphinx looks only at files that it knows: if there are other recorded runs, it is to read all pages again.
    app.add_config_value("recorded_runs", [run.name for run in pages.book.recorded], "env", [list])
    return {"parallel_read_safe": False, "env_version": LOADED}  # another one: Sphinx forgets all that it has read


class Pages:
    """The pages of one edition, and the events by which Sphinx makes them."""

    def __init__(self, srcdir: Path):
        self.book = load(find_root(srcdir))
        self.edition = self.book.editions[srcdir.name]
        self.repository = repository(self.book)
        self.branch = (self.book.config.get("repository") or {}).get("branch", "main")
        self.folder = runs.run_folder(self.book.root)
        self.run = runs.from_folder(self.folder) or Run("run", {}, {})

    def configure(self, app: Sphinx, config: Config) -> None:
        """The settings in which editions differ, and the places of templates and styles."""
        config.language, config.html_title = self.edition.language, self.edition.title
        config.author = self.edition.author
        folders = ([str(HERE / name)] for name in ("locale", "templates", "static"))
        config.locale_dirs, config.templates_path, config.html_static_path = folders
        app._init_i18n()  # Sphinx chose the language before it loaded this extension
        config.external_toc_path = str(self.book.root / "_toc.yml")  # one for all editions
        config.html_favicon = str(HERE / "static" / "favicon.svg")
        config.html_additional_pages = {**config.html_additional_pages, "search": "search.html"}
        config.nb_code_prompt_show, config.nb_code_prompt_hide = _("Show the code"), _("Hide the code")
        config.html_baseurl = f"{self.book.address}/{self.edition.name}/" if self.book.address else ""
        if NEVER_EXECUTE in os.environ or not runs.not_executed(self.book, self.run):
            config.nb_execution_mode = "off"

    def add_outputs(self, app: Sphinx, docname: str, source: list[str]) -> None:
        """Gives a lesson the outputs of the run, and those that other machines have recorded."""
        lesson = self.edition.pages[docname]
        made_of = [self.book.root / self.book.source.pages[docname].path]  # a translation says that it is behind
        made_of += [*HERE.glob("templates/*.html"), *HERE.glob(f"locale/{self.edition.language}/*/*.po")]
        if isinstance(lesson, Lesson):
            made_of += [self.folder / f"{lesson.id}.ipynb", *(self.book.root / "runs").glob("*.json")]
            source[0] = json.dumps(self.with_outputs(lesson))
        for path in made_of:
            app.env.note_dependency(str(path))

    def with_outputs(self, lesson: Lesson) -> dict[str, Any]:
        notebook, done = files.notebook_json(lesson.cells, executed=True), self.run.cells.get(lesson.id, {})
        cells: list[dict[str, Any]] = []
        for cell, entry in zip(lesson.cells, notebook["cells"], strict=True):
            entry["metadata"]["id"] = cell.id
            if cell.id in done:
                entry["outputs"] = asking.without_values(done[cell.id].outputs)
                entry["metadata"] |= self.asked(lesson, cell)
            panels = self.panels(lesson, cell, entry)
            if cell.id in done and "gpu" in cell.metadata and not self.run.lessons[lesson.id].gpus:
                prompt = dict.fromkeys(("code_prompt_show", "code_prompt_hide"), cell.metadata["gpu"])
                entry["metadata"] |= {"tags": [*cell.tags, "hide-input"], "mystnb": prompt}
            cells += [entry, *panels]
            for kind, about in self.played(lesson, cell):
                directive = f"```{{{kind}}}\n{json.dumps(about)}\n```\n"
                cells.append({"cell_type": "markdown", "id": f"{cell.id}-{kind}", "metadata": {}, "source": directive})
            if EXPLORER in cell.tags:
                directive = f"```{{{EXPLORER}}}\n```\n"
                cells.append({"cell_type": "markdown", "id": EXPLORER, "metadata": {}, "source": directive})
        return {**notebook, "cells": cells}

    def asked(self, lesson: Lesson, cell: Cell) -> dict[str, Any]:
        """The questions that a page asks at a cell, and their truths, in metadata that `MarkCells` reads."""
        if not (questions := asking.asked(cell, self.run.cells[lesson.id][cell.id].outputs)):
            return {}
        exercise = cell.id.removesuffix("-check") if cell.id.endswith("-check") else None
        hint = asking.hint(cell) if exercise else ""
        name = f"{lesson.name}/{exercise or cell.id}"
        return {"asked": {"name": name, "questions": questions, "exercise": bool(exercise), "hint": hint}}

    def played(self, lesson: Lesson, cell: Cell) -> Iterator[tuple[str, dict[str, Any]]]:
        """What stands after a cell to play with: directives, and what their templates are to know."""
        values = self.values(lesson, cell)
        if "calculator" in cell.metadata and values:
            yield CALCULATOR, played.calculator(lesson, cell, values["calculator"])
        if "player" in cell.metadata and values:
            yield PLAYER, played.player(cell, values["player"])

    def values(self, lesson: Lesson, cell: Cell) -> dict[str, list[Any]]:
        """The values that the kernel gave for a cell; none if it was not executed with its expressions."""
        done = self.run.cells.get(lesson.id, {}).get(cell.id)
        return asking.values_of(cell, done.outputs) if done else {}

    def panels(self, lesson: Lesson, cell: Cell, entry: dict[str, Any]) -> list[dict[str, Any]]:
        """Cells with the outputs of this page's run and of recorded ones; `MarkCells` makes panels of them."""
        mine = self.run.lessons.get(lesson.id)
        others = [run for run in self.book.recorded if cell.id in run.cells.get(lesson.id, {})]
        if mine is None or not (others := [r for r in others if r.lessons[lesson.id].machine != mine.machine]):
            return []
        code = runs.code_hash(cell.source)
        # The choice is kept from page to page by the key: the page's own run is the same tab everywhere.
        found = [("here", _("This page"), mine, Recorded(code, entry["outputs"]))]
        for run in others:
            at = run.lessons[lesson.id]
            found.append((at.machine, at.machine, at, run.cells[lesson.id][cell.id]))
        found.sort(key=lambda panel: "gpu" in cell.metadata and not panel[2].gpus)  # the first tab is open
        panels = []
        for number, (key, title, at, kept) in enumerate(found):
            detail = f"{at.machine} · PyTorch {at.versions['torch']} · {at.executed[:10]}"
            about = {"key": key, "title": title, "detail": detail, "stale": kept.code != code, "first": number == 0}
            metadata = {**cell.metadata, "tags": ["remove-input"], "run": about}
            panels.append({**entry, "id": f"{cell.id}-run", "outputs": kept.outputs, "metadata": metadata})
        entry["outputs"] = []
        return panels

    def note_facts(self, app: Sphinx, doctree: nodes.document) -> None:
        """Keeps in Sphinx's environment what other pages need to know of this one."""
        for toctree in doctree.findall(addnodes.toctree):  # _toc.yml is one for all editions
            toctree["caption"] = toctree["caption"] and _(toctree["caption"])
        metadata = app.env.metadata[app.env.docname]
        first = next((p for p in doctree.findall(nodes.paragraph) if isinstance(p.parent, nodes.section)), None)
        text = " ".join(first.astext().split()) if first is not None else ""
        metadata["summary"] = text if len(text) <= 200 else f"{text[:199].rstrip()}…"
        metadata["terms"] = list(terms_of(doctree))
        metadata["lookups"] = list(lookups_of(doctree))
        metadata["definitions"] = dict(definitions_of(doctree))
        mark_languages(doctree, [e.tag for e in self.book.editions.values() if e is not self.edition])
        metadata["sections"] = list(sections_of(doctree))
        if any(doctree.findall(AskBox)):
            metadata.setdefault("scripts", []).append("ask.js")
            for paragraph in unasked(doctree):
                logger.warning("a prediction, and no code cell after it asks for it (`ask`)", location=paragraph)
        # Places to which links of other pages may lead: MyST knows headings by itself, but neither cells nor spans.
        ids = [id for node in doctree.findall(nodes.Element) for id in node["ids"]]
        places = [*ids, *(anchor for anchor, *_rest in metadata["terms"])]
        metadata["myst_slugs"] = {p: (0, p, "") for p in places} | dict(metadata.get("myst_slugs", {}))

    def rewrite_all(self, app: Sphinx, env: BuildEnvironment) -> list[str]:
        """All pages, if something changes that all of them show; Sphinx follows only what a page itself is made of."""
        facts = [[env.metadata[name].get(key) for key in ("terms", "definitions")] for name in sorted(env.titles)]
        titles = [(name, title.astext()) for name, title in sorted(env.titles.items())]
        paths = [path for folder in ("static", "templates", "locale") for path in (HERE / folder).rglob("*.*")]
        texts = [path.read_bytes() for path in sorted(paths) if path.suffix != ".mo"]
        editions = [(replace(e, pages={}), prints(self.book, e.name)) for e in self.book.editions.values()]
        made_of = [titles, facts, texts, editions, self.book.config, self.book.toc]
        frame = hashlib.sha256(repr(made_of).encode()).hexdigest()
        before, env.book_frame = getattr(env, "book_frame", None), frame  # type: ignore[attr-defined]
        return [] if frame == before else sorted(env.found_docs)

    def add_context(self, app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
        """What the templates know of a page."""
        page, facts = self.edition.pages.get(name), app.env.metadata
        lesson = page if isinstance(page, Lesson) else None
        scripts = facts[name].get("scripts") if name in facts else None
        known = [(doc, *term) for doc in facts for term in facts[doc].get("terms", [])]
        terms = [(doc, anchor, term) for doc, anchor, term, targets in known if lesson and name in targets]
        defined = {anchor: words for doc in facts for anchor, words in facts[doc].get("definitions", {}).items()}
        links = [link.get("refuri", "") for link in doctree.findall(nodes.reference)] if doctree else []
        places = [*(link.partition("#")[2] for link in links), *(anchor for _, anchor, *_ in terms)]
        context |= {
            "book": self.book,
            "edition": self.edition,
            "repository": self.repository,
            "place": self.repository and page and f"{self.repository}/blob/{self.branch}/{page.path}",
            "summary": facts[name].get("summary") if name in facts else None,
            "prints": prints(self.book, self.edition.name) if name == app.config.root_doc else [],
            "behind": page and self.book.behind(page),
            "lesson": lesson,
            "terms": terms,
            "definitions": {anchor: defined[anchor] for anchor in places if page and anchor in defined},
            "provenance": lesson and self.run.lessons.get(lesson.id),
            "minutes": lesson and self.book.source.pages[lesson.name].minutes,
            "exercises": lesson and len(lesson.exercises),
            "scripts": ["shared.js", *dict.fromkeys(scripts)] if scripts else [],  # each once, after what they share
        }

    def write_downloads(self, app: Sphinx, exception: Exception | None) -> None:
        """Each lesson as a notebook without outputs, and as a script; and what is searched in pages opened from files."""
        if exception or app.builder.name != "html":
            return
        facts = app.env.metadata
        titles = [(name, title.astext()) for name, title in sorted(app.env.titles.items())]
        topics = {lesson.name: lesson.cells[0].metadata.get("topic", "") for lesson in self.edition.lessons}
        searched = {
            "PAGES": [(name, title, facts[name]["sections"], topics.get(name, "")) for name, title in titles],
            "TERMS": [term for name in sorted(facts) for term in facts[name].get("lookups", [])],
        }
        script = f"Object.assign(globalThis, {json.dumps(searched, ensure_ascii=False)});\n"
        files.write_text(Path(app.outdir) / "_static" / "sections.js", script)
        for lesson in self.edition.lessons:
            known = [(cell, self.values(lesson, cell)) for cell in lesson.code if "calculator" in cell.metadata]
            made = [played.script(lesson, cell, values["calculator"]) for cell, values in known if values]
            if made:
                files.write_text(Path(app.outdir) / "_static" / f"{lesson.name}.js", "".join(made))
            target = Path(app.outdir) / lesson.file
            notebook = files.json_text(files.notebook_json(lesson.cells))
            if not target.exists() or target.read_text(encoding="utf-8") != notebook:
                import jupytext

                plain = jupytext.reads(notebook, "ipynb")
                plain.metadata["jupytext"] = {"cell_metadata_filter": "-all", "notebook_metadata_filter": "-all"}
                files.write_text(target.with_suffix(".py"), jupytext.writes(plain, "py:percent"))
                files.write_text(target, notebook)


def mark_languages(doctree: nodes.document, tags: list[str]) -> None:
    """A glossary's words of other editions say their language, so that they are read aloud and drawn rightly."""
    for item in doctree.findall(nodes.definition_list_item):
        for strong in item.findall(nodes.strong):
            first, *names = strong.astext().split(" · ")
            words = [nodes.inline("", n, classes=[f"language-{tag}"]) for n, tag in zip(names, tags, strict=False)]
            strong.children = [nodes.Text(first), *(part for word in words for part in (nodes.Text(" · "), word))]
