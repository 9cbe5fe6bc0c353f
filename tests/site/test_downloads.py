"""What readers take away: the book as a zip, notebooks, scripts."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from zipfile import ZipFile

import pytest

from book.files import json_text, notebook_json
from tests.conftest import BOOK, EDITIONS
from tests.site.reading import parse

NOTHING = {"en": "Nothing found.", "zh": "没有找到"}


@pytest.fixture(scope="module")
def unpacked(html, tmp_path_factory):
    """The book as its readers take it away."""
    folder = tmp_path_factory.mktemp("unpacked")
    with ZipFile(html / "one-model-many-gpus.zip") as archive:
        archive.extractall(folder)
    return folder / "one-model-many-gpus"


def test_book_as_a_zip(html, unpacked):
    """All of the site but other forms of the book, and links to them."""
    for path in html.rglob("[!.]*.*"):
        kept = path.suffix not in (".zip", ".epub", ".pdf")
        assert (unpacked / path.relative_to(html)).exists() == kept, path
        if kept and path.name != "index.html":
            assert (unpacked / path.relative_to(html)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("edition", EDITIONS)
def test_the_home_page_in_the_zip_leads_to_what_is_there(html, unpacked, edition):
    """It offered the zip itself, which is not in the zip."""
    shown, page = [parse(folder / edition / "index.html") for folder in (html, unpacked)]
    taken = shown.select("a[download]")
    assert taken and all((html / edition / link["href"]).exists() for link in taken)
    assert not page.select("a[download]")
    words = [link.text for link in taken if link["href"].endswith(".zip")]
    assert words and all(text in page.article.text for text in words), "the sentence stays whole"
    assert len(page.find_all("a")) == len(shown.find_all("a")) - len(taken), "no other link goes"


def test_other_edition_in_the_zip(visit, unpacked):
    """The link led to a file that was not there, once."""
    page = visit("en/04_data_parallel.html#split-law", site=unpacked.as_uri(), reduced_motion="reduce")
    page.wait_for_function("document.getElementById('split-law').getBoundingClientRect().top < 200")
    page.get_by_role("link", name="中文").click()
    page.wait_for_url("**/zh/04_data_parallel.html#split-law")


@pytest.mark.parametrize(
    "edition, query, wanted",
    [
        ("en", "why is GPU 0 full", "09_cost.html#cost-memory"),
        ("en", "gradient accumulation", "10_distributed.html#distributed-no-sync"),
        ("zh", "爆显存", "13_memory.html#memory"),
    ],
)
def test_search_in_the_zip(visit, unpacked, edition, query, wanted):
    page = visit(f"{edition}/search.html?q={query}", site=unpacked.as_uri())
    links = page.locator("#search-results li a")
    links.first.wait_for()
    assert wanted in [link.get_attribute("href") for link in links.all()[:3]]
    page.get_by_role("searchbox").last.fill("zzzz <qqqq>")
    page.get_by_text(NOTHING[edition]).wait_for()
    assert links.count() == 0


@pytest.mark.parametrize("edition", EDITIONS)
def test_notebooks_are_the_sources(html, edition):
    for lesson in BOOK.editions[edition].lessons:
        assert (html / edition / lesson.file).read_text("utf-8") == json_text(notebook_json(lesson.cells))


def test_lessons_run_as_scripts(html, tmp_path):
    """Some of them, in the source edition: the editions' code is the same but for words (see book/check.py)."""

    def run(name):
        script = html / BOOK.source.name / f"{name}.py"
        environment = {**os.environ, "MPLBACKEND": "agg", "PYTHONWARNINGS": "ignore:FigureCanvasAgg"}
        return subprocess.run(
            [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(run, ["01_device", "04_data_parallel", "09_cost"]):
            assert (done.returncode, done.stderr) == (0, "")
