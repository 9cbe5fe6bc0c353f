"""Renders the last run: Jupyter Book makes one site per edition, ``_build/html/{en,zh}``.

Sphinx reads and writes only the pages that were staged anew (see ``stage``). What it cannot know of, such as a
changed style, is the frame, and a new frame means all pages. The site is put in place when all of it is there.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from .execute import last_run, replace_folder
from .lessons import BUILD, EDITIONS, ROOT, BookError, select
from .runs import recorded
from .stage import STAGE, site_address, stage, write_stage

SITE = BUILD / "html"
SPHINX = BUILD / "sphinx"
KEPT = ("share.png", "choose.js", "choose.css")  # named by no page of an edition, or by its full address only
STAMP = ".rendered-{}"  # in the site, for each edition: the digest of all that it was made of

# Imports Jupyter Book, waits to be told what to render, and forks a process for each edition, so that both share what
# was imported. It yields to the kernels' imports, which are awaited sooner. The garbage collector, which finds little
# here, is asked less often. (rfc3987_syntax: see __init__.py.)
RENDERER = """
import gc, json, os, sys
os.nice(10)
gc.disable()
sys.modules["rfc3987_syntax"] = None
import furo, jupyter_book.sphinx, myst_nb.sphinx_ext, sphinx.builders.html
from jupyter_book.cli.main import main
gc.freeze()
gc.set_threshold(50_000, 20, 100)
gc.enable()
told = sys.stdin.readline() or sys.exit()  # whoever was to tell it has ended
editions = {}
for edition, (log, arguments) in json.loads(told).items():
    process = os.fork()
    if process == 0:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = ["jupyter-book", *arguments]
        sys.exit(main())
    editions[process] = edition
failed = [editions[process] for process, status in (os.wait() for _ in editions) if status]
try:
    print(json.dumps(failed), flush=True)
except BrokenPipeError:  # whoever wanted to know has ended
    os._exit(1)
