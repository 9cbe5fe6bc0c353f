"""Makes the site from the sources and the last run: one Sphinx for each edition, ``_build/html/{en,zh,…}``.

Sphinx makes anew what has changed (see `extension`). The site is put in place when all of it is there.
"""

import gc
import gettext
import hashlib
import html
import json
import os
import re
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from importlib.metadata import version
from multiprocessing import forkserver, get_context
from pathlib import Path

from . import files, runs
from .model import Book, BookError, Edition, Run
from .texts import PARSERS

HERE = Path(__file__).parent
# The package's code as this process has it: `serve` does not load it anew. All pages are made anew when it changes.
LOADED = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(HERE.glob("*.py")))).hexdigest()
KEPT = ("share.png", "choose.js", "choose.css")  # named by no page of an edition, or by its full address only
STAMP = ".rendered.json"  # in the site: a hash of all that it was made of, and the sizes of its files
# Each edition is rendered by a process of its own, forked from one that has imported these.
RENDERERS = get_context("forkserver")
IMPORTS = ["jupyter_book.cli.main", "jupyter_book.sphinx", "myst_nb.sphinx_ext", "furo", "book.extension"]
NEVER_EXECUTE = "BOOK_NEVER_EXECUTES"  # an environment variable: lessons have been executed, or are not to be shown
TOOLS = ("jupyter-book", "sphinx", "furo", "myst-nb", "jupytext", *PARSERS)


def site_folder(root: Path) -> Path:
    return root / "_build" / "html"


def prints(book: Book, edition: str = "*") -> list[Path]:  # EPUB and PDF, if make print has made them
    return sorted((book.root / "_build" / "print").glob(f"*-{edition}.*"))


def warm_up(root: Path) -> None:
    """Begins to import what Sphinx needs, beside all that comes before it, if a file is newer than the site."""
    made_of, stamp = [*root.glob("*.yml"), *root.glob("notebooks/*/*"), *HERE.rglob("*")], site_folder(root) / STAMP
    if not stamp.exists() or any(path.stat().st_mtime > stamp.stat().st_mtime for path in made_of):
        start_renderers()


def start_renderers() -> None:
    """Starts the process that renderers are forked from, if there is none; to be called in the main thread."""
    os.environ["PYTHONUTF8"] = "1"  # Sphinx opens files without a word on their encoding
    RENDERERS.set_forkserver_preload(IMPORTS)
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # in a terminal, Ctrl-C reaches it, too
    forkserver.ensure_running()
    signal.signal(signal.SIGINT, handler)


def render(book: Book) -> bool:
    """Makes the site from the last run; returns whether there was anything to do.

    Raises BookError if a lesson is not executed as it is now, or if Jupyter Book warns of anything; the last good site
    is then as it was.
    """
    if (run := runs.from_folder(runs.run_folder(book.root))) is None:
        raise BookError("nothing has been executed yet; run: python -m book execute")
    if missing := ", ".join(lesson.id for lesson in runs.not_executed(book, run)):
        raise BookError(f"not executed yet as they are now: {missing}; run: python -m book execute")
    if any("simulated" in provenance.machine for provenance in run.lessons.values()):
        raise BookError("executed on simulated GPUs, whose outputs are no results; unset SIMULATED_GPUS, then execute")
    site, made_of = site_folder(book.root), digest(book, run)
    if files.read_json(site / STAMP) == {"digest": made_of, "sizes": sizes(site)}:
        return False
    start_renderers()
    with files.new_folder(site) as fresh, ThreadPoolExecutor() as pool:
        complaints = list(pool.map(lambda edition: render_edition(book, edition, fresh), book.editions.values()))
        if any(complaints):
            raise BookError(*(line for lines in complaints for line in lines))
        for page in [page for edition in book.editions.values() for page in edition.pages.values()]:
            if files.read_text(book.root / page.path, book.root, "utf-8") != page.raw:
                raise BookError(f"{page.path}: changed while the book was built; build again")
        root_pages(book, fresh)
        name = re.sub(r"[^a-z0-9]+", "-", book.source.title.lower()).strip("-")
        make_zip(fresh / f"{name}.zip", fresh)
        files.write_json(fresh / STAMP, {"digest": made_of, "sizes": sizes(fresh)})
    return True


def digest(book: Book, run: Run) -> str:
    """Hash of everything that the site is made of, the tools' versions included."""
    texts = [page.raw for edition in book.editions.values() for page in edition.pages.values()]
    editions = [asdict(replace(edition, pages={})) for edition in book.editions.values()]
    results = [runs.to_json(each) for each in (run, *book.recorded)]
    paths = sorted(p for p in [*HERE.rglob("*.*"), *prints(book)] if p.suffix not in (".py", ".mo", ".pyc"))
    made_by = [LOADED, *map(version, TOOLS), *(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)]
    made_of = [texts, editions, book.toc, book.config, results, made_by, repository(book)]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def sizes(site: Path) -> dict[str, int]:
    """The sizes of the site's files: whether somebody has changed it."""
    paths = [path for path in site.rglob("*") if path.is_file() and path.name != STAMP]
    return {path.relative_to(site).as_posix(): path.stat().st_size for path in paths}


def repository(book: Book) -> str | None:
    """The book's GitHub repository as "owner/name", or None if it is not known.

    Asks the configuration, then the CI environment, then the git remote "origin".
    """
    address = (book.config.get("repository") or {}).get("url")
    if not address and "GITHUB_REPOSITORY" in os.environ:
        address = f"https://github.com/{os.environ['GITHUB_REPOSITORY']}"
    address = address or files.git(book.root, "remote", "get-url", "origin") or ""
    return (match := re.search(r"github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?$", address)) and match[1]


