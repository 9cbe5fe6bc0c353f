"""Addresses of the site and the repository, where they are known and where not."""

import pytest

from tests.conftest import BOOK, EDITIONS
from tests.site.reading import parse, soup


@pytest.mark.parametrize("edition", EDITIONS)
def test_buttons_of_other_places_only_with_an_address(html, edition):
    """How to upload a downloaded notebook to ModelScope needs none: readers in China, who reach no other, are told."""
    page = (html / edition / "01_device.html").read_text(encoding="utf-8").lower()
    named = [word for word in ("colab", "kaggle", "modelscope") if word in page]
    assert named == (["modelscope"] if edition == "zh" else [])


@pytest.mark.parametrize("page", ["index.html", "en/03_model.html", "zh/search.html"])
def test_half_an_address_is_not_given_to_search_engines(html, page):
    """Lighthouse: a link to another language needs a whole address."""
    assert not soup(html / page).select('link[hreflang], link[rel=canonical], meta[property="og:image"]')


def test_page_for_addresses_that_do_not_exist(html):
    page = soup(html / "404.html")
    assert page.base["href"] == "/"  # the address asked for may be in any folder
    for tag in page.find_all(["a", "link"], href=True):
        assert (html / tag["href"]).exists()


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("old, new", BOOK.config["sphinx"]["config"]["html_context"]["moved"].items())
def test_an_old_address_leads_to_the_new_one(html, edition, old, new):
    page = soup(html / edition / f"{old}.html")
    assert new in BOOK.source.pages
    assert page.select_one('meta[http-equiv="refresh"]')["content"] == f"0; url={new}.html"
    assert page.article.select(f'a[href="{new}.html"]')


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("anchor", ["", "#choose-survive"])
def test_an_old_address_leads_to_the_place_in_the_new_page(visit, edition, anchor):
    visit(f"{edition}/12_choose.html{anchor}").wait_for_url(f"**/{edition}/17_choose.html{anchor}")


@pytest.mark.parametrize("edition", EDITIONS)
def test_an_old_address_leads_to_the_new_one_without_scripts(visit, edition):
    page = visit(f"{edition}/12_choose.html", java_script_enabled=False)
    page.wait_for_url(f"**/{edition}/17_choose.html")


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize(
    "old, new",
    [
        ("questions_errors", "questions_machine#q-bus-error"),
        ("questions_how", "questions_write#q-run-8"),
        ("questions_how", "questions_how#q-one-gpu-ranks"),
        ("14_sharding", "15_sharded_training#sharding-checkpoint"),
        ("14_sharding", "14_sharding#sharding-hybrid"),
    ],
)
def test_the_old_address_of_a_place_leads_to_it(visit, edition, old, new):
    page, place = new.split("#")
    opened = visit(f"{edition}/{old}.html#{place}")
    opened.wait_for_url(f"**/{edition}/{page}.html#{place}")
    assert opened.locator(f"#{place}").first.is_visible()


def test_addresses_of_the_site_and_the_repository(elsewhere):
    for edition in EDITIONS:
        page = parse(elsewhere / edition / "01_count.html")
        place = f"somebody/book/blob/main/notebooks/{edition}/01_count.ipynb"
        assert page.select(f'.page-actions a[href="https://colab.research.google.com/github/{place}"]')
        assert page.select(f'.page-actions a[href="https://github.com/{place}"]')
        kaggle = f"https://kaggle.com/kernels/welcome?src=https://github.com/{place}"
        assert page.select(f'.page-actions a[href="{kaggle}"]')
        [note] = [note for note in page.select("p.page-note") if "GPU T4 ×2" in note.text]
        # Kaggle cannot be reached from everywhere; no link of ModelScope opens a notebook, so words say how.
        assert bool(note.select('a[href="https://modelscope.cn/my/mynotebook"]')) == (edition == "zh")
        assert page.select('link[hreflang="en"][href="https://example.org/book/en/01_count.html"]')
        assert page.select(f'link[rel="canonical"][href="https://example.org/book/{edition}/01_count.html"]')
        assert page.select(f'meta[content="https://example.org/book/{edition}/_static/share.png"]')
    assert parse(elsewhere / "404.html").base["href"] == "https://example.org/book/", (
        "it finds its style in a folder, too"
    )
