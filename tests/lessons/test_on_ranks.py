"""`on_ranks`, which lessons repeat as a cell: results, and what it says of ranks that fail, hang or cannot be.

No failure may leave a process or a file, and the next call works.
"""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

import psutil
import pytest
import torch
import torch.distributed as dist

from tests.conftest import BOOK, EDITIONS
from tests.reading import run_cells

LESSON = "11_training_for_real"


@pytest.fixture(scope="module")
def cell():
    return run_cells(f"en/{LESSON}", ["on-ranks"])


@pytest.fixture
def on_ranks(cell, monkeypatch):
    """The function; afterwards no process is left, and no file in the folder for temporary ones."""
    with tempfile.TemporaryDirectory() as folder:  # not tmp_path: too long a name for sockets
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.chdir(folder)  # where processes are found, too, whose parent is gone
        yield cell["on_ranks"]
        left = [process for process in psutil.process_iter(["pid", "cwd", "status"]) if is_left(process, folder)]
        # a killed process takes a moment to go; a worker notices only after five seconds that its rank is gone
        assert psutil.wait_procs(left, timeout=3)[1] == []
        assert os.listdir(folder) == []
        monkeypatch.undo()


def is_left(process, folder):
    info = process.info
    return info["cwd"] == folder and info["status"] != psutil.STATUS_ZOMBIE and info["pid"] != os.getpid()


def add_up():
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    print(f"rank {dist.get_rank()}")
    return total


def on_rank_1(what):
    """A function in which rank 1 does something else than wait for the others."""

    def function():
        if dist.get_rank() == 1:
            return what()
        dist.barrier()

    return function


def row_is_missing():
    raise ValueError("row 2 is missing")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_results_and_lines_come_in_the_order_of_ranks(on_ranks, capsys, ranks):
    assert on_ranks(ranks, add_up) == [torch.tensor([ranks * (ranks + 1) / 2])] * ranks
    assert capsys.readouterr().out == "".join(f"rank {rank}\n" for rank in range(ranks))


@pytest.mark.parametrize(
    "what, said",
    [
        (row_is_missing, "ValueError: row 2 is missing"),
        (lambda: sys.exit(3), "SystemExit: 3"),
        (lambda: sys.exit(0), "SystemExit: 0"),
        (lambda: os._exit(4), "ended with exit code 4"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "ended with exit code -9"),
    ],
)
def test_the_rank_that_failed_first_is_named(on_ranks, what, said):
    for _ in range(3):  # the others fail a moment later, as their partner is gone
        with pytest.raises(RuntimeError) as error:
            on_ranks(4, on_rank_1(what))
        assert str(error.value).splitlines()[0] == f"rank 1 of 4: {said}"
    assert len(on_ranks(4, add_up)) == 4


def half_a_line():
    print("half a line", end="")


def not_utf8():
    os.write(2, b"\xff\xfe")
    os._exit(4)


def strange_letters():
    raise ValueError("no file name\udce9.csv: 没有")


def print_and_be_killed():
    print("第 1 步" * 4000, end="")
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_is_printed_without_the_end_of_a_line(on_ranks, capsys):
    on_ranks(2, half_a_line)
    assert capsys.readouterr().out == "half a line" * 2


def test_what_other_programs_print(on_ranks, capsys):
    on_ranks(2, lambda: os.system("echo from a program"))
    assert capsys.readouterr().out == "from a program\n" * 2


@pytest.mark.parametrize(
    "what, said",
    [
        (not_utf8, "ended with exit code 4"),
        (strange_letters, "ValueError: no file name\\udce9.csv: 没有"),
        (print_and_be_killed, "ended with exit code -9"),
    ],
)
def test_letters_that_cannot_be_written_hide_no_failure(on_ranks, what, said):
    with pytest.raises(RuntimeError) as error:
        on_ranks(2, on_rank_1(what))
    assert str(error.value).splitlines()[0] == f"rank 1 of 2: {said}"


def test_a_rank_that_is_killed_before_it_begins(on_ranks, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda count: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RuntimeError, match="rank [01] of 2: ended with exit code -9"):
        on_ranks(2, add_up)


class EndsWhileWatched:
    """A process that ends between two looks at its exit code."""

    def __init__(self, looks, end):
        self.looks, self.end = looks, end
        self.sentinel, _ = os.pipe()

    @property
    def exitcode(self):
        self.looks -= 1
        return None if self.looks > 0 else self.end()


