"""Checks of exercises refuse answers that only look right, with one line, and accept other right ones."""

import pytest

from tests.conftest import BOOK, EDITIONS
from tests.reading import judged, run_cells


def flatten(result):
    return f"class Flatten(nn.Module):\n    def forward(self, images):\n        return {result}"


def attention(keep, mask):
    return (
        f"class WithMask(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {keep}\n\n"
        f"    def forward(self, x):\n        return (x @ x.transpose(1, 2) + {mask}).softmax(dim=2) @ x\n\n\n"
        "fixed_attention = WithMask()"
    )


# (lesson, exercise) -> answers that are right, and answers that are not, beside the page's solution and wrong answer
ANSWERS = {
    ("01_device", 1): (
        ["x = torch.ones(2, 3)\nmoved = torch.ones(2, 3, device=other)"],
        [
            'x = torch.ones(2, 3)\nmoved = torch.empty(7, device="meta")',
            "x = torch.ones(2, 3).to(other)\nmoved = x",
            "x = torch.ones(2, 3)\nmoved = x.char().to(other)",
        ],
    ),
    ("02_random_dataset", 2): (
        ["my_batch_size = 50", "my_batch_size = 25 * 2"],
        [f"my_batch_size = {answer}" for answer in ("0", "-50", "25", "100", "50.0", "'50'", "[50]")],
    ),
    ("03_model", 2): (
        [
            flatten("images.flatten(1)"),
            flatten("images.permute(0, 2, 3, 1).reshape(len(images), 12)"),
        ],
        [
            flatten("images.transpose(0, 1).reshape(len(images), -1)"),
            flatten("images.permute(1, 2, 3, 0).reshape(-1, 12)"),
            flatten("torch.zeros(len(images), 12)"),
            flatten("images.flatten()"),
        ],
    ),
    ("05_four_steps", 1): (['order = "dbac"', "order = ['D', 'B', 'A', 'C']"], ['order = "DBCA"', 'order = "DBA"']),
    ("05_four_steps", 2): (
        ["def my_gather(outputs):\n    return torch.cat(list(outputs))"],
        [
            f"def my_gather(outputs):\n    return {result}"
            for result in (
                "torch.cat([part.flatten() for part in outputs])",
                "torch.cat(outputs).T",
                "torch.cat(outputs).sort(0).values",
                "torch.cat(outputs, -2)",
                "torch.vstack(outputs)",
            )
        ],
    ),
    ("07_replicas", 1): (
        [],
        [
            f"class Counter(nn.Linear):\n    calls = {calls}\n\n    def __init__(self):\n        super().__init__(5, 2)"
            for calls in ("{}", "7")
        ],
    ),
    ("07_replicas", 3): (
        ["repaired = saved.module.state_dict()"],
        [
            "repaired = TwoPaths().state_dict()",
            'repaired = {key.replace("module.", ""): tensor for key, tensor in checkpoint.items()}',
        ],
    ),
    ("08_inputs_outputs", 2): (
        [attention('self.register_buffer("mask", mask, persistent=False)', "self.mask")],
        [attention('self.register_buffer("mask", mask)', "mask"), attention("self.mask = mask", "self.mask")],
    ),
}


# Of torch.compile itself, in lesson 7.
@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("name, number", ANSWERS)
def test_right_answers_pass_and_wrong_ones_do_not(edition, name, number):
    cells = {cell.id: cell.source for cell in BOOK.page(f"{edition}/{name}").code}
    variables = run_cells(f"{edition}/{name}", cells)
    check = cells[f"exercise-{number}-check"]
    right, wrong = ANSWERS[name, number]
    for answers, mark in ((right, "✓"), (wrong, "✗")):
        for answer in answers:
            printed = judged(variables, check, answer)
            assert printed.startswith(mark) and printed.count("\n") == 1, (answer, printed)


BEGINS = {"en": "(On the book's site, ", "zh": "（在本书网站上，"}
ORDINALS = {"en": ["the first", "the second", "the third"], "zh": ["第一题", "第二题", "第三题"]}
ALL = {"en": "you answer all of them on the page", "zh": "各题都可以直接在网页上作答"}


@pytest.mark.parametrize("lesson", BOOK.lessons, ids=lambda lesson: lesson.id)
def test_a_lesson_says_which_exercises_are_answered_on_the_page(lesson):
    cells = {cell.id: cell for cell in lesson.cells}
    checks = [cells[id] for id in (f"exercise-{n}-check" for n in (1, 2, 3)) if id in cells]
    asked = [bool(check.metadata.get("ask")) for check in checks]
    if any(asked):
        text = cells["exercises"].source.partition(BEGINS[lesson.edition])[2]
        said = [all(asked) or ordinal in text for ordinal in ORDINALS[lesson.edition][: len(asked)]]
        assert (said, ALL[lesson.edition] in text) == (asked, all(asked))
