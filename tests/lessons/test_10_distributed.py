"""What lesson 10 shows is so, with any number of ranks: rows, gradients, broadcasts, buckets, a killed script, two machines.

With 3 and 8 ranks 100 rows cannot equal one process: they do not divide, and the sampler repeats some. With more ranks
than rows `gradient` and `accumulate` have nothing to average: a mean over no rows is nan.
"""

import os
import re
import runpy
import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.appended import printed
from tests.conftest import BOOK
from tests.reading import run_cells
from tests.simulated import environment

COUNTS = [1, 2, 3, 4, 8]
NAME = "en/10_distributed"


@pytest.fixture(scope="module")
def lesson():
    cells = "setup on-ranks ranks reference train run-2 run-3 broadcast gradient gradient-compare accumulate buckets"
    cells = [*cells.split(), "launcher", "unused-parameters"]
    variables = run_cells(NAME, cells)
    yield variables
    variables["temporary_folder"].cleanup()


@pytest.fixture(scope="module")
def on_ranks(lesson):
    return lesson["on_ranks"]


@pytest.fixture(scope="module")
def alone(on_ranks):
    """The result of a function that knows of no ranks. It runs on one, for autograd and fork do not go together."""
    return lambda function, *arguments: on_ranks(1, function, *arguments)[0]


def gradient(x):
    torch.manual_seed(0)
    model = nn.Linear(5, 1)
    nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True)).backward()
    return model.weight.grad


# ---- ranks


def test_a_rank_is_a_copy_of_the_notebook(lesson, on_ranks):
    assert lesson["sums"] == [10.0] * 4
    assert lesson["names"] == ["notebook"]
    assert on_ranks(2, lambda: lesson["add_up"]() and lesson["names"]) == [
        ["notebook", "rank 0"],
        ["notebook", "rank 1"],
    ]


def test_on_a_machine_with_gpus_the_notebook_must_not_run_a_backward_pass(tmp_path):
    (cell,) = [each.source for each in BOOK.page(NAME).code if each.id == "on-ranks"]
    program = tmp_path / "program.py"
    program.write_text(f"""{cell}

torch.cuda.is_initialized = lambda: False  # simulated GPUs can be forked

def backward():
    torch.ones(1, requires_grad=True).sum().backward()

on_ranks(2, backward)
print("fine so far")
backward()
on_ranks(2, backward)
""")
    done = subprocess.run([sys.executable, program], env=environment(2), capture_output=True, text=True, timeout=300)
    assert "fine so far" in done.stdout
    assert "Unable to handle autograd's threading in combination with fork-based multiprocessing" in done.stderr


# ---- training


@pytest.mark.parametrize("ranks, rows", [*((ranks, 96) for ranks in COUNTS), (4, 100), (3, 100), (8, 100)])
def test_training_is_that_of_one_process(lesson, on_ranks, alone, ranks, rows, monkeypatch):
    """Where the rows divide; otherwise the sampler repeats some."""
    monkeypatch.setitem(lesson, "dataset", lesson["dataset"][:rows])
    results = on_ranks(ranks, lesson["train"])
    each = -(-rows // ranks)
    assert all(sum(sizes) == each for sizes, _ in results)
    weights = [weights for _, weights in results]
    assert all(torch.equal(weights[0], others) for others in weights)
    apart = (weights[0] - alone(lesson["train_alone"])).abs().max()
    assert apart < 1e-5 if rows % ranks == 0 else apart > 1e-5


def test_what_the_lesson_says_of_two_and_three_ranks(lesson):
    assert [sizes for sizes, _ in lesson["two"]] == [[12, 12, 12, 12, 2]] * 2
    assert [sizes for sizes, _ in lesson["three"]] == [[8, 8, 8, 8, 2]] * 3


def test_ranks_that_cannot_share_the_batch_say_so(lesson, on_ranks):
    with pytest.raises(RuntimeError, match="24 rows cannot be shared equally by 5 ranks"):
        on_ranks(5, lesson["train"])


# ---- the sampler


def test_rows_of_each_rank():
    seen = run_cells(NAME, ["setup", "on-ranks", "figures", "sampler-rows", "set-epoch"])
    assert seen["rows_of_rank"] == [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]]
    assert seen["chunk_rows"] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    forgotten, called = seen["forgotten_orders"], seen["epoch_orders"]
    assert forgotten[0] == forgotten[1] == forgotten[2] == called[0]
    assert called[0] != called[1] != called[2] != called[0]


