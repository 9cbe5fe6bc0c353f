"""Runs cells of a lesson within a test."""

import io
from contextlib import redirect_stdout

import matplotlib.pyplot as plt

from tests.conftest import BOOK


def run_cells(lesson, only):
    """Runs these cells of a lesson (en/03_model) in this process; returns its variables."""
    variables = {"__name__": "__main__"}
    for cell in BOOK.page(lesson).code:
        if cell.id in only:
            lines = [line for line in cell.source.splitlines() if not line.startswith("%")]
            with redirect_stdout(io.StringIO()):
                exec(compile("\n".join(lines), f"{lesson}:{cell.id}", "exec"), variables)
    plt.close("all")
    return variables


def judged(variables, check, answer=""):
    """What an exercise's check prints after an answer to it, or without one; no figure stays, and `variables` are as before."""
    variables, printed = dict(variables), io.StringIO()
    with redirect_stdout(printed):
        exec(answer, variables)
        exec(check, variables)
    plt.close("all")
    return printed.getvalue()
