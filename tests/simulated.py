"""Simulated GPUs for tests: processes that have some, and lessons run in such a process, cell by cell, as in a kernel.

As a program: SIMULATED_GPUS=8 python -m tests.simulated RESULT.json [LESSON ...]
"""

import contextlib
import faulthandler
import io
import json
import linecache
import multiprocessing.connection
import os
import subprocess
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

    if hasattr(torch._C, "_cuda_getDeviceCount"):
        pytest.skip("this torch is built for GPUs, and simulated ones cannot take their name")
    try:
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
    "threads-processes": {", 200)": ", 2)", ", 100)": ", 1)", "steps(20)": "steps(1)"},
    "time-multiply": {"4096, 4096": "64, 64"},
    "time-steps": {"512, 14, 14": "8, 4, 4", "repetitions=5": "repetitions=1"},
    "time-pinned": {"64 * 1024 * 1024": "64 * 1024"},
    "time-parts": {"512, 14, 14": "8, 4, 4", "[1024]": "[16]", "repetitions=5": "repetitions=1"},
    "memory-measured": {"512, 14, 14": "8, 4, 4", " / 1e6:.0f} MB": ":.0f} bytes"},
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
    # Two agents on the CPU, whatever GPUs there are: the lesson's own execution runs it.
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
    import matplotlib.pyplot as plt  # noqa: F401 (once, for all of them)

    from tests.conftest import BOOK

    subprocess.Popen = Launched
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
    if "workshop" in variables:  # the cell that tidies it up may be left out
        variables["workshop"].cleanup()
    result.write_text(json.dumps(printed), encoding="utf-8")
    os._exit(0)  # see the end of work()


def forked_with_cuda(on_ranks):
    """on_ranks refuses once CUDA runs; simulated GPUs, which always do, can be forked all the same."""
    import torch

    is_initialized = torch.cuda.is_initialized

    def allowed(ranks, function, *arguments, **keywords):
        def on_a_rank(*arguments):
            torch.cuda.is_initialized = is_initialized
            return function(*arguments)

        torch.cuda.is_initialized = lambda: False
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


class Launched:
    """In place of Popen: a script, or torchrun with its workers, forked from a process that has imported torch.

    It saves three seconds for each of them. What torchrun itself does is the same with GPUs and without.
    """

    original = subprocess.Popen
    workers = multiprocessing.get_context("forkserver")
    workers.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor"])

    def __new__(cls, command, **keywords):
        return object.__new__(cls) if command[0] == sys.executable else cls.original(command, **keywords)

    def __init__(self, command, cwd=None, env=None, **keywords):
        place = next(place for place, word in enumerate(command) if word.endswith(".py"))
        options = dict(option.partition("=")[::2] for option in command[:place] if option.startswith("--"))
        count = int(options.get("--nproc-per-node", 1))
        lives = int(options.get("--max-restarts", 0)) + 1
        self.output = ""
        for life in range(lives):
            self.returncode = self.live(life, count, command[place:], cwd, env)
            if self.returncode == 0:
                break

    def live(self, life, count, script, cwd, env):
        """Runs all workers; returns 0, or 1 if one fails, which takes the others along, as with torchrun."""
        import torch.distributed as dist

        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        common = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
        common |= {"TORCHELASTIC_RESTART_COUNT": life, "TORCHELASTIC_USE_AGENT_STORE": True}
        processes = []
        with tempfile.TemporaryDirectory() as folder:
            for rank in range(count):
                about = {**env, **common, "RANK": rank, "LOCAL_RANK": rank, "GLOO_SOCKET_IFNAME": "lo"}
                arguments = (str(cwd), script, {name: str(value) for name, value in about.items()}, f"{folder}/{rank}")
                processes.append(self.workers.Process(target=work, args=arguments))
                processes[-1].start()
            waiting = list(processes)
            while waiting:
                multiprocessing.connection.wait([process.sentinel for process in waiting])
                failed = [process for process in processes if process.exitcode]
                for process in waiting if failed else []:
                    process.kill()
                waiting = [process for process in waiting if process.exitcode is None]
            self.output += "".join(Path(f"{folder}/{rank}").read_text("utf-8") for rank in range(count))
        return int(bool(failed))

    def communicate(self, timeout=None):
        return self.output, self.output

    def poll(self):
        return self.returncode

    wait = communicate

    def terminate(self):
        pass

    kill = terminate


def work(cwd, script, environment, output):
    """A worker: runs the script, a list with its arguments, as a program of its own would."""
    import torch

    sys.argv = script

    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, cwd)
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = open(output, "w", buffering=1, encoding="utf-8")
    os.dup2(sys.stdout.fileno(), 2)  # what C++ says
    faulthandler.dump_traceback_later(100, exit=True)
    code, variables = 0, {"__name__": "__main__"}
    try:
        exec(compile(Path(script[0]).read_text("utf-8"), script[0], "exec"), variables)
    except BaseException:
        traceback.print_exc()
        code = 1
    # Without tidying up: where the last DDP goes after its process group, PyTorch 2.13 sometimes waits for ever.
    os._exit(code)


def main(result, *names):
    result = Path(result).absolute()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        printed = run_lessons(names)
        os.chdir("/")
    result.write_text(json.dumps(printed, indent=1), encoding="utf-8")
    os._exit(0)  # see the end of work()


if __name__ == "__main__":
    main(*sys.argv[1:])