def render_edition(book: Book, edition: Edition, site: Path) -> list[str]:
    """Puts an edition into the new site; or returns what Sphinx complains of."""
    if complaints := run_sphinx(book, edition):
        return complaints
    made, folder = book.root / "_build" / "sphinx" / edition.name / "_build" / "html", site / edition.name
    shutil.copytree(made, folder, ignore=shutil.ignore_patterns(".buildinfo*", "objects.inv", "_sources", "*.map"))
    remove_unused(folder, {*edition.pages, "search"})
    for path in prints(book, edition.name):
        shutil.copy2(path, site)
    return []


def run_sphinx(book: Book, edition: Edition, kind: str = "", *more: str) -> list[str]:
    """Lets Jupyter Book render an edition; returns what it complains of, any warning being an error."""
    output = book.root / "_build" / "sphinx" / (edition.name + kind)
    command = ["build", f"notebooks/{edition.name}", "--toc", "_toc.yml", "--path-output", str(output), *more]
    files.write_text(output / "log.txt", "")
    process = RENDERERS.Process(target=jupyter_book, args=(book.root, output / "log.txt", command))
    try:
        process.start()
    except (EOFError, OSError) as error:
        return [f"no process renders the edition {edition.name}: the one to fork it from has died ({error})"]
    process.join()
    if process.exitcode == 0:
        return []
    text = re.sub(r"\x1b\[[\d;]*m", "", files.read_text(output / "log.txt", book.root)).replace(f"{book.root}/", "")
    warnings = [line for line in text.splitlines() if "WARNING:" in line or "ERROR:" in line]
    return warnings or [f"Jupyter Book failed on the edition {edition.name}:\n{text[-2000:]}"]


def jupyter_book(root: Path, log: Path, command: list[str]) -> None:
    """Jupyter Book's command line, in a process of its own, which Ctrl-C ends without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with log.open("a", encoding="utf-8") as stream:
        for output in (sys.stdout, sys.stderr):
            os.dup2(stream.fileno(), output.fileno())
    gc.disable()  # it ends soon: looking for what it has thrown away would be a quarter of its time
    os.chdir(root)
    os.environ |= {"NO_COLOR": "1", NEVER_EXECUTE: "1"}
    from jupyter_book.cli.main import main  # that it is broken is to be read in the log

    main([*command, "-n", "-W", "--keep-going", "-q"])


def remove_unused(folder: Path, pages: set[str]) -> None:
    """Removes what no page or style names, such as figures of earlier renderings, and the files of pages that are gone."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    named = "".join([*KEPT, *(path.read_text("utf-8") for path in paths if path.suffix in (".html", ".css"))])
    for path in paths:
        unnamed = path.relative_to(folder).parts[0] in ("_images", "_static") and path.name not in named
        if unnamed or (path.parent == folder and path.stem not in pages and b'"moved-page"' not in path.read_bytes()):
            path.unlink()


def make_zip(target: Path, folder: Path) -> None:
    """The site as one file for reading offline; the same bytes whenever it is made of the same pages."""
    missing = rb'<a href="\.\./[^"]+\.(?:zip" download>(.*?)|(?:epub|pdf)" download>.*?)</a>'  # words stay
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(p for p in folder.rglob("*.*") if p.suffix not in (".zip", ".epub", ".pdf")):
            entry = zipfile.ZipInfo(f"{target.stem}/{path.relative_to(folder).as_posix()}")
            archive.writestr(entry, re.sub(missing, rb"\1", path.read_bytes()), zipfile.ZIP_DEFLATED)


def root_pages(book: Book, site: Path) -> None:
    """The pages of no edition: the first one, and the one for addresses that do not exist."""
    from jinja2 import Environment, FileSystemLoader

    templates = Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=True)
    editions = list(book.editions.values())
    words = {e.name: gettext.translation("sphinx", HERE / "locale", [e.language], fallback=True) for e in editions}
    say = {name: found.gettext for name, found in words.items()}
    known = {"editions": editions, "source": book.source, "words": say, "address": book.address}
    for file, template in (("index.html", "choose.html"), ("404.html", "404.html")):
        files.write_text(site / file, templates.get_template(template).render(known))


def said_of(error: BookError | OSError) -> str:
    """What an author is told of it; an OSError is of a full disk, for instance."""
    text = str(error)
    if isinstance(error, OSError) and error.filename:
        text = f"{error.filename}: {error.strerror}"
    return "\n".join(line if line.startswith(" ") else f"error: {line}" for line in text.splitlines())


def serve(root: Path, port: int, build: Callable[[], None]) -> None:
    """Builds at once and after every change of a source; a browser shows the new page, or what is wrong."""
    from livereload import Server
    from livereload.handlers import StaticFileHandler

    problem = ""

    def rebuild() -> None:
        nonlocal problem
        try:
            build()
            problem = ""
        except (BookError, OSError) as error:
            print(problem := said_of(error), file=sys.stderr)

    class Pages(StaticFileHandler):  # type: ignore[misc]
        async def get(self, path: str, include_body: bool = True) -> None:
            if problem and path.endswith((".html", "/")):
                self.set_status(500)
                self.finish(f"<html><head></head><body><pre>{html.escape(problem)}</pre></body></html>")
            else:
                await super().get(path, include_body)

    rebuild()
    server = Server()
    server.SFH = Pages
    for pattern in ("_config.yml", "_toc.yml", "notebooks/**/*.*", "runs/*.json", "book/static/*", "book/templates/*"):
        server.watch(str(root / pattern), rebuild)
    try:
        server.serve(root=str(site_folder(root)), port=port, open_url_delay=None)
    except OSError as error:
        raise BookError(f"port {port}: {error.strerror}; for another one: python -m book serve --port N") from None
