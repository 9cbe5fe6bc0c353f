"""Every number that the prose writes in digits: cells near it show it, or an expression here gives it.

Near a text of a lesson are the two code cells before it and the two after it, with what they print and draw. The
text at a lesson's start and end is about the whole lesson, and so is what another page says with a link to it.
"""

import json
import math
import re
from itertools import product

import pytest
import torch

from tests.conftest import EDITIONS, LESSONS, ROOT


def chunks(rows, n):
    return [len(chunk) for chunk in torch.ones(rows).chunk(n)]


# What no cell near by shows: Python that gives it, from numbers that some cell of the lesson shows or that are given.
CALCULATED = {
    ("02_random_dataset", "loader-look"): "100 // 30",
    ("02_random_dataset", "knobs"): "4",
    ("02_random_dataset", "exercise-1-solution"): "6 * 16",
    ("03_model", "run"): "math.ceil(100 / 30), 2 * math.ceil(100 / 30)",
    ("03_model", "fixed-size-read"): "30 * 4",
    ("03_model", "exercise-1-solution"): "math.ceil(1000 / 64), 1000 // 64, 1000 % 64",
    ("04_data_parallel", "counts"): "3",
    ("04_data_parallel", "idle"): "10 / 8",
    ("04_data_parallel", "idle-sizes"): "64",
    ("04_data_parallel", "idle-look"): "8 + 1, len(chunks(8 + 1, 8))",
    ("04_data_parallel", "eight-look"): "chunks(30, 8).count(4)",
    ("04_data_parallel", "exercise-2-solution"): "chunks(100, 64)[0], len(chunks(100, 64))",
    ("04_data_parallel", "exercise-3-solution"): """100 - 60, *chunks(60, 8), chunks(60, 8).count(8), *chunks(40, 8),
        100 % 40, *chunks(100 % 40, 8), len(chunks(100 % 40, 8))""",
    ("05_four_steps", "exercise-2-solution"): "16 - 1, *torch.arange(16).view(2, 8).T.flatten().tolist()",
    ("06_gradients", "parts"): "5 + 1",
    ("06_gradients", "means-predict"): "*chunks(10, 3), 10 - 2",
    ("06_gradients", "weights"): "*chunks(10, 3), 3 * 4",
    ("06_gradients", "row-losses-why"): "10 + 2",
    ("06_gradients", "same-look"): "len(chunks(10, 8))",
    ("06_gradients", "drift-look"): "30, *chunks(10, 3), *chunks(30, 3), 10 ** 2",
    ("06_gradients", "exercise-1-solution"): "chunks(30, 8).count(4), *chunks(30, 8)",
    ("07_replicas", "batchnorm"): "12 - 1",
    ("07_replicas", "exercise-1-solution"): "3 * 3",
    ("07_replicas", "exercise-2-solution"): """sum(range(20, 180, 20)[:2]) / 2,
        torch.nn.BatchNorm1d(1).momentum * sum(range(20, 180, 20)) / 8""",
    ("08_inputs_outputs", "names-look"): "6",
    ("08_inputs_outputs", "whole"): "15 - 10 + 1",
    ("08_inputs_outputs", "flag-sizes-look"): "28 + 4",
    ("09_cost", "schedule-look"): "49 / 19",
    ("09_cost", "timing"): "49 - 4",
    ("09_cost", "time-steps-why"): "2",
    ("09_cost", "break-even-look"): "round(3230 / 16, -2)",
    ("09_cost", "exercise-1-solution"): "30 * 4",
    ("10_distributed", "launcher-why"): "2",
    ("10_distributed", "sampler-why"): "math.ceil(100 / 3), 3 * math.ceil(100 / 3)",
    ("10_distributed", "exercise-1-solution"): "math.ceil(10 / 4), 4 * math.ceil(10 / 4), 10 - 1, 2 + 2 * 4 + 1",
    ("11_too_large", "activations-why"): "32 // 4, 4 + 1",
    ("11_too_large", "split"): "16, 112, 112 / 4",
    ("11_too_large", "bubble"): "2 * (4 + 4 - 1), 4 * 2 * 4",
    ("11_too_large", "saves-why"): "3",
    ("11_too_large", "exercise-1-solution"): "16, 3 * 16",
    ("12_choose", "status-look"): "100",
    ("12_choose", "diff-look"): "20 / 2",
    ("12_choose", "planted-look"): "*chunks(16, 4), 3, 4 * 3",
    ("12_choose", "exercise-1-solution"): "4 * 3",
}
# What is the result of nothing: what a text assumes, how many things it lists itself, facts from elsewhere.
GIVEN = {
    ("01_device", "title"): [2.6],  # the oldest PyTorch
    ("02_random_dataset", "knobs"): [3],
    ("04_data_parallel", "wrap"): [3],
    ("04_data_parallel", "breaks"): [29],
    ("04_data_parallel", "exercise-3-solution"): [100, 40],
    ("05_four_steps", "virtual-why"): [4],
    ("05_four_steps", "choose"): [4],
    ("05_four_steps", "rule"): [4],
    ("06_gradients", "equal-predict"): [6],
    ("07_replicas", "asks-parameters-read"): [1.5],
    ("08_inputs_outputs", "flag-rule"): [2019],
    ("08_inputs_outputs", "packed"): [15],  # of lesson 5
    ("09_cost", "time-parts-why"): [4],
    ("09_cost", "model"): [4.0, 16, 31.5],
    ("10_distributed", "resume-look"): [2.13],
    ("10_distributed", "breaks"): [30],
    ("11_too_large", "formula-why"): [3, 10],
    ("11_too_large", "compare-why"): [80, 50, 5000],
    ("11_too_large", "split"): [70],
    ("11_too_large", "fsdp"): [2.13, 2.6],
    ("12_choose", "status-look"): [2021],
    ("12_choose", "tools"): [6],
    ("cheatsheet", "cheat-steps"): [4],
    ("index", "able"): [2, 4, 8],
    ("index", "three-ways"): [2, 3, 10, 12, 2.6, 2.13],
    ("questions", "q-status"): [2.13, 2021, 1.11],
}

