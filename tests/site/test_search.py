"""Search, in a browser."""

import pytest
from playwright.sync_api import expect

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
    # As one types, the first letters alone may find other pages.
    expect(first.get_by_role("link")).to_have_attribute("href", f"/some/where/{edition}/{name}.html")
    assert first.locator("mark").count()
    assert "¶" not in page.locator("#search-results").inner_text()


def test_search_from_the_sidebar(visit, served):
    page = visit("zh/01_device.html", site=served)
    page.locator(".sidebar-search").fill("副本")
    page.locator(".sidebar-search").press("Enter")
    page.locator("#search-results li").first.wait_for()
    page.locator("#search-input").fill("ъъъъъъ")
    page.get_by_text("没有页面同时包含这些词").wait_for()


@pytest.mark.parametrize("edition, words", [("en", "python -m http.server"), ("zh", "直接打开本地文件时无法搜索")])
def test_search_opened_from_a_file_says_what_to_do(visit, edition, words):
    assert words in visit(f"{edition}/search.html?q=GPU").locator("#search-state").inner_text()