"""
OPTIONS = ["-n", "-W", "--keep-going", "-q"]
FRAME = "frame.txt"  # beside Sphinx's output: the frame that all its pages have


def render(renderer=None):
    """Makes the site from the last run; returns whether there was anything to do.

    renderer: what `start_renderer` started while something else was going on.
    Raises BookError if a lesson is missing from the run, or if Jupyter Book
    warns of anything; the last good site is then as it was.
    """
    record = last_run()["lessons"]
    missing = [lesson.id for lesson in select() if lesson.id not in record]
    if missing:
        raise BookError(f"not executed yet: {', '.join(missing)}; run: python -m book execute")
    others = recorded()
    staged = {edition: stage(edition, record, others) for edition in EDITIONS}
    digests = {edition: digest_of(staged[edition]) for edition in EDITIONS}
    changed = [edition for edition in EDITIONS if stamp(edition) != digests[edition]]
    if not changed and root_pages_stand():
        return False
    frames = {edition: frame_of(staged[edition]) for edition in changed}
    for edition in changed:
        if write_stage(edition, staged[edition], framed(edition, frames[edition])):
            shutil.rmtree(SPHINX / edition, ignore_errors=True)  # Sphinx would keep the pages that are gone
    run_jupyter_book(frames, renderer or start_renderer())
    put_in_place(digests, changed)
    return True


def stamp(edition):
    """The digest of what an edition of the site was made of, or None."""
    path = SITE / STAMP.format(edition)
    return path.read_text() if path.exists() else None


def digest_of(files):
    """Hash of everything that an edition is made of, the tools' versions included."""
    tools = {name: version(name) for name in ("jupyter-book", "sphinx", "furo", "myst-nb", "jupytext", "pagefind")}
    engine = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("stage.py", "render.py")]
    digest = hashlib.sha256(json.dumps([tools, engine]).encode())
    for path, content in sorted(files.items()):
        digest.update(f"{path} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def frame_of(files):
    """Hash of what shows on every page: styles, templates, settings, and the titles in the sidebar."""
    frame = {}
    for path, content in files.items():
        page = path.endswith((".md", ".ipynb"))
        frame[path] = re.findall(rb'(?:^|\\n|")# (.*?)(?:$|\\n|")', content, re.MULTILINE)[:1] if page else [content]
    return digest_of({path: b"".join(content) for path, content in frame.items() if path != "splits.svg"})


def root_pages_stand():
    """Whether the site's first page is ours. (A plain `jupyter-book build .` puts its own in the place of it.)"""
    return (SITE / "index.html").exists() and (SITE / "index.html").read_bytes() == root_page("choose", ".")


def root_page(name, address):
    """A page of neither edition. address: what stands before its links if the site's own is not known."""
    text = (ROOT / "book" / "templates" / f"{name}.html").read_text(encoding="utf-8")
    return text.replace("{{ address }}", site_address() or address).encode()


def start_renderer():
    """A process that imports Jupyter Book and waits to be told what to render."""
    return subprocess.Popen(
        [sys.executable, "-c", RENDERER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUTF8": "1", "NO_COLOR": "1"},
        start_new_session=True,  # to be ended with what it has forked
    )


def end_renderer(renderer):
    if renderer.poll() is None:
        os.killpg(renderer.pid, signal.SIGKILL)
    renderer.wait()
    renderer.stdin.close()
    renderer.stdout.close()


def run_jupyter_book(frames, renderer):
    """Renders editions side by side; any warning is an error. frames: edition -> the frame its pages are to have."""
    jobs = {}
    for edition, frame in frames.items():
        (SPHINX / edition).mkdir(parents=True, exist_ok=True)
        arguments = ["build", str(STAGE / edition), "--path-output", str(SPHINX / edition), *OPTIONS]
        every = [] if framed(edition, frame) else ["--all"]
        jobs[edition] = [str(SPHINX / edition / "log.txt"), [*arguments, *every]]
    try:
        said, _ = renderer.communicate(json.dumps(jobs) + "\n")
    finally:
        end_renderer(renderer)
    failed = json.loads(said or json.dumps(list(jobs)))
    if failed:
        raise BookError("\n".join(complaint(edition) for edition in failed))
    for edition, frame in frames.items():
        (SPHINX / edition / FRAME).write_text(frame)


def framed(edition, frame):
    """Whether the pages that Sphinx has written have this frame."""
    path = SPHINX / edition / FRAME
    return path.exists() and path.read_text() == frame


def complaint(edition):
    """What Jupyter Book found wrong, with the names of our sources."""
    log = (SPHINX / edition / "log.txt").read_text(encoding="utf-8")
    log = re.sub(rf"{re.escape(str(STAGE / edition))}/(\d\w+)\.ipynb", rf"notebooks/{edition}/\1.ipynb", log)
    log = re.sub(rf"{re.escape(str(STAGE / edition))}/(\w+)\.md", rf"book/pages/{edition}/\1.md", log)
    warnings = [line for line in log.splitlines() if "WARNING:" in line or "ERROR:" in line]
    return "\n".join(warnings) or f"Jupyter Book failed on the {edition} edition:\n{log[-2000:]}"


def put_in_place(digests, changed):
    """Assembles the site beside the old one, then swaps the two."""
    fresh = Path(tempfile.mkdtemp(dir=BUILD, prefix="html-"))
    fresh.chmod(0o755)
    try:
        with ThreadPoolExecutor() as pool:
            for _ in pool.map(lambda edition: assemble(edition, fresh, digests[edition], edition in changed), EDITIONS):
                pass
        (fresh / "index.html").write_bytes(root_page("choose", "."))
        (fresh / "404.html").write_bytes(root_page("404", ""))
        replace_folder(fresh, SITE)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def assemble(edition, site, digest, changed):
    """Puts an edition into the new site: from what Sphinx has written, or from the last site if nothing has changed."""
    archive = f"one-model-many-gpus-{edition}.zip"
    (site / STAMP.format(edition)).write_text(digest)
    if not changed:
        shutil.copytree(SITE / edition, site / edition)
        shutil.copy(SITE / archive, site / archive)
        return
    ignore = shutil.ignore_patterns(".buildinfo*", "objects.inv", "_sources", "*.map", "searchindex.js")
    shutil.copytree(SPHINX / edition / "_build" / "html", site / edition, ignore=ignore)
    remove_unused(site / edition)
    finish_pages(site / edition)
    make_searchable(site / edition)
    make_zip(site / archive, site / edition)


def remove_unused(folder):
    """What no page or style of an edition names: figures of earlier renderings, scripts of Sphinx's search."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    named = "".join(path.read_text(encoding="utf-8") for path in files if path.suffix in (".html", ".css"))
    for path in files:
        if path.parts[len(folder.parts)] in ("_images", "_static") and path.name not in KEPT and path.name not in named:
            path.unlink()


def finish_pages(folder):
    """Tells the browser how large each figure is, so that the text below it keeps its place while it loads.

    Gives MyST-NB's style one address: the first build of all writes it without a checksum, later ones with. And takes
    the English names from the theme's icons, which browsers show as tips; their buttons have names of their own.
    """

    def sized(match):
        svg = (folder / match[1]).read_text(encoding="utf-8")
        width, height = re.search(r'<svg [^>]*?viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()
        return f'{match[0]} width="{float(width) * 4 / 3:.0f}" height="{float(height) * 4 / 3:.0f}" loading="lazy"'

    for page in folder.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        text = re.sub(r"(_static/mystnb\.\w+\.css)\?v=\w+", r"\1", text)
        text = re.sub(r"(<symbol [^>]*>\s*)<title>[^<]*</title>\s*", r"\1", text)
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


def make_zip(target, folder):
    """An edition as one file for reading offline; the same bytes whenever it is made of the same pages."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(f"one-model-many-gpus-{path.relative_to(folder.parent).as_posix()}")
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
