"""What a lesson asks, and where the truth comes from."""

import json

import pytest

from book import asking
from book.model import Cell
from tests.engine.conftest import EDITIONS
from tests.engine.test_editions import soup

QUESTION = {"en": "How many rows?", "zh": "有几行？"}


def ask(book, cell, **question):
    """Gives a cell of both editions a question."""
    for edition in EDITIONS:
        path = book.folder / f"notebooks/{edition}/01_count.ipynb"
        notebook = json.loads(path.read_text("utf-8"))
        found = next(each for each in notebook["cells"] if each["id"] == cell)
        found["metadata"]["ask"] = [{"question": QUESTION[edition], **question}]
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n", "utf-8")


def truths(book, edition="en"):
    """What the boxes of a page take for right, by their names."""
    boxes = soup(book, f"{edition}/01_count.html").find_all("ask-box")
    return {box["data-name"]: json.loads(box["data-truths"])[0]["right"] for box in boxes}


def test_the_page_follows_the_notebook(book):
    ask(book, "count-rows", truth="len(rows)")
    ask(book, "exercise-1-check", truth="len([5, 5])")
    book.good("build")
    assert truths(book) == truths(book, "zh") == {"01_count/count-rows": [3], "01_count/exercise-1": [2]}
    for edition in EDITIONS:
        book.replace(f"notebooks/{edition}/01_count.ipynb", "rows = [3, 1, 2]", "rows = [3, 1, 2, 7]")
    book.good("build")
    assert truths(book) == truths(book, "zh") == {"01_count/count-rows": [4], "01_count/exercise-1": [2]}
    ask(book, "exercise-1-check", truth="len([5, 5, 5])")
    book.good("build")
    assert truths(book)["01_count/exercise-1"] == [3], "the code is the same, only the question is another"


def test_a_question_leaves_no_trace_in_what_readers_get(book):
    before = book.folder / "before.ipynb"
    book.good("build")
    before.write_bytes((book.folder / "_build/html/en/01_count.ipynb").read_bytes())
    outputs = [book.outputs(id) for id in ("count-rows", "exercise-1-check")]
    ask(book, "count-rows", truth="len(rows)")
    book.good("build")
    page = (book.folder / "_build/html/en/01_count.html").read_text("utf-8")
    notebook = (book.folder / "_build/html/en/01_count.ipynb").read_text("utf-8")
    assert "truths+json" not in page + notebook
    assert [book.outputs("count-rows")[:-1], book.outputs("exercise-1-check")] == outputs


@pytest.mark.parametrize(
    "truth, said",
    [
        ("nothing_of_this_name", "nothing_of_this_name: NameError: name 'nothing_of_this_name' is not defined"),
        ("1 / 0", "1 / 0: ZeroDivisionError: division by zero"),
        ("object", "object: object is no literal"),
    ],
)
def test_a_truth_that_is_none(book, truth, said):
    ask(book, "count-rows", truth=truth)
    out = book.bad("build")
    assert f"notebooks/en/01_count.ipynb, cell count-rows: {said}\n" in out


@pytest.mark.parametrize("truth", ["next(i for i in iter(int, 1) if i)", "__import__('os')._exit(1)"])
def test_a_truth_that_never_comes(book, truth):
    book.replace("_config.yml", "timeout: 120", "timeout: 3")
    ask(book, "count-rows", truth=truth)
    said = f"notebooks/en/01_count.ipynb, cell count-rows: {truth}: the kernel gives no answer within 3 s\n"
    assert said in book.bad("execute", "--force")


def test_a_truth_that_is_no_expression(book):
    ask(book, "count-rows", truth="rows =")
    assert "notebooks/en/01_count.ipynb, cell count-rows: no expression: rows =\n" in book.bad("check")


