"""Checks of exercises in lessons 1 to 3 refuse answers that only look right, with one line, and accept other right ones."""

import pytest

from tests.conftest import BOOK, EDITIONS
from tests.reading import judged, run_cells


def flatten(result):
    return f"class Flatten(nn.Module):\n    def forward(self, images):\n        return {result}"


# (lesson, exercise) -> answers that are right, and answers that are not, beside the page's solution and wrong answer
ANSWERS = {
    ("01_device", 1): (
        ["x = torch.ones(2, 3)\nmoved = torch.ones(2, 3, device=other)"],
        [
            'x = torch.ones(2, 3)\nmoved = torch.empty(7, device="meta")',
            "x = torch.ones(2, 3).to(other)\nmoved = x",
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
}


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
