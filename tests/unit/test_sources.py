"""Sources: what is said of broken ones, and what authors have written into theirs."""

import json
import re
import shutil
import unicodedata
from dataclasses import replace

import pytest
import yaml

from book import check, files, sources
from book.model import BookError
from tests.unit.conftest import DATA, changed

MESSAGES = yaml.safe_load((DATA / "bad.yml").read_text(encoding="utf-8"))


def said_of(folder):
    """Everything that is said of a book: what cannot be read, or else all problems."""
    try:
        book = sources.load(folder)
    except BookError as error:
        return error.lines
    return [
        ("note: " if p.note else "") + str(p) for p in [*check.check(book), *check.pairs(book), *check.untidy(book)]
    ]


def test_each_bad_folder_has_its_messages():
    assert {path.name for path in (DATA / "bad").iterdir()} == set(MESSAGES)


def test_nothing_is_said_of_the_small_book():
    assert said_of(DATA / "minibook") == []


@pytest.mark.parametrize("case", MESSAGES)
def test_what_is_said_of_a_bad_folder(folder, case):
    shutil.copytree(DATA / "bad" / case, folder, dirs_exist_ok=True)
    expected = [".*".join(map(re.escape, line.split("…"))) for line in MESSAGES[case].splitlines()]
    said = said_of(folder)
    assert len(said) == len(expected), said
    for line, pattern in zip(said, expected, strict=True):
        assert re.fullmatch(pattern, line), said


def test_a_name_in_another_unicode_form(folder):
    """macOS may write é as two characters, which look like one."""
    one, two = (unicodedata.normalize(form, "03_café") for form in ("NFC", "NFD"))
    with (folder / "_toc.yml").open("a", encoding="utf-8") as toc:
        toc.write(f"  - file: {one}\n")
    for edition in ("en", "zh"):
        shutil.copy(folder / f"notebooks/{edition}/02_total.ipynb", folder / f"notebooks/{edition}/{two}.ipynb")
    text = "the file's name is in another Unicode form than in _toc.yml; rename the file"
    assert said_of(folder) == [f"notebooks/{edition}/{two}.ipynb: {text}" for edition in ("en", "zh")]


def test_several_problems_are_said_at_once(folder):
    (folder / "notebooks/en/01_count.ipynb").write_text("{")
    (folder / "notebooks/zh/02_total.ipynb").unlink()
    (folder / "notebooks/zh/index.md").write_bytes(b"\xff")
    said = said_of(folder)
    assert [line.partition(": ")[0] for line in said] == [
        "notebooks/en/01_count.ipynb, line 1",
        "notebooks/zh/02_total.ipynb",
        "notebooks/zh/index.md, line 1",
    ]


def test_editions_come_from_folders(folder):
    shutil.copytree(folder / "notebooks/zh", folder / "notebooks/aa")
    book = sources.load(folder)
    assert list(book.editions) == ["en", "aa", "zh"], "the source edition first"
    assert [edition.name for edition in book.translations] == ["aa", "zh"]
    assert [lesson.id for lesson in book.lessons if lesson.name == "01_count"] == [
        f"{e}/01_count" for e in book.editions
    ]
    assert "shared" not in book.editions


def test_the_root_is_found_from_any_folder_within(folder, monkeypatch, tmp_path):
    assert sources.find_root(folder / "notebooks" / "en") == folder
    monkeypatch.chdir(folder / "notebooks")
    assert sources.find_root() == folder
    monkeypatch.chdir(tmp_path)
    assert sources.find_root() == DATA.parent.parent, "outside of any book, that of the package"


