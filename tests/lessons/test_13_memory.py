"""What lesson 13 shows is so: bytes that are counted, rehearsed and calculated agree with one another.

The lesson's functions on ranks need one rank only; peak() is rehearsed here for 1, 2, 3, 4 and 8 GPUs.
"""

import copy
import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from tests.conftest import EDITIONS
from tests.reading import run_cells

KINDS = ["weights", "gradients", "optimizer", "activations", "temporary"]
CELLS = "setup on-ranks stack one-step activations peak course formula block scores real allocator saves seventy-rehearsed".split()


@pytest.fixture(scope="module")
def left():
    return run_cells("en/13_memory", [*CELLS, "course-plot"])


def test_bytes(left):
    assert left["weight_bytes"] == 4 * left["parameters"] == left["gradient_bytes"]
    assert left["state_bytes"] == 8 * left["parameters"] + 4 * 8  # eight step counters


def test_activations_are_five_tensors(left):
    assert left["activations"] == {rows: 5 * rows * 256 * 4 for rows in (32, 64)}


def test_the_fullest_moment_moves_with_the_rows(left):
    course, ends = left["courses"][32]
    totals = [sum(parts.values()) for parts in course]
    assert totals.index(max(totals)) >= ends[1]
    course, ends = left["courses"][1024]
    totals = [sum(parts.values()) for parts in course]
    fullest = totals.index(max(totals))
    assert ends[0] <= fullest < ends[1] and course[fullest]["gradients"] == 0


def test_the_formula_for_a_transformer(left):
    for (batch, length), counted in left["counted"][True].items():
        formula = 34 * length * batch * 64 + 5 * 4 * length**2 * batch
        assert counted == formula + 2 * 2 * 2 * batch * length  # mean and deviation of two LayerNorms
        assert left["counted"][False][batch, length] == 34 * length * batch * 64 + (8 + 4 * 4) * batch * length


def test_explicit_scores_compute_the_same(left):
    torch.manual_seed(0)
    block = left["Block"](64, 4).eval()
    x = torch.randn(2, 16, 64)
    without = block(x)
    block.scores = True
    assert torch.allclose(block(x), without, atol=1e-5)


def test_the_rehearsal_is_right_to_the_byte(left):
    assert left["real"] == sum(left["rehearsed"].values())


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_the_rehearsal_of_shards_is_right(left, precision):
    """FSDP2 with checkpointing, for real, on one rank of the CPU. (Several add what waits for Gloo.)"""

    def train():
        torch._C._set_mkldnn_enabled(False)  # on processors that know bfloat16, oneDNN takes memory to work in
        model = small_gpt(left, 3)()
        for block in left["blocks"](model):
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
        policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=precision and torch.float32)
        mesh = dist.init_device_mesh("cpu", (1,))
        for part in [*left["blocks"](model), model]:
            fully_shard(part, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.Adam(model.parameters(), foreach=True)
        for _ in range(2):
            with profile(profile_memory=True) as noted:
                model(*tokens).backward()
                optimizer.step()
                optimizer.zero_grad()
        state = [tensor for state in optimizer.state.values() for tensor in state.values()]
        now = most = sum(storage.nbytes() for storage in left["storages"]([*tokens, *model.parameters(), *state]))
        for event in sorted(noted.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
            if event.name() == "[memory]":
                now += event.nbytes()
                most = max(most, now)
        return most

    tokens = [torch.zeros(4, 64, dtype=torch.int64)]
    rehearsed = left["peak"](small_gpt(left, 3), tokens, 1, "FSDP2", checkpoint=True, precision=precision)
    assert left["on_ranks"](1, train)[0] == pytest.approx(sum(rehearsed.values()), rel=1e-4)


@pytest.mark.parametrize("rows", [32, 2048])
def test_as_pytorch_tracks_it(left, rows):
    def model():
        return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)])

    batch = torch.randn(rows, 64)
    with FakeTensorMode() as fake:
        network, x = model(), fake.from_tensor(batch)
        optimizer = torch.optim.Adam(network.parameters(), foreach=True)
        tracker = MemTracker()
        tracker.track_external(network, optimizer, x)
        with tracker:
            for _ in range(2):
                network(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                tracker.reset_mod_stats()
    tracked = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    assert sum(left["peak"](model, [batch], 1, "one").values()) == tracked


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("how", ["DataParallel", "DDP", "FSDP2"])
def test_on_any_number_of_gpus(left, how, gpus):
    def model():
        return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))

    parts = left["peak"](model, [torch.zeros(8, 64)], gpus, how)
    assert list(parts) == KINDS and min(parts.values()) >= 0
    assert not dist.is_initialized()
    whole = 4 * 2 * (64 * 64 + 64)
    shards = -(-whole // gpus) if how == "FSDP2" else whole
    assert shards <= parts["weights"] <= 1.05 * shards  # rows that cannot be divided leave rank 0 one more


def small_gpt(left, layers):
    return lambda: left["GPT"](layers, 64, 4, vocabulary=100)


def test_a_further_layer_adds_its_shards(left):
    def rehearse(layers):
        tokens = [torch.zeros(4, 32, dtype=torch.int64)]
        options = {"checkpoint": True, "precision": torch.bfloat16}
        return left["peak"](small_gpt(left, layers), tokens, 4, "FSDP2", **options)

    three, four = rehearse(3), rehearse(4)
    added = sum(parameter.numel() for parameter in left["Block"](64, 4).parameters())
    assert four["temporary"] == pytest.approx(three["temporary"], rel=0.05)
    assert sum(four.values()) - sum(three.values()) == pytest.approx(16 * added / 4, rel=0.2)


def test_checkpointing_and_precision_save(left):
    tokens = [torch.zeros(8, 128, dtype=torch.int64)]
    plain = left["rehearsed"]
    for options in [{"checkpoint": True}, {"precision": torch.bfloat16}]:
        assert left["peak"](left["small"], tokens, 1, "one", **options)["activations"] < plain["activations"]


def test_any_model(left):
    def half_frozen():
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)).to(torch.bfloat16)
        model[0].requires_grad_(False)
        model[2].weight = model[0].weight
        return model

    rows = [torch.randn(6, 8, dtype=torch.bfloat16)]
    for how, gpus in [("one", 1), ("DataParallel", 2), ("DDP", 2)]:
        parts = left["peak"](half_frozen, rows, gpus, how)
        assert parts["weights"] == 2 * (64 + 8 + 8 + 16 + 16) + 8  # the shared weight once; the count of batches
    with pytest.raises(ValueError, match="how"):
        left["peak"](half_frozen, rows, 2, "FSDP1")
    with pytest.raises(ValueError, match="1 GPU"):
        left["peak"](half_frozen, rows, 2, "one")