@pytest.mark.parametrize("looks", range(1, 7))
def test_a_rank_that_ends_while_it_is_watched(cell, tmp_path, looks):
    def raises():
        (tmp_path / "failure-0").write_text("rank 0 of 1: ValueError")
        (tmp_path / "first").write_text("rank 0 of 1: ValueError")
        return 1

    for end, said in ((lambda: -9, "rank 0 of 1: ended with exit code -9"), (raises, "rank 0 of 1: ValueError")):
        for kind in ("failure", "errors"):
            (tmp_path / f"{kind}-0").write_text("")
        failure = cell["first_failure"]([EndsWhileWatched(looks, end)], tmp_path, time.monotonic() + 60)
        assert failure is not None and failure.startswith(said)


def load_with_workers(then):
    for _ in torch.utils.data.DataLoader(range(100), num_workers=2, persistent_workers=True):
        return then()


def test_workers_of_a_data_loader_end_with_their_rank(on_ranks):
    with pytest.raises(RuntimeError, match="rank 1 of 2: ended with exit code -9"):
        on_ranks(2, on_rank_1(lambda: load_with_workers(lambda: os.kill(os.getpid(), signal.SIGKILL))))
    assert on_ranks(2, load_with_workers, lambda: "done") == ["done", "done"]
    with pytest.raises(RuntimeError, match=r"ranks \[0\] of 1: not done in time"):
        on_ranks(1, load_with_workers, lambda: time.sleep(100), seconds=1)


def test_a_traceback_leads_to_the_line(on_ranks):
    with pytest.raises(RuntimeError, match="in row_is_missing"):
        on_ranks(2, on_rank_1(row_is_missing))


def test_a_rank_that_never_ends(on_ranks):
    with pytest.raises(RuntimeError, match=r"^ranks \[1\] of 3: not done in time$"):
        on_ranks(3, lambda: time.sleep(100) if dist.get_rank() == 1 else None, seconds=1)


def test_a_collective_call_that_a_rank_leaves_out(on_ranks):
    with pytest.raises(RuntimeError, match="rank 0 of 2: RuntimeError: .*[Tt]imed out"):
        on_ranks(2, on_rank_1(lambda: None), seconds=1)


def test_no_rank_begins_before_all_are_connected(on_ranks, monkeypatch):
    """Otherwise a rank that ends at once cuts off one that is still connecting: once in a hundred calls, it did."""
    connect = dist.distributed_c10d._new_process_group_helper

    def connect_late(*arguments, **options):
        result = connect(*arguments, **options)
        time.sleep(0.5 if result[0].rank() == 0 else 0)
        return result

    monkeypatch.setattr(dist.distributed_c10d, "_new_process_group_helper", connect_late)
    begun = on_ranks(2, time.monotonic)
    assert begun[1] - begun[0] > -0.4


@pytest.mark.parametrize("ranks", [0, -1, 65])
def test_numbers_of_ranks_that_make_no_sense(on_ranks, ranks):
    with pytest.raises(ValueError, match=f"^{ranks} ranks"):
        on_ranks(ranks, add_up)


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_a_system_that_cannot_fork(on_ranks, monkeypatch, platform):
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(RuntimeError, match="needs Linux.*WSL.*Colab"):
        on_ranks(2, add_up)


def test_cuda_was_used_before(cell, on_ranks, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    cell["note_cuda"](type("Result", (), {"execution_count": 7}))
    with pytest.raises(RuntimeError, match=r"^cell 7 used CUDA"):
        on_ranks(2, add_up)
    cell["cuda_since"].clear()


def test_a_folder_that_cannot_be_written(cell, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        cell["on_ranks"](2, add_up)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("edition, late", [*zip(EDITIONS, [False, True], strict=True)])
def test_ranks_end_with_their_notebook(edition, sent, late, tmp_path):
    """As the stop button ends it, and as Linux does when memory runs out; in a program of its own.

    late: ranks that begin only after that, as on a machine that is too busy.
    """
    (source,) = [cell.source for cell in BOOK.page(f"{edition}/{LESSON}").code if cell.id == "on-ranks"]
    program = tmp_path / "program.py"
    program.write_text(
        source
        + f"\nlate = {late}"
        + textwrap.dedent("""
        in_time = one_rank

        def one_rank(*arguments):
            time.sleep(2 * late)
            in_time(*arguments)

        def wait():
            time.sleep(100) if dist.get_rank() else dist.barrier()

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
        print("ready", flush=True)
        on_ranks(3, wait)
        """),
        encoding="utf-8",
    )
    with subprocess.Popen(
        [sys.executable, program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        for line in iter(started.stdout.readline, "ready\n"):
            assert line, started.stderr.read()
        while len(ranks := psutil.Process(started.pid).children()) < 3:
            assert started.poll() is None, started.stderr.read()
            time.sleep(0.01)
        time.sleep(0.5)
        started.send_signal(sent)
        _, errors = started.communicate(timeout=20)
    assert ("KeyboardInterrupt" in errors) == (sent == signal.SIGINT)
    assert psutil.wait_procs(ranks, timeout=5)[1] == []
