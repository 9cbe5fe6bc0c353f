"""An edition is a folder: a third one, made here, is built, linked and watched, and no line of code knows of it."""

import json
import re
import shutil
import subprocess
import sys
from zipfile import ZipFile

from bs4 import BeautifulSoup

from tests.engine.conftest import EDITIONS

SETTINGS = """\
label: ⟦Pseudo⟧
language: eo
tag: xx
title: ⟦A Small Book⟧
author: ⟦Nobody⟧
"""
PAGES = ("index", "01_count", "02_total", "glossary")


def marked(text):
    """The first word of each paragraph, marked."""
    return re.sub(r"(?<=\n\n)(\w+)", r"⟦\1⟧", text)


def add_edition(book):
    """The pseudo-edition: English with marked words, and the settings of an edition of its own."""
    folder = book.folder / "notebooks" / "xx"
    shutil.copytree(book.folder / "notebooks" / "en", folder)
    (folder / "edition.yml").write_text(SETTINGS, "utf-8")
    for path in folder.glob("*.ipynb"):
        notebook = json.loads(path.read_text("utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = marked("".join(cell["source"])).splitlines(keepends=True)
            cell["metadata"].pop("wrong", None)
        path.write_text(json.dumps(notebook), "utf-8")
    for path in folder.glob("*.md"):
        front, mark, text = path.read_text("utf-8").rpartition("---\n")
        path.write_text(front + mark + marked(text), "utf-8")


def soup(book, path):
    return BeautifulSoup(book.page(path), "html.parser")


def test_a_third_edition(book):
    add_edition(book)
    said = book.run("check").out
    for name in PAGES:
        assert re.search(
            rf"note: notebooks/xx/{name}\.\w+: not translated yet, .*: python -m book translated {name}", said
        )
    for name in PAGES:
        book.good("translated", name)
    book.good("tidy")
    assert "note: " not in book.good("check")
    out = book.good("build", BOOK_ADDRESS="https://example.org")
    assert "lessons: 0 executed, 6 unchanged" in out, "its code is that of the source edition"

    # Linked from the first page, and from the page for what does not exist.
    for path in ("index.html", "404.html"):
        links = {link["href"]: link for link in soup(book, path).select("main a[href$='index.html']")}
        assert [link.get("hreflang") for link in links.values()] == ["en", "xx", "zh"]
        assert "⟦A Small Book⟧" in links["xx/index.html"].text
    # Every page leads to the same page of each other edition, and names them all to search engines.
    editions = [*EDITIONS, "xx"]
    for edition in editions:
        for name in PAGES:
            page = soup(book, f"{edition}/{name}.html")
            others = {link["href"] for link in page.select(".sidebar-sticky a[data-edition]")}
            assert others == {f"../{other}/{name}.html" for other in editions if other != edition}
            known = {link["hreflang"] for link in page.select("link[rel=alternate]")}
            assert known == {"en", "xx", "zh", "x-default"}
            assert page.html["lang"] == {"en": "en", "zh": "zh-CN", "xx": "eo"}[edition]
    assert "⟦Pseudo⟧" in soup(book, "zh/index.html").select_one('a[data-edition="xx"]').text
    assert "⟦A⟧" in book.page("xx/01_count.html") and "⟦" not in soup(book, "en/01_count.html").article.text.replace(
        "⟦Pseudo⟧", ""
    )
    assert soup(book, "xx/01_count.html").select_one("#cell-count-rows pre") is not None
    with ZipFile(book.folder / "_build" / "html" / "a-small-book.zip") as archive:
        assert {f"a-small-book/{edition}/index.html" for edition in editions} <= set(archive.namelist())

    # Watched: when the source changes, its author hears of it, and so does its reader.
    banner = "The source edition of this page has changed since it was translated."
    assert banner not in book.page("xx/01_count.html")
    book.replace("notebooks/en/01_count.ipynb", "what will this cell print?", "what comes out?")
    out = book.good("build")
    for edition in ("xx", "zh"):
        assert f"note: notebooks/{edition}/01_count.ipynb, cell predict: the source has changed" in out
    assert banner in book.page("xx/01_count.html") and banner not in book.page("xx/02_total.html")
    assert banner not in book.page("en/01_count.html")


def test_an_edition_that_lacks_a_page(book):
    add_edition(book)
    (book.folder / "notebooks/xx/02_total.ipynb").unlink()
    said = book.bad("build")
    assert said == "error: notebooks/xx/02_total.ipynb: no such file, though _toc.yml names it\n"


def test_plain_jupyter_book_builds_an_edition(book):
    """With the outputs of the last run, the templates and the links; no kernel is started."""
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", "notebooks/zh"]
    command += ["--toc", "_toc.yml", "--path-output", "plain", "-n", "-W", "--keep-going"]
    environment = book.environment([book.folder], LANG="C.UTF-8")
    done = subprocess.run(command, cwd=book.folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in PAGES:
        page = (book.folder / "plain/_build/html" / f"{name}.html").read_text("utf-8")
        assert 'href="../en/' in page
        assert BeautifulSoup(page, "html.parser").article.text == soup(book, f"zh/{name}.html").article.text
    lesson = (book.folder / "plain/_build/html/01_count.html").read_text("utf-8")
    assert 'href="02_total.html#cell-total"' in lesson and "行数: 3" in lesson