# ---- broadcasts


@pytest.mark.parametrize("ranks", COUNTS)
def test_rank_0_is_broadcast(lesson, on_ranks, ranks):
    expected = [(float(rank), 0.0, 10.0 * (rank + 1), 10.0) for rank in range(ranks)]
    assert on_ranks(ranks, lesson["watch_broadcasts"]) == expected


def test_what_is_not_broadcast(lesson, on_ranks):
    """After forward_sync_buffers=False, after broadcast_buffers=False, and by hand."""
    dist = lesson["dist"]

    def buffers(**options):
        layer = nn.BatchNorm1d(1).to(lesson["my_device"]())
        layer.running_mean.fill_(dist.get_rank())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = DistributedDataParallel(layer, **options)
        wrapped = layer.running_mean.item()
        layer.running_mean.fill_(dist.get_rank())
        with torch.no_grad():
            layer.weight.fill_(dist.get_rank())
        x = torch.ones(2, 1, device=layer.weight.device)
        model.eval()(x).sum().backward()
        deprecated = any("deprecated" in str(warning.message) for warning in caught)
        return wrapped, layer.running_mean.item(), layer.weight.item(), deprecated

    assert on_ranks(2, lambda: buffers()) == [(0, 0, 0, False), (0, 0, 1, False)]
    assert on_ranks(2, lambda: buffers(forward_sync_buffers=False)) == [(0, 0, 0, False), (0, 1, 1, False)]
    assert on_ranks(2, lambda: buffers(broadcast_buffers=False)) == [(0, 0, 0, True), (1, 1, 1, True)]


def test_sync_batch_norm_needs_a_gpu(lesson, on_ranks):
    def error():
        layer = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(1))
        try:
            layer(torch.ones(2, 1))
        except ValueError as error:
            return str(error)

    assert all("GPU" in said for said in on_ranks(2, error))


# ---- gradients


@pytest.mark.parametrize("ranks", COUNTS)
def test_weighted_gradients_are_those_of_the_whole_batch(lesson, on_ranks, alone, ranks):
    whole = alone(gradient, lesson["dataset"][:10])
    for weighted in (False, True):
        gradients = on_ranks(ranks, lesson["gradient"], 10, weighted)
        assert all(torch.equal(gradients[0], others) for others in gradients)
        apart = (gradients[0] - whole).abs().max()
        assert apart < 1e-5 if weighted or 10 % ranks == 0 else apart > 1e-2


@pytest.mark.parametrize("ranks", COUNTS)
def test_accumulated_gradients_are_those_of_the_whole_batch(lesson, on_ranks, alone, ranks):
    whole = alone(gradient, lesson["dataset"][:24])
    for k, hold_back, expected in ((1, False, 1), (3, False, 3), (3, True, 1)):
        results = on_ranks(ranks, lesson["accumulate"], k, hold_back)
        for gradients, sent in results:
            assert sent == expected
            assert (gradients[-1] - whole).abs().max() < 1e-5
    early = [[gradients[number] for gradients, _ in results] for number in range(2)]
    assert ranks == 1 or not any(torch.equal(*gradients[:2]) for gradients in early)


# ---- buckets


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_buckets(lesson, on_ranks, ranks):
    """Not with 8 ranks: a gigabyte of memory."""
    for (ready, sent), (ready_again, sent_again) in on_ranks(ranks, lesson["watch_buckets"]):
        assert ready == ready_again == list(reversed(range(32)))
        assert sent == [(32, 32)]
        assert sent_again == [(1, 1), (25, 26), (6, 32)]


