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
