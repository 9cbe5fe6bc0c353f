"""The built site, as files and in a real browser."""

import re
from collections import Counter
from contextlib import contextmanager
from functools import cache
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urldefrag
from zipfile import ZipFile

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup

from tests.conftest import EDITIONS, LESSONS, ROOT, run_book

PAGES = [*sorted(path.stem for path in (ROOT / "book" / "pages" / "en").glob("*.md")), *LESSONS]


@pytest.fixture(scope="session")
def html(book):
    return book / "_build" / "html"


def parse(path):
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


soup = cache(parse)  # for reading only; parsing a page takes a while


@pytest.mark.parametrize("edition", EDITIONS)
def test_edition_is_complete(html, edition):
    for page in PAGES:
        assert (html / edition / f"{page}.html").exists()
    for name in LESSONS:
        for ending in (".ipynb", ".py"):
            assert (html / edition / f"{name}{ending}").exists()
    assert not list(html.rglob("*.part")), "nothing half written"


def test_internal_links(html):
    pages = {path: soup(path) for path in html.rglob("*.html")}
    ids = {path: {tag["id"] for tag in page.find_all(id=True)} for path, page in pages.items()}
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # has a test of its own
        for tag, attribute in (("a", "href"), ("img", "src"), ("script", "src"), ("link", "href")):
            for element in page.find_all(tag, **{attribute: True}):
                target, anchor = urldefrag(element[attribute].split("?")[0])
                if re.match(r"(https?|mailto|data):", element[attribute]):
                    continue
                file = (path.parent / unquote(target)).resolve() if target else path
                if not file.exists() or (anchor and file in ids and anchor not in ids[file]):
                    broken.append(f"{path.relative_to(html)}: {element[attribute]}")
    assert not broken


@pytest.mark.parametrize("edition", EDITIONS)
def test_ids_are_unique(html, edition):
    for path in (html / edition).glob("*.html"):
        ids = Counter(tag["id"] for tag in soup(path).article.find_all(id=True))
        assert [id for id, count in ids.items() if count > 1] == [], path.name


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
    r"[\w.-]+/[\w.-]+#\d+|PyTorch Forums|PyTorch|pytorch#|NVIDIA|CUDA|Python|Jupyter|Matplotlib|notebook|Colab|English|Linux|x86_64|GPUs?|CPU|cpu|ROCm|AMD|Apple|Intel|Furo"
    r"|CNN|RNN|DistributedDataParallel|DataParallel|DDP|FSDP|GIL|（[A-Za-z ]+）|local rank|rank|[\w.+-]*\d[\w.+-]*"
)


def test_words_of_the_chinese_pages_are_chinese(html):
    for page in [*PAGES, "search"]:
        found = parse(html / "zh" / f"{page}.html")
        labels = [
            tag[key]
            for tag in found.find_all()
            for key in ("aria-label", "placeholder", "title", "alt")
            if tag.get(key)
        ]
        labels += [title.get_text() for title in found.select("svg title")]
        for tag in found.find_all(["code", "pre", "script", "style", "svg", "head"]):
            tag.decompose()
        english = [
            text.strip()
            for text in [*found.stripped_strings, *labels, *(found.title or [])]
            if re.search("[A-Za-z]{2}", NAMES.sub("", text)) and not re.search("[\u4e00-\u9fff]", text)
        ]
        assert not english, f"{page}: {english}"


@pytest.mark.parametrize("edition", EDITIONS)
def test_no_markup_is_left_in_the_text(html, edition):
    """In Chinese, ** does not open bold between a character and a bracket."""
    for path in (html / edition).glob("*.html"):
        page = parse(path)
        for code in page.select("pre, code, script"):
            code.decompose()
        text = page.get_text()
        assert "**" not in text and "](" not in text, path.name


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


def test_addresses_of_the_site_and_the_repository(repository):
    config = repository / "_config.yml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace('baseurl: ""', "baseurl: https://example.org/book/"), encoding="utf-8")
    done = run_book(repository, "render", GITHUB_REPOSITORY="somebody/book")
    assert done.returncode == 0, done.stderr
    site = repository / "_build" / "html"
    for edition in EDITIONS:
        page = parse(site / edition / "03_model.html")
        place = f"somebody/book/blob/main/notebooks/{edition}/03_model.ipynb"
        assert page.select(f'.page-actions a[href="https://colab.research.google.com/github/{place}"]')
        assert page.select(f'.page-actions a[href="https://github.com/{place}"]')
        assert page.select('link[hreflang="en"][href="https://example.org/book/en/03_model.html"]')
        assert page.select(f'link[rel="canonical"][href="https://example.org/book/{edition}/03_model.html"]')
        assert page.select(f'meta[content="https://example.org/book/{edition}/_static/share.png"]')
    assert "https://example.org/book/" in (site / "404.html").read_text(encoding="utf-8")


