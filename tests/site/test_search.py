"""Search, in a browser."""

import re

import pytest
import yaml
from playwright.sync_api import expect

from tests.conftest import BOOK, EDITIONS, ROOT
from tests.site.reading import soup

QUESTIONS = yaml.safe_load((ROOT / "tests" / "data" / "questions.yml").read_text("utf-8"))

FORUMS = ("https://github.com/", "https://discuss.pytorch.org/")

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


@pytest.mark.parametrize("edition", EDITIONS)
def test_search_finds_the_right_page_first(visit, served, edition):
    page = visit(f"{edition}/search.html", site=served)
    box, first = page.get_by_role("searchbox").last, page.locator("#search-results li").first
    for query, name in [(query, name) for its_edition, query, name in FOUND_FIRST if its_edition == edition]:
        box.fill("")
        box.press_sequentially(query)
        # As one types, the first letters alone may find other pages.
        expect(first.get_by_role("link")).to_have_attribute("href", re.compile(f"^{name}.html#"))
        assert first.locator("mark").count()
        assert "¶" not in page.locator("#search-results").inner_text()


SECTIONS = [
    ("en", "why is GPU 0 full", "09_cost.html#cost-memory"),
    ("en", "gradient accumulation", "10_distributed.html#distributed-no-sync"),
    ("zh", "锁页内存", "01_device.html#pinned-memory"),
    ("zh", "断点续训", "10_distributed.html#distributed-resume"),
    ("zh", "显存不均衡", "09_cost.html#cost-memory"),
    ("zh", "爆显存", "13_memory.html#memory"),
    ("zh", "批大小", "02_random_dataset.html#loader-settings"),
    ("en", "module. prefix", "questions_checkpoints.html#q-keys"),
    ("en", "hang", "12_hangs.html#hangs"),
    ("en", "OOM", "questions_memory.html#q-out-of-memory"),
    ("en", "uneven batch", "04_data_parallel.html#idle-gpus"),
    ("en", "multi node", "10_distributed.html#distributed-two-machines"),
    ("zh", "死锁", "12_hangs.html#hangs"),
    ("zh", "梯度求和", "06_gradients.html#gradients-shares"),
    ("zh", "相加还是平均", "06_gradients.html#gradients-shares"),
    ("zh", "四张卡比一张慢", "questions_slow.html#q-slower"),
    ("zh", "四张卡比一张卡慢", "questions_slow.html#q-slower"),
    ("zh", "4卡比单卡慢", "questions_slow.html#q-slower"),
    ("zh", "4 张卡比 1 张卡慢", "questions_slow.html#q-slower"),
    ("zh", "两块显卡比一块慢", "questions_slow.html#q-slower"),
    ("zh", "四卡", "04_data_parallel.html#wrap-move-run"),
    ("zh", "最后一张卡 OOM", "questions_memory.html#q-device-map-oom"),
    ("zh", "第二张卡没有用上", "questions_slow.html#q-only-one-used"),
    ("zh", "单卡能跑多卡报错", "questions_machine.html#q-sigsegv"),
    ("zh", "保存模型多了 module 前缀", "questions_checkpoints.html#q-keys"),
    ("en", "4 gpus slower than 1", "questions_slow.html#q-slower"),
    ("en", "two gpus slower than one gpu", "questions_slow.html#q-slower"),
    ("zh", "动手题", "18_puzzles.html#puzzles"),
    ("en", "puzzles", "18_puzzles.html#puzzles"),
    ("zh", "练习7", "18_puzzles.html#puzzles-collectives"),
    ("en", "exercise 7", "18_puzzles.html#puzzles-collectives"),
    ("zh", "环形全归约 练习", "18_puzzles.html#puzzles-all-reduce"),
    ("en", "ring all-reduce exercise", "18_puzzles.html#puzzles-all-reduce"),
    ("zh", "1F1B 练习", "18_puzzles.html#puzzles-pipelines"),
    ("en", "1F1B exercise", "18_puzzles.html#puzzles-pipelines"),
    *((edition, query, "index.html#three-ways") for edition in EDITIONS for query in ("EPUB", "PDF", "offline")),
    ("zh", "电子书", "index.html#three-ways"),
    ("zh", "离线阅读", "index.html#three-ways"),
    ("en", "ebook", "index.html#three-ways"),
]

