"""Each edition as a file for readers (EPUB) and for paper (PDF), from the last run: python -m tools.print_book

Sphinx makes the EPUB. Chromium prints the PDF from the EPUB's pages, put one after the other, so that both hold the same.
It prints twice: only a printed book tells on which pages the places are that links lead to.
"""

from __future__ import annotations

import gettext
import html
import json
import logging
import os
import re
import shutil
import sys
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup, Tag
from sphinx.builders.epub3 import Epub3Builder
from sphinx.locale import _

import book
from book import files, runs, site, sources
from book.model import Book, BookError, Edition
from tools.browser import launch

HERE = Path(__file__).resolve().parent
STYLE, PAPER = "print_book.css", "print_paper.css"
COLOURS = "pygments.css"  # Sphinx writes it
BLACK = ".highlight :is(.n, .p, .w), code .pre"  # a colour or a span for nothing; without them the PDF is half as large
# Radicals that look like these characters, and that Chromium takes for them; Unicode does not say that they are the same.
RADICALS = str.maketrans(
    "⺟⻅⻉⻋⻓⻔⻘⻙⻚⻛⻜⻝⻢⻣⻤⻥⻦⻨⻩⻬⻮⻰⻳", "母见贝车长门青韦页风飞食马骨鬼鱼鸟麦黄齐齿龙龟"
)


def main() -> None:
    the_book = sources.load(sources.find_root())
    try:
        with files.lock(the_book.root / "_build"):
            print_book(the_book)
    except BookError as error:
        sys.exit("\n".join(f"error: {line}" for line in error.lines))


def print_book(the_book: Book) -> None:
    if not (run := runs.from_folder(runs.run_folder(the_book.root))) or runs.not_executed(the_book, run):
        raise BookError("not all lessons are executed as they are now; run: python -m book execute")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    folder = the_book.root / "_build" / "print"
    site.start_renderers()
    with files.new_folder(folder) as fresh, ThreadPoolExecutor() as pool:
        made = pool.map(lambda edition: print_edition(the_book, edition, fresh), the_book.editions.values())
        lines = [line for said in made for line in said]
    print("\n".join([*lines, f"The book to read and to print: {folder}"]))


def file_name(the_book: Book, edition: Edition) -> str:
    """The stem of an edition's files, after the source edition: one-model-many-gpus-en."""
    return re.sub(r"[^a-z0-9]+", "-", the_book.source.title.lower()).strip("-") + f"-{edition.name}"


def print_edition(the_book: Book, edition: Edition, folder: Path) -> list[str]:
    """Makes the two files of an edition; returns what is to be said of them."""
    start = time.monotonic()
    pages, target = epub_pages(the_book, edition), folder / file_name(the_book, edition)
    epub = Path(shutil.copy2(next(pages.glob("*.epub")), target.with_suffix(".epub")))
    said = [f"{epub.name}: {epub.stat().st_size / 1e6:.1f} MB, {time.monotonic() - start:.0f} s"]
    start = time.monotonic()
    count, missing = print_pdf(the_book, edition, pages, pdf := target.with_suffix(".pdf"))
    said += [f"{pdf.name}: {pdf.stat().st_size / 1e6:.1f} MB, {count} pages, {time.monotonic() - start:.0f} s"]
    if missing:
        said += [f"note: {pdf.name}: no font here has {missing}; Debian's package fonts-noto-cjk has Chinese ones"]
    return said


# EPUB


def epub_pages(the_book: Book, edition: Edition) -> Path:
    """Lets Sphinx make the EPUB; returns the folder with it and its pages."""
    output = the_book.root / "_build" / "sphinx" / f"{edition.name}-print"  # where run_sphinx writes
    config = json.loads(json.dumps(the_book.config))
    config["sphinx"]["config"] |= {
        "extensions": [*config["sphinx"]["config"]["extensions"], "tools.print_book"],
        "html_theme": "epub",  # Furo needs scripts
        "version": book.__version__,
        "epub_basename": file_name(the_book, edition),
        "epub_title": edition.title,
        "epub_author": edition.author,
        "epub_publisher": edition.author,
        "epub_contributor": edition.author,
        "epub_description": edition.title,
        "epub_language": edition.tag,
        "epub_identifier": file_name(the_book, edition),
        "epub_uid": file_name(the_book, edition),  # Sphinx gives this one to old readers, as if it were the other
        "epub_show_urls": "no",  # a reader can follow a link; paper has its address
        "epub_tocscope": "includehidden",
        "epub_tocdepth": 2,
        "epub_tocdup": False,
    }
    shutil.rmtree(pages := output / "_build" / "epub", ignore_errors=True)  # all that is in it goes into the EPUB
    files.write_json(output / "_config.yml", config)  # JSON is YAML, too
    options = ["--config", str(output / "_config.yml"), "--builder", "custom", "--custom-builder", "epub"]
    if complaints := site.run_sphinx(the_book, edition, "-print", *options):
        raise BookError(*complaints)
    return pages


