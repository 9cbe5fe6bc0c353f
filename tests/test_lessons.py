"""Every lesson, as a reader meets it: alone in an empty folder, and with its exercises."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.conftest import EDITIONS, LESSONS, ROOT
from tests.notebook import cells, run_cells, solutions

PUBLISHED = json.loads((ROOT / "tests" / "published_results.json").read_text(encoding="utf-8"))

# For each exercise an answer that a learner may well give, and that is wrong.
WRONG = {
    "01_device": {
        "exercise-1": "x = torch.ones(2, 3)\nmoved = x",
        "exercise-2": "answer = [True, True, True]",
    },
    "02_random_dataset": {
        "exercise-1": "answer = [16] * 6",
        "exercise-2": "my_batch_size = 30",
    },
    "03_model": {
        "exercise-1": "answer = 15",
        "exercise-2": "class Flatten(nn.Module):\n    def forward(self, images):\n        return images.view(30, -1)",
    },
    "04_data_parallel": {
        "exercise-1": "answer = [3, 3, 2, 2]",
        "exercise-2": "idle = 0",
        "exercise-3": "my_batch_size = 40",
    },
    "05_four_steps": {
        "exercise-1": 'order = "BDAC"',
        "exercise-2": "def my_gather(outputs):\n    return torch.stack(outputs, dim=0).flatten(0, 1)",
        "exercise-3": "answer = [8, 0]",
    },
    "06_gradients": {
        "exercise-1": "weights = [0.25, 0.25, 0.25, 0.25]",
        "exercise-2": 'letter = "A"',
        "exercise-3": "class Mended(nn.Module):\n    def __init__(self, model):\n        super().__init__()\n        self.model = model\n\n    def forward(self, x, y):\n        squares = (self.model(x) - y).pow(2)\n        return squares.mean().view(1)",
    },
    "07_replicas": {
        "exercise-1": 'class Counter(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(5, 2)\n        self.register_buffer("calls", torch.tensor(0))\n\n    def forward(self, x):\n        self.calls = self.calls + 1\n        return self.fc(x)',
        "exercise-2": "running_mean = 4.5",
        "exercise-3": 'class TwoPaths(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.image_module = nn.Linear(5, 2)\n        self.text_module = nn.Linear(5, 2)\n\n\nsaved = nn.DataParallel(TwoPaths())\ncheckpoint = saved.state_dict()\nrepaired = {key.replace("module.", ""): tensor for key, tensor in checkpoint.items()}',
    },
    "08_inputs_outputs": {
        "exercise-1": 'answer = ["cut", "cut", "repeated", "repeated"]',
        "exercise-2": "class AttentionWithMask(nn.Module):\n    def __init__(self, mask):\n        super().__init__()\n        self.mask = mask\n\n    def forward(self, x):\n        scores = x @ x.transpose(1, 2) + self.mask\n        return scores.softmax(dim=2) @ x\n\n\nmended = AttentionWithMask(mask)",
        "exercise-3": "class Strict(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.seen = []\n\n    def forward(self, x, *, double):\n        self.seen.append(len(x))\n        return x * 2 if double else x\n\n\nstrict = Strict()\nstrict_eight = VirtualDataParallel(strict, 8)\nx = torch.arange(3)\n\noutput = strict(x, double=True)",
    },
}

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


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """(edition, lesson) -> the lesson executed alone in an empty folder, then its exercises answered."""
    guard = tmp_path_factory.mktemp("guard")
    (guard / "sitecustomize.py").write_text(NO_NETWORK)

    def run(pair):
        edition, name = pair
        folder = tmp_path_factory.mktemp(f"{edition}-{name}")
        target = folder / f"{name}.ipynb"
        notebook = json.loads((ROOT / "notebooks" / edition / target.name).read_text(encoding="utf-8"))
        for id, source in answered_exercises(edition, name).items():
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

    pairs = [(edition, name) for edition in EDITIONS for name in LESSONS]
    with ThreadPoolExecutor(2) as pool:
        return dict(pool.map(run, pairs))


@dataclass
class Alone:
    returncode: int
    stderr: str
    files: list
    outputs: dict  # cell id -> its outputs

    def printed(self, id):
        return "".join("".join(output.get("text", "")) for output in self.outputs[id])


def answered_exercises(edition, name):
    """Code to run after a lesson: each exercise solved, and answered wrongly, with its check."""
    checks = {id: source for id, (_, source) in cells(edition, name).items() if id.endswith("-check")}
    return {
        f"{exercise}-{kind}": f"{answer}\n\n{checks[f'{exercise}-check']}"
        for kind, answers in (("solved", solutions(edition, name)), ("wrong", WRONG[name]))
        for exercise, answer in answers.items()
    }


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("name", LESSONS)
def test_lesson_runs_alone(alone, edition, name):
    done = alone[edition, name]
    assert (done.returncode, done.stderr) == (0, "")
    outputs = [output for cell in done.outputs.values() for output in cell]
    assert outputs
    assert [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"] == []
    assert done.files == [f"{name}.ipynb"], "a lesson leaves nothing behind"


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("name", ["02_random_dataset", "04_data_parallel"])
def test_figures_keep_their_text_as_text(alone, edition, name):
    figures = [
        "".join(output["data"]["image/svg+xml"])
        for cell in alone[edition, name].outputs.values()
        for output in cell
        if "image/svg+xml" in output.get("data", {})
    ]
    assert figures
    for figure in figures:
        texts = "".join(re.findall(r"<text[^>]*>(.*?)</text>", figure, re.DOTALL))
        assert texts, "letters drawn as outlines need a font at execution, and boxes follow where it lacks one"
        assert bool(re.search("[\u4e00-\u9fff]", texts)) == (edition == "zh")


def test_lessons_run_as_scripts(book, tmp_path):
    """In English: the editions' code is the same but for words (see book/check.py)."""

    def run(name):
        script = book / "_build" / "html" / "en" / f"{name}.py"
        environment = {**os.environ, "MPLBACKEND": "agg", "PYTHONWARNINGS": "ignore:FigureCanvasAgg"}
        return subprocess.run(
            [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(run, LESSONS):
            assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("name", LESSONS)
def test_solutions_pass_and_wrong_answers_do_not(alone, edition, name):
    exercises = [id for id in cells(edition, name) if re.fullmatch(r"exercise-\d+", id)]
    assert len(exercises) >= 2
    assert set(exercises) == set(solutions(edition, name)) == set(WRONG[name])

    for exercise in exercises:
        for suffix, mark in (("check", "练E"), ("solved", "✓"), ("wrong", "✗")):
            verdict = alone[edition, name].printed(f"{exercise}-{suffix}")
            assert len(verdict.splitlines()) == 1
            assert verdict[0] in mark, (exercise, suffix)


# Cells that several lessons need, repeated so that each lesson stands alone.
SHARED = ["figures", "virtual-devices"]


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("id", SHARED)
def test_copies_of_a_shared_cell_are_equal(edition, id):
    copies = {name: cells(edition, name)[id] for name in LESSONS if id in cells(edition, name)}
    assert copies
    assert len(set(copies.values())) == 1, list(copies)


@pytest.mark.parametrize("edition", EDITIONS)
def test_lesson_4_leaves_the_published_splits(edition):
    variables, _ = run_cells(edition, "04_data_parallel")
    splits = variables["splits"]
    assert list(splits) == [1, 2, 3, 8]
    assert splits[1] == PUBLISHED["no_or_one_gpu"]["replica_rows"]
    for count, published in PUBLISHED["gpus"].items():
        assert splits[int(count)] == published["replica_rows"]


@pytest.mark.parametrize("edition", EDITIONS)
def test_lesson_5_has_the_published_anatomy(edition):
    variables, _ = run_cells(edition, "05_four_steps")
    for rows, published in ((int(key), value) for key, value in PUBLISHED["anatomy"].items() if key.isdigit()):
        found = variables["anatomy"][rows]
        assert {key: found[key] for key in published if key in found} == {
            key: value for key, value in published.items() if not key.endswith("_returns")
        }
    assert type(variables["chunks"]).__name__ == PUBLISHED["anatomy"]["16"]["scatter_returns"]
    assert type(variables["outputs"]).__name__ == PUBLISHED["anatomy"]["16"]["apply_returns"]


def published_lines(published):
    inside, outside = (PUBLISHED["line_formats"][place].replace("\\t", "\t") for place in ("inside", "outside"))
    lines = [inside.replace("[R", f"[{rows}") for batch in published["replica_rows"] for rows in batch]
    return lines + [outside.replace("[B", f"[{batch}") for batch in PUBLISHED["parameters"]["batches"]]


def test_lesson_4_prints_the_published_lines():
    _, printed = run_cells("en", "04_data_parallel")
    cases = {"1": PUBLISHED["no_or_one_gpu"], **PUBLISHED["gpus"]}
    for count, published in cases.items():
        lines = printed[f"run-{count}"].splitlines()
        label = lines.pop(1 if "banner" in published else 0)
        assert label.startswith(("(virtual, on ", "(measured, on "))
        banner = [published["banner"]] if "banner" in published else []
        assert Counter(lines) == Counter(banner + published_lines(published))


def test_lesson_4_prints_the_same_sizes_in_chinese():
    printed = [run_cells(edition, "04_data_parallel")[1] for edition in EDITIONS]
    for count in (1, 2, 3, 8):
        english, chinese = (re.findall(r"torch\.Size\(.*?\)", output[f"run-{count}"]) for output in printed)
        assert Counter(english) == Counter(chinese)
        assert "模型内" in printed[1][f"run-{count}"]
