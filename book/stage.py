"""Stages an edition: lays out its pages as Jupyter Book is to read them, in ``_build/stage/en``, say.

Every page lies at the top under its short name, so that its address is ``en/01_device.html``; it carries with it what
the templates say about it. Only files that changed are written anew, so that Sphinx reads only those pages again.
"""

import io
import json
import math
import os
import re
import shutil
import subprocess
from functools import cache, partial
from html import escape
from pathlib import Path

import yaml

from .execute import RUN
from .lessons import (
    BUILD,
    CELL_ANCHOR,
    EDITIONS,
    ROOT,
    behind,
    config,
    front_matter,
    lesson_names,
    page_is_behind,
    page_names,
    page_path,
    read_notebook,
    toc,
)
from .runs import code_hash, machine_name

STAGE = BUILD / "stage"
EXPLORER_AFTER = ("04_data_parallel", "split-law-check")  # the split explorer has a page, and a place in a lesson
EDITION_NAMES = {"en": "English", "zh": "中文"}
RUN_LABELS = {
    "en": {"here": "This page", "stale": "Recorded from an older version of this cell."},
    "zh": {"here": "本页", "stale": "这份记录出自本单元格的旧版本。"},
}


def stage(edition, record, others):
    """The source tree of an edition as a dict: path -> bytes. others: recorded runs to show beside the last one."""
    files = {}
    settings = edition_config(edition)
    for name in page_names():
        files[f"{name}.md"] = staged_page(name, edition, settings)
    for name in lesson_names():
        files[f"{name}.ipynb"] = staged_lesson(name, edition, settings, record, others)
    files["splits.svg"] = figure(files["04_data_parallel.ipynb"], "splits-plot")
    for folder in ("static", "templates", "locale"):
        for path in sorted((ROOT / "book" / folder).rglob("*")):
            if path.is_file() and path.suffix != ".mo":
                files[path.relative_to(ROOT).as_posix()] = path.read_bytes()
    files["_toc.yml"] = yaml.safe_dump(short_names(toc())).encode()
    files["_config.yml"] = yaml.safe_dump(settings, allow_unicode=True).encode()
    return files


def figure(notebook, cell_id):
    """The figure that a cell of an executed notebook has drawn."""
    cell = next(cell for cell in json.loads(notebook)["cells"] if cell["id"] == cell_id)
    return next(o["data"]["image/svg+xml"] for o in cell["outputs"] if "data" in o).encode()


def staged_page(name, edition, settings):
    """A page with short links, and at its top what the templates say about it."""
    head, text = front_matter(page_path(name, edition).read_text(encoding="utf-8"))
    about = {**head, **about_page(name, edition, settings)}
    return f"---\n{yaml.safe_dump(about, allow_unicode=True)}---\n{short_links(text)}".encode()