def test_the_front_matter_is_no_text(small):
    page = small.page("en/glossary")
    assert page.cells[0].metadata == {"numbers": {"glossary": {"given": [1]}}}
    assert page.cells[0].source.startswith("(glossary)=") and page.raw.startswith("---\nnumbers:")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("01_cuont", "did you mean 01_count?"),
        ("notebooks/en/02_totl.ipynb", "did you mean 02_total?"),
        ("answer", "there are: 01_count, 02_total"),
    ],
)
def test_an_unknown_lesson(small, name, hint):
    with pytest.raises(BookError, match=re.escape(f"; {hint}") + "$"):
        sources.select(small, ["01_count", name])


def test_select(small):
    def names(*arguments):
        return [lesson.id for lesson in sources.select(small, *arguments)]

    assert names([]) == ["en/01_count", "en/02_total", "zh/01_count", "zh/02_total"]
    assert names(["notebooks/zh/02_total.ipynb"]) == ["en/02_total", "zh/02_total"], "a path names a lesson, too"
    assert names(["01_count"], ["zh"]) == ["zh/01_count"]


# What authors ask for


def cell(folder, edition, lesson, id):
    found = json.loads((folder / "notebooks" / edition / f"{lesson}.ipynb").read_text("utf-8"))["cells"]
    return next(each for each in found if each["id"] == id)


def test_tidy_changes_nothing_in_a_tidy_book(small):
    assert sources.tidy(small, []) == []


def test_tidy_removes_what_editors_leave(folder):
    shutil.copytree(DATA / "bad" / "outputs-of-an-editor", folder, dirs_exist_ok=True)
    book = sources.load(folder)
    assert sources.tidy(book, ["02_total"]) == []
    assert sources.tidy(book, []) == ["notebooks/en/01_count.ipynb"]
    assert said_of(folder) == []
    assert (folder / "notebooks/en/01_count.ipynb").read_bytes() == (
        DATA / "minibook/notebooks/en/01_count.ipynb"
    ).read_bytes(), "and nothing else"


def test_tidy_writes_shared_cells(folder):
    (folder / "notebooks/shared/tools.py").write_text("add_up = sum\n")
    (folder / "notebooks/shared/zh/words.py").write_text("WORDS = {'rows': '行', 'total': '共'}\n", encoding="utf-8")
    written = sources.tidy(sources.load(folder), [])
    assert written == [f"notebooks/{path}.ipynb" for path in ("en/02_total", "zh/01_count", "zh/02_total")]
    for edition in ("en", "zh"):
        assert cell(folder, edition, "02_total", "tools")["source"] == ["add_up = sum"]
    assert "行" in cell(folder, "zh", "01_count", "words")["source"][0]
    assert "rows" in cell(folder, "en", "01_count", "words")["source"][0]


def test_a_rename_reaches_every_edition_and_every_link(folder):
    with (folder / "notebooks/zh/index.md").open("a", encoding="utf-8") as page:
        page.write("\n[和](02_total.ipynb#cell-total)、[别的](02_total.ipynb#cell-total-2)、[标签](#total)\n")
    changed = sources.rename_cell(sources.load(folder), "02_total", "total", "grand-total")
    assert sorted(changed) == [
        "notebooks/en/01_count.ipynb",
        "notebooks/en/02_total.ipynb",
        "notebooks/zh/01_count.ipynb",
        "notebooks/zh/02_total.ipynb",
        "notebooks/zh/index.md",
    ]
    for edition in ("en", "zh"):
        assert "(02_total.ipynb#cell-grand-total)" in "".join(cell(folder, edition, "01_count", "title")["source"])
        assert cell(folder, edition, "02_total", "grand-total")["metadata"]["tags"] == ["compare"]
    text = (folder / "notebooks/zh/index.md").read_text("utf-8")
    assert text.startswith("---\ntranslates: ")
    assert text.endswith("[和](02_total.ipynb#cell-grand-total)、[别的](02_total.ipynb#cell-total-2)、[标签](#total)\n")


def test_a_rename_of_what_is_not_there(small):
    with pytest.raises(BookError, match="01_count: no cell is called nothing"):
        sources.rename_cell(small, "01_count", "nothing", "something")


