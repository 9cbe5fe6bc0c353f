"""Lessons as their readers run them: each alone in an empty folder, without a network; then with its exercises answered."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

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
ALONE = [(edition, name) for edition in EDITIONS for name in LESSONS if edition == "en" or name not in STARTS_PROCESSES]

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

RUN_ALONE = """
import logging, subprocess, sys, nbformat
logging.getLogger("tornado").setLevel(logging.CRITICAL)  # jupyter_client's races at shutdown
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
client = NotebookClient(notebook, timeout=60, extra_arguments=["--log-level=ERROR"])
for tries_left in (2, 1, 0):
    try:
        client.execute(stderr=subprocess.DEVNULL if tries_left else None)
        break
    except RuntimeError:  # another program has taken a port that was chosen for the kernel
        if not tries_left or client.code_cells_executed:
            raise
nbformat.write(notebook, sys.argv[1])
"""


def clean_environment(guard):
    """No variable that leads back to the repository, and no network."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MATPLOTLIBRC", "MPLBACKEND")}
    return {**kept, "PYTHONPATH": str(guard)}


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    """(edition, lesson) -> the lesson executed alone in an empty folder, then its exercises answered.

    Lessons that start processes take long, and run here in English only: the editions' code is
    the same but for words (see book/check.py), and the book's build executes both.
    """
    guard = tmp_path_factory.mktemp("guard")
    (guard / "sitecustomize.py").write_text(NO_NETWORK)

    def run(pair):
        edition, name = pair
        folder = tmp_path_factory.mktemp(f"{edition}-{name}")
        target = folder / f"{name}.ipynb"
        notebook = json.loads((ROOT / "notebooks" / edition / target.name).read_text(encoding="utf-8"))
        extra = answered_exercises(edition, name)
        if name in KEPT:
            extra["kept"] = f"import json\nprint(json.dumps({{kept: eval(kept) for kept in {KEPT[name]}}}))"
        for id, source in extra.items():
            cell = {"cell_type": "code", "id": id, "metadata": {}, "source": source}
            notebook["cells"].append({**cell, "outputs": [], "execution_count": None})
        target.write_text(json.dumps(notebook), encoding="utf-8")
        command = [sys.executable, "-c", RUN_ALONE, target.name]
        done = subprocess.run(command, cwd=folder, env=clean_environment(guard), capture_output=True, text=True)
        executed = json.loads(target.read_text(encoding="utf-8"))["cells"]
        return pair, Alone(
            done.returncode,
            done.stderr,
            files=[path.name for path in folder.iterdir()],
            outputs={cell["id"]: cell.get("outputs", []) for cell in executed},
        )

    with ThreadPoolExecutor(2) as pool:
        long_first = sorted(ALONE, key=lambda pair: pair[1] not in STARTS_PROCESSES)
        return dict(pool.map(run, long_first))


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
