"""Renders the last run: Jupyter Book makes one site per edition, ``_build/html/{en,zh}``.

Each edition is staged into a source tree of its own, ``_build/stage/en`` say, in
which every page lies at the top under its short name, so that its address is
``en/01_device.html``. Only files that changed are staged anew, so that Sphinx
reads only those pages again. The site is put in place when all of it is there.
"""

import hashlib
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
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
    front_matter,
    lesson_names,
    page_is_behind,
    page_names,
    page_path,
    read_notebook,
    select,
    toc,
)

SITE = BUILD / "html"
STAGE = BUILD / "stage"
SPHINX = BUILD / "sphinx"
EXPLORER_AFTER = ("04_data_parallel", "split-law-check")  # the split explorer has a page, and a place in a lesson
KEPT = ("share.png", "choose.js", "choose.css")  # named by no page of an edition, or by its full address only
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
    address = site_address()
    context = {
        "edition": edition,
        "other_edition": other,
        "other_edition_name": EDITION_NAMES[other],
        "site_address": address,
        "repository": repository(settings),
        "lesson_count": len(lesson_names()),
        "pages": {name: page_context(name, edition, record, settings) for name in [*page_names(), *lesson_names()]},
    }
    sphinx = {"nb_execution_mode": "off", "html_extra_path": ["downloads"], "html_context": context}
    changes = {"execute": {"execute_notebooks": "off"}, "sphinx": {"config": sphinx}}
    if address:
        changes["html"] = {"baseurl": f"{address}/{edition}/"}
    return merged(settings, changes)


def page_context(name, edition, record, settings):
    """What the templates say about one page."""
    lesson = name in lesson_names()
    if lesson:
        path = f"notebooks/{edition}/{name}.ipynb"
        text = read_notebook(ROOT / path)["cells"][0]["source"]
    else:
        path = f"book/pages/{edition}/{name}.md"
        _, text = front_matter((ROOT / path).read_text(encoding="utf-8"))
    page = {"behind": edition == "zh" and bool(behind(name) if lesson else page_is_behind(name))}
    page["description"] = description(text)
    if repository(settings):
        place = f"{repository(settings)}/blob/{settings['repository']['branch']}/{path}"
        page["source"] = f"https://github.com/{place}"
    if lesson:
        page.update(number=lesson_names().index(name) + 1, provenance=record[f"{edition}/{name}"])
        page.update(topic=topic(name, edition), terms=terms(name, edition))
        page["colab"] = repository(settings) and f"https://colab.research.google.com/github/{place}"
    return page


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


def site_address():
    """Where the site will be, as _config.yml has it, or an empty string: then its pages name no full addresses."""
    return (config().get("html", {}).get("baseurl") or "").rstrip("/")


def merged(base, changes):
    """A dict with the values of `changes` over those of `base`, nested dicts likewise."""
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        result[key] = merged(base[key], value) if both else value
    return result


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


def digest_of(staged):
    """Hash of everything that the site is made of, the tools' versions included."""
    tools = {name: version(name) for name in ("jupyter-book", "sphinx", "furo", "myst-nb", "jupytext", "pagefind")}
    digest = hashlib.sha256(json.dumps([tools, Path(__file__).read_text(encoding="utf-8")]).encode())
    for edition, files in staged.items():
        for path, content in sorted(files.items()):
            digest.update(f"{edition}/{path} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def up_to_date(digest):
    """Whether the site was made of just this. (A plain `jupyter-book build .` puts its own page over ours.)"""
    index, stamp = SITE / "index.html", SITE / STAMP
    return stamp.exists() and stamp.read_text() == digest and index.read_bytes() == root_page("choose", ".")


def root_page(name, address):
    """A page of neither edition. address: what stands before its links if the site's own is not known."""
    text = (ROOT / "book" / "templates" / f"{name}.html").read_text(encoding="utf-8")
    return text.replace("{{ address }}", site_address() or address).encode()


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
    files["book/static/share.png"] = share_card()
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
            ignore = shutil.ignore_patterns(".buildinfo*", "objects.inv", "_sources", "*.map", "searchindex.js")
            shutil.copytree(SPHINX / edition / "_build" / "html", fresh / edition, ignore=ignore)
            remove_unused(fresh / edition)
            size_images(fresh / edition)
            make_searchable(fresh / edition)
            make_zip(fresh, edition)
        (fresh / "index.html").write_bytes(root_page("choose", "."))
        (fresh / "404.html").write_bytes(root_page("404", ""))
        (fresh / STAMP).write_text(digest)
        replace_folder(fresh, SITE)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def remove_unused(folder):
    """What no page or style of an edition names: figures of earlier renderings, scripts of Sphinx's search."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    named = "".join(path.read_text(encoding="utf-8") for path in files if path.suffix in (".html", ".css"))
    for path in files:
        if path.parts[len(folder.parts)] in ("_images", "_static") and path.name not in KEPT and path.name not in named:
            path.unlink()


def size_images(folder):
    """Tells the browser how large each figure is, so that the text below it keeps its place while it loads."""

    def sized(match):
        svg = (folder / match[1]).read_text(encoding="utf-8")
        width, height = re.search(r'<svg [^>]*?viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()
        return f'{match[0]} width="{float(width) * 4 / 3:.0f}" height="{float(height) * 4 / 3:.0f}" loading="lazy"'

    for page in folder.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(re.sub(r'src="(_images/[^"]+\.svg)"', sized, text), encoding="utf-8")


def make_searchable(folder):
    """Lets Pagefind index the pages of an edition; of what it writes, search.js needs the index and its reader."""
    unread = ".headerlink, .copybtn, details.hide > summary"
    command = [sys.executable, "-m", "pagefind", "--site", str(folder), "--exclude-selectors", unread, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BookError(f"Pagefind could not index {folder.name}:\n{done.stderr or done.stdout}")
    for path in [*folder.glob("pagefind/pagefind-*ui.*"), folder / "pagefind" / "pagefind-highlight.js"]:
        path.unlink()


def make_zip(site, edition):
    """The edition as one file for reading offline; the same bytes whenever it is made of the same pages."""
    with zipfile.ZipFile(site / f"one-model-many-gpus-{edition}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in (site / edition).rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(f"one-model-many-gpus-{path.relative_to(site).as_posix()}")
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)


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