@pytest.mark.parametrize(
    "question",
    [
        {"truth": "len(rows) == 3", "choices": {"true": "three", "false": "another number"}},
        {"truth": "len(rows) / 1", "choices": {"2": "two", "3": "three"}},
        {"truth": "['a', 'b']", "any": True, "choices": {"a": "this", "c": "that"}},
    ],
)
def test_choices_are_values_as_a_page_writes_them(question):
    outputs = [asking.output([eval(question["truth"], {"rows": [3, 1, 2]})])]
    cell = Cell("a", "code", "", {"ask": [{"question": "Which?", **question}]})
    assert asking.impossible(cell, outputs) == ""
    cell.metadata["ask"][0]["choices"] = {"d": "another"}
    assert asking.impossible(cell, outputs).startswith("none of its choices is the truth, ")


@pytest.mark.parametrize("truth", [[], 3, None])
def test_any_of_no_list(truth):
    cell = Cell("a", "code", "", {"ask": [{"question": "Which?", "truth": "found", "any": True}]})
    said = f"`any` needs a list of right answers; found is {truth!r}"
    assert asking.impossible(cell, [asking.output([truth])]) == said


@pytest.mark.parametrize("part", [{"inputs": [{"name": "a b"}]}, {"results": [{"value": "a +"}]}])
def test_a_calculator_with_what_is_no_expression(part):
    said = asking.wrong(Cell("a", "code", "", {"calculator": {"inputs": [], "results": [], **part}}))
    assert said == f"no expression: {[*part.values()][0][0].popitem()[1]}"


def test_choices_of_which_none_is_the_truth(book):
    ask(book, "count-rows", truth="len(rows)", choices={"2": "two", "3": "three"})
    book.good("build")
    ask(book, "count-rows", truth="len(rows)", choices={"2": "two", "4": "four"})  # the code is the same
    assert "notebooks/zh/01_count.ipynb, cell count-rows: none of its choices is the truth, 3\n" in book.bad("build")


def test_editions_ask_the_same(book):
    ask(book, "count-rows", truth="len(rows)")
    book.replace("notebooks/zh/01_count.ipynb", 'len(rows)"\n', 'len(rows) + 1"\n')
    said = "notebooks/zh/01_count.ipynb, cell count-rows: asks for another truth, or with other choices, than in "
    assert f"{said}notebooks/en/01_count.ipynb\n" in book.bad("check")


def test_a_prediction_that_nobody_asks_for(book):
    ask(book, "exercise-1-check", truth="len([5, 5])")
    assert "01_count.ipynb" in (said := book.bad("build")) and "a prediction, and no code cell after it asks" in said


@pytest.mark.parametrize(
    "texts, kept_back",
    [
        (["What it shows.", "What leads on.\n\n**Predict** again."], ["What it shows."]),
        (["What it shows.\n\nWhat leads on.\n\n**Predict** again."], ["What it shows.", "What leads on."]),
    ],
)
def test_what_leads_to_the_next_prediction_is_not_kept_back(book, texts, kept_back):
    """A text of its own; where it shares a cell with what is shown, nobody can tell one from the other."""
    for edition, word in zip(EDITIONS, ("Predict", "先预测"), strict=True):
        path = book.folder / f"notebooks/{edition}/01_count.ipynb"
        notebook = json.loads(path.read_text("utf-8"))
        ids = [cell["id"] for cell in notebook["cells"]]
        new = [
            dict(cell_type="markdown", id=f"text-{i}", metadata={}, source=text.replace("Predict", word))
            for i, text in enumerate(texts)
        ]
        code = {**notebook["cells"][ids.index("count-rows")], "id": "count-again", "metadata": {}}
        notebook["cells"][ids.index("exercises") : ids.index("exercises")] = [*new, code]
        path.write_text(json.dumps(notebook), "utf-8")
    book.good("tidy")
    ask(book, "count-rows", truth="len(rows)")
    ask(book, "count-again", truth="len(rows)")
    book.good("build")
    first = soup(book, "en/01_count.html").find("ask-box", {"data-name": "01_count/count-rows"})
    assert [paragraph.text for paragraph in first.select("answer-part > p")] == kept_back
