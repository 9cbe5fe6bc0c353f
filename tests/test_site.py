"""The built site, as files and in a real browser."""

import re
from urllib.parse import unquote, urldefrag

import pytest
import torch
from bs4 import BeautifulSoup

from tests.conftest import EDITIONS, LESSONS, ROOT, run_book

PAGES = [*sorted(path.stem for path in (ROOT / "book" / "pages" / "en").glob("*.md")), *LESSONS]


@pytest.fixture(scope="session")
def html(book):
    return book / "_build" / "html"


def soup(path):
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


@pytest.mark.parametrize("edition", EDITIONS)
def test_edition_is_complete(html, edition):
    for page in PAGES:
        assert (html / edition / f"{page}.html").exists()
    for name in LESSONS:
        for ending in (".ipynb", ".py"):
            assert (html / edition / f"{name}{ending}").exists()
    assert not list(html.rglob("*.part")), "nothing half written"


def test_internal_links(html):
    ids = {path: {tag["id"] for tag in soup(path).find_all(id=True)} for path in html.rglob("*.html")}
    broken = []
    for path in ids:
        for tag, attribute in (("a", "href"), ("img", "src"), ("script", "src"), ("link", "href")):
            for element in soup(path).find_all(tag, **{attribute: True}):
                target, anchor = urldefrag(element[attribute].split("?")[0])
                if re.match(r"(https?|mailto|data):", element[attribute]):
                    continue
                file = (path.parent / unquote(target)).resolve() if target else path
                if not file.exists() or (anchor and file in ids and anchor not in ids[file]):
                    broken.append(f"{path.relative_to(html)}: {element[attribute]}")
    assert not broken


def test_nothing_comes_from_other_hosts(html):
    for path in html.rglob("*.html"):
        for tag in soup(path).find_all(["script", "link", "img", "iframe"]):
            address = tag.get("src") or tag.get("href") or ""
            assert "//" not in address, f"{path.relative_to(html)}: {address}"


@pytest.mark.parametrize("edition, language", [("en", "en"), ("zh", "zh-CN")])
def test_language_of_every_page(html, edition, language):
    for path in (html / edition).glob("*.html"):
        assert soup(path).html["lang"] == language


# What may stand in English on a Chinese page: names, code and what a library says.
NAMES = re.compile(
    r"PyTorch|pytorch#|NVIDIA|CUDA|Python|Jupyter|Matplotlib|notebook|Colab|English|Linux|x86_64|GPUs?|CPU|cpu|ROCm|AMD|Apple|Intel|Furo"
    r"|CNN|RNN|DataParallel|[\w.+-]*\d[\w.+-]*"
)


def test_words_of_the_chinese_pages_are_chinese(html):
    for page in [*PAGES, "search"]:
        found = soup(html / "zh" / f"{page}.html")
        labels = [
            tag[key]
            for tag in found.find_all()
            for key in ("aria-label", "placeholder", "title", "alt")
            if tag.get(key)
        ]
        for tag in found.find_all(["code", "pre", "script", "style", "svg", "head"]):
            tag.decompose()
        english = [
            text.strip()
            for text in [*found.stripped_strings, *labels, *(found.title or [])]
            if re.search("[A-Za-z]{2}", NAMES.sub("", text)) and not re.search("[\u4e00-\u9fff]", text)
        ]
        assert not english, f"{page}: {english}"


def test_title_and_figures_of_the_chinese_pages(html):
    for page in PAGES:
        assert re.search("[\u4e00-\u9fff]", soup(html / "zh" / f"{page}.html").title.text)


@pytest.mark.parametrize("edition", EDITIONS)
def test_every_lesson_says_where_it_was_executed(html, edition):
    for name in LESSONS:
        note = soup(html / edition / f"{name}.html").select_one(".page-note")
        assert note.time["datetime"][:2] == "20" and "PyTorch 2." in note.text
    assert not soup(html / edition / "index.html").select(".page-note")


@pytest.mark.parametrize("edition", EDITIONS)
def test_lesson_4_shows_the_tables(html, edition):
    outputs = " ".join(tag.text for tag in soup(html / edition / "04_data_parallel.html").select(".cell_output"))
    for count, rows in ((2, 15), (3, 10), (8, 4)):
        assert re.search(rf"{count} (GPUs!|个 GPU)\n", outputs)
        assert f"torch.Size([{rows}, 5])" in outputs


@pytest.mark.parametrize("edition", EDITIONS)
def test_the_readmes_picture_is_what_the_build_draws(book, edition):
    if torch.cuda.device_count():
        pytest.skip("the picture in the README was drawn on a machine without GPUs")
    drawn = (book / "_build" / "stage" / edition / "splits.svg").read_bytes()
    assert (ROOT / "book" / "pages" / edition / "splits.svg").read_bytes() == drawn, "copy the new one over it"