def setup(app: Any) -> dict[str, Any]:
    """What Sphinx calls: this module is an extension, too."""
    app.add_builder(Builder, override=True)
    app.connect("config-inited", only_my_style, priority=2)  # after the book's own extension
    app.connect("html-page-context", plain, priority=900)
    return {"parallel_read_safe": True}


class Builder(Epub3Builder):
    """Sphinx's builder, without files that the pages do not use, and without what EPUB forbids in figures."""

    def handle_finish(self) -> None:
        for path in Path(self.outdir, "_static").iterdir():
            if path.name not in (STYLE, COLOURS):
                path.unlink()
        for path in Path(self.outdir, "_images").glob("*.svg"):
            figure = path.read_text(encoding="utf-8")
            path.write_text(re.sub(r"<!DOCTYPE[^>]*>\s*", "", figure, count=1), encoding="utf-8")
        self.guide_titles = {**self.guide_titles, "toc": _("Contents")}  # Sphinx asked before it knew the language
        super().handle_finish()


def only_my_style(app: Any, config: Any) -> None:
    config.html_static_path, config.epub_css_files, config.html_favicon = [str(HERE / STYLE)], [STYLE], None
    config.html_additional_pages = {}  # the search, and old addresses


def plain(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> str | None:
    """A page without scripts and without links to what only the site has, and as well-formed as XML wants it."""
    if doctree is None:
        return None
    body = BeautifulSoup(context["body"], "html.parser")
    head = BeautifulSoup(app.builder.templates.render("head.html", context), "html.parser")
    for note in reversed(head.select("p.page-note")):
        body.h1.insert_after(note)
    for tag in body.select("split-explorer, step-player, .runs > .run"):
        tag.name = "div"
        tag.attrs = {"class": tag.get("class", [])}
    for tag in body.select("script, a.headerlink, kept-answers, solved-count, lesson-calculator, .player"):
        tag.decompose()
    for image in body.select("img"):
        del image["loading"]
    for link in body.select('a[href^="../"]'):
        link.unwrap()
    for link in body.select("a[href]"):
        link["href"] = re.sub(r"^(\w+)\.html(?=#|$)", r"\1.xhtml", str(link["href"]))
    for summary in body.select("details.hide > summary"):
        summary.string = app.config.nb_code_prompt_show
        summary.attrs = {}
    context["body"] = body.decode()
    context["script_files"] = []
    context["css_files"] = [f for f in context["css_files"] if str(f.filename).endswith((STYLE, COLOURS))]
    return "basic/page.html"


# PDF


def print_pdf(the_book: Book, edition: Edition, pages: Path, target: Path) -> tuple[int, str]:
    """Prints an edition; returns the number of pages, and which characters of its title no font has."""
    from playwright.sync_api import Error, sync_playwright
    from pypdf import PdfReader

    (pages / "book.html").write_text(whole(the_book, edition, pages), encoding="utf-8")
    with sync_playwright() as playwright:
        try:
            browser = launch(playwright)
        except Error as error:
            raise BookError(f"no browser to print with: {str(error).splitlines()[0]}") from None
        page = browser.new_page()
        page.goto((pages / "book.html").as_uri())
        numbers: dict[str, int] = {}
        for attempt in range(4):  # the second is the last, unless longer numbers move a line to another page
            last = attempt > 0
            page.pdf(path=target, prefer_css_page_size=True, print_background=True, tagged=last, outline=last)
            reader, before = PdfReader(target), numbers
            places = reader.named_destinations.items()
            numbers = {name.lstrip("/"): (reader.get_destination_page_number(place) or 0) + 1 for name, place in places}
            if numbers == before:
                break
            page.evaluate(
                "numbers => document.querySelectorAll('[data-to]')"
                ".forEach(mark => { mark.textContent = numbers[mark.dataset.to] ?? '?' })",
                numbers,
            )
        browser.close()
    rename_radicals(target)
    title = PdfReader(target).pages[0].extract_text()
    missing = "".join(dict.fromkeys(c for c in edition.title if not c.isspace() and c not in title))
    return len(reader.pages), missing


def rename_radicals(pdf: Path) -> None:
    """Calls characters by their own names. Chromium calls 一 by that of a radical that looks like it, and search would
    not find it."""
    from pypdf import PdfWriter

    logging.getLogger("pypdf").setLevel(logging.ERROR)  # Chromium counts its objects in another way

    def renamed(match: re.Match[bytes]) -> bytes:
        text = chr(int(match[1], 16))
        return b"> <%04X>" % ord(unicodedata.normalize("NFKC", text).translate(RADICALS))

    writer, done = PdfWriter(clone_from=pdf), set()
    for page in writer.pages:
        for font in page["/Resources"].get("/Font", {}).values():
            names = font.get_object().get("/ToUnicode")
            if names is not None and id(names) not in done:
                done.add(id(names))
                old = names.get_data()
                if (new := re.sub(rb"> <(2[EF][0-9A-F]{2})>", renamed, old)) != old:
                    names.set_data(new)
    writer.write(pdf)


def whole(the_book: Book, edition: Edition, folder: Path) -> str:
    """All pages in one, with a title page and a table of contents."""
    say = gettext.translation("sphinx", site.HERE / "locale", [edition.language], fallback=True).gettext
    chapters, contents, heads = [], [], []
    for number, name in enumerate(edition.pages):
        page = BeautifulSoup((folder / f"{name}.xhtml").read_text(encoding="utf-8"), "html.parser")
        body = page.select_one("div.body") or page.body
        assert isinstance(body, Tag)
        body.name, body.attrs = "article", {"id": name, "style": f"page: chapter-{number}"}
        for_paper(page, body, name, say)
        heads.append(
            f"@page chapter-{number} {{ @top-right {{ content: {json.dumps(title_of(body.h1), ensure_ascii=False)} }} }}"
        )
        contents.append(entry(body.h1, name, "chapter"))
        contents += [entry(head, str(head["id"]), "section") for head in body.select("section section > h2")]
        chapters.append(body.decode())
    run = runs.from_folder(runs.run_folder(the_book.root))
    assert run
    executed = max(at.executed for id, at in run.lessons.items() if id.startswith(f"{edition.name}/"))
    return f"""<!doctype html>
<html lang="{edition.tag}">
<head>
<meta charset="utf-8">
<title>{html.escape(edition.title)}</title>
<link rel="stylesheet" href="_static/{COLOURS}">
<link rel="stylesheet" href="_static/{STYLE}">
<link rel="stylesheet" href="{(HERE / PAPER).as_uri()}">
<style>{"".join(heads)}</style>
</head>
<body>
<header><p class="title">{html.escape(edition.title)}</p><p>{html.escape(edition.author)}</p><p>{executed[:10]}</p>
<p class="licence">{say("Text and code may be used under the BSD 3-Clause licence.")}</p></header>
<nav><h1>{say("Contents")}</h1>{"".join(contents)}</nav>
{"".join(chapters)}
</body>
</html>
"""


def title_of(head: Any) -> str:
    return " ".join(head.get_text().split())


def entry(head: Any, place: str, kind: str) -> str:
    return (
        f'<p class="{kind}"><a href="#{place}">{html.escape(title_of(head))}</a><span data-to="{place}">000</span></p>'
    )


def for_paper(page: BeautifulSoup, body: Tag, name: str, say: Any) -> None:
    """Gives each page ids of its own, links their page numbers or addresses, and unfolds what is folded."""
    for tag in body.select("[id]"):
        if tag is not body:
            tag["id"] = f"{name}--{tag['id']}"
    for tag in body.select(BLACK):
        tag.unwrap()
    for details in body.select("details"):
        details.name = "div"
        summary = details.summary
        if "hide" in details.get("class", []):
            summary.decompose()
        elif summary:
            summary.name, summary["class"] = "p", "summary"
            details["class"] = "folded"
    addresses: dict[str, int] = {}
    for link in body.select("a[href]"):
        href = str(link["href"])
        if re.match(r"\w+:", href):
            if link.get_text() != href:
                link.insert_after(mark := page.new_tag("sup"))
                mark.string = str(addresses.setdefault(href, len(addresses) + 1))
            continue
        file, _hash, anchor = href.partition("#")
        other = file.removesuffix(".xhtml") or name
        link["href"] = f"#{other}--{anchor}" if anchor else f"#{other}"
        before, after = say("(p. %s)").split("%s")
        link.insert_after(mark := page.new_tag("span", attrs={"class": "at"}))
        number = page.new_tag("span", attrs={"data-to": link["href"][1:]})
        number.string = "000"
        mark.extend([before, number, after])
    if addresses:
        body.append(notes := page.new_tag("ol", attrs={"class": "addresses"}))
        for address in addresses:
            notes.append(item := page.new_tag("li"))
            item.string = address


if __name__ == "__main__":
    main()
