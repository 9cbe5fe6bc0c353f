"""The pages of the site, as files."""

import gzip
import re
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
import torch

from tests.conftest import EDITIONS, NAMES, ROOT
from tests.site.reading import PAGES, parse, soup


@pytest.mark.parametrize("edition", EDITIONS)
def test_edition_is_complete(html, edition):
    for page in PAGES:
        assert (html / edition / f"{page}.html").exists()
    for name in NAMES:
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


def test_a_page_says_each_thing_about_itself_once(html):
    """Screens, search engines and cards; pages had two viewports, and that of the search no title."""
    for path in html.rglob("*.html"):
        said = [(tag.get("name") or tag.get("property"), tag["content"]) for tag in soup(path).select("meta[content]")]
        assert all(text.strip() for _, text in said), path
        names = [name for name, _ in said if name]  # a refresh has none
        assert len(names) == len({*names}), path


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


@pytest.mark.parametrize("edition", EDITIONS)
def test_no_markup_is_left_in_the_text(html, edition):
    """In Chinese, ** does not open bold between a character and a bracket."""
    for path in (html / edition).glob("*.html"):
        page = parse(path)
        for code in page.select("pre, code, script"):
            code.decompose()
        text = page.get_text()
        assert "**" not in text and "](" not in text, path.name


@pytest.mark.parametrize("edition", EDITIONS)
def test_no_script_is_loaded_without_use(html, edition):
    loaded = {
        Path(tag["src"].split("?")[0]).name for tag in soup(html / edition / "01_device.html").select("script[src]")
    }
    assert loaded == {
        "shared.js",
        "ask.js",
        "theme.js",
        "page.js",
        "furo.js",
        "documentation_options.js",  # where the copy button's script finds its pictures
        "clipboard.min.js",
        "copybutton.js",
    }


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_is_light_behind_a_slow_link(html, edition, name):
    """At most 18 requests and 100 KiB, compressed and without figures."""
    path = html / edition / f"{name}.html"
    addresses = {tag["src"] for tag in soup(path).select("script[src]")}
    addresses |= {tag["href"] for tag in soup(path).select("link[rel=stylesheet], link[rel~=icon]")}
    files = [path, *(path.parent / address.split("?")[0] for address in addresses)]
    assert len(files) <= 18
    assert sum(len(gzip.compress(file.read_bytes())) for file in files) <= 100 * 1024


@pytest.mark.parametrize("edition", EDITIONS)
def test_every_lesson_says_where_it_was_executed(html, edition):
    for name in NAMES:
        note = soup(html / edition / f"{name}.html").select_one(".page-note:has(time)")
        assert note.time["datetime"][:2] == "20" and "PyTorch 2." in note.text
    assert not soup(html / edition / "index.html").select(".page-note")


@pytest.mark.parametrize("edition", EDITIONS)
def test_lesson_4_shows_the_tables(html, edition):
    outputs = " ".join(tag.text for tag in soup(html / edition / "04_data_parallel.html").select(".cell_output"))
    for count, rows in ((2, 15), (3, 10), (8, 4)):
        assert re.search(rf"{count} (GPUs!|个 GPU)\n", outputs)
        assert f"torch.Size([{rows}, 5])" in outputs


@pytest.mark.parametrize("edition", EDITIONS)
def test_the_first_page_shows_the_picture_that_lesson_4_draws(run, edition):
    if torch.cuda.device_count():
        pytest.skip("the picture was drawn on a machine without GPUs")
    outputs = run.cells[f"{edition}/04_data_parallel"]["splits-plot"].outputs
    (drawn,) = [
        "".join(output["data"]["image/svg+xml"]) for output in outputs if "image/svg+xml" in output.get("data", {})
    ]
    shown = (ROOT / "notebooks" / edition / "splits.svg").read_text(encoding="utf-8")
    assert shown.rstrip() == drawn.rstrip(), "copy the new one over it"


@pytest.mark.parametrize("edition", EDITIONS)
def test_every_question_leads_to_an_output_and_to_who_asked(html, edition):
    index = [link["href"] for link in soup(html / edition / "questions.html").article.select("li a")]
    pages = {link.partition("#")[0] for link in index}
    innermost = "section section:not(:has(section))"  # the others are pages, and groups of questions
    questions = {
        f"{p}#{q.find(['h2', 'h3'])['id']}": q
        for p in pages
        for q in soup(html / edition / p).article.select(innermost)
    }
    assert sorted(index) == sorted(questions), "the list of all has each once"
    for question in questions.values():
        links = [link["href"] for link in question.select("a.reference")]
        assert [link for link in links if link.startswith(("https://github.com/", "https://discuss.pytorch.org/"))]
        cells = [link for link in links if "#cell-" in link]
        assert cells
        for cell in cells:
            page, _, anchor = cell.partition("#")
            shown = soup(html / edition / page).find(id=anchor)
            # What a prediction keeps back stands in the box after the cell.
            output = shown.select_one(".cell_output") or shown.find_next(class_=["cell_output", "runs"])
            assert output.text.strip() or output.img, cell


