"""Every cell that does something else where there is CUDA, on 8 simulated GPUs, and on 1 and 2 if its lesson prints
something else there: it runs to its end, and prints what the lesson's prose says of it.

A process for each number of GPUs runs all cells of its lessons (tests/simulated.py says with which smaller numbers).
Only the source edition runs; the code of the others is the same but for words.
"""

import functools
import json
import re
import subprocess
import sys

import pytest

from tests.conftest import BOOK, NAMES, ROOT
from tests.simulated import LEFT_OUT, environment

COUNTS = [1, 2, 8]
CHUNKS = {1: [30], 2: [15, 15], 3: [10, 10, 10], 8: [4] * 7 + [2]}  # of 30 rows
LAST = {1: [10], 2: [5, 5], 3: [4, 4, 2], 8: [2] * 5}  # of the last 10
STEPS = ("scatter ", "replicate ", "parallel_apply ", "gather ", "forward and backward ")


def measured(asked, n):
    return "measured" if asked <= n else "virtual"


def second(n):
    """The device of the second of two replicas."""
    return "cuda:1" if n >= 2 else "cuda:0"


def batches(asked):
    """The lines of lesson 4 for four batches on so many devices; the order of those from a batch is left to chance."""
    inside = 3 * CHUNKS[asked] + LAST[asked]
    return [
        (len(inside), "In Model: input size"),
        *((inside.count(rows), f"In Model: input size torch.Size([{rows}, 5])") for rows in inside),
        (3, "Outside: input size torch.Size([30, 5])"),
        (1, "Outside: input size torch.Size([10, 5])"),
    ]


