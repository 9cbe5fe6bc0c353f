"""What lesson 12 says of hangs is so, for other numbers of ranks as well, and of the newest PyTorch.

Not run for one rank: it waits for nobody. Only its own execution and this file run Gloo; nothing here needs NCCL.
"""

import faulthandler
import importlib.metadata
import os
import pickle
import re
import tempfile
import time

import pytest
import torch
import torch.distributed as dist

import tests.appended
from tests.conftest import BOOK
from tests.reading import TORCH, judged, run_cells

FUNCTIONS = ["setup", "on-ranks", "timeouts", "outcome"]


@pytest.fixture(scope="module")
def lesson():
    return run_cells("en/12_hangs", FUNCTIONS)


@pytest.fixture(scope="module")
def printed(run):
    """What the lesson's own cells print."""
    return {cell.id: tests.appended.printed(run, "en/12_hangs", cell.id) for cell in BOOK.page("en/12_hangs").code}


def test_who_complains(printed):
    assert re.findall(r"rank (\d): \w+: Timed out waiting 500ms", printed["if-rank-0"]) == ["0"]
    assert re.findall(r"rank (\d): _engine_run_backward: Timed out", printed["batch-more"]) == ["1"]
    assert printed["batch-more"].count("3 batches done") == 3


def test_the_case(printed):
    assert re.findall(r"rank (\d): failed in all_reduce", printed["case"]) == ["0", "1", "3"]
    assert re.findall(r"call is number (\d)", printed["calls"]) == ["4", "4", "3", "4"]
    assert re.findall(r"> (\w+)$", printed["stacks"], re.MULTILINE) == [
        "all_reduce",
        "all_reduce",
        "load",
        "all_reduce",
    ]


def test_the_last_call_tells_who_is_missing_after_more_calls_than_are_kept(lesson):
    def job():
        for _ in range(2099 if dist.get_rank() == 2 else 2100):
            dist.all_reduce(torch.ones(1))

    def entries():
        lesson["outcome"](job)
        return pickle.loads(torch._C._distributed_c10d._dump_fr_trace())["entries"]

    calls = lesson["on_ranks"](4, entries)
    assert [len(of_rank) for of_rank in calls] == [2000] * 4
    printed = judged({**lesson, "calls": calls}, cell("calls"))
    assert re.findall(r"call is number (\d+)", printed) == ["2100", "2100", "2099", "2100"]


def test_no_stack_is_written_after_the_job(lesson):
    """Nor into another file that has the closed file's descriptor by then."""
    variables = {**lesson}
    exec(cell("case").partition("\n\n\nreports")[0], variables)
    variables["train"] = lambda: "done"

    def next_file():
        assert variables["train_with_notes"]()[:2] == ("done", "")
        with tempfile.TemporaryFile() as file:
            time.sleep(0.5)  # longer than the 0.3 seconds of the cell
            return os.fstat(file.fileno()).st_size

    assert lesson["on_ranks"](2, next_file) == [0, 0]


def cell(id):
    (source,) = [cell.source for cell in BOOK.page("en/12_hangs").cells if cell.id == id]
    return source


def test_roll_call(printed):
    assert "Ranks 2 failed to pass monitoredBarrier" in printed["monitored"]


def test_silent_and_found(printed):
    assert printed["silent"].count("loss [11.0], count [11.0]") == 2
    assert "rank 1: loss [11.0], count [11.0]; sum [1.0, 2.0]" in printed["silent"]
    assert printed["detail"].count("loss [11.0], count [11.0]") == 2  # DETAIL does not see it
    assert printed["detail"].count("mismatch") == 4
    assert dist.get_debug_level() == dist.DebugLevel.OFF


def test_gone(printed):
    assert "rank 0: all_reduce: Connection closed by peer" in printed["gone"]
    assert "on_ranks: rank 1 of 2: ended with exit code -9" in printed["gone"]


def test_with_more_ranks_not_all_notice_who_is_gone(lesson):
    def without_the_last(function):
        def call():
            if dist.get_rank() == 3:
                dist.destroy_process_group()  # closes its connections
            else:
                time.sleep(0.3)
                function(torch.ones(1))

        return [str(result) for result in lesson["on_ranks"](4, lesson["outcome"], call)[:3]]

    everyone = without_the_last(dist.all_reduce)
    closed = ["Connection closed by peer" in result for result in everyone]
    assert any(closed) and not all(closed)
    assert all("Timed out" in result for result, at_once in zip(everyone, closed, strict=True) if not at_once)
    first, second, third = without_the_last(lambda tensor: dist.broadcast(tensor, src=0))
    assert first == third == "None" and "Connection closed by peer" in second


def test_they_never_meet(printed):
    for message in ("The client socket has timed out", "1/2 clients joined", "address already in use"):
        assert message in printed["meet"]


