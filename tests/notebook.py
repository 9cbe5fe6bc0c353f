"""Reading and running lessons in tests, as their readers do."""

import io
import json
import re
from contextlib import redirect_stdout

import matplotlib.pyplot as plt

from tests.conftest import ROOT


def cells(edition, name):
    """The cells of a lesson: id -> (kind, source)."""
    path = ROOT / "notebooks" / edition / f"{name}.ipynb"
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return {cell["id"]: (cell["cell_type"], "".join(cell["source"])) for cell in found}


def run_cells(edition, name, only=None):
    """Runs the code of a lesson in this process; returns its variables and what each cell printed.

    only: ids of the cells to run; default: all.
    """
    variables, printed = {"__name__": "__main__"}, {}
    for id, (kind, source) in cells(edition, name).items():
        if kind == "code" and (only is None or id in only):
            lines = [line for line in source.splitlines() if not line.startswith("%")]
            with redirect_stdout(io.StringIO()) as output:
                exec(compile("\n".join(lines), f"{edition}/{name}:{id}", "exec"), variables)
            printed[id] = output.getvalue()
    plt.close("all")
    return variables, printed


def solutions(edition, name):
    """The folded solutions: exercise cell id -> code."""
    return {
        id.removesuffix("-solution"): re.search(r"<details>.*?```python\n(.*?)```.*?</details>", source, re.DOTALL)[1]
        for id, (kind, source) in cells(edition, name).items()
        if id.endswith("-solution")
    }