def staged_lesson(name, edition, settings, record, others):
    """An executed notebook with short links, an anchor before each code cell to which links can lead,
    and in its metadata what the templates say about it."""
    notebook = json.loads((RUN / edition / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cells.append(html_cell(f"at-{cell['id']}", f'<div id="{CELL_ANCHOR}{cell["id"]}"></div>'))
        else:
            cell["source"] = short_links("".join(cell["source"]))
        shown_by = [run for run in others if tells_more(run, f"{edition}/{name}", cell["id"], record)]
        cells += with_recorded(cell, f"{edition}/{name}", record, shown_by) if shown_by else [cell]
        if (name, cell["id"]) == EXPLORER_AFTER:
            page = page_path("explorer", edition).read_text(encoding="utf-8")
            cells.append(html_cell("explorer", page[page.index("<split-explorer>") :]))
    about = {**about_page(name, edition, settings), **about_lesson(name, edition, settings, record)}
    metadata = {**notebook["metadata"], **about}
    return json.dumps({**notebook, "cells": cells, "metadata": metadata}, ensure_ascii=False).encode()


def tells_more(run, lesson, cell, record):
    """Whether a recorded run has outputs of a cell from another kind of machine than the page's own."""
    has = cell in run.cells.get(lesson, {})
    return has and machine_name(run.lessons[lesson]) != machine_name(record[lesson])


def with_recorded(cell, lesson, record, others):
    """A cell whose outputs in the last run and in recorded ones stand side by side; page.js makes tabs of them."""
    labels = RUN_LABELS[lesson[:2]]
    cells = [{**cell, "outputs": []}]
    mine = {"code": code_hash("".join(cell["source"])), "outputs": cell["outputs"]}
    entries = [(labels["here"], record[lesson], mine)]
    entries += [
        (machine_name(run.lessons[lesson]), run.lessons[lesson], run.cells[lesson][cell["id"]]) for run in others
    ]
    for number, (title, provenance, kept) in enumerate(entries):
        # The choice is kept from page to page by this key: the page's own run is the same tab everywhere.
        key = "here" if number == 0 else escape(title)
        detail = (
            f"{machine_name(provenance)} · PyTorch {provenance['versions']['torch']} · {provenance['executed'][:10]}"
        )
        old = "" if kept["code"] == mine["code"] else f'<p class="run-stale">{labels["stale"]}</p>'
        opening = "" if number else '<div class="runs">'
        head = f'<section class="run" data-run="{key}" data-title="{escape(title)}"><p class="run-name">{escape(detail)}</p>{old}'
        cells.append(html_cell(f"{cell['id']}-run-{number}", f"{opening}{head}"))
        output = {**cell, "id": f"{cell['id']}-output-{number}", "outputs": kept["outputs"]}
        output["metadata"] = {**cell["metadata"], "tags": ["remove-input"]}
        cells.append(output)
        closing = "</div>" if number == len(entries) - 1 else ""
        cells.append(html_cell(f"{cell['id']}-end-{number}", f"</section>{closing}"))
    return cells


def html_cell(id, html):
    return {"cell_type": "markdown", "id": id, "metadata": {}, "source": html}


def short_links(text):
    """Links between source folders, as they are from the one folder of the staged tree.

    A link to a place within a page gets the scheme `page:` (see myst_url_schemes in _config.yml): it leads
    to a cell or a label, for which `check` has looked already, and Sphinx does not know the cells.
    """
    text = re.sub(r"\]\((?:\.\./)+(?:notebooks|book/pages)/(?:en|zh)/", "](", text)
    return re.sub(r"\]\((\w+)\.(?:ipynb|md)#", r"](page:\1#", text)


def short_names(node):
    """A table of contents whose files are named without their folders."""
    if isinstance(node, list):
        return [short_names(item) for item in node]
    if isinstance(node, dict):
        return {k: Path(v).name if k in ("root", "file") else short_names(v) for k, v in node.items()}
    return node


def edition_config(edition):
    """_config.yml, with what the edition has otherwise, and what its templates need to know."""
    settings = config()
    extra = page_path("_config", edition).with_suffix(".yml")
    if extra.exists():
        settings = merged(settings, yaml.safe_load(extra.read_text(encoding="utf-8")))
    other = next(e for e in EDITIONS if e != edition)
    address = site_address()
    context = {
        "edition": edition,
        "other_edition": other,
        "other_edition_name": EDITION_NAMES[other],
        "site_address": address,
        "repository": repository(settings),
        "lesson_count": len(lesson_names()),
    }
    sphinx = {"nb_execution_mode": "off", "html_extra_path": ["downloads"], "html_context": context}
    changes = {"execute": {"execute_notebooks": "off"}, "sphinx": {"config": sphinx}}
    if address:
        changes["html"] = {"baseurl": f"{address}/{edition}/"}
    return merged(settings, changes)


def site_address():
    """Where the site will be, as _config.yml has it, or an empty string: then its pages name no full addresses."""
    return (config().get("html", {}).get("baseurl") or "").rstrip("/")


def repository(settings):
    """The book's GitHub repository as "owner/name", or None if it is not known.

    Asks the configuration, then the CI environment, then the git remote "origin".
    """
    address = settings["repository"]["url"]
    if not address and os.environ.get("GITHUB_REPOSITORY"):
        address = f"https://github.com/{os.environ['GITHUB_REPOSITORY']}"
    if not address and shutil.which("git"):
        command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
        address = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    match = re.search(r"github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?$", address or "")
    return match and match[1]


def merged(base, changes):
    """A dict with the values of `changes` over those of `base`, nested dicts likewise."""
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        result[key] = merged(base[key], value) if both else value
    return result


def about_page(name, edition, settings):
    """What the templates say about a page or lesson; Sphinx hands it to them as `meta`, all as strings."""
    if name in lesson_names():
        path = f"notebooks/{edition}/{name}.ipynb"
        text = read_notebook(ROOT / path)["cells"][0]["source"]
        late = bool(behind(name))
    else:
        path = f"book/pages/{edition}/{name}.md"
        _, text = front_matter((ROOT / path).read_text(encoding="utf-8"))
        late = page_is_behind(name)
    about = {"summary": description(text)}
    if edition == "zh" and late:
        about["behind"] = "yes"
    if repository(settings):
        about["place"] = f"{repository(settings)}/blob/{settings['repository']['branch']}/{path}"
    return about


def about_lesson(name, edition, settings, record):
    """What the templates say about a lesson besides: its number, on what it was executed, its topic and terms."""
    provenance = record[f"{edition}/{name}"]
    gpus = provenance["gpus"]
    return {
        "number": str(lesson_names().index(name) + 1),
        "executed": provenance["executed"],
        "hardware": f"{len(gpus)} × {gpus[0]}" if gpus else provenance["accelerator"] or "",
        "driver": (gpus and provenance["driver"]) or "",
        "torch": provenance["versions"]["torch"],
        "python": provenance["versions"]["python"],
        "platform": provenance["system"],
        "topic": topic(name, edition) or "",
        "terms": "|".join(f"{anchor}={term}" for anchor, term in terms(name, edition)),
    }


def topic(name, edition):
    """What a lesson is about, as the home page's table has it."""
    home = page_path("index", edition).read_text(encoding="utf-8")
    found = re.search(rf"\[\d+\. ([^\]]*)\]\([^)]*/{name}\.ipynb\)", home)
    return found and found[1]


def terms(name, edition):
    """The glossary's terms that lead to a lesson: [(anchor, term)]."""
    glossary = page_path("glossary", edition).read_text(encoding="utf-8")
    entries = re.findall(r'<span id="([\w-]+)"></span>\*\*(.*?)(?: · .*?)?\*\*\n: (.*)', glossary)
    return [(anchor, term) for anchor, term, text in entries if f"/{name}.ipynb" in text]


def description(text):
    """The first paragraph of a page without its markup."""
    paragraphs = [part for part in text.split("\n\n") if not part.startswith(("(", "#", "<"))]
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[*`]", r"\1", paragraphs[0]).strip()
    return plain if len(plain) <= 200 else f"{plain[:199].rstrip()}…"


def write_stage(edition, files, same_frame):
    """Writes what changed, and removes what is no longer there; returns whether anything was removed."""
    folder = STAGE / edition
    staged = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    changed = [name for name in files if name not in staged or (folder / name).read_bytes() != files[name]]
    # What takes longer to make is made only if it is not there or what it is made of has changed.
    made = {"book/static/share.png": share_card}
    due = [] if same_frame and set(made) <= staged else list(made)
    for name in lesson_names():
        path = f"downloads/{name}.ipynb"
        made[path] = partial(plain_notebook, edition, name)
        made[f"downloads/{name}.py"] = partial(plain_script, edition, name)
        if f"{name}.ipynb" in changed or path not in staged:
            due += [path, f"downloads/{name}.py"]
    gone = {name for name in staged - set(files) - set(made) if not name.endswith(".mo")}
    for name in gone:
        (folder / name).unlink()
    for name in [*changed, *due]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(files[name] if name in files else made[name]())
    return bool(gone)


def plain_notebook(edition, name):
    """A lesson as it was executed, without its outputs, as a file."""
    notebook = read_notebook(RUN / edition / f"{name}.ipynb")
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    return (json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode()


def plain_script(edition, name):
    """A lesson as a script, as a file."""
    import jupytext

    return jupytext.writes(jupytext.reads(plain_notebook(edition, name).decode(), "ipynb"), "py:percent").encode()


def prepare():
    """What can be done before the lessons have been executed: an import, and the share card."""
    import jupytext  # noqa: F401

    share_card()


@cache
def share_card():
    """The picture that a link to the book shows where it is shared: 30 rows on 1, 2, 3 and 8 GPUs, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import TABLEAU_COLORS
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6.3), dpi=100)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.08, 0.06, 0.84, 0.72))
    for line, gpus in enumerate((1, 2, 3, 8)):
        chunk = math.ceil(30 / gpus)
        for left, color in zip(range(0, 30, chunk), TABLEAU_COLORS.values()):
            rows = min(chunk, 30 - left)
            axes.barh(line, rows, left=left, color=color, edgecolor="white", linewidth=3, alpha=0.75)
            axes.text(left + rows / 2, line, rows, ha="center", va="center", fontsize=26)
    axes.invert_yaxis()
    axes.set_axis_off()
    figure.text(0.5, 0.87, "One Model, Many GPUs", ha="center", fontsize=44)
    target = io.BytesIO()
    figure.savefig(target, format="png", metadata={"Software": None})
    return target.getvalue()