def test_colab_button_only_with_an_address(html):
    assert "colab" not in (html / "en" / "01_device.html").read_text(encoding="utf-8")


def test_colab_button_leads_to_the_notebook(repository):
    done = run_book(repository, "render", GITHUB_REPOSITORY="somebody/book")
    assert done.returncode == 0, done.stderr
    for edition in EDITIONS:
        page = soup(repository / "_build" / "html" / edition / "01_device.html")
        address = (
            f"https://colab.research.google.com/github/somebody/book/blob/main/notebooks/{edition}/01_device.ipynb"
        )
        assert page.select(f'.page-actions a[href="{address}"]')


@pytest.fixture
def visit(browser, html):
    """Opens a page of the site; whatever the console complains of fails the test."""
    complaints, contexts = [], []

    def open_page(address, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or complaints.append(request.url))
        page.goto(f"{html.as_uri()}/{address}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("edition", EDITIONS)
def test_pages_open_without_complaints(visit, edition, width, scheme):
    for name in PAGES:
        page = visit(f"{edition}/{name}.html", viewport={"width": width, "height": 900}, color_scheme=scheme)
        assert page.locator("h1").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "no page scrolls sideways"
        for image in page.locator("article img").all():
            assert not image.get_attribute("alt").endswith((".svg", ".png")), "the file's name says nothing"
            assert image.evaluate("image => image.complete && image.naturalWidth > 0")


@pytest.mark.parametrize("locale, edition", [("en-US", "en"), ("fr-FR", "en"), ("zh-CN", "zh"), ("zh-TW", "zh")])
def test_first_page_chooses_by_the_browsers_language(visit, locale, edition):
    page = visit("index.html", locale=locale)
    page.wait_for_url(f"**/{edition}/index.html")


def test_first_page_works_without_javascript(visit):
    page = visit("index.html", java_script_enabled=False)
    page.get_by_text("一个模型，多个 GPU").click()
    assert page.url.endswith("/zh/index.html")


def test_language_link_leads_to_the_same_page(visit):
    page = visit("en/04_data_parallel.html")
    page.get_by_role("link", name="中文").click()
    assert page.url.endswith("/zh/04_data_parallel.html")
    page.get_by_role("link", name="English").click()
    assert page.url.endswith("/en/04_data_parallel.html")


@pytest.mark.parametrize("edition", EDITIONS)
def test_solutions_are_folded(visit, edition):
    page = visit(f"{edition}/04_data_parallel.html")
    solution = page.locator("details", has=page.locator("summary", has_text=re.compile("Solution 1|参考答案 1")))
    code = solution.locator("pre")
    assert not code.is_visible()
    solution.locator("summary").click()
    assert code.is_visible()


def test_explorer_follows_the_law(visit):
    page = visit("en/explorer.html")
    splits = page.evaluate(
        """() => {
            const { split } = customElements.get("split-explorer");
            const range = (n) => Array.from({ length: n }, (_, i) => i + 1);
            return range(256).map((rows) => range(64).map((gpus) => split(rows, gpus)));
        }"""
    )
    for rows in range(1, 257):
        for gpus in range(1, 65):
            assert splits[rows - 1][gpus - 1] == [len(chunk) for chunk in torch.ones(rows).chunk(gpus)]


@pytest.mark.parametrize("edition, words", [("en", "GPUs at work: 5 of 8"), ("zh", "工作的 GPU：5 / 8")])
@pytest.mark.parametrize("name", ["explorer", "04_data_parallel"])
def test_explorer_by_keyboard_and_by_link(visit, edition, name, words):
    page = visit(f"{edition}/{name}.html")
    explorer = page.locator("split-explorer")
    rows = explorer.locator("input[type=number]").first
    rows.focus()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("9")
    for key in ("Tab", "Tab", "Tab"):  # over the slider to the number of GPUs, and on to its slider
        page.keyboard.press(key)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.url.endswith("#rows=9&gpus=8&dim=1")
    assert explorer.get_by_text(words).is_visible()
    assert explorer.locator(".explorer-idle").count() == 3
    assert explorer.locator("td", has_text="(5, 2)").count() == 4

    linked = visit(f"{edition}/{name}.html#rows=9&gpus=8&dim=1").locator("split-explorer")
    assert linked.inner_text() == explorer.inner_text()
    assert linked.evaluate("e => e.getBoundingClientRect().top < innerHeight"), "the link leads to the explorer"


def test_explorer_survives_nonsense(visit):
    explorer = visit("en/explorer.html#rows=-3&gpus=999&dim=x").locator("split-explorer")
    assert explorer.get_by_text("GPUs at work: 1 of 64").is_visible()


@pytest.mark.parametrize("edition", EDITIONS)
def test_explorer_says_the_law_without_javascript(visit, edition):
    page = visit(f"{edition}/explorer.html", java_script_enabled=False)
    assert "c = ⌈B/n⌉" in page.locator("split-explorer").inner_text()