def test_what_saves(left):
    scores, plain, bfloat16, fewer, checkpointed = left["saves"].values()
    assert scores > plain > bfloat16 > fewer > checkpointed
    assert fewer == plain / 4
    assert checkpointed == 4 * 8 * 64 * 64 * 4  # the input of each of four blocks


class Noting(TorchDispatchMode):
    """Notes the operators that are computed."""

    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.operators.append(operator)
        return operator(*args, **(kwargs or {}))


def test_selective_checkpointing_computes_no_product_again_and_changes_no_gradient(left):
    """With the arguments that the text names."""
    operators = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
    selective = functools.partial(create_selective_checkpoint_contexts, operators)
    torch.manual_seed(0)
    blocks, x = torch.nn.Sequential(*[left["Block"](64, 4, False) for _ in range(4)]), torch.randn(8, 64, 64)
    again, gradients = [], []
    for options in ({}, {"context_fn": selective}):
        model = copy.deepcopy(blocks)
        for block in model:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, **options)
        torch.manual_seed(1)  # for dropout
        loss = model(x).square().mean()
        with Noting() as noted:
            loss.backward()
        again.append(noted.operators.count(torch.ops.aten.addmm.default))
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert again == [4 * 4, 0], "four layers in each of four blocks"
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize("edition", EDITIONS)
def test_a_row_is_never_cut(edition):
    """With 1 row on 8 GPUs, the one that gets it keeps all its activations; with 9, one keeps those of 2."""
    gigabytes = run_cells(f"{edition}/13_memory", ["setup", "yours"])["gigabytes"]

    def needed(how, rows):
        return gigabytes(how, 8, 8.03, 16, 4, 32, 4096, rows, 4096)

    assert needed("FSDP2", 1) == pytest.approx(16.06 + 3.01 + 18.25, abs=0.01)
    for how in ("DataParallel", "DDP", "FSDP2", "offload"):
        assert needed(how, 1) == needed(how, 8) < needed(how, 9) == needed(how, 16)
    assert needed("one", 1) < needed("one", 2)


@pytest.mark.parametrize("edition", EDITIONS)
def test_ddp_and_data_parallel_have_the_gradients_twice(edition):
    """Lessons 13 and 16 give the same bytes for the same model, if the activations take more than the step."""
    gigabytes = run_cells(f"{edition}/13_memory", ["setup", "yours"])["gigabytes"]
    pick = run_cells(f"{edition}/17_choose", ["choose"])["pick"]
    alone = gigabytes("one", 8, 8.03, 16, 4, 32, 4096, 1, 16384)
    tool, each = pick(
        dict(weights=8.03 * 4, gradients=8.03 * 4, optimizer=8.03 * 8, activations=alone - 8.03 * 16, temporary=0),
        memory=1000,
        gpus=8,
    )
    assert tool == "DDP" and each == pytest.approx(alone + 4 * 8.03)
    for how in ("DataParallel", "DDP"):
        assert gigabytes(how, 8, 8.03, 16, 4, 32, 4096, 8, 16384) == pytest.approx(each)


@pytest.mark.parametrize("how, gpus, each", [("one", 1, 20), ("DataParallel", 4, 20), ("DDP", 4, 24), ("FSDP2", 4, 5)])
def test_with_few_activations_the_step_decides(left, how, gpus, each):
    """The formula and the rehearsal, of a model with 40 layers and hardly a row."""
    gigabytes = run_cells("en/13_memory", ["setup", "yours"])["gigabytes"]
    billions = 40 * 256 * 257 / 1e9
    assert gigabytes(how, gpus, billions, 16, 4, 40, 256, gpus, 0) == pytest.approx(each * billions)

    def model():
        return nn.Sequential(*[nn.Linear(256, 256) for _ in range(40)])

    rehearsed = sum(left["peak"](model, [torch.zeros(gpus, 256)], gpus, how).values()) / 1e9
    assert rehearsed == pytest.approx(each * billions, rel=0.05)


def test_70_billion(left):
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in left["GPT"](86, 8192, 64).parameters())
    assert 69e9 < parameters < 71e9
    assert sum(left["three"].values()) + left["others"] < 80e9


@pytest.mark.parametrize("scores", [False, True])
def test_in_evaluation_a_block_drops_nothing(scores):
    block = run_cells("en/13_memory", ["setup", "block"])["Block"](64, 4, scores)
    x = torch.randn(2, 8, 64)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))


def test_checkpointing_counts_a_batch_twice_in_batchnorm():
    block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    checkpoint(block, torch.randn(8, 4), use_reentrant=False).sum().backward()
    assert block[1].num_batches_tracked == 2
