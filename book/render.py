"""Renders the last run: Jupyter Book makes one site per edition, ``_build/html/{en,zh}``.

Each edition is staged into a source tree of its own, ``_build/stage/en`` say, in
which every page lies at the top under its short name, so that its address is
``en/01_device.html``. Only files that changed are staged anew, so that Sphinx
reads only those pages again. The site is put in place when all of it is there.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import yaml

from .execute import RUN, last_run, replace_folder
from .lessons import (
    BUILD,
    CELL_ANCHOR,
    EDITIONS,
    ROOT,
    BookError,
    behind,
    config,
    lesson_names,
    page_is_behind,
    page_names,
    page_path,
    select,
    toc,
)

SITE = BUILD / "html"
STAGE = BUILD / "stage"
SPHINX = BUILD / "sphinx"
EXPLORER_AFTER = ("04_data_parallel", "split-law-check")  # the split explorer has a page, and a place in a lesson
STAMP = ".rendered"  # in the site: the digest of all that it was made of

EDITION_NAMES = {"en": "English", "zh": "中文"}
JUPYTER_BOOK = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build"]
OPTIONS = ["--all", "-n", "-W", "--keep-going", "-q"]


def render():
    """Makes the site from the last run; returns whether there was anything to do.

    Raises BookError if a lesson is missing from the run, or if Jupyter Book
    warns of anything; the last good site is then as it was.
    """
    record = last_run()["lessons"]
    missing = [lesson.id for lesson in select() if lesson.id not in record]
    if missing:
        raise BookError(f"not executed yet: {', '.join(missing)}; run: python -m book execute")
    staged = {edition: stage(edition, record) for edition in EDITIONS}
    digest = digest_of(staged)
    if up_to_date(digest):
        return False
    for edition in EDITIONS:
        write_stage(edition, staged[edition])
    run_jupyter_book()
    put_in_place(digest)
    return True


def stage(edition, record):
    """The source tree of an edition as a dict: path -> bytes."""
    files = {}
    for name in page_names():
        files[f"{name}.md"] = short_links(page_path(name, edition).read_text(encoding="utf-8")).encode()
    for name in lesson_names():
        files[f"{name}.ipynb"] = staged_lesson(name, edition)
    files["splits.svg"] = figure(files["04_data_parallel.ipynb"], "splits-plot")
    for folder in ("static", "templates", "locale"):
        for path in sorted((ROOT / "book" / folder).rglob("*")):
            if path.is_file() and path.suffix != ".mo":
                files[path.relative_to(ROOT).as_posix()] = path.read_bytes()
    files["_toc.yml"] = yaml.safe_dump(short_names(toc())).encode()
    files["_config.yml"] = yaml.safe_dump(edition_config(edition, record), allow_unicode=True).encode()
    return files


def figure(notebook, cell_id):
    """The figure that a cell of an executed notebook has drawn."""
    cell = next(cell for cell in json.loads(notebook)["cells"] if cell["id"] == cell_id)
    return next(o["data"]["image/svg+xml"] for o in cell["outputs"] if "data" in o).encode()


def staged_lesson(name, edition):
    """An executed notebook with short links, and an anchor before each code cell to which links can lead."""
    notebook = json.loads((RUN / edition / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cells.append(html_cell(f"at-{cell['id']}", f'<div id="{CELL_ANCHOR}{cell["id"]}"></div>'))
        else:
            cell["source"] = short_links("".join(cell["source"]))
        cells.append(cell)
        if (name, cell["id"]) == EXPLORER_AFTER:
            page = page_path("explorer", edition).read_text(encoding="utf-8")
            cells.append(html_cell("explorer", page[page.index("<split-explorer>") :]))
    return json.dumps({**notebook, "cells": cells}, ensure_ascii=False).encode()


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


def edition_config(edition, record):
    """_config.yml, with what the edition has otherwise, and what its templates need to know."""
    settings = config()
    extra = page_path("_config", edition).with_suffix(".yml")
    if extra.exists():
        settings = merged(settings, yaml.safe_load(extra.read_text(encoding="utf-8")))
    other = next(e for e in EDITIONS if e != edition)
    address = repository(settings)
    pages = {name: {"behind": edition == "zh" and page_is_behind(name)} for name in page_names()}
    for name in lesson_names():
        pages[name] = {
            "behind": edition == "zh" and bool(behind(name)),
            "provenance": record[f"{edition}/{name}"],
            "colab": address and f"{address}/notebooks/{edition}/{name}.ipynb",
        }
    sphinx = {
        "nb_execution_mode": "off",
        "html_extra_path": ["downloads"],
        "html_context": {"pages": pages, "other_edition": other, "other_edition_name": EDITION_NAMES[other]},
    }
    return merged(settings, {"execute": {"execute_notebooks": "off"}, "sphinx": {"config": sphinx}})


def merged(base, changes):
    """A dict with the values of `changes` over those of `base`, nested dicts likewise."""
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        result[key] = merged(base[key], value) if both else value
    return result


def repository(settings):
    """Where Colab finds the notebooks, or None if no GitHub address is known.

    Asks the configuration, then the CI environment, then the git remote "origin".
    """
    address = settings["repository"]["url"]
    if not address and os.environ.get("GITHUB_REPOSITORY"):
        address = f"https://github.com/{os.environ['GITHUB_REPOSITORY']}"
    if not address and shutil.which("git"):
        command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
        address = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    match = re.search(r"github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?$", address or "")
    return match and f"https://colab.research.google.com/github/{match[1]}/blob/{settings['repository']['branch']}"


def digest_of(staged):
    """Hash of everything that the site is made of, the tools' versions included."""
    tools = {name: version(name) for name in ("jupyter-book", "sphinx", "furo", "myst-nb", "jupytext")}
    digest = hashlib.sha256(json.dumps([tools, Path(__file__).read_text(encoding="utf-8")]).encode())
    for edition, files in staged.items():
        for path, content in sorted(files.items()):
            digest.update(f"{edition}/{path} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def up_to_date(digest):
    """Whether the site was made of just this. (A plain `jupyter-book build .` puts its own page over ours.)"""
    index, stamp = SITE / "index.html", SITE / STAMP
    return stamp.exists() and stamp.read_text() == digest and index.read_bytes() == chooser()


def chooser():
    """The page that leads to an edition."""
    return (ROOT / "book" / "templates" / "choose.html").read_bytes()


def write_stage(edition, files):
    """Writes what changed, and removes what is no longer there."""
    import jupytext
    import nbformat

    for name in lesson_names():
        source = nbformat.read(RUN / edition / f"{name}.ipynb", as_version=4)
        for cell in source.cells:
            if cell.cell_type == "code":
                cell.update(outputs=[], execution_count=None)
        files[f"downloads/{name}.ipynb"] = nbformat.writes(source).encode()
        files[f"downloads/{name}.py"] = jupytext.writes(source, "py:percent").encode()
    folder = STAGE / edition
    staged = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    gone = {name for name in staged - set(files) if not name.endswith(".mo")}
    changed = [name for name in files if name not in staged or (folder / name).read_bytes() != files[name]]
    if gone:  # Sphinx would keep their pages
        shutil.rmtree(SPHINX / edition, ignore_errors=True)
    for name in gone:
        (folder / name).unlink()
    for name in changed:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(files[name])


def run_jupyter_book():
    """Renders both editions side by side; any warning is an error.

    `--all` writes every page, since Sphinx does not notice that only a style has changed;
    pages whose sources are as they were are still not read again.
    """
    processes = {}
    for edition in EDITIONS:
        output = SPHINX / edition
        output.mkdir(parents=True, exist_ok=True)
        command = [*JUPYTER_BOOK, str(STAGE / edition), "--path-output", str(output), *OPTIONS]
        log = (output / "log.txt").open("w", encoding="utf-8")
        environment = {**os.environ, "PYTHONUTF8": "1", "NO_COLOR": "1"}
        processes[edition] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        failed = [edition for edition, process in processes.items() if process.wait()]
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    if failed:
        raise BookError("\n".join(complaint(edition) for edition in failed))


def complaint(edition):
    """What Jupyter Book found wrong, with the names of our sources."""
    log = (SPHINX / edition / "log.txt").read_text(encoding="utf-8")
    log = re.sub(rf"{re.escape(str(STAGE / edition))}/(\d\w+)\.ipynb", rf"notebooks/{edition}/\1.ipynb", log)
    log = re.sub(rf"{re.escape(str(STAGE / edition))}/(\w+)\.md", rf"book/pages/{edition}/\1.md", log)
    warnings = [line for line in log.splitlines() if "WARNING:" in line or "ERROR:" in line]
    return "\n".join(warnings) or f"Jupyter Book failed on the {edition} edition:\n{log[-2000:]}"


def put_in_place(digest):
    """Assembles the site beside the old one, then swaps the two."""
    fresh = Path(tempfile.mkdtemp(dir=BUILD, prefix="html-"))
    fresh.chmod(0o755)
    try:
        for edition in EDITIONS:
            ignore = shutil.ignore_patterns(".buildinfo*", "objects.inv", "_sources", "*.map")
            shutil.copytree(SPHINX / edition / "_build" / "html", fresh / edition, ignore=ignore)
            remove_unused_images(fresh / edition)
        (fresh / "index.html").write_bytes(chooser())
        (fresh / STAMP).write_text(digest)
        replace_folder(fresh, SITE)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def remove_unused_images(folder):
    """Sphinx keeps the figures of earlier renderings; no page shows them."""
    pages = "".join(page.read_text(encoding="utf-8") for page in folder.glob("*.html"))
    for image in folder.glob("_images/*"):
        if image.name not in pages:
            image.unlink()
