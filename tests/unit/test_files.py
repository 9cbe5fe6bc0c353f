"""Reading and writing: whole or not at all."""

import json
import os

import nbformat
import pytest

from book import files
from book.model import BookError, Cell


def test_text_is_the_same_with_a_mark_and_windows_line_ends(tmp_path):
    path = tmp_path / "page.md"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert files.read_text(path, tmp_path) == "one\ntwo\n"


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BookError, match=r"^a/page\.md: no such file$"):
        files.read_text(tmp_path / "a" / "page.md", tmp_path)


@pytest.mark.parametrize("content", ["", "{", "\ufeff["])
def test_json_that_cannot_be_read_is_none(tmp_path, content):
    (tmp_path / "run.json").write_text(content, encoding="utf-8")
    assert files.read_json(tmp_path / "run.json") is None
    assert files.read_json(tmp_path / "no.json") is None


CELLS = (
    Cell("text", "markdown", "two\nlines", {"tags": ["a"], "collapsed": True}),
    Cell("code", "code", "1 + 1", {}, ({"output_type": "stream", "name": "stdout", "text": ["2\n"]},)),
    Cell("empty", "code", ""),
)


def test_a_notebook_is_written_as_nbformat_writes_it():
    text = files.json_text(files.notebook_json(CELLS))
    again = nbformat.reads(text, as_version=4)
    nbformat.validate(again)
    assert json.loads(nbformat.writes(again)) == json.loads(text)
    assert text.endswith("}\n") and "collapsed" not in text


def test_a_notebook_is_read_as_it_was_written():
    read = files.parse_notebook(files.json_text(files.notebook_json(CELLS)), "x.ipynb")
    assert [(c.id, c.kind, c.source, c.outputs) for c in read] == [(c.id, c.kind, c.source, c.outputs) for c in CELLS]
    assert read[0].metadata == {"tags": ["a"]}


def test_executed_cells_are_counted():
    counts = [entry.get("execution_count") for entry in files.notebook_json(CELLS, executed=True)["cells"]]
    assert counts == [None, 1, 2]
    assert {entry.get("execution_count") for entry in files.notebook_json(CELLS)["cells"]} == {None}


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "new" / "page.md"
    files.write_text(path, "before")

    def full(*arguments):
        raise OSError(27, "File too large")

    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(type(path), "replace", full)
    with pytest.raises(OSError):
        files.write_text(path, "after")
    assert path.read_text() == "before" and os.listdir(path.parent) == ["page.md"]


def test_a_new_folder_takes_the_place_of_the_old_one(tmp_path):
    target = tmp_path / "html"
    for text in ("first", "second"):
        with files.new_folder(target) as fresh:
            (fresh / f"{text}.html").write_text(text)
        assert os.listdir(target) == [f"{text}.html"] and os.listdir(tmp_path) == ["html"]
    assert target.stat().st_mode & 0o777 == 0o755, "a server may read it"


def test_a_new_folder_that_could_not_be_filled(tmp_path):
    target = tmp_path / "html"
    target.mkdir()
    (target / "page.html").write_text("as it was")
    with pytest.raises(KeyboardInterrupt):
        with files.new_folder(target) as fresh:
            (fresh / "page.html").write_text("half")
            raise KeyboardInterrupt
    assert (target / "page.html").read_text() == "as it was" and os.listdir(tmp_path) == ["html"]


def test_what_killed_builds_have_left_is_removed(tmp_path):
    runs = tmp_path / "runs"
    for name in (".8-gpus-ab12cd34.part", ".2-gpus.old", "2-gpus", ".4-gpus.old", "8-gpus-baseline", "8-gpus.old"):
        (runs / name).mkdir(parents=True)
    for name in (".html-abcd1234.part", ".run-x_y0z123.part", "html", ".run.old"):
        (tmp_path / name).mkdir()
    (tmp_path / ".run.old" / "run.json").write_text("{}")
    (tmp_path / "html-mine").mkdir()
    with files.lock(tmp_path):
        assert sorted(os.listdir(tmp_path)) == ["html", "html-mine", "lock", "run", "runs"]
        assert sorted(os.listdir(runs)) == ["2-gpus", "4-gpus", "8-gpus-baseline", "8-gpus.old"]
        assert os.listdir(tmp_path / "run") == ["run.json"], "killed between the two renames"


def test_the_old_folder_goes_if_the_new_one_is_there(tmp_path):
    for name in ("html", ".html.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("")
    with files.lock(tmp_path):
        assert os.listdir(tmp_path / "html") == ["html"] and not (tmp_path / ".html.old").exists()


def test_one_lock_at_a_time(tmp_path):
    with files.lock(tmp_path):
        (tmp_path / ".html-abcd1234.part").mkdir()
        with pytest.raises(BookError, match="another build is at work in this folder"):
            with files.lock(tmp_path):
                pass
        assert (tmp_path / ".html-abcd1234.part").exists(), "it belongs to the other build"
    with files.lock(tmp_path):
        pass


@pytest.mark.parametrize("cell", [Cell("a", "markdown", "\ud83d"), Cell("a", "markdown", "", {"topic": "\ud83d"})])
def test_half_a_letter_is_none(cell):
    with pytest.raises(BookError, match=r"^x\.ipynb: not a notebook .*surrogates not allowed"):
        files.parse_notebook(files.json_text(files.notebook_json([cell])), "x.ipynb")


QUESTION = {"question": "How many?", "truth": "3"}
CALCULATOR = {"title": "Which?", "functions": [], "inputs": [], "results": []}


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        *[({"tags": tags}, "tags must be array") for tags in (None, 4, "compare")],
        ({"tags": [1]}, "tags[0] must be string"),
        ({"ask": "How many?"}, "ask must be array"),
        ({"ask": QUESTION}, "ask must be array"),
        ({"ask": ["How many?"]}, "ask[0] must be object"),
        ({"ask": [QUESTION, {"question": "How many?"}]}, "ask[1] must contain ['truth'] properties"),
        ({"ask": [{**QUESTION, "truth": 3}]}, "ask[0].truth must be string"),
        ({"ask": [{**QUESTION, "choices": ["3"]}]}, "ask[0].choices must be object"),
        ({"ask": [{**QUESTION, "chioces": {}}]}, "ask[0] must not contain {'chioces'} properties"),
        ({"player": {"title": "Step by step"}}, "player must contain ['recording'] properties"),
        ({"mystnb": {"image": "two bars"}}, "mystnb.image must be object"),
        ({"player": "steps"}, "player must be object"),
        ({"calculator": ["gpus"]}, "calculator must be object"),
        ({"calculator": {**CALCULATOR, "inputs": ["gpus"]}}, "calculator.inputs[0] must be object"),
    ],
)
def test_metadata_of_another_kind(metadata, said):
    text = files.json_text(files.notebook_json([Cell("a", "code", "b", metadata)]))
    with pytest.raises(BookError) as caught:
        files.parse_notebook(text, "x.ipynb")
    assert str(caught.value) == f"x.ipynb, cell a: not as book/cell.schema.yml has it: the cell.metadata.{said}"
