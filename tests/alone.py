"""Lessons as their readers run them: each alone in an empty folder, without a network; then with its exercises answered."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from book.execute import write_json
from book.lessons import text_hash
from book.machine import WARM
from tests.conftest import EDITIONS, LESSONS, ROOT
from tests.notebook import cells, solutions
from tests.wrong_answers import WRONG

# What a lesson leaves, for tests to look at: Python expressions.
KEPT = {
    "10_distributed": """two two_agree two_difference three three_agree three_difference rows_of_rank chunk_rows
        forgotten_orders epoch_orders even_difference uneven_difference weighted_difference
        no_sync_agree all_reduces no_sync_difference plain_difference
        restart_count resumed_step first_life second_life resumed_weights killed_equals_unkilled
        hello addresses folder.exists()""".split(),
    "11_too_large": """parameters weight_bytes gradient_bytes state_bytes activations checkpointed_bytes
        accumulated_bytes bf16_bytes list(memory(4).values()) same_output same_gradient same_accumulated
        size(halves.first.parameters()) size(halves.second.parameters()) bubbles_checked idle_cells
        schedule(4,5) reports difference""".split(),
}

STARTS_PROCESSES = ("10_distributed", "11_too_large", "12_choose")
ALONE = [(edition, name) for edition in EDITIONS for name in LESSONS if name not in STARTS_PROCESSES]

# Put on the path of the kernels: whatever leaves this machine fails.
NO_NETWORK = """
import socket
connect = socket.socket.connect
def local_only(self, address):
    if self.family in (socket.AF_INET, socket.AF_INET6) and not str(address[0]).startswith(("127.", "::1", "localhost")):
        raise OSError(f"no network in this test: {address}")
    return connect(self, address)
socket.socket.connect = local_only
"""


def clean_environment(guard):
    """No variable that leads back to the repository, and no network."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MATPLOTLIBRC", "MPLBACKEND")}
    return {**kept, "PYTHONPATH": str(guard)}


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    """(edition, lesson) -> the lesson executed alone in an empty folder, then its exercises answered.

    English lessons have cold kernels, as their readers have; Chinese ones are forked from a warm process. Lessons
    that start processes take long, and are not executed once more: see `answered`.
    """
    guard = tmp_path_factory.mktemp("guard")
    (guard / "sitecustomize.py").write_text(NO_NETWORK)
    warm = {"JUPYTER_DEFAULT_PROVISIONER_NAME": "warm-kernel", "WARM_KERNEL_MODULES": ",".join(WARM)}
    warm["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # the zygote would warn of it

    def run(edition):
        names = [name for name in LESSONS if name not in STARTS_PROCESSES]
        paths = {name: prepared(edition, name, tmp_path_factory.mktemp(f"{edition}-{name}")) for name in names}
        command = [sys.executable, str(ROOT / "tools" / "run_alone.py"), *map(str, paths.values())]
        environment = {**clean_environment(guard), **(warm if edition == "zh" else {})}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        return {(edition, name): looked_at(path, done) for name, path in paths.items()}

    with ThreadPoolExecutor(2) as pool:
        return {pair: found for results in pool.map(run, EDITIONS) for pair, found in results.items()}


@pytest.fixture(scope="session")
def answered(request, book):
    """(edition, lesson) -> the lesson executed, then its exercises answered.

    Lessons that start processes are those of the book's build, without a network and in an empty folder too, to
    which `answer_in` has added the cells.
    """

    def find(edition, name):
        if name not in STARTS_PROCESSES:
            return request.getfixturevalue("alone")[edition, name]
        return looked_at(book / "_build" / "run" / edition / f"{name}.ipynb", None)

    return find


def answer_in(folder):
    """Adds to lessons of a copied repository, in both editions, what `answered` looks at; pages do not show it."""
    for name in STARTS_PROCESSES:
        english = extra_cells("en", name)
        for edition in EDITIONS:
            path = folder / "notebooks" / edition / f"{name}.ipynb"
            notebook = json.loads(path.read_text(encoding="utf-8"))
            for id, source in extra_cells(edition, name).items():
                cell = code_cell(id, source)
                cell["metadata"]["tags"] = ["remove-cell"]
                if edition == "zh":
                    cell["metadata"]["translates"] = text_hash(english[id])
                notebook["cells"].append(cell)
            write_json(path, notebook)


def prepared(edition, name, folder):
    """A copy of a lesson in this folder, with its exercises answered."""
    target = folder / f"{name}.ipynb"
    notebook = json.loads((ROOT / "notebooks" / edition / target.name).read_text(encoding="utf-8"))
    notebook["cells"] += [code_cell(id, source) for id, source in extra_cells(edition, name).items()]
    target.write_text(json.dumps(notebook), encoding="utf-8")
    return target


def code_cell(id, source):
    lines = source.splitlines(keepends=True)
    return {"cell_type": "code", "id": id, "metadata": {}, "source": lines, "outputs": [], "execution_count": None}


def extra_cells(edition, name):
    extra = answered_exercises(edition, name)
    if name in KEPT:
        extra["kept"] = f"import json\n\nprint(json.dumps({{kept: eval(kept) for kept in {KEPT[name]}}}))"
    return extra


def looked_at(path, done):
    executed = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = {cell["id"]: cell.get("outputs", []) for cell in executed}
    files = [file.name for file in path.parent.iterdir()]
    return Alone(done and done.returncode, done and done.stderr, files, outputs)


@dataclass
class Alone:
    returncode: int
    stderr: str
    files: list
    outputs: dict  # cell id -> its outputs

    def printed(self, id):
        return "".join("".join(output.get("text", "")) for output in self.outputs[id])

    def left(self):
        """What the lesson left, as far as KEPT asks for it: expression -> value."""
        return json.loads(self.printed("kept"))


def answered_exercises(edition, name):
    """Code to run after a lesson: each exercise solved, and answered wrongly, with its check."""
    checks = {id: source for id, (_, source) in cells(edition, name).items() if id.endswith("-check")}
    return {
        f"{exercise}-{kind}": f"{answer}\n\n{checks[f'{exercise}-check']}"
        for kind, answers in (("solved", solutions(edition, name)), ("wrong", WRONG[name]))
        for exercise, answer in answers.items()
    }
