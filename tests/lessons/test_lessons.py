"""Every lesson, as a reader meets it: alone in an empty folder without a network, and with its exercises."""

import re

import pytest

from tests.appended import PREFIX, printed, solutions
from tests.conftest import BOOK, LESSONS

# What DataParallel says of GPUs that are not alike, whose results are: the one warning that a machine may give.
UNLIKE = r"\S+: UserWarning: \s+There is an imbalance between your GPUs\.[\s\S]*?environment variable\.\n(  .*\n)?"


@pytest.mark.parametrize("lesson", LESSONS)
def test_lesson_runs_alone(run, lesson):
    outputs = [output for cell in BOOK.page(lesson).code for output in run.cells[lesson][cell.id].outputs]
    assert outputs
    assert [output for output in outputs if output["output_type"] == "error"] == []
    warned = "".join("".join(output["text"]) for output in outputs if output.get("name") == "stderr")
    assert re.sub(UNLIKE, "", warned) == ""
    assert printed(run, lesson, f"{PREFIX}left") == "[]\n", "a lesson leaves nothing behind"


@pytest.mark.parametrize("lesson", LESSONS)
def test_figures_keep_their_text_as_text(run, lesson):
    figures = [
        "".join(output["data"]["image/svg+xml"])
        for kept in run.cells[lesson].values()
        for output in kept.outputs
        if "image/svg+xml" in output.get("data", {})
    ]
    for figure in figures:
        texts = "".join(re.findall(r"<text[^>]*>(.*?)</text>", figure, re.DOTALL))
        assert texts, "letters drawn as outlines need a font at execution, and boxes follow where it lacks one"
        assert bool(re.search("[\u4e00-\u9fff]", texts)) == lesson.startswith("zh/")


@pytest.mark.parametrize("lesson", LESSONS)
def test_solutions_pass_and_wrong_answers_do_not(run, lesson):
    exercises = [cell.id for cell in BOOK.page(lesson).exercises]
    assert set(exercises) == set(solutions(BOOK.page(lesson)))
    for exercise in exercises:
        verdicts = [f"{exercise}-check", f"{PREFIX}{exercise}-solved", f"{PREFIX}{exercise}-wrong"]
        empty, solved, wrong = (printed(run, lesson, cell) for cell in verdicts)
        problems = [
            f"{lesson}, cell {exercise}-check: {words}, and prints: {text}"
            for words, text, right in [
                ("has no answer yet", empty, not empty.startswith(("✓", "✗"))),
                ("is given the solution", solved, solved.startswith("✓")),
                ("is given the `wrong` answer", wrong, wrong.startswith("✗")),
            ]
            if not right or len(text.splitlines()) != 1
        ]
        assert problems == []