NUMBER = re.compile(r"(?<![\w.#/-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w/-])", re.ASCII)
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
SECTION = re.compile(r"^\(([\w-]+)\)=\n(.*?)(?=^\([\w-]+\)=\n|\Z)", re.DOTALL | re.MULTILINE)
NO_CLAIM = re.compile(
    r"""```.*?``` | \]\([^)]*\)  # code blocks; addresses
        | ^\([\w-]+\)=$ | ^\#\ \d+\. | ^\d+\.\   # labels; the lesson's own number; the numbers of a list
        | [Ll]essons?\ \d+(\ (to|and)\ \d+)? | 第\ \d+(\ ?[到至和、]\ ?\d+)*\ [课章]
        | \*\*(Exercise|练习)\ .*  # a question: it assumes what it likes, up to the end of its cell
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)


def written(text):
    """The numbers of a Markdown text, as they are written. 0 and 1 count nothing that could be wrong."""
    numbers = [number.replace(",", "") for number in NUMBER.findall(NO_CLAIM.sub(" ", text))]
    return [number for number in numbers if float(number) > 1]


def shown(cell):
    """The numbers that a cell has in its source, in what it prints and in the words of its figures."""
    texts = ["".join(cell["source"])]
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        texts += ["".join(output.get("text", "")), "".join(data.get("text/plain", "")), output.get("evalue", "")]
        texts += re.findall(r"<text[^>]*>([^<]*)", "".join(data.get("image/svg+xml", "")))
    return {float(number) for number in re.findall(r"\d+(?:\.\d+)?", "\n".join(texts).replace(",", ""))}


def near(cells, place):
    """The cells that may show what the text at this place of a lesson says."""
    text = cells[place]
    if text["id"].endswith("-solution"):  # its question, the cell for the answer, the check; and the answer
        return [*cells[place - 3 : place], {"source": CODE.findall("".join(text["source"]))}]
    code = [index for index, cell in enumerate(cells) if cell["cell_type"] == "code"]
    if text["id"] not in ("title", "next"):
        code = [index for index in code if index < place][-2:] + [index for index in code if index > place][:2]
    return [cells[index] for index in code]


def not_shown(text, witnesses, given=(), results=()):
    """The numbers of a text that no witness shows, that are not given, and that no result is, rounded as written."""
    known = set(given).union(*map(shown, witnesses))
    for number in written(text):
        decimals = len(number.partition(".")[2])
        if float(number) not in known and float(number) not in {round(result, decimals) for result in results}:
            yield number


@pytest.fixture(scope="module")
def texts(book):
    """[((edition, lesson or page, cell or section), text, the cells that may show its numbers, all of the lesson)]."""
    found, code = [], {}
    for edition, name in product(EDITIONS, LESSONS):
        path = book / "_build" / "run" / edition / f"{name}.ipynb"
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code[edition, name] = [cell for cell in cells if cell["cell_type"] == "code"]
        for place, cell in enumerate(cells):
            if cell["cell_type"] == "markdown":
                where = (edition, name, cell["id"])
                found.append((where, "".join(cell["source"]), near(cells, place), code[edition, name]))
    for edition in EDITIONS:
        for path in sorted((ROOT / "book" / "pages" / edition).glob("*.md")):
            for label, section in SECTION.findall(path.read_text(encoding="utf-8")):
                linked = set(re.findall(r"/(\w+)\.ipynb", section))
                witnesses = [cell for name in linked for cell in code[edition, name]]
                found.append(((edition, path.stem, label), section, witnesses, witnesses))
    return found


@pytest.mark.parametrize("edition", EDITIONS)
def test_numbers_come_from_code(texts, edition):
    problems = []
    for where, text, witnesses, lesson in texts:
        if where[0] == edition:
            given, python = GIVEN.get(where[1:], []), CALCULATED.get(where[1:], "")
            results = eval(f"[{python}]", {"chunks": chunks, "math": math, "torch": torch})
            problems += [(*where, number) for number in not_shown(text, witnesses, given, results)]
            problems += [(*where, number, python) for number in not_shown(python, lesson, given)]
    assert not problems


def test_no_exception_is_left_over(texts):
    """One that no text needs any more would hide a mistake some day."""
    needed = {where[1:] for where, text, witnesses, _ in texts if any(not_shown(text, witnesses))}
    assert not (set(CALCULATED) | set(GIVEN)) - needed
