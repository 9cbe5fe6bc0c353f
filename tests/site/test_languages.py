"""The editions of the site: their languages, and the ways from one to the other."""

import re

import pytest
from playwright.sync_api import expect

from tests.conftest import BOOK, EDITIONS
from tests.site.reading import PAGES, parse, soup


@pytest.mark.parametrize("edition", EDITIONS)
def test_language_of_every_page(html, edition):
    for path in (html / edition).glob("*.html"):
        assert soup(path).html["lang"] == BOOK.editions[edition].language.replace("_", "-")


# What may stand in English on a Chinese page: names, code and what a library says.
NAMES = re.compile(
    r"[\w.-]+/[\w.-]+#\d+|PyTorch Forums|PyTorch|pytorch#|NVIDIA|CUDA|Python|Jupyter|Matplotlib|notebook|Colab|English|Linux|x86_64|GPUs?|CPU|cpu|ROCm|AMD|Apple|Intel|Furo|Perfetto|fork"
    r"|GPipe|(The )?Ultra-Scale Playbook|How to Scale Your Model|torchtitan|torchrun|Accelerate|DeepSpeed|Lightning|Slurm"
    r"|Kubeflow Trainer|SkyPilot|Ray Train|Megatron-(Core|LM)|vLLM|SGLang|nccl-tests|\w+#\d+"
    r"|CNN|RNN|BatchNorm|HSDP|ZeRO|DCP|DTensor|LoRA|NVLink|InfiniBand|meta|DistributedDataParallel|DataParallel|DDP|FSDP|GIL|all-gather|reduce-scatter|（[A-Za-z ]+）|local rank|rank|[\w.+-]*\d[\w.+-]*"
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
        for tag in [
            *found.find_all(["code", "pre", "script", "style", "svg", "head"]),
            *found.select("select[name=preset]"),  # names from code
            *found.select("dd em"),  # what people type
            *found.body.find_all(lang="en"),
        ]:
            tag.decompose()
        english = [
            text.strip()
            for text in [*found.stripped_strings, *labels, *(found.title or [])]
            if re.search("[A-Za-z]{2}", NAMES.sub("", text)) and not re.search("[\u4e00-\u9fff]", text)
        ]
        assert not english, f"{page}: {english}"


def test_title_of_the_chinese_pages(html):
    for page in PAGES:
        assert re.search("[\u4e00-\u9fff]", soup(html / "zh" / f"{page}.html").title.text)


@pytest.mark.parametrize("edition", EDITIONS)
def test_every_page_names_all_editions(html, edition):
    for page in [*PAGES, "search"]:
        links = soup(html / edition / f"{page}.html").select("a[data-edition]")
        assert {link["data-edition"] for link in links} == {*EDITIONS} - {edition}
        for link in links:
            assert (html / edition / link["href"]).exists()


@pytest.mark.parametrize("locale, edition", [("en-US", "en"), ("fr-FR", "en"), ("zh-CN", "zh"), ("zh-TW", "zh")])
def test_first_page_chooses_by_the_browsers_language(visit, locale, edition):
    page = visit("index.html", locale=locale)
    page.wait_for_url(f"**/{edition}/index.html")


def test_first_page_works_without_javascript(visit):
    page = visit("index.html", java_script_enabled=False)
    page.get_by_text("一个模型，多个 GPU").click()
    assert page.url.endswith("/zh/index.html")


def test_first_page_remembers_the_language(visit, served):
    page = visit("en/index.html", site=served, locale="en-US")
    page.get_by_role("link", name="中文").first.click()
    page.goto(f"{served}/index.html")
    page.wait_for_url("**/zh/index.html")


def test_language_link_leads_to_the_same_page(visit):
    page = visit("en/04_data_parallel.html")
    page.get_by_role("link", name="中文").click()
    assert page.url.endswith("/zh/04_data_parallel.html")
    page.get_by_role("link", name="English").click()
    assert page.url.endswith("/en/04_data_parallel.html")


@pytest.mark.parametrize("anchor", ["split-law", "cell-run-8"])
def test_language_link_leads_to_the_same_place(visit, anchor):
    page = visit(f"en/04_data_parallel.html#{anchor}")
    page.wait_for_function("id => document.getElementById(id).getBoundingClientRect().top < 200", arg=anchor)
    page.get_by_role("link", name="中文").click()
    page.wait_for_url(f"**/zh/04_data_parallel.html#{anchor}")


# The top of an element, and the end of the bar that a narrow screen has above the page.
TOPS = "id => [`#${id}`, '.mobile-header'].map(each => document.querySelector(each).getBoundingClientRect())"


@pytest.mark.parametrize("size", [(390, 844), (1280, 900)], ids=str)
@pytest.mark.parametrize("edition, other", [("en", "zh"), ("zh", "en")])
@pytest.mark.parametrize(
    "address", ["glossary.html#term-virtual-rank", "glossary.html#term-activation", "09_cost.html#cost-break-even"]
)
def test_language_link_keeps_the_place_that_the_address_names(visit, address, edition, other, size):
    """The other edition showed a later one, and what one had looked up was above the screen."""
    page = visit(f"{edition}/{address}", viewport=dict(zip(("width", "height"), size, strict=True)))
    page.locator(f"a[data-edition={other}]:visible").first.click()
    page.wait_for_url(f"**/{other}/{address}")
    named, bar = page.evaluate(TOPS, address.partition("#")[2])
    assert bar["bottom"] <= named["top"] < size[1] / 2


@pytest.mark.parametrize("size", [(390, 844), (1280, 900)], ids=str)
@pytest.mark.parametrize("edition, other", [("en", "zh"), ("zh", "en")])
def test_language_link_leads_to_the_first_place_in_view(visit, edition, other, size):
    """It is what the address names no more, but neither is it the last of several."""
    page = visit(f"{edition}/glossary.html#term-fsdp", viewport=dict(zip(("width", "height"), size, strict=True)))
    _, bar = page.evaluate(TOPS, "term-activation")
    page.evaluate(
        "below => scrollBy({top: document.getElementById('term-activation').getBoundingClientRect().top - below,"
        " behavior: 'instant'})",
        bar["bottom"] + 5,
    )
    page.locator(f"a[data-edition={other}]:visible").first.click()
    page.wait_for_url(f"**/{other}/glossary.html#term-activation")


@pytest.mark.parametrize("width", [390, 1280])
def test_language_link_is_in_view_wherever_one_reads(visit, width):
    page = visit("zh/09_cost.html", viewport={"width": width, "height": 800}, reduced_motion="reduce")
    page.evaluate("document.getElementById('cost-memory').scrollIntoView()")
    link = page.get_by_role("link", name="English")
    expect(link).to_be_in_viewport()
    link.click()
    page.wait_for_url("**/en/09_cost.html#*")
    half = page.viewport_size["height"] / 2
    near = "half => Math.abs(document.getElementById('cost-memory').getBoundingClientRect().top) < half"
    page.wait_for_function(near, arg=half)


def test_language_link_keeps_what_was_searched_for(visit, served):
    page = visit("en/search.html?q=GIL", site=served)
    page.get_by_role("link", name="中文").click()
    page.wait_for_url("**/zh/search.html?q=GIL")


def test_headings_have_the_same_ids_in_all_editions(html):
    for page in PAGES:
        ids = [
            [h.get("id") for h in soup(html / e / f"{page}.html").article.select("h1, h2, h3, h4")] for e in EDITIONS
        ]
        assert ids[0] == ids[1] and all(ids[0]), page


def test_language_link_keeps_the_step_in_view(visit):
    page = visit("zh/05_four_steps.html#player-recorded-call?step=3")
    page.locator("a[data-edition=en]:visible").first.click()
    page.wait_for_url("**/en/05_four_steps.html#player-recorded-call?step=3")
    assert page.locator("#player-recorded-call .player-count").inner_text() == "picture 3 of 5"
    page.evaluate("scrollTo(0, 0)")
    page.locator("a[data-edition=zh]:visible").first.click()
    page.wait_for_url("**/zh/05_four_steps.html")


def test_language_link_keeps_what_the_explorer_shows(visit):
    page = visit("en/explorer.html#rows=9&gpus=8&dim=0")
    page.get_by_role("link", name="中文").click()
    page.wait_for_url("**/zh/explorer.html#rows=9&gpus=8&dim=0")