def test_a_rename_to_what_another_cell_is_called(folder, small):
    with pytest.raises(BookError, match="02_total: there is a cell called title already"):
        sources.rename_cell(small, "02_total", "total", "title")
    assert said_of(folder) == []


def test_a_new_lesson(folder):
    made = sources.new_lesson(sources.load(folder), "03_mean", "02_total")
    assert made == ["notebooks/en/03_mean.ipynb", "notebooks/zh/03_mean.ipynb", "_toc.yml"]
    book = sources.load(folder)
    assert list(book.source.pages) == ["index", "01_count", "02_total", "03_mean", "glossary"]
    # Whole, tidy and translated from the beginning; what is still to be done is said.
    text = "no page leads to it; add its terms to the glossary, and what people ask to the questions"
    assert said_of(folder) == [f"note: {path}: {text}" for path in made[:2]]
    english, chinese = (book.page(f"{edition}/03_mean") for edition in ("en", "zh"))
    assert english.cells[0].source.startswith('(mean-total)=\n# 3. What do they "add up" to?')
    assert chinese.cells[0].source.startswith("(mean-total)=\n# 3. 加起来是多少？")
    assert [c.source for c in english.code] == [c.source for c in book.page("en/02_total").code]


def test_a_new_lesson_stands_after_a_line_with_a_remark(folder):
    toc = folder / "_toc.yml"
    toc.write_text(toc.read_text("utf-8").replace("file: 02_total", 'file: "02_total"  # the last'), encoding="utf-8")
    sources.new_lesson(sources.load(folder), "03_mean", "02_total")
    assert list(sources.load(folder).source.pages) == ["index", "01_count", "02_total", "03_mean", "glossary"]


def test_a_new_lesson_for_which_the_contents_have_no_line(folder):
    """Nothing is written then."""
    toc = folder / "_toc.yml"
    toc.write_text(toc.read_text("utf-8").replace("file: 02_total", "{file:\n     02_total}"), encoding="utf-8")
    with pytest.raises(BookError, match="_toc.yml: no line of its own is for 02_total, after which 03_mean"):
        sources.new_lesson(sources.load(folder), "03_mean", "02_total")
    assert not [*folder.rglob("03_mean*")]


def test_what_editors_hide_is_no_page(folder):
    (folder / "notebooks" / "en" / ".#index.md").write_text("")
    assert said_of(folder) == []


def test_links_within_a_new_lesson_stay_in_it(small):
    own = "[label](#total), [by its file](02_total.ipynb#total-rule), [cell](02_total.ipynb#cell-total)"
    others = "[another lesson](01_count.ipynb#count), [a word](glossary.md#term-row) (total)\n(total) no label"
    sources.new_lesson(changed(small, "en/02_total", rule=f"(total-rule)=\n{own}, {others}"), "03_mean", "02_total")
    source = "".join(cell(small.root, "en", "03_mean", "rule")["source"])
    own = "[label](#mean-total), [by its file](03_mean.ipynb#mean-total-rule), [cell](03_mean.ipynb#cell-total)"
    assert source == f"(mean-total-rule)=\n{own}, {others}"


def test_tidy_removes_a_byte_order_mark(folder):
    """Jupyter opens no notebook that has one."""
    path = folder / "notebooks" / "en" / "01_count.ipynb"
    clean = path.read_bytes()
    path.write_bytes("\ufeff".encode() + clean)
    assert sources.tidy(sources.load(folder), []) == ["notebooks/en/01_count.ipynb"]
    assert path.read_bytes() == clean


@pytest.mark.parametrize("name", ["3_mean", "02_total", "02_mean", "04_mean", "03_Mean"])
def test_a_new_lesson_that_cannot_be(small, name):
    with pytest.raises(BookError, match=f"{name}: the next lesson is called 03_name, in small letters, after 02_total"):
        sources.new_lesson(small, name, "01_count")


