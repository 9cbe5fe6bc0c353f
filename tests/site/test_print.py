"""The book for readers and for paper: both editions of the small book, as EPUB and as PDF."""

import os
import posixpath
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest

from book import runs, sources
from book.model import Provenance, Result

ROOT = Path(__file__).resolve().parents[2]
FIGURE = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns="http://www.w3.org/2000/svg" width="72pt" height="36pt" viewBox="0 0 72 36"><path d="M 0 0 L 72 36"/></svg>
"""
AT = Provenance(
    "2026-01-02T03:04:05+00:00", 1.5, None, (), None, None, "Linux", {"python": "3.12.1", "torch": "2"}, None
)
LONG = "一行很长的输出，" * 40


def executed(book):
    """Results as of an execution: each cell prints a long line and draws a figure."""
    line = {"output_type": "stream", "name": "stdout", "text": LONG + "\n"}
    figure = {"output_type": "display_data", "data": {"image/svg+xml": FIGURE}, "metadata": {}}
    return {
        lesson: Result(lesson.id, "key", "code", AT, {cell.id: [line, figure] for cell in lesson.code})
        for lesson in book.lessons
    }


def python(folder, module, *arguments):
    command = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """The small book, printed; and what was said."""
    folder = Path(shutil.copytree(ROOT / "tests" / "data" / "minibook", tmp_path_factory.mktemp("print") / "minibook"))
    index = folder / "notebooks" / "zh" / "index.md"
    text = index.read_text(encoding="utf-8") + "\n一处[外链](https://example.org/far?a=1)。<br>\n"
    index.write_text(text, encoding="utf-8")
    book = sources.load(folder)
    runs.write_run(book, runs.run_folder(folder), executed(book))
    done = python(folder, "tools.print_book")
    if "no browser" in done.stderr and not os.environ.get("CI"):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return book, done.stdout


def file(book, edition, suffix):
    return book.root / "_build" / "print" / f"a-small-book-{edition}.{suffix}"


@pytest.fixture(params=["en", "zh"])
def edition(request, printed):
    return printed[0].editions[request.param]


def test_every_file_of_an_epub_is_well_formed_and_every_link_leads_to_something(printed, edition):
    """What epubcheck looks at, as far as it has been wrong before: Debian's epubcheck finds no error in the real book."""
    with zipfile.ZipFile(file(printed[0], edition.name, "epub")) as archive:
        names = archive.namelist()
        assert names[0] == "mimetype" and archive.infolist()[0].compress_type == zipfile.ZIP_STORED
        trees = {n: ElementTree.fromstring(archive.read(n)) for n in names if n.endswith((".xhtml", ".opf", ".svg"))}
        assert not [n for n in names if n.endswith(".svg") and b"<!DOCTYPE" in archive.read(n)]
        pages = {n: tree for n, tree in trees.items() if n.endswith(".xhtml")}
    package = "{http://www.idpf.org/2007/opf}"
    manifest = {item.get("href") for item in trees["content.opf"].iter(f"{package}item")}
    assert manifest | {"mimetype", "META-INF/container.xml", "content.opf"} == set(names)
    assert {f"{name}.xhtml" for name in edition.pages} <= set(pages)
    spine = [item.get("idref") for item in trees["content.opf"].iter(f"{package}itemref")]
    assert len(spine) >= len(edition.pages)
    heading = "目录" if edition.tag == "zh" else "Contents"
    assert trees["nav.xhtml"].find(".//{http://www.w3.org/1999/xhtml}h1").text == heading
    assert trees["content.opf"].find(".//{http://purl.org/dc/elements/1.1/}language").text == edition.tag
    ids = {n: {tag.get("id") for tag in tree.iter() if tag.get("id")} for n, tree in pages.items()}
    for name, tree in pages.items():
        tags = [tag.tag.rpartition("}")[2] for tag in tree.iter()]
        assert "script" not in tags and not [tag for tag in tags if "-" in tag]
        for tag in tree.iter():
            parts = urlsplit(tag.get("href") or tag.get("src") or "")
            if parts.scheme or not (parts.path or parts.fragment):
                continue
            target = posixpath.normpath(unquote(parts.path)) if parts.path else name
            assert target in names, f"{name} links to {target}"
            assert not parts.fragment or parts.fragment in ids[target], f"{name} links to {target}#{parts.fragment}"


def test_lessons_of_an_epub_have_figures_and_outputs(printed, edition):
    with zipfile.ZipFile(file(printed[0], edition.name, "epub")) as archive:
        page = archive.read("01_count.xhtml").decode()
    assert 'class="page-note"' in page and ".svg" in page and LONG in page


def test_a_pdf_has_all_pages_with_numbers_for_links(printed, edition):
    from pypdf import PdfReader

    book, said = printed
    reader = PdfReader(file(book, edition.name, "pdf"))
    if f"{edition.name}.pdf: no font" in said and not os.environ.get("CI"):
        pytest.skip(said)
    assert len(reader.pages) >= 2 + len(edition.pages)
    texts = ["".join(page.extract_text().split()) for page in reader.pages]
    letters = [re.sub(r"\W", "", text) for text in texts]  # quotation marks are other ones than in the source
    whole = "".join(texts)
    assert "000" not in whole, "every place has its page's number"
    for name, page in edition.pages.items():
        title = next(line for line in page.cells[0].source.splitlines() if line.startswith("# ")).removeprefix("# ")
        title = re.sub(r"\W", "", title)
        number = next(i for i, text in enumerate(letters, start=1) if i > 2 and title in text)
        assert f"{title}{number}" in letters[1], f"{name}: the table of contents has its page"
    assert whole.count("一行很长的输出，") == 40 * sum(len(lesson.code) for lesson in edition.lessons), "nothing is cut"
    if edition.name == "zh":
        assert "一本小书" in whole and "（第" in whole
        assert "https://example.org/far?a=1" in whole, "an address stands on paper"
    assert not [image for page in reader.pages for image in page.images], "figures are no pixels"


def test_the_home_page_offers_what_was_printed(printed):
    book, _said = printed
    done = python(book.root, "book", "render")
    assert done.returncode == 0, done.stderr
    html = book.root / "_build" / "html"
    for edition in book.editions:
        home = (html / edition / "index.html").read_text(encoding="utf-8")
        lesson = (html / edition / "01_count.html").read_text(encoding="utf-8")
        for suffix in ("epub", "pdf"):
            made = file(book, edition, suffix)
            assert f'href="../{made.name}"' in home and made.name not in lesson
            assert (html / made.name).read_bytes() == made.read_bytes()
    assert "下载 PDF" in (html / "zh" / "index.html").read_text(encoding="utf-8")
    with zipfile.ZipFile(html / "a-small-book.zip") as archive:
        pages = [archive.read(f"a-small-book/{edition}/index.html").decode() for edition in book.editions]
    assert not [text for text in pages if "PDF" in text or "EPUB" in text], "they are not in it"