TYPED = """queries => queries.map(query => {
    const box = document.querySelector('#search-input');
    box.value = query;
    box.dispatchEvent(new Event('input'));
    return [...document.querySelectorAll('#search-results a')].slice(0, 3).map(a => a.getAttribute('href'));
})"""


@pytest.mark.parametrize("edition", EDITIONS)
def test_search_leads_to_sections(visit, edition):
    """They are among the first three places."""
    wanted = {query: section for its_edition, query, section in SECTIONS if its_edition == edition}
    found = visit(f"{edition}/search.html").evaluate(TYPED, list(wanted))
    missed = [(query, links) for query, links in zip(wanted, found, strict=True) if wanted[query] not in links]
    assert not missed


def test_an_address_asks(visit, served):
    page = visit("en/search.html?q=why is GPU 0 full", site=served)
    page.locator("#search-results > li:nth-child(-n + 3) > a[href='09_cost.html#cost-memory']").wait_for()


@pytest.mark.parametrize("edition", EDITIONS)
def test_what_people_ask_is_found_by_their_words(visit, edition):
    """The answer is among the first three places."""
    missed = []
    for first in range(0, len(QUESTIONS), 150):  # a page whose address changes more often in a short time is warned
        some = QUESTIONS[first : first + 150]
        found = visit(f"{edition}/search.html").evaluate(TYPED, [question[edition] for question in some])
        for question, links in zip(some, found, strict=True):
            if question["answer"].replace("#", ".html#") not in links:
                missed.append((question[edition], question["answer"], links))
    assert not missed


def test_the_questions_are_many_and_the_pages_have_no_other(html):
    assert len(QUESTIONS) >= 150
    for edition in EDITIONS:
        asked = [question[edition] for question in QUESTIONS]
        assert len(asked) == len({*asked}), "no two by the same words"
    answered = {question["answer"] for question in QUESTIONS}
    listed = {link["href"].replace(".html", "") for link in soup(html / "en" / "questions.html").article.select("li a")}
    assert listed <= answered
    assert all(thread.startswith(FORUMS) for question in QUESTIONS for thread in question["threads"])


@pytest.mark.parametrize("edition", EDITIONS)
def test_an_answer_links_to_threads_where_it_was_asked(html, edition):
    threads = {}
    for question in QUESTIONS:
        threads.setdefault(question["answer"], set()).update(question["threads"])
    for answer, known in threads.items():
        page, _, anchor = answer.partition("#")
        if page.startswith("questions_"):
            links = soup(html / edition / f"{page}.html").find(id=anchor).parent.select("a")
            linked = {link["href"] for link in links if link["href"].startswith(FORUMS)}
            assert linked and linked <= known, answer


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("query", ["zzzzqqq", "<zzzz>qqqq</zzzz>", "🙂"])
def test_search_for_nonsense_finds_nothing(visit, served, edition, query):
    page = visit(f"{edition}/search.html", site=served)
    page.get_by_role("searchbox").last.fill(query)
    page.wait_for_function("document.querySelector('#search-state').textContent")
    assert page.locator("#search-results li, zzzz").count() == 0


@pytest.mark.parametrize(
    "edition, query, said",
    [
        ("en", "dataparalel slow", r"Searched for “dataparallel slow”\. The best 20 of \d\d+ places"),
        ("zh", "tensoor parallel", r"搜的是“tensor parallel”。找到 .*"),
        ("en", "gradients", r"The best 20 of \d\d+ places"),
        ("zh", "两张卡比一张卡慢", r"找到 .*"),
    ],
)
def test_search_says_how_many_there_are_and_what_it_took_a_word_for(visit, served, edition, query, said):
    page = visit(f"{edition}/search.html", site=served)
    page.get_by_role("searchbox").last.fill(query)
    expect(page.locator("#search-state")).to_have_text(re.compile(f"^{said}$"))
    assert 0 < page.locator("#search-results li").count() <= 20


def test_who_has_asked_is_not_searched(visit, served):
    """A learner was shown names of repositories instead of words of the answer."""
    page = visit("en/search.html?q=facebookresearch", site=served)
    page.wait_for_function("document.querySelector('#search-state').textContent")
    assert "facebookresearch/" not in page.locator("#search-results").inner_text()