@pytest.mark.parametrize("edition", EDITIONS)
def test_a_page_of_questions_says_what_is_found_there(html, edition):
    """Search engines and cards showed the first answer instead: “Yes, but not on Intel GPUs.”"""
    for page in (soup(path) for path in (html / edition).glob("questions_*.html")):
        first = page.article.select_one("h1 ~ p:not(.page-note)")
        assert first.find_parent("section") == page.h1.find_parent("section")
        said = page.select_one('meta[name="description"]')["content"].rstrip("…")
        assert " ".join(first.text.split()).startswith(said)


@pytest.mark.parametrize("edition", EDITIONS)
def test_the_list_of_questions_has_contents_beside_it(html, edition):
    """Its groups were bold paragraphs, and “On this page” was empty beside hundreds of questions."""
    page = soup(html / edition / "questions.html")
    groups = [heading.find("a", class_="reference")["href"] for heading in page.article.select("h2")]
    assert sorted(groups) == sorted(path.name for path in (html / edition).glob("questions_*.html"))
    assert len(page.select(".toc-tree a")) == len(page.article.select("h1, h2, h3"))


@pytest.mark.parametrize("edition", EDITIONS)
def test_lessons_and_glossary_lead_to_each_other(html, edition):
    """The lesson that the glossary names for a term links to the term where it first uses it."""
    for term in soup(html / edition / "glossary.html").select("dt:has(span[id])"):
        anchor = term.find("span", id=True)["id"]
        shown_in = [link["href"].partition("#")[0] for link in term.find_next_sibling("dd").select("a[href]")]
        for lesson in (page for page in shown_in if page.removesuffix(".html") in NAMES):
            assert soup(html / edition / lesson).select(f"a.reference[href='glossary.html#{anchor}']"), (lesson, anchor)


def test_paper_shows_all_that_the_page_says(visit):
    """Long lines break, nothing covers the text, and figures are dark on white, whatever the reader's scheme."""
    page = visit("en/17_choose.html", color_scheme="dark")
    page.emulate_media(media="print")
    for outside in (".skip-to-content", ".toc-drawer", ".sidebar-drawer"):  # a drawer leaves its edge on the sheet
        assert not page.locator(outside).is_visible()
    heights = page.locator("article img").evaluate_all("images => images.map((image) => image.height)")
    assert max(heights) < 600, "no figure takes up a sheet"
    boxes = page.locator("article pre").all()
    assert not [box.inner_text() for box in boxes if box.evaluate("box => box.scrollWidth > box.clientWidth + 1")]
    assert page.locator("article img").first.evaluate("image => getComputedStyle(image).filter") == "none"


@pytest.mark.parametrize("width", [390, 1280])
def test_no_output_scrolls_sideways(visit, width):
    page = visit("en/12_hangs.html", viewport={"width": width, "height": 800})
    wide = "boxes => boxes.filter((box) => box.scrollWidth > box.clientWidth + 1).map((box) => box.textContent)"
    assert page.locator(".cell_output pre").evaluate_all(wide) == []


@pytest.mark.parametrize("edition", EDITIONS)
def test_menu_is_grouped_and_says_where_one_is(html, edition):
    captions = {page: [c.text for c in soup(html / edition / f"{page}.html").select("nav .caption")] for page in PAGES}
    assert len(set(map(tuple, captions.values()))) == 1 and len(set(captions["index"])) == 6
    assert all(bool(re.search("[\u4e00-\u9fff]", text)) == (edition == "zh") for text in captions["index"])
    for page in PAGES[1:]:
        assert [link["href"] for link in soup(html / edition / f"{page}.html").select('nav [aria-current="page"]')] == [
            "#"
        ]


@pytest.mark.parametrize("edition", EDITIONS)
def test_every_figure_has_a_caption(html, edition):
    figures = [image for name in NAMES for image in soup(html / edition / f"{name}.html").article.find_all("img")]
    assert len(figures) >= 30
    for image in figures:
        assert image.find_parent("figure").figcaption.get_text(strip=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU: the cells measure")
@pytest.mark.parametrize("edition, words", [("en", "With a GPU: "), ("zh", "有 GPU 时：")])
def test_what_only_a_gpu_measures_is_folded(html, edition, words):
    cell = soup(html / edition / "09_cost.html").select_one("#cell-time-multiply")
    assert cell.details.summary.get_text(strip=True).startswith(words)
    assert not cell.details.has_attr("open")
    tabs = [run["data-title"] for run in cell.find_next(class_="runs").select(".run")]
    assert "NVIDIA" in tabs[0] and tabs[-1] in ("This page", "本页")  # what was measured first


@pytest.mark.parametrize("edition", EDITIONS)
def test_a_lesson_says_how_long_it_takes(html, edition):
    for name in NAMES:
        page = soup(html / edition / f"{name}.html")
        notes = " ".join(note.text for note in page.select("p.page-note"))
        numbers = re.search(r"(\d+) (?:minutes|分钟)\D+(\d+) ", notes)
        assert 5 <= int(numbers[1]) <= 60
        assert int(numbers[2]) == len(page.find_all(id=re.compile(r"cell-exercise-\d+-check")))


@pytest.mark.parametrize("edition, other", [("en", "zh"), ("zh", "en")])
def test_words_of_the_glossary_say_their_language(html, edition, other):
    words = soup(html / edition / "glossary.html").select("dt strong span")
    assert len(words) > 50 and {word["lang"] for word in words} == {other}