# Lesson, cell: what n GPUs let it print: texts that it holds, or (how often, text).
FACTS = {
    ("01_device", "choose-device"): lambda n: ["device: cuda", f"how many accelerators: {n}"],
    ("01_device", "other-device"): lambda n: ["cuda"],
    ("01_device", "mixed-run"): lambda n: ["Expected all tensors to be on the same device", "cuda:0 and cpu"],
    ("01_device", "current-cuda"): lambda n: [
        "current device: 0\n",
        f"inside: a new tensor on cuda:{n - 1}\n",
        "outside: a new tensor on cuda:0\n",
    ],
    ("01_device", "pinned-run"): lambda n: ["pinned: True; the copy is on cuda:0", "equal after the copy: True"],
    ("01_device", "old-code-run"): lambda n: [
        "no attribute 'gpu'",
        "Invalid device string",
        "gives a Linear",
        (2, "gives a Tensor"),
    ],
    ("04_data_parallel", "setup"): lambda n: ["device: cuda", f"CUDA GPUs on this machine: {n}"],
    ("04_data_parallel", "wrap-model"): lambda n: (
        [f"Let's use {n} GPUs!", "DataParallel is ready on cuda"] if n > 1 else [(0, "GPUs!"), "Model is ready on cuda"]
    ),
    ("04_data_parallel", "run-model"): batches,
    ("04_data_parallel", "devices-found"): lambda n: [
        (len(LAST[n]), "In Model"),
        f"DataParallel found these devices: {list(range(n))}",
    ],
    ("04_data_parallel", "run-1"): lambda n: ["(measured, on cuda)", *batches(1)],
    ("04_data_parallel", "run-2"): lambda n: [f"({measured(2, n)}, on cuda)", *batches(2)],
    ("04_data_parallel", "run-3"): lambda n: [f"({measured(3, n)}, on cuda)", *batches(3)],
    ("04_data_parallel", "run-8"): lambda n: [f"({measured(8, n)}, on cuda)", *batches(8)],
    ("04_data_parallel", "split-law-check"): lambda n: ["agrees with what every replica saw"],
    ("04_data_parallel", "model-elsewhere"): lambda n: ["(device_ids[0]) but found one of them on device: meta"],
    ("04_data_parallel", "only-forward-run"): lambda n: [
        f"({measured(2, n)}",
        (2, "torch.Size([15, 5])"),
        (1, "torch.Size([30, 5])"),
    ],
    ("05_four_steps", "setup"): lambda n: ["device: cuda", f"CUDA GPUs on this machine: {n}"],
    ("05_four_steps", "choose-devices"): lambda n: [f"DataParallel on the devices [0, 1] ({measured(2, n)})"],
    ("05_four_steps", "step-scatter"): lambda n: ["on cuda:0\n", f"Tensor (8, 10) on {second(n)}\nkeyword"],
    ("05_four_steps", "step-replicate"): lambda n: [(2, "same values: True"), f"on {second(n)}, same"],
    ("05_four_steps", "step-apply"): lambda n: ["(8, 20) on cuda:0\n", f"(8, 20) on {second(n)}\n"],
    ("05_four_steps", "step-gather"): lambda n: ["(16, 20) on cuda:0", "same as module(batch): True"],
    ("05_four_steps", "data-parallel"): lambda n: [(2, "same as module: True")],
    ("05_four_steps", "anatomy"): lambda n: [(2, f"rows ({measured(2, n)})"), "chunks of [8, 8]", "chunks of [8, 7]"],
    ("05_four_steps", "too-few-rows"): lambda n: [f"8 replicas, 3 chunks ({measured(8, n)})", "AssertionError: "],
    ("06_gradients", "setup"): lambda n: [f"CUDA GPUs on this machine: {n}"],
    ("06_gradients", "real-gpus"): lambda n: (
        ["Fewer than two CUDA GPUs here"] if n < 2 else [f"measured on {n} GPUs", "largest difference", (0, "False")]
    ),
    ("09_cost", "setup"): lambda n: [f"CUDA GPUs on this machine: {n}"],
    ("09_cost", "profile"): lambda n: [(2, "layers forward 6, layers backward 6, all-reduces 3")],
    # That a clock without synchronize() shows less needs GPUs that work ahead; these do not.
    ("09_cost", "time-multiply"): lambda n: [(3, " ms (measured)"), "without synchronize", "with events"],
    ("09_cost", "time-steps"): lambda n: [(n, " ms per step (measured)"), f"GPUs: {n}, "],
    ("09_cost", "time-pinned"): lambda n: ["pageable: ", "pinned: ", (2, " GB/s (measured)")],
    ("09_cost", "time-parts"): lambda n: [
        (6, "DDP "),
        *((6, f"replicas: {k}, GPUs: {k if k <= n else 1}\n") for k in (1, 2, 3, 8)),
        *((24, step) for step in STEPS),
    ],
    ("09_cost", "memory-measured"): lambda n: ["not measured"] if n < 2 else [(n, "at the peak (measured)")],
    ("10_distributed", "ranks"): lambda n: [(4, "of 4: the sum is 10"), "names: ['notebook']"],
    ("10_distributed", "run-2"): lambda n: [
        (2, "of 2, rows in its batches: [12, 12, 12, 12, 2]"),
        "both ranks have the same weights: True",
        "within 1e-5: True",
    ],
    ("10_distributed", "run-3"): lambda n: [
        (3, "of 3, rows in its batches: [8, 8, 8, 8, 2]"),
        "all ranks have the same weights: True",
        "within 1e-5: False",
    ],
    ("10_distributed", "broadcast"): lambda n: [(3, "after wrapping 0\n"), (3, "in evaluation mode, 10\n")],
    ("10_distributed", "gradient-compare"): lambda n: [
        "3, 3, 3 rows: the gradient of the whole batch, within 1e-5: True",
        "4, 3, 3 rows: the gradient of the whole batch, within 1e-5: False",
        "weighted: the gradient of the whole batch, within 1e-5: True",
    ],
    ("10_distributed", "accumulate-compare"): lambda n: [
        "all-reduces: 1 for one batch, 3 for 3 micro-batches, 1 with no_sync",
        (2, "within 1e-5: True"),
    ],
    ("10_distributed", "buckets"): lambda n: [
        "bucket 0: 32 MiB",
        "bucket 0: 1 MiB",
        "bucket 1: 25 MiB",
        "bucket 2: 6 MiB",
    ],
    ("10_distributed", "unused-parameters"): lambda n: ["Expected to have finished reduction", "2 steps done"],
    ("11_training_for_real", "killed"): lambda n: ["rank 1 of 2: ended with exit code -9", "bit for bit: True"],
    ("11_training_for_real", "script"): lambda n: ['dist.init_process_group("nccl", device_id=my_device())'],
    ("15_sharded_training", "script"): lambda n: ['"nccl", device_id=my_device(), timeout=timedelta(hours=1)'],
    ("16_splitting_layers", "halves"): lambda n: ["same gradient from two halves: True"],
    ("17_choose", "run-both"): lambda n: [
        f"GPUs that DataParallel may use: {n}",
        (4, "equal up to rounding: True"),
        "processes: 5, equal up to rounding: False",
    ],
    ("17_choose", "healthy"): lambda n: ["DataParallel: ✓", "DDP: ✓", "FSDP2: ✓"],
}

