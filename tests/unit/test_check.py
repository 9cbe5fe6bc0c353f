"""What the rules of `check` see in texts and code; the messages themselves stand in tests/data/bad.yml."""

from dataclasses import replace

import pytest

from book import check, texts
from book.execute import Execution
from book.machine import LIMITS
from book.model import BookError, Problem
from tests.unit.conftest import changed


@pytest.mark.parametrize(
    ("source", "links"),
    [
        ("[a](b.md)", ["b.md"]),
        ("`self.layers[0](x)` and\n\n    layers[0](x)\n\n```\n[a](b.md)\n```", []),
        ("[a](https://example.org/Split_(math))", ["https://example.org/Split_(math)"]),
        ("[a][one] and ![b](c.svg)\n\n[one]: two.md", ["two.md", "c.svg"]),
        ("<https://example.org>", ["https://example.org"]),
        ("| a |\n|---|\n| [b](c.md) |", ["c.md"]),
        ("term\n: [b](c.md)", ["c.md"]),
        (r"\[a](b.md)", []),
        ("[a](<b c.md>)", ["b%20c.md"]),
    ],
)
def test_links(source, links):
    assert [link for link, _line in texts.parsed(source).links] == links


def test_links_know_their_line():
    assert texts.parsed("one\n\ntwo\nthree\n\n- [a](b)\n- [c](d)").links == [("b", 6), ("d", 7)]


def test_labels():
    text = texts.parsed(
        '(one)=\n# Title\n\n<span id="term-two"></span>**two**\n: It.\n\n`(three)=`\n\n```\n(four)=\n```'
    )
    assert text.labels == ["one", "term-two"]


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("(a)=\n# 1. What *is* it?\n\n# 2. No", "1. What *is* it?"),
        ("text\n\n## Second\n\n# First", "First"),
        ("```\n# comment\n```", ""),
    ],
)
def test_titles(source, title):
    assert texts.parsed(source).title == title


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("print('one')  # a", "print('二')", True),
        ("print(f'{a} of {b}')", "print(f'{b} 之 {a}')", True),
        ("print(f'{a:.2f}')", "print(f'{a}')", False),
        ("print(f'{a}')", "print(f'{b}')", False),
        ("f('a', 1)", "f('b', 2)", False),
        ("f(b'a')", "f(b'b')", False),
        ("x = {'a': 1}", "x = {'甲': 1}", True),
        ("a = 1", "b = 1", False),
        ("%matplotlib inline\nx = 1", "%matplotlib inline\nx = 2", False),
        ("!ls", "!ls  ", True),
        ("!{sys.executable} -V", "!{sys.executable} -V", True),
        ("rest = (17\n    % 5)  # a", "rest = (17\n    % 5)  # 甲", True),
        ("rest = (17\n    % 5)", "rest = (17\n    % 6)", False),
        ("%matplotlib inline\nother = (a\n    != b)", "%matplotlib inline\nother = (a\n    != b)", True),
        ("%matplotlib inline\nother = (a\n    != b)", "%matplotlib inline\nother = (a\n    != c)", False),
    ],
)
def test_code_may_differ_in_words_alone(one, other, same):
    assert (check.code_pair(("source", "here"), (one, other)) == []) is same


FUNCTION = "def double(x):  # {}\n    if x:\n        x = x + 1\n        x = x * 2\n    return x\nprint({!r})"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("x * 2", "x * 3", 4),
        ("return x", "return", 5),
        ("if x:", "while x:", 2),
        ("double(x)", "double(x, y)", 1),
        ("        x = x * 2\n", "", 3),
        ("    return x\n", "    return x\n    x = 7\n", 6),
        ("'二'", "'二', end=''", 6),
        ("print('二')", "", 5),
        ("print('二')", "print('二')\nprint()", 7),
    ],
)
def test_the_line_from_which_code_differs(old, new, line):
    code = FUNCTION.format("双倍", "二")
    assert old in code
    both = (FUNCTION.format("twice", "two"), code.replace(old, new))
    (problem,) = check.code_pair(("source", "here"), both)
    assert (problem.where, problem.note) == ("here", False)
    assert problem.text.endswith(f", first in line {line}")


def test_a_problem_is_a_line():
    assert str(Problem("a.md, line 1", "wrong")) == "a.md, line 1: wrong"
    assert str(Problem("", "wrong")) == "wrong"
    error = BookError(Problem("a", "b"), "c")
    assert (str(error), error.lines) == ("a: b\nc", ["a: b", "c"])


def test_a_recorded_cell_that_has_changed(small, provenance):
    from book.model import Recorded, Run
    from book.runs import code_hash

    cell = next(c for c in small.page("en/02_total").cells if c.id == "total")
    run = Run("cpu", {"en/02_total": provenance}, {"en/02_total": {"total": Recorded(code_hash(cell.source), [])}})
    book = replace(small, recorded=[run])
    assert check.check(book) == []
    found = check.check(changed(book, "en/02_total", total="rows = [1]\nprint(rows)"))
    expected = Problem(
        "runs/cpu.json: en/02_total, cell total", "recorded from an older version of the cell", note=True
    )
    assert expected in found


def test_pages_are_behind_until_they_are_translated_again(small):
    assert small.behind(small.page("zh/01_count")) == []
    newer = changed(small, "en/01_count", predict="**Predict**: what comes out?")
    assert [cell.id for cell in newer.behind(newer.page("zh/01_count"))] == ["predict"]
    assert newer.behind(newer.page("en/01_count")) == [], "the source edition is never behind"


def test_a_setting_left_empty_is_as_none(small):
    config = {**small.config, "parse": None, "execute": {"deadline": None}, "repository": {"url": None}}
    assert check.check(replace(small, config=config)) == []
    assert config["parse"] is None and config["repository"] == {"url": None}, "and stays as it was"
    assert Execution(replace(small, config=config)).limits == LIMITS


@pytest.mark.parametrize("name", ["asks", "asl"])
def test_metadata_with_almost_a_name(small, name):
    cell = next(c for c in small.page("zh/02_total").cells if c.id == "total")
    cell.metadata[name] = []
    said = f"nothing in its metadata is called {name}; did you mean ask?"
    assert Problem("notebooks/zh/02_total.ipynb, cell total", said) in check.check(small)


def test_how_a_value_is_written_counts(small):
    newer = changed(
        changed(small, "en/02_total", total='print(f"{1:.2f} GB")'), "zh/02_total", total='print(f"{1:.3f} 吉")'
    )
    said = "the code differs from the source edition's, first in line 1"
    assert Problem("notebooks/zh/02_total.ipynb, cell total", said) in check.pairs(newer)


def test_a_label_twice_in_a_page(small):
    found = check.check(changed(small, "en/02_total", rule="(one)=\n## A rule\n\n(one)=\n## Another"))
    assert Problem("notebooks/en/02_total.ipynb", "the label one is given twice") in found