@pytest.mark.parametrize("ranks", [2, 8])
def test_other_numbers_of_ranks(lesson, ranks):
    """One rank in a call that the others do not make times out; a roll call names who is missing."""

    def alone():
        if dist.get_rank() == ranks - 1:
            dist.all_reduce(torch.ones(1))

    def roll_call():
        if dist.get_rank() != ranks - 1:
            dist.monitored_barrier(timeout=lesson["timedelta"](seconds=0.5), wait_all_ranks=True)

    results = lesson["on_ranks"](ranks, lesson["outcome"], alone)
    assert results[:-1] == [None] * (ranks - 1) and "Timed out" in results[-1]
    assert f"Ranks {ranks - 1} failed" in lesson["on_ranks"](ranks, lesson["outcome"], roll_call)[0]


def test_detail_names_the_missing(lesson):
    def alone():
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1))

    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        results = lesson["on_ranks"](
            3, lesson["outcome"], alone, seconds=2
        )  # its barrier keeps to the group's first timeout
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)
    assert "Ranks 1, 2 failed to pass monitoredBarrier" in results[0]


@pytest.mark.skipif(TORCH > (2, 13), reason="crashes only at times")
def test_ddp_at_level_detail_still_crashes(lesson):
    """When this fails, strike the sentence from the cell detail-look."""

    def wrap():
        faulthandler.disable()  # pytest's, which would write into the test's output
        lesson["DistributedDataParallel"](torch.nn.Linear(2, 2))

    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        with pytest.raises(RuntimeError, match="exit code -11"):
            lesson["on_ranks"](1, wrap)
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


def test_messages_of_ddp(lesson):
    def unequal_models():
        lesson["DistributedDataParallel"](torch.nn.Linear(2, 1 + dist.get_rank()))

    def unused_parameters():
        class Spare(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.spare = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)

            def forward(self, x):
                return self.used(x)

        model = lesson["DistributedDataParallel"](Spare())
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()

    assert (
        in_table("appears not to match sizes of the same param in process 0")
        in lesson["on_ranks"](2, lesson["outcome"], unequal_models)[1]
    )
    first = lesson["on_ranks"](2, lesson["outcome"], unused_parameters)[0]
    assert in_table("Expected to have finished reduction in the prior iteration before starting a new one") in first


@pytest.mark.parametrize("edition", ["en", "zh"])
def test_solution_3_leaves_the_loss_to_backward(lesson, edition):
    variables = {**lesson}
    exec(tests.appended.solutions(BOOK.page(f"{edition}/12_hangs"))["exercise-3"], variables)

    def gradient():
        number = torch.tensor(4.0, requires_grad=True)
        loss = number.sqrt()  # its backward pass computes with its result
        total = variables["step"](loss)
        loss.backward()
        return total, loss.item(), number.grad.item()

    assert lesson["on_ranks"](2, gradient) == [(4.0, 2.0, 0.25)] * 2


@pytest.mark.parametrize("bad, skip", [("torch.isnan(loss)", "bad"), ("~torch.isfinite(loss)", "bad == 1")])
def test_exercise_3_needs_every_bad_loss_on_any_number_of_ranks(lesson, bad, skip):
    """Not only nan, and not only on one rank."""
    answer = f"""
def step(loss):
    bad = ({bad}).float()
    dist.all_reduce(bad)
    if {skip}:
        return None
    dist.all_reduce(loss)
    return loss.item()


fixed = True
"""
    assert judged(lesson, cell("exercise-3-check"), answer).startswith("✗")


@pytest.mark.skipif(dist.is_nccl_available(), reason="asks a PyTorch without NCCL")
def test_no_nccl_here():
    message = in_table("Distributed package doesn't have NCCL built in")
    with pytest.warns(UserWarning), pytest.raises(RuntimeError, match=message):
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)


def in_table(message):
    for page in ("en/12_hangs", "zh/12_hangs"):
        (table,) = [cell.source for cell in BOOK.page(page).cells if cell.id == "messages"]
        assert message in table
    return message


def test_names_in_pytorch():
    """Names that the lesson gives without running them are still there."""
    assert hasattr(torch._C._distributed_c10d, "_dump_fr_trace")  # private: of the cell case
    assert str(dist.default_pg_timeout) == "0:30:00"
    assert [
        entry.name for entry in importlib.metadata.distribution("torch").entry_points if entry.name == "torchfrtrace"
    ]
    folder = os.path.join(os.path.dirname(torch.__file__), "include", "torch", "csrc", "distributed", "c10d")
    with open(os.path.join(folder, "ProcessGroupNCCL.hpp")) as file:
        nccl = file.read()
    assert re.search(r"kProcessGroupNCCLDefaultTimeout =\s*std::chrono::milliseconds\(10 \* 60 \* 1000\)", nccl)
    for name in ("ASYNC_ERROR_HANDLING", "BLOCKING_WAIT", "HEARTBEAT_TIMEOUT_SEC", "DUMP_ON_TIMEOUT"):
        assert f"TORCH_NCCL_{name}" in nccl
    with open(os.path.join(folder, "FlightRecorder.hpp")) as file:
        assert re.search(r'"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"\}, 2000', file.read())
    from torch.distributed.elastic.multiprocessing.errors import record
    from torch.distributed.run import get_args_parser

    assert callable(record)
    options = get_args_parser().format_help()
    assert "--log-dir" in options and "--redirects" in options and "--tee" in options
