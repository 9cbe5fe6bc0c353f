"""What is made anew after a change, and that two builds of the same sources are equal."""

import shutil
import sys

import pytest

from tests.conftest import EDITIONS, LESSONS, edit, notes_on_sources, run_book, set_code, site


def test_nothing_changed_means_nothing_to_do(repository):
    before = site(repository)
    done = run_book(repository, "build")
    assert done.returncode == 0
    assert done.stdout.count("unchanged since") == 2 * len(LESSONS)
    assert "already rendered" in done.stdout
    assert site(repository) == before


def test_changed_prose_is_rendered_and_not_executed(repository):
    set_code(repository, "03_model", "any-model", "(any-model)=\n## It works for every model", ["en"])
    done = run_book(repository, "build")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("unchanged since") == 2 * len(LESSONS)
    assert b"It works for every model" in site(repository)["en/03_model.html"]
    # The translation is behind now: the author hears of it, and so does the reader.
    assert "note: notebooks/zh/03_model.ipynb, cell any-model: the English text has changed" in done.stdout
    assert "本页的英文版在翻译之后有改动" in site(repository)["zh/03_model.html"].decode()
    assert run_book(repository, "translated", "03_model", "any-model").returncode == 0
    assert notes_on_sources(repository) == []


def test_changed_comments_are_rendered_and_not_executed(repository):
    def change(cells):
        cell = next(cell for cell in cells if cell["id"] == "setup")
        cell["source"][0] = cell["source"][0].rstrip("\n") + "  # a remark made just now\n"

    for edition in EDITIONS:
        edit(repository, edition, "03_model", change)
    done = run_book(repository, "build")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("unchanged since") == 2 * len(LESSONS)
    assert b"a remark made just now" in site(repository)["en/03_model.html"]


def test_force_executes_what_has_not_changed(repository):
    done = run_book(repository, "execute", "01_device", "--force")
    assert done.returncode == 0 and "unchanged since" not in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are forked on Linux only")
def test_lessons_share_one_import_of_the_modules(repository):
    """The process that kernels are forked from is started early, before a kernel asks for it: once, not twice."""
    count = "sum('warm_kernel.zygote' in child.cmdline() for child in psutil.Process().parent().parent().children())"
    set_code(repository, "03_model", "exercise-2-check", f"import psutil\nprint('processes to fork from:', {count})")
    assert run_book(repository, "execute", "03_model").returncode == 0
    for edition in EDITIONS:
        executed = (repository / "_build" / "run" / edition / "03_model.ipynb").read_text(encoding="utf-8")
        assert "processes to fork from: 1\\n" in executed


def test_a_changed_style_reaches_every_page(repository):
    """Sphinx by itself does not notice that only a style has changed."""
    with (repository / "book" / "static" / "book.css").open("a", encoding="utf-8") as changed:
        changed.write("/* changed just now */")
    before = site(repository)["zh/01_device.html"]
    assert run_book(repository, "build").returncode == 0
    after = site(repository)
    assert b"changed just now" in after["zh/_static/book.css"]
    assert before != after["zh/01_device.html"], "the page names the style with its checksum"


def test_warm_and_cold_builds_are_equal(book, repository):
    """The whole book byte for byte, notebooks, figures and site; run.json, which says when and how long, apart."""
    for made in ("cache", "stage", "sphinx", "html"):
        shutil.rmtree(repository / "_build" / made)
    done = run_book(repository, "execute", "--cold", "--language", "en", timeout=500)
    assert done.returncode == 0, done.stderr
    for name in LESSONS:
        path = f"_build/run/en/{name}.ipynb"
        assert (repository / path).read_bytes() == (book / path).read_bytes(), path
    shutil.copy(book / "_build" / "run" / "run.json", repository / "_build" / "run" / "run.json")
    assert run_book(repository, "render").returncode == 0
    before, after = site(book), site(repository)
    assert [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)] == []