# These ask for CUDA, and print nothing that depends on it.
NO_FACTS = {
    ("09_cost", "profile-plot"),
    ("09_cost", "median"),
    ("11_training_for_real", "checkpoint"),
    ("13_memory", "measured"),
    ("15_sharded_training", "checkpoint"),
    ("17_choose", "before-script"),
    ("17_choose", "after-script"),
    ("17_choose", "checker-data-parallel"),
}


def lessons_run_on(n):
    """All on the most GPUs; on fewer, those that print something else there.

    What ranks do is the same: without NCCL, which a CPU's torch has not, no number of GPUs is enough for them.
    """
    most = max(COUNTS)
    return [name for name in NAMES if n == most or any(x == name and f(n) != f(most) for (x, _), f in FACTS.items())]


@pytest.fixture(scope="module")
def printed_on(tmp_path_factory):
    """What all cells print of the lessons that run on so many GPUs: lesson -> cell -> text."""

    @functools.cache  # what went wrong, too
    def run_on(n):
        result = tmp_path_factory.mktemp("printed") / "cells.json"
        command = [sys.executable, "-m", "tests.simulated", str(result), *lessons_run_on(n)]
        done = subprocess.run(command, cwd=ROOT, env=environment(n), capture_output=True, text=True, timeout=1200)
        return result.read_text("utf-8") if done.returncode == 0 else None, done.stderr[-5000:]

    def printed_on(n):
        printed, errors = run_on(n)
        assert printed, errors
        return json.loads(printed)

    return printed_on


@pytest.mark.parametrize("n, lesson, cell", [(n, *at) for n in COUNTS for at in FACTS if at[0] in lessons_run_on(n)])
def test_a_cell_prints_what_the_prose_says(printed_on, n, lesson, cell):
    text = printed_on(n)[lesson][cell]
    for fact in FACTS[lesson, cell](n):
        often, fact = fact if isinstance(fact, tuple) else (None, fact)
        assert text.count(fact) == often if often is not None else fact in text, f"{fact!r}:\n{text}"


@pytest.mark.parametrize("n", COUNTS)
def test_gpu_0_is_the_fullest(printed_on, n):
    """As lesson 9 says."""
    text = printed_on(n)["09_cost"]["memory-measured"]
    first, *others = [float(number) for number in re.findall(r"GPU \d: (\d+)", text)] or [0]
    assert len(others) == n - 1 and all(first > other for other in others)


@pytest.mark.parametrize("n", COUNTS)
def test_every_cell_has_run(printed_on, n):
    lessons = [lesson for lesson in BOOK.source.lessons if lesson.name in lessons_run_on(n)]
    expected = {(lesson.name, cell.id) for lesson in lessons for cell in lesson.code} - LEFT_OUT
    assert {(lesson, cell) for lesson, cells in printed_on(n).items() for cell in cells} == expected


def test_no_cell_that_asks_for_cuda_is_missing():
    """A new one needs a line in FACTS."""
    words = re.compile(r"torch\.(cuda|accelerator)|[\"'](cuda|nccl)|\bon_devices\(")
    asking = {(x.name, cell.id) for x in BOOK.source.lessons for cell in x.code if words.search(cell.source)}
    only_setting_up = {
        (x.name, id) for x in BOOK.source.lessons for id in ("setup", "virtual-devices", "on-ranks", "run-function")
    }
    assert asking - set(FACTS) - NO_FACTS - only_setting_up - LEFT_OUT == set()