def prose(folder, edition="en"):
    """Changes a text cell, and a page."""
    path = folder / "notebooks" / edition / "01_count.ipynb"
    path.write_text(path.read_text("utf-8").replace("what will this cell print?", "what comes out?"), encoding="utf-8")
    page = folder / "notebooks" / edition / "index.md"
    page.write_text(page.read_text("utf-8").replace("Two lessons", "Two tiny lessons"), encoding="utf-8")


def test_translated(folder):
    prose(folder)
    assert said_of(folder) == [
        "note: notebooks/zh/index.md: the source has changed; when it is translated: python -m book translated index",
        "note: notebooks/zh/01_count.ipynb, cell predict: the source has changed; "
        "when it is translated: python -m book translated 01_count predict",
    ]
    sources.mark_translated(sources.load(folder), "01_count", ["title"])
    assert len(said_of(folder)) == 2, "another cell is up to date now, and was before"
    assert sources.mark_translated(sources.load(folder), "01_count", ["predict"]) == ["notebooks/zh/01_count.ipynb"]
    assert sources.mark_translated(sources.load(folder), "index", []) == ["notebooks/zh/index.md"]
    assert said_of(folder) == []


def test_translated_keeps_the_rest_of_the_front_matter(folder):
    page = folder / "notebooks/zh/index.md"
    text = page.read_text("utf-8")
    page.write_text(text.replace("---\n", "---\nnumbers:\n  家: {given: [2]}\ntitle: 'a: b'\n", 1), encoding="utf-8")
    before = sources.load(folder).page("zh/index")
    prose(folder)
    sources.mark_translated(sources.load(folder), "index", [])
    book = sources.load(folder)
    after = book.page("zh/index")
    assert (
        after.cells[0].metadata
        == {**before.cells[0].metadata, "translates": book.page("en/index").hashes[""]}
        != before.cells[0].metadata
    )
    assert after.cells[0].source == before.cells[0].source


@pytest.mark.parametrize(
    ("name", "cells", "text"),
    [
        ("01_cuont", [], "no lesson or page is called 01_cuont; did you mean 01_count?"),
        ("indexes", [], "no lesson or page is called indexes; did you mean index?"),
        ("01_count", ["predikt"], "notebooks/en/01_count.ipynb: no such cell: predikt"),
        ("index", ["predict"], "notebooks/en/index.md: no such cell: predict"),
    ],
)
def test_translated_what_is_not_there(folder, small, name, cells, text):
    prose(folder)
    with pytest.raises(BookError, match=re.escape(text)):
        sources.mark_translated(sources.load(folder), name, cells)
    assert len(said_of(folder)) == 2, "nothing was marked"


def test_a_lesson_that_was_never_translated(folder):
    path = folder / "notebooks/zh/01_count.ipynb"
    cells = [c for c in sources.load(folder).page("zh/01_count").cells]
    for each in cells:
        each.metadata.pop("translates")
    files.write_json(path, files.notebook_json(cells))
    assert said_of(folder) == [
        "note: notebooks/zh/01_count.ipynb: not translated yet, as far as is noted; "
        "when it is translated: python -m book translated 01_count"
    ], "one line, not one for each cell"


def test_a_new_lesson_that_is_written_anew(folder):
    """Most of its cells are behind then: one line says so."""
    sources.new_lesson(sources.load(folder), "03_mean", "02_total")
    book = sources.load(folder)
    lesson = book.page("en/03_mean")
    cells = [replace(c, source=c.source + "\n\nMore.") if c.kind == "markdown" else c for c in lesson.cells]
    cells = [replace(c, source=c.source + "\n# more") if c.kind == "code" else c for c in cells[:-1]] + cells[-1:]
    sources.rewrite(book, lesson, cells)
    said = [line for line in said_of(folder) if "translated" in line]
    again = "when it is translated: python -m book translated 03_mean"
    assert said == [f"note: notebooks/zh/03_mean.ipynb: the source has changed; {again}"]
