"""What is made anew after a change, and what is not."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from tests.engine.conftest import EDITIONS, TESTS, changed

MINIBOOK = TESTS / "data" / "minibook"


def executed(out):
    """How many lessons were executed, and how many were not."""
    return tuple(map(int, re.search(r"lessons: (\d+) executed, (\d+) unchanged", out).groups()))


NAMES = ("01_count", "02_total", "glossary", "index", "search")
PAGES = [f"{edition}/{name}.html" for edition in EDITIONS for name in NAMES]


def test_nothing_changed_means_nothing_to_do(book, tmp_path):
    """And each source is opened once."""
    (tmp_path / "sitecustomize.py").write_text(WATCH.format(log=str(tmp_path / "opened")))
    before = book.site()
    out = book.good("build", path=[tmp_path])
    assert executed(out) == (0, 4) and "already rendered: nothing has changed" in out
    assert book.site() == before
    opened = (tmp_path / "opened").read_text("utf-8").splitlines()
    sources = [path for path in book.folder.glob("notebooks/**/*.*")] + [book.folder / "_toc.yml"]
    assert len(sources) == 14
    assert {path.name: opened.count(str(path)) for path in sources if opened.count(str(path)) != 1} == {}


# Put on the path: notes each file that is opened for reading.
WATCH = """
import sys
log = open({log!r}, "a", encoding="utf-8")
def opened(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        log.write(arguments[0] + "\\n")
        log.flush()
sys.addaudithook(opened)
"""


def test_changed_prose_is_rendered_and_not_executed(book):
    before = book.site()
    book.replace("notebooks/en/01_count.ipynb", "what will this cell print?", "what comes out?")
    out = book.good("build")
    assert executed(out) == (0, 4)
    assert "note: notebooks/zh/01_count.ipynb, cell predict: the source has changed" in out
    assert changed(before, book.site()) == ["en/01_count.html", "zh/01_count.html"], "no other page"
    assert "what comes out?" in book.page("en/01_count.html")
    # The translation is behind now: the author has heard of it, and so does the reader.
    banner = "译文完成后，原文又有改动"
    assert banner in book.page("zh/01_count.html") and banner not in book.page("zh/02_total.html")
    book.good("translated", "01_count", "predict")
    assert "note: " not in book.good("build") and banner not in book.page("zh/01_count.html")


def test_changed_code_is_executed_where_it_changed(book):
    book.set_cell("count-rows", "rows = [3, 1, 2, 4]\nprint(len(rows))")
    assert executed(book.good("execute")) == (2, 2)
    assert book.outputs("count-rows", edition="zh")[0]["text"] == "4\n"
    # A comment alone is rendered, but not executed.
    book.set_cell("count-rows", "rows = [3, 1, 2, 4]  # a remark made just now\nprint(len(rows))", editions=["zh"])
    before = book.site()
    assert executed(book.good("build")) == (0, 4)
    assert changed(before, book.site()) == ["en/01_count.html", "zh/01_count.html"]
    assert "a remark made just now" in book.page("zh/01_count.html")
    # And what was there at first is known still.
    shutil.copy(MINIBOOK / "notebooks/en/01_count.ipynb", book.path("en", "01_count.ipynb"))
    assert executed(book.good("execute", "01_count", "--edition", "en")) == (0, 1)


def test_one_lesson_of_one_edition(book):
    before = book.record()
    out = book.good("execute", "01_count", "--edition", "zh", "--force", where="notebooks/zh")
    assert executed(out) == (1, 0) and "zh" in out and " en " not in out
    after = book.record()
    assert {id for id in after if after[id] != before[id]} <= {"zh/01_count"}
    assert set(after) == set(before), "the other lessons stay in the run"
    assert (book.folder / "_build/run/en/02_total.ipynb").exists()


def test_a_title_reaches_the_sidebar_of_every_page(book):
    """A quotation mark has cut titles once: the page changed, and the sidebars of the others did not."""
    before = book.site()
    book.replace("notebooks/en/02_total.ipynb", 'do they \\"add up\\" to?', 'is \\"it that\\" they make?')
    book.good("render")
    english = [page for page in PAGES if page.startswith("en/")]
    assert changed(before, book.site()) == [*english, "zh/02_total.html"], "and the banner of the translation"
    for page in english:
        assert plain("2. What is it that they make?") in plain(book.page(page)), page


def plain(text):
    """Text without marks, however they are written."""
    return re.sub(r"&\w+;|&#\d+;|[“”\"]", "", text)


def test_a_style_reaches_every_page(book):
    """Sphinx by itself does not notice that only a style has changed."""
    before = book.site()
    with (book.folder / "book/static/book.css").open("a", encoding="utf-8") as style:
        style.write("/* changed just now */")
    book.good("render")
    after = book.site()
    for edition in EDITIONS:
        assert b"changed just now" in after[f"{edition}/_static/book.css"]
    assert changed(before, after) == PAGES, "each page names the style with its checksum"


def test_a_spoiled_site_is_made_whole(book):
    """From nothing, too, comes the same, byte for byte."""
    before, site = book.site(), book.folder / "_build" / "html"
    (site / "en" / "_static" / "book.css").unlink()
    (site / "zh" / "01_count.html").write_text("x")
    (site / "zh" / "extra.html").write_text("x")
    (site / "index.html").unlink()
    shutil.rmtree(book.folder / "_build" / "sphinx")
    assert "already" not in book.good("render")
    assert book.site() == before


SAVED_MEANWHILE = """
import sys
from pathlib import Path
from book import site, sources

book = sources.load()
path = Path(sys.argv[1])
path.write_text(path.read_text("utf-8").replace("print(", f"open({sys.argv[2]!r}, 'w'); print("), "utf-8")
try:
    site.render(book)
except Exception as error:
    print(error)
"""


def test_a_source_saved_between_execution_and_rendering(book):
    """Sphinx would have executed the whole edition by itself, for minutes and without a word."""
    before, proof = book.site(), book.folder / "executed-by-sphinx"
    book.replace("notebooks/en/index.md", "# ", "# A changed title: ")
    lesson = book.folder / "notebooks" / "en" / "01_count.ipynb"
    command = [sys.executable, "-c", SAVED_MEANWHILE, str(lesson), str(proof)]
    done = subprocess.run(command, cwd=book.folder, env=book.environment([book.folder]), capture_output=True, text=True)
    assert done.stdout == "notebooks/en/01_count.ipynb: changed while the book was built; build again\n", done.stderr
    assert not proof.exists() and book.site() == before


CODE_CHANGED_MEANWHILE = """
from pathlib import Path
from book import site, sources

index, code = Path("notebooks/en/index.md"), Path("book/directives.py")
for title in ("# First: ", "# Second: "):
    index.write_text(index.read_text("utf-8").replace("# ", title, 1), "utf-8")
    print(site.render(sources.load()))
    code.write_text(code.read_text("utf-8").replace('f"| [{name}]', 'f"| new: [{name}]'), "utf-8")
"""


def test_code_of_the_package_saved_between_two_renderings(book):
    """`serve` goes on with the code that it has loaded; the next command has all pages made by the code of now."""
    command = [sys.executable, "-c", CODE_CHANGED_MEANWHILE]
    done = subprocess.run(command, cwd=book.folder, env=book.environment([book.folder]), capture_output=True, text=True)
    assert done.stdout == "True\nTrue\n", done.stderr
    assert "Second: First: " in book.page("en/index.html") and "new: " not in book.page("en/index.html")
    assert "already" not in book.good("render")
    for edition in EDITIONS:
        assert "new: " in book.page(f"{edition}/index.html")
    assert "already" in book.good("render")


def test_a_caption_in_the_contents_reaches_every_page(book):
    """It stayed as it was where the page itself had not changed, and so did the order of the lessons."""
    book.replace("_toc.yml", "chapters:", "parts:\n- caption: A new part\n  chapters:")
    book.good("render")
    book.replace("_toc.yml", "A new part", "A newer part")
    book.good("render")
    for page in PAGES:
        assert "A newer part" in book.page(page), page


def test_a_lesson_that_is_taken_out_leaves_nothing_in_the_site(book):
    """Its page and its downloads stayed until all was made afresh."""
    for edition in ("en", "zh"):
        (book.folder / f"notebooks/{edition}/02_total.ipynb").unlink()
        for page in (book.folder / f"notebooks/{edition}").glob("*.*"):
            page.write_text(
                re.sub(r"02_total\.ipynb(#\S+?(?=\)))?", "01_count.ipynb", page.read_text("utf-8")), "utf-8"
            )
    book.replace("_toc.yml", "  - file: 02_total\n", "")
    book.good("build")
    assert [name for name in book.site() if "02_total" in name] == []


def test_a_run_that_is_recorded_later_is_shown(book):
    book.good("record", "run")
    (path,) = (book.folder / "runs").glob("*.json")
    run = json.loads(path.read_text("utf-8"))
    path.unlink()
    for provenance in run["lessons"].values():
        provenance["gpus"] = ["Made-up GPU"] * 2
    (path.parent / "made-up.json").write_text(json.dumps(run), "utf-8")
    for shown in (True, False):
        book.good("render")
        assert ("Made-up GPU" in book.page("en/02_total.html")) == shown
        (path.parent / "made-up.json").unlink(missing_ok=True)


@pytest.mark.parametrize("damaged", ["{", '{"made by": %s}', '{"made by": %s, "found": []}'])
def test_a_damaged_file_of_what_was_found_heals(book, damaged):
    path = book.folder / "_build" / "found.json"
    made_by = json.dumps(json.loads(path.read_text("utf-8"))["made by"])
    path.write_text(damaged.replace("%s", made_by), "utf-8")
    assert "already rendered" in book.good("build")
    assert json.loads(path.read_text("utf-8"))["found"]


def test_a_byte_order_mark_stops_no_build(book):
    path = book.path("en", "index.md")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"# ", b"# Marked: ", 1))
    book.good("build")
    assert "Marked: " in book.page("en/index.html")