@pytest.mark.parametrize("ranks", COUNTS)
def test_unused_parameters(lesson, on_ranks, ranks):
    for said, keys in on_ranks(ranks, lesson["two_steps"], False):
        assert said.startswith("Expected to have finished reduction in the prior iteration") and keys is None
    for said, keys in on_ranks(ranks, lesson["two_steps"], True):
        assert said == "2 steps done" and keys == ["module.used.weight", "module.used.bias"]


# ---- scripts


def script(cell):
    (source,) = [each.source for each in BOOK.page(NAME).code if each.id == cell]
    return re.search(r'write_text\(\s*"""(.*?)"""', source, re.DOTALL)[1]


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_the_script_trains_as_the_function_does(lesson, on_ranks, ranks, tmp_path, capsys):
    """Here nobody kills it, and no rank starts PyTorch anew. The lesson itself runs it with 2 processes of torchrun."""
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    assert kill in script("resume-script")
    (tmp_path / "train.py").write_text(script("resume-script").replace(kill, "pass"))

    def train():
        os.chdir(tmp_path)
        os.environ["TORCHELASTIC_RESTART_COUNT"] = "0"
        sys.argv = ["train.py", *(["--cpu"] if lesson["gpus"] < ranks else [])]
        dist.init_process_group = dist.destroy_process_group = lambda *arguments, **options: None  # there is one
        runpy.run_path("train.py", run_name="__main__")

    on_ranks(ranks, train)
    assert "saved 15 steps" in capsys.readouterr().out
    saved = torch.load(tmp_path / "checkpoint.pt", "cpu", weights_only=True)
    assert torch.equal(saved["model"]["weight"], on_ranks(ranks, lesson["train"])[0][1])


def test_two_machines_make_one_group(lesson):
    """The lesson's own workers only print what they are told; here they go on from that."""
    (cell,) = [each.source for each in BOOK.page(NAME).code if each.id == "machines-run"]
    more = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(rank) + 1])
dist.all_reduce(total)
sys.stdout.write(f"rank {rank}: sum {total.item():.0f}" + os.linesep)
dist.destroy_process_group()
"""
    cell = cell.replace('""",', more + '""",').replace("temporary_folder.cleanup()", "")
    assert cell.count(more) == 1
    lines = []
    exec(cell, {**lesson, "print": lines.append})
    assert [line for line in lines if "sum" in line] == [f"rank {rank}: sum 10" for rank in range(4)]


def test_a_killed_script_goes_on(run):
    said = printed(run, NAME, "resume-script").splitlines()
    assert said == [
        "life 0: begins at step 0",
        "life 0: saved 3 steps",
        "life 0: saved 6 steps",
        "life 0: rank 0 is killed at step 8",
        "life 1: begins at step 6",
        *(f"life 1: saved {steps} steps" for steps in (9, 12, 15)),
    ]
    assert "the uninterrupted training: True" in printed(run, NAME, "resume-compare")


def test_two_machines_meet(run):
    lines = printed(run, NAME, "machines-run").splitlines()
    assert lines == [
        f"rank {rank} of 4: machine {rank // 2} at 127.0.0.{rank // 2 + 1}, local rank {rank % 2}, MASTER_ADDR 127.0.0.1"
        for rank in range(4)
    ]


def test_the_script_fails_where_its_gpu_is_missing(monkeypatch):
    """A reader takes it home: it must not train on the CPU unasked."""
    monkeypatch.setattr("sys.argv", ["train.py"])
    monkeypatch.setenv("LOCAL_RANK", str(torch.cuda.device_count()))
    with pytest.raises((AttributeError, AssertionError, RuntimeError), match="(?i)cuda|nvidia"):
        exec(compile(script("resume-script"), "train.py", "exec"), {"__name__": "__main__"})
