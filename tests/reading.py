"""Runs cells of a lesson within a test, and scripts that it prints."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout
from importlib.metadata import version

import matplotlib.pyplot as plt

from tests.conftest import BOOK

TORCH = tuple(map(int, version("torch").split(".")[:2]))  # the weekly upkeep tests with the newest, too


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


def torchrun(script, folder, processes):
    """What a script prints that torchrun starts in this folder, on the CPU and within this machine."""
    (folder / "train.py").write_text(script, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    done = subprocess.run(
        [*command, f"--nproc-per-node={processes}", "train.py", "--cpu"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