@pytest.mark.parametrize("edition", EDITIONS)
def test_search_shows_no_html_and_no_notes_on_the_page(html, visit, served, edition):
    """Readers were shown the mark of a link, and on which machine a cell had run."""
    page = visit(f"{edition}/search.html?q=PDF", site=served)
    page.locator("#search-results li").first.wait_for()
    assert "<" not in page.locator("#search-results").inner_text()
    shown = page.evaluate("PAGES.flatMap(([, , parts]) => parts.map(([, , text]) => text))")
    notes = {
        note.get_text(" ", strip=True)
        for path in (html / edition).glob("[0-9]*.html")
        for note in soup(path).select(".run-name, article .page-note")
    }
    assert len(notes) > 20
    assert not [(note, text) for note in notes for text in shown if note in text]


@pytest.mark.parametrize("edition", BOOK.editions)
def test_all_questions_are_listed(edition):
    pages = BOOK.editions[edition].pages
    answers = [page.raw for name, page in pages.items() if name.startswith("questions_")]
    asked = [label for text in answers for label in re.findall(r"^\((q-[\w-]+)\)=", text, re.MULTILINE)]
    assert sorted(re.findall(r"\]\(#(q-[\w-]+)\)", pages["questions"].raw)) == sorted(asked)


@pytest.mark.parametrize("edition", EDITIONS)
def test_search_leads_on_where_it_finds_nothing(visit, served, edition):
    page = visit(f"{edition}/search.html?q=zzzzqqq", site=served)
    places = [link.get_attribute("href") for link in page.locator("#search-state a").all()]
    assert places == ["questions.html", "glossary.html"]
    page.locator("#search-state a").first.click()
    page.wait_for_url(f"**/{edition}/questions.html")


@pytest.mark.parametrize(
    "edition, loading", [("en", "The index of the search is loading …"), ("zh", "正在加载搜索索引……")]
)
def test_search_says_that_its_index_is_loading(browser, served, edition, loading):
    """It takes seconds behind a slow link, in which readers saw an empty page."""
    page, held = browser.new_page(), []
    page.route("**/sections.js", lambda route: held.append(route))
    page.goto(f"{served}/{edition}/search.html?q=scatter", wait_until="commit")
    page.get_by_text(loading).wait_for()
    held[0].continue_()
    page.locator("#search-results li").first.wait_for()
    assert loading not in page.locator("#search-state").inner_text()
    page.close()


def test_search_without_scripts_says_what_it_needs(visit):
    page = visit("en/search.html", java_script_enabled=False)
    assert page.locator("#search-state").inner_text().startswith("Please activate JavaScript")
    assert not page.get_by_text("is loading").is_visible()


def test_search_from_the_sidebar(visit, served):
    page = visit("zh/01_device.html", site=served)
    page.locator(".sidebar-search").fill("副本")
    page.locator(".sidebar-search").press("Enter")
    page.locator("#search-results li").first.wait_for()
    page.locator("#search-input").fill("ъъъъъъ")
    page.get_by_text("没有找到").wait_for()


def test_search_box_that_is_cleared_while_results_come(visit, served):
    """The results of a query that nobody asks any more stayed below an empty box."""
    page = visit("en/search.html", site=served)
    box = page.get_by_role("searchbox").last
    box.fill("scatter")
    box.fill("")
    page.wait_for_timeout(1000)
    assert page.locator("#search-results").inner_text() == page.locator("#search-state").inner_text() == ""


def test_search_goes_on_where_the_address_may_not_change(visit, served):
    """Safari allows 100 changes of it in half a minute; those who typed fast saw an empty page."""
    page = visit("en/search.html", site=served)
    page.evaluate("() => { history.replaceState = () => { throw new DOMException('too often'); }; }")
    page.get_by_role("searchbox").last.fill("scatter")
    page.locator("#search-results li").first.wait_for()


def test_search_whose_index_cannot_be_loaded(browser, served):
    page = browser.new_page()
    page.route("**/sections.js", lambda route: route.abort())
    page.goto(f"{served}/en/search.html?q=scatter")
    page.get_by_text("The index of the search cannot be loaded.").wait_for()
    page.close()