# What a server may forbid without harming the site. Search runs WebAssembly; no other page may.
POLICY = "default-src 'self'; img-src 'self' data:"
SEARCH_POLICY = f"{POLICY}; script-src 'self' 'wasm-unsafe-eval'"


@contextmanager
def serving(folder):
    """The address of a server that has a site under a path, and forbids what the policy forbids."""

    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path):
            path = path.split("?")[0]
            return str(folder / path.removeprefix("/some/where/")) if path.startswith("/some/where/") else "/nowhere"

        def end_headers(self):
            policy = SEARCH_POLICY if "/search.html" in self.path or "/pagefind/" in self.path else POLICY
            self.send_header("Content-Security-Policy", policy)
            super().end_headers()

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/some/where"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def served(html):
    with serving(html) as address:
        yield address


@pytest.fixture
def visit(browser, html):
    """Opens a page of the site; whatever the console complains of fails the test."""
    complaints, contexts = [], []

    def open_page(address, site=html.as_uri(), **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith((site, "data:")) or complaints.append(request.url))
        page.goto(f"{site}/{address}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


@pytest.mark.parametrize("width, scheme", [(1280, "light"), (390, "dark")])
@pytest.mark.parametrize("edition", EDITIONS)
def test_pages_open_without_complaints(visit, html, edition, width, scheme):
    # axe takes seconds for a page: one of each kind.
    kinds = ["index", "04_data_parallel", "11_too_large", "questions", "glossary", "explorer", "search"]
    page = visit(f"{edition}/index.html", viewport={"width": width, "height": 900}, color_scheme=scheme)
    for name in [*PAGES, "search"]:
        page.goto(f"{html.as_uri()}/{edition}/{name}.html")
        assert page.locator("h1").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "no page scrolls sideways"
        for image in page.locator("article img").all():
            image.scroll_into_view_if_needed()
            assert not image.get_attribute("alt").endswith((".svg", ".png")), "the file's name says nothing"
            page.wait_for_function("image => image.complete && image.naturalWidth > 0", arg=image.element_handle())
        if name in kinds and (edition == "en") == (scheme == "light"):
            violations = Axe().run(page, options={"preload": False}).response["violations"]
            assert not [(v["id"], [node["html"][:200] for node in v["nodes"][:3]]) for v in violations], name


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


@pytest.mark.parametrize("place", ["split-law", "cell-run-8"])
def test_language_link_leads_to_the_same_place(visit, place):
    page = visit(f"en/04_data_parallel.html#{place}")
    link = page.get_by_role("link", name="中文")
    page.wait_for_function("id => document.getElementById(id).getBoundingClientRect().top < 200", arg=place)
    link.evaluate("link => link.click()")  # clicking as a user does would scroll up to it first
    page.wait_for_url(f"**/zh/04_data_parallel.html#{place}")


def test_language_link_keeps_what_the_explorer_shows(visit):
    page = visit("en/explorer.html#rows=9&gpus=8&dim=0")
    page.get_by_role("link", name="中文").click()
    page.wait_for_url("**/zh/explorer.html#rows=9&gpus=8&dim=0")


def test_first_page_remembers_the_language(visit, served):
    page = visit("en/index.html", site=served, locale="en-US")
    page.get_by_role("link", name="中文").first.click()
    page.goto(f"{served}/index.html")
    page.wait_for_url("**/zh/index.html")


@pytest.mark.parametrize("edition", EDITIONS)
def test_every_page_names_its_other_edition(html, edition):
    for page in [*PAGES, "search"]:
        found = soup(html / edition / f"{page}.html")
        links = {link["hreflang"]: link["href"] for link in found.find_all("link", rel="alternate")}
        assert set(links) == {"en", "zh", "x-default"}
        for address in links.values():
            assert (html / edition / address).exists()


@pytest.mark.parametrize("edition", EDITIONS)
def test_pages_meet_a_strict_policy(visit, served, edition):
    page = visit(f"{edition}/index.html", site=served)
    for name in [*PAGES, "search"]:
        page.goto(f"{served}/{edition}/{name}.html")
        assert page.evaluate("document.body.dataset.theme") == "auto", "the theme's script ran"


FOUND_FIRST = [
    ("zh", "数据并行", "04_data_parallel"),
    ("zh", "切分", "04_data_parallel"),
    ("zh", "批次", "02_random_dataset"),
    ("zh", "批量大小", "02_random_dataset"),
    ("zh", "收集", "05_four_steps"),
    ("zh", "多个 GPU", "04_data_parallel"),
    ("zh", "副本", "07_replicas"),
    ("en", "scatter", "05_four_steps"),
    ("en", "idle GPUs", "04_data_parallel"),
    ("en", "state_dict", "07_replicas"),
]


@pytest.mark.parametrize("edition, query, name", FOUND_FIRST)
def test_search_finds_the_right_page_first(visit, served, edition, query, name):
    page = visit(f"{edition}/search.html", site=served)
    page.get_by_role("searchbox").last.press_sequentially(query)
    first = page.locator("#search-results li").first
    first.wait_for()
    assert first.get_by_role("link").get_attribute("href").endswith(f"/some/where/{edition}/{name}.html")
    assert first.locator("mark").count()
    assert "¶" not in page.locator("#search-results").inner_text()


def test_search_from_the_sidebar(visit, served):
    page = visit("zh/01_device.html", site=served)
    page.locator(".sidebar-search").fill("副本")
    page.locator(".sidebar-search").press("Enter")
    page.locator("#search-results li").first.wait_for()
    page.locator("#search-input").fill("qwertyuiop")
    page.get_by_text("没有哪一页同时有这些词").wait_for()


@pytest.mark.parametrize("edition, words", [("en", "python -m http.server"), ("zh", "从文件打开的页面不能搜索")])
def test_search_opened_from_a_file_says_what_to_do(visit, edition, words):
    assert words in visit(f"{edition}/search.html?q=GPU").locator("#search-state").inner_text()


def test_copy_button(visit, served):
    page = visit("zh/04_data_parallel.html", site=served, permissions=["clipboard-read", "clipboard-write"])
    page.locator("#cell-split-law + .cell .cell_input").hover()
    page.locator("#cell-split-law + .cell .cell_input button.copybtn").click()
    assert page.evaluate("navigator.clipboard.readText()").startswith("import math\n\n\ndef split(rows, n):")
    assert not page.locator(".cell_output button.copybtn").count()


def test_theme_is_remembered(visit, served):
    page = visit("en/01_device.html", site=served, color_scheme="light")
    button = page.locator(".theme-toggle-content button")
    while page.evaluate("document.body.dataset.theme") != "dark":
        button.click()
    page.goto(f"{served}/en/02_random_dataset.html")
    assert page.evaluate("document.body.dataset.theme") == "dark"


def test_page_for_addresses_that_do_not_exist(html):
    page = soup(html / "404.html")
    assert page.base["href"] == "/"  # the address asked for may be in any folder
    for tag in page.find_all(["a", "link"], href=True):
        assert (html / tag["href"]).exists()


@pytest.mark.parametrize("edition", EDITIONS)
def test_edition_as_a_zip(html, edition, tmp_path):
    with ZipFile(html / f"one-model-many-gpus-{edition}.zip") as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / f"one-model-many-gpus-{edition}"
    for path in (html / edition).rglob("*"):
        if path.is_file():
            assert (folder / path.relative_to(html / edition)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("edition", EDITIONS)
def test_no_script_is_loaded_without_use(html, edition):
    loaded = {Path(tag["src"].split("?")[0]).name for tag in soup(html / edition / "01_device.html").select("script")}
    assert loaded == {
        "theme.js",
        "page.js",
        "furo.js",
        "documentation_options.js",  # where the copy button's script finds its pictures
        "clipboard.min.js",
        "copybutton.js",
    }


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


@pytest.mark.parametrize("edition", EDITIONS)
def test_every_question_leads_to_an_output_and_to_who_asked(html, edition):
    questions = soup(html / edition / "questions.html").article.select("section section")
    assert len(questions) >= 15
    for question in questions:
        links = [link["href"] for link in question.find_all("a", class_="external")]
        (cell,) = [link for link in links if "#cell-" in link]
        assert [link for link in links if link.startswith(("https://github.com/", "https://discuss.pytorch.org/"))]
        page, _, anchor = cell.partition("#")
        shown = soup(html / edition / page).find(id=anchor).find_next_sibling("div", class_="cell")
        output = shown.select_one(".cell_output")
        assert output.text.strip() or output.img, cell


@pytest.mark.parametrize("edition", EDITIONS)
def test_cheat_sheet_is_one_page_and_right(visit, edition):
    page = visit(f"{edition}/cheatsheet.html")
    assert (
        page.pdf(format="A4", margin=dict.fromkeys(("top", "bottom", "left", "right"), "10mm")).count(b"/Type /Page\n")
        == 1
    )
    examples = re.findall(r"^(\[.*\])  # (\[.*\])$", page.locator("article").inner_text(), re.MULTILINE)
    assert len(examples) == 2
    for code, result in examples:
        assert eval(code, {"torch": torch}) == eval(result)


@pytest.mark.parametrize("edition", EDITIONS)
def test_lessons_and_glossary_lead_to_each_other(html, edition):
    """The lesson that the glossary names for a term links to the term where it first uses it."""
    for term in soup(html / edition / "glossary.html").select("dt:has(span[id])"):
        anchor = term.find("span", id=True)["id"]
        shown_in = [link["href"].partition("#")[0] for link in term.find_next_sibling("dd").select("a[href]")]
        for lesson in (page for page in shown_in if page.removesuffix(".html") in LESSONS):
            assert soup(html / edition / lesson).select(f"a.reference[href='glossary.html#{anchor}']"), (lesson, anchor)
