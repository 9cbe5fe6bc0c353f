"""Simulated GPUs for tests: processes that have some, and lessons run in such a process, cell by cell, as in a kernel.

As a program: SIMULATED_GPUS=8 python -m tests.simulated RESULT.json [LESSON ...]
"""

import contextlib
import gc
import io
import json
import linecache
import multiprocessing
import os
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def environment(count):
    """The environment of a process with this many simulated GPUs; skips where there can be none, and fails under CI."""
    import torch
    from simulated_gpus.build import Unavailable, library

    try:
        if hasattr(torch._C, "_cuda_getDeviceCount"):
            raise Unavailable(f"torch {torch.__version__} is built for CUDA; simulated GPUs need a build for the CPU")
        library("-DTAKE_THE_PLACE_OF_CUDA")
    except Unavailable as reason:
        if os.environ.get("CI"):
            pytest.fail(str(reason))
        pytest.skip(str(reason))
    return {**os.environ, "SIMULATED_GPUS": str(count), "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}


# ---- what runs in the process with the devices

# Cells of which a CPU would make minutes: the same code with smaller numbers. Nobody asks simulated GPUs how long
# something takes.
SMALLER = {
    "threads-processes": {", 600)": ", 2)", ", 300)": ", 1)", "steps(20)": "steps(1)"},
    "time-multiply": {"4096, 4096": "64, 64"},
    "time-steps": {"512, 14, 14": "8, 4, 4", "repetitions=5": "repetitions=1"},
    "time-pinned": {"64 * 1024 * 1024": "64 * 1024"},
    "time-parts": {"512, 14, 14": "8, 4, 4", "[1024]": "[16]", "repetitions=5": "repetitions=1"},
    "memory-measured": {"512, 14, 14": "8, 4, 4", " / 1e6": ""},
    "measured": {', wide, sixteen_rows()[0], ways["one"]': ", small, tokens, rehearsed"},
}
SMALLER_NETWORKS = {
    "range(10)": "range(1)",
    "range(12)": "range(2)",
    "512": "8",
    "1024": "16",
    "4096": "16",
    "1000": "16",
}
LEFT_OUT = {
    # Without NCCL their workers compute on the CPU, whatever GPUs there are: the lesson's own execution runs them.
    ("10_distributed", "resume-script"),
    ("10_distributed", "resume-compare"),
    ("10_distributed", "machines-run"),
    # DTensor keeps its place in the random numbers of a GPU in the state of the generator; simulated ones have another.
    ("14_sharding", "trap-seed"),
}


def smaller(cell):
    source = cell.source
    for number, less in SMALLER.get(cell.id, {}).items():
        assert number in source, f"{cell.id} has no {number} any more"
        source = source.replace(number, less)
    return source


def run_lessons(names):
    """Runs all cells of these lessons: lesson -> cell -> what it prints. The first error ends it.

    Each lesson has a process of its own: where there are GPUs, one that has gone backward itself can fork no ranks.
    """
    # Once, for all of them: what most lessons import.
    import matplotlib.pyplot as plt  # noqa: F401
    import torch._dynamo  # noqa: F401 (the first optimizer does)
    import torch.distributed.fsdp  # noqa: F401

    from tests.conftest import BOOK

    gc.freeze()  # the collector must not touch, and so copy, the pages that the lessons share
    printed = {}
    for lesson in BOOK.source.lessons:
        if lesson.name in names:
            process = multiprocessing.get_context("fork").Process(
                target=run_lesson, args=(lesson, f"{lesson.name}.json")
            )
            process.start()
            process.join()
            if process.exitcode:
                os._exit(1)
            printed[lesson.name] = json.loads(Path(f"{lesson.name}.json").read_text("utf-8"))
    return printed


def run_lesson(lesson, result):
    import matplotlib.pyplot as plt

    result = Path(result).absolute()
    variables, printed = {"__name__": "__main__"}, {}
    for cell in lesson.code:
        if (lesson.name, cell.id) in LEFT_OUT:
            continue
        printed[cell.id] = run_cell(lesson, cell.id, smaller(cell), variables)
        if cell.id == "on-ranks":
            variables["on_ranks"] = forked_with_cuda(variables["on_ranks"])
        if cell.id == "median":  # the cells after it time whole networks
            networks = next(cell.source for cell in lesson.code if cell.id == "networks").partition("\nwith ")[0]
            for number, less in SMALLER_NETWORKS.items():
                networks = networks.replace(number, less)
            run_cell(lesson, "smaller-networks", networks, variables)
        plt.close("all")
    if "temporary_folder" in variables:  # the cell that tidies it up may be left out
        variables["temporary_folder"].cleanup()
    result.write_text(json.dumps(printed), encoding="utf-8")
    # Without tidying up: where the last DDP goes after its process group, PyTorch 2.13 sometimes waits for ever.
    os._exit(0)


def forked_with_cuda(on_ranks):
    """on_ranks refuses once CUDA runs, as simulated GPUs always do: here, once the notebook has put something on one."""
    import torch

    is_initialized = torch.cuda.is_initialized

    def allowed(ranks, function, *arguments, **keywords):
        def on_a_rank(*arguments):
            torch.cuda.is_initialized = is_initialized
            return function(*arguments)

        torch.cuda.is_initialized = lambda: any(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
        try:
            return on_ranks(ranks, on_a_rank, *arguments, **keywords)
        finally:
            torch.cuda.is_initialized = is_initialized

    return allowed


def run_cell(lesson, id, source, variables):
    name = f"{lesson.name}, cell {id}"
    source = "\n".join("" if line.startswith("%") else line for line in source.splitlines())
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)  # for inspect.getsource
    output, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            exec(compile(source, name, "exec"), variables)
    except BaseException:
        traceback.print_exc(file=errors)
    if errors.getvalue():
        sys.stderr.write(f"{name}: {errors.getvalue()}")
        sys.stderr.flush()
        os._exit(1)
    return output.getvalue()


def main(result, *names):
    result = Path(result).absolute()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        printed = run_lessons(names)
        os.chdir("/")
    result.write_text(json.dumps(printed, indent=1), encoding="utf-8")
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
