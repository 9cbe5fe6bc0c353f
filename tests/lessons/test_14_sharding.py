"""What lesson 14 shows is so, for any number of ranks: shards, traffic, and each trap."""

import ast
import math
import re
import types

import pytest
import torch
from torch import nn

from tests.appended import kept
from tests.conftest import BOOK
from tests.reading import run_cells

LESSON = "en/14_sharding"
COUNTS = [1, 2, 3, 4, 8]
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
pytestmark = pytest.mark.filterwarnings("default")  # CommDebugMode's own hooks warn, in the ranks


@pytest.fixture(scope="module")
def left(run):
    return kept(run, LESSON)


@pytest.fixture(scope="module")
def of():
    """The lesson's functions and data, without its launches, and the gradient of one process."""
    found = run_cells(LESSON, ["setup", "on-ranks", "model", "build"])
    for cell in BOOK.page(LESSON).code:
        lines = [line for line in cell.source.splitlines() if not line.startswith("%")]
        for node in ast.parse("\n".join(lines)).body if cell.id != "on-ranks" else []:
            data = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("generator", "x_all", "y_all")
            if isinstance(node, DEFINITIONS) or data:
                exec(compile(ast.Module([node], []), f"{LESSON}:{cell.id}", "exec"), found)
    found["gradient"] = found["on_ranks"](1, found["in_one_process"])[0]
    return types.SimpleNamespace(**found)


def test_rows_are_divided_by_the_rule_of_chunk(left):
    assert [rows["first.weight"] for rows in left["held"]] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [rows["last.bias"] for rows in left["held"]] == [[0], [1], []]


def test_the_gradient_is_that_of_one_process(left):
    assert list(left["differences"]) == [str(ranks) for ranks in COUNTS]
    assert max(left["differences"].values()) < 1e-6


def test_each_rank_steps_as_one_process_does(of):
    alone = of.Model()
    alone.load_state_dict(of.first_weights(of.Model))
    for name, parameter in alone.named_parameters():
        parameter.grad = of.gradient[name]
    torch.optim.Adam(alone.parameters(), lr=0.01).step()
    expected = {name: parameter.detach() for name, parameter in alone.named_parameters()}

    def train():
        model, optimizer = of.build()
        of.share_of_loss(model, *of.my_rows()).backward()
        optimizer.step()
        state = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
        return of.whole_weights(model), sum(tensor.to_local().numel() for tensor in state)

    results = of.on_ranks(3, train)
    assert all(of.largest_difference(weights, expected) < 1e-6 for weights, stored in results)
    assert sum(stored for weights, stored in results) == 2 * 282  # Adam's state has the rows of the shards


def test_layers_are_whole_while_they_run_and_the_root_group_until_it_has_gone_back(of):
    moments = of.on_ranks(3, of.four_moments)[2]
    assert [types["layers.0.weight"] for types in moments.values()] == ["DTensor", "Parameter", "DTensor", "DTensor"]
    assert [types["first.weight"] for types in moments.values()] == ["DTensor", "Parameter", "Parameter", "DTensor"]


def test_traffic(left):
    def count(way, wanted):
        forward, backward = left["traffic"][way]
        return [name for name, size in forward + backward].count(wanted)

    counted = {way: (count(way, "all-gather"), count(way, "reduce-scatter")) for way in left["traffic"]}
    assert counted == {
        "DDP": (0, 0),
        "FSDP2": (4 * 2 + 1, 4 + 1),
        "reshard_after_forward=2": (4 * 2 + 2, 4 + 1),
        "reshard_after_forward=False": (4 + 1, 4 + 1),
        "MixedPrecisionPolicy": (4 * 2 + 1, 4 + 1),
    }
    ratios = [sent / left["sent"]["DDP"] for sent in left["sent"].values()]
    assert ratios == pytest.approx([1, 1.5, 4 / 3, 1, 1], abs=0.02)  # the root group and uneven shards make the rest
    assert left["sent"]["DDP"] == 2 * 3 / 4 * left["model_bytes"]


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_layer_costs_three_halves_of_ddp_whatever_the_number_of_ranks(of, ranks):
    forward, backward = of.on_ranks(ranks, of.traffic_of_a_step, {"reshard_after_forward": True})[0]
    layer = 4 * (64 * 64 + 64)
    of_a_layer = [size for name, size in forward + backward if size == layer * (ranks - 1) / ranks]
    assert len(of_a_layer) == 4 * 3


def test_prefetch_gathers_before_the_layer_computes(left):
    assert left["forward"] == "all-gather, all-gather, LAYER 0, all-gather, LAYER 1, all-gather, LAYER 2".split(", ")
    assert left["early"] == "all-gather, all-gather, all-gather, LAYER 0, all-gather, LAYER 1, LAYER 2".split(", ")
    assert left["backward"].index("LAYER 2") == 2  # with the gather of layer 1 under way


def test_mixed_precision(of):
    dtypes = list(of.on_ranks(3, of.mixed)[0].values())
    assert dtypes == [torch.float32, torch.bfloat16, torch.bfloat16, torch.float32]


@pytest.mark.parametrize(("options", "arrives"), [({}, 1000), ({"cast_forward_inputs": False}, 999)])
def test_a_policy_rounds_inputs(of, options, arrives):
    def first_input():
        policy = of.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, **options)
        model = of.fully_shard(nn.Identity(), mesh=of.all_ranks(), mp_policy=policy)
        return model(torch.tensor(999.0)).item()

    assert of.on_ranks(2, first_input) == [arrives] * 2


def test_bfloat16_weights_lose_small_steps(of, left):
    assert left["changed"]["bfloat16"] < 282 / 100 < 282 / 2 < left["changed"]["float32"]

    def without_gradient():
        model, optimizer = of.build()
        model(of.my_rows()[0]).sum().backward()
        return sum((parameter.grad.full_tensor() == 0).sum().item() for parameter in model.parameters())

    assert left["changed"]["float32"] + of.on_ranks(2, without_gradient)[0] == 282


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_accumulation_and_clipping(of, ranks):
    kind, norm, clipped, calls, has_no_sync = of.on_ranks(ranks, of.accumulate_and_clip, 3)[0]
    assert kind == "DTensor" and not has_no_sync
    one_norm = nn.utils.get_total_norm(of.gradient.values())
    assert norm.item() == pytest.approx(one_norm.item(), rel=1e-5)
    expected = {name: part * 0.1 / one_norm for name, part in of.gradient.items()}
    assert of.largest_difference(clipped, expected) < 1e-6
    assert calls.count("reduce-scatter") == (4 if ranks > 1 else 0)  # one rank alone has nothing to send


def test_zero_grad_does_not_clear_gradients_that_were_not_reduced(of):
    def after_zero_grad(end):
        model, optimizer = of.build()
        x, y = of.my_rows()
        model.set_requires_gradient_sync(False)
        of.share_of_loss(model, 3 * x, y).backward()
        model.set_requires_gradient_sync(True)
        if end:
            of.share_of_loss(model, x, y).backward()
        optimizer.zero_grad()
        of.share_of_loss(model, x, y).backward()
        return {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}

    for end in [False, True]:
        difference = of.largest_difference(of.on_ranks(2, after_zero_grad, end)[0], of.gradient)
        assert difference < 1e-6 if end else difference > 0.1


@pytest.mark.parametrize("norm", [2, math.inf])
def test_clipping_by_the_largest_entry_fails_where_a_shard_is_empty(of, norm):
    def clip():
        model, optimizer = of.build()
        of.share_of_loss(model, *of.my_rows()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type=norm)

    if norm == 2:
        of.on_ranks(3, clip)
    else:
        with pytest.raises(RuntimeError, match="infinity norm on an empty tensor"):
            of.on_ranks(3, clip)


def test_shards_may_be_reduced_after_each_micro_batch_as_well(of):
    def accumulate():
        model, optimizer = of.build()
        for x, y in zip(*[tensor.tensor_split(2) for tensor in of.my_rows()], strict=True):
            of.share_of_loss(model, x, y).backward()
        return {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}

    assert of.largest_difference(of.on_ranks(3, accumulate)[0], of.gradient) < 1e-6


def test_whole_weights_are_a_copy_on_one_rank_as_well(of):
    def changed():
        model, optimizer = of.build()
        before = of.whole_weights(model)
        of.share_of_loss(model, *of.my_rows()).backward()
        optimizer.step()
        return of.largest_difference(of.whole_weights(model), before)

    for ranks in [1, 2]:
        assert of.on_ranks(ranks, changed)[0] == pytest.approx(0.01, rel=0.01)


def test_hsdp(of):
    results = of.on_ranks(8, of.hybrid, 2)
    assert [rows for rows, calls, gradient in results] == [[0, 1], [2, 3], [4, 5], [6, 7]] * 2
    for _, calls, gradient in results:
        assert of.largest_difference(gradient, of.gradient) < 1e-6
        assert [calls.count(name) for name in ("all-gather", "reduce-scatter", "all-reduce")] == [7, 4, 4]


def test_pinned_offload_wants_an_accelerator(of):
    if not torch.accelerator.is_available():
        assert re.search("accelerator|NVIDIA", of.on_ranks(2, of.offload, True)[0])  # a build for CUDA misses a driver
    assert of.on_ranks(2, of.offload, False)[1] == "weights on cpu, gradients on cpu"


def test_traps(of, left):
    assert (left["changed_early"], left["kept_early"], left["kept_after"]) == (False, 10, 0)
    assert (left["gathers"], left["whole_at_once"]) == (1, 282)
    assert "mixed torch.Tensor and DTensor" in of.on_ranks(2, of.call_a_method, False)[0]
    assert of.on_ranks(3, of.call_a_method, True)[0] == "output (5, 8)"
    assert of.on_ranks(2, of.tied, [])[0].endswith("True")
    assert "shared with a parameter already managed" in of.on_ranks(2, of.tied, ["embedding"])[0]
    first, second = of.on_ranks(2, of.draw, lambda rank: 0)
    assert torch.equal(first, second)


def test_tied_weights_in_one_group_run(of):
    def together():
        model = of.Tied()
        of.fully_shard([model.embedding, model.head], mesh=of.all_ranks())
        of.fully_shard(model, mesh=of.all_ranks())
        model(torch.arange(4)).sum().backward()
        return model.head.weight is model.embedding.weight

    assert of.on_ranks(2, together) == [True, True]


@pytest.mark.parametrize("groups", [[], ["last", "other"]])
def test_heads_that_only_some_ranks_use(of, groups):
    """All in one group: their gradients are mixed; each with its own: even the outputs are wrong."""

    class TwoHeads(of.Model):
        def __init__(self):
            super().__init__()
            self.other = nn.Linear(8, 2)

        def forward(self, x, wanted, both=False):
            x = self.first(x)
            for layer in self.layers:
                x = torch.relu(layer(x))
            if not both:
                return [self.last, self.other][wanted](x)
            outputs = [self.last(x), self.other(x)]
            return outputs[wanted] + 0 * outputs[1 - wanted]

    inputs = torch.tensor([[[1.0] * 5] * 2, [[2.0] * 5] * 2])
    alone = TwoHeads()
    alone.load_state_dict(of.first_weights(TwoHeads))
    outputs = [alone(inputs[rank], rank).detach() for rank in range(2)]
    sum(alone(inputs[rank], rank).sum() / 2 for rank in range(2)).backward()
    expected = {name: parameter.grad for name, parameter in alone.named_parameters()}

    def train(repaired):
        model = TwoHeads()
        model.load_state_dict(of.first_weights(TwoHeads))
        for part in [*model.layers, *map(model.get_submodule, groups), model]:
            of.fully_shard(part, mesh=of.all_ranks())
        model.set_reduce_scatter_unused_params(repaired and not groups)
        rank = of.dist.get_rank()
        output = model(inputs[rank], rank, both=repaired and bool(groups))
        output.sum().backward()
        found = {
            name: torch.zeros(()) if parameter.grad is None else parameter.grad.full_tensor()
            for name, parameter in model.named_parameters()
        }
        return (output - outputs[rank]).abs().max().item(), of.largest_difference(found, expected)

    assert all(output > 0.1 if groups else output < 1e-6 for output, gradient in of.on_ranks(2, train, False))
    assert all(gradient > 0.1 for output, gradient in of.on_ranks(2, train, False))
    assert all(max(both) < 1e-6 for both in of.on_ranks(2, train, True))


def test_a_parameter_without_dimensions_cannot_be_sharded(of):
    def shard(scale):
        model = nn.Module()
        model.scale = nn.Parameter(scale)
        of.fully_shard(model, mesh=of.all_ranks())

    of.on_ranks(2, shard, torch.ones(1))
    with pytest.raises(RuntimeError, match="doesn't support scalar parameters"):
        of.on_ranks(2, shard, torch.tensor(1.0))


def test_a_sharded_model_cannot_be_copied(of):
    def copied():
        import copy

        model, optimizer = of.build()
        with pytest.raises(AssertionError, match="does not support deepcopy"):
            copy.deepcopy(model)

    of.on_ranks(2, copied)


def test_seeds_by_the_place_among_the_shards_leave_copies_equal(of):
    def draw(seed_by_rank):
        mesh = of.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        torch.manual_seed(of.dist.get_rank() if seed_by_rank else mesh.get_local_rank("shard"))
        layer = of.fully_shard(nn.Linear(8, 8, device="meta"), mesh=mesh)
        layer.to_empty(device="cpu")
        layer.reset_parameters()
        return layer.weight.to_local()

    for seed_by_rank in [False, True]:
        drawn = of.on_ranks(4, draw, seed_by_rank)
        assert not torch.equal(drawn[0], drawn[1])
        assert torch.equal(drawn[0], drawn[2]) != seed_by_rank


def test_nothing_private_is_used(of):
    code = "\n".join(cell.source for cell in BOOK.page(LESSON).code if cell.id != "on-ranks")
    assert not re.search(r"(torch|distributed)\.(\w+\.)*_\w+ import|import torch\._", code)
    assert issubclass(of.Traffic, of.CommDebugMode) and hasattr(of.CommDebugMode, "__torch_dispatch__")


class WithNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))])

    def forward(self, x):
        return self.layers[0](x)


def test_batchnorm_takes_autocast_and_no_policy(of):
    def forward(**options):
        model, _ = of.build(WithNorm, **options)
        with torch.autocast(of.my_device().type, torch.bfloat16, enabled=not options):
            return model(of.my_rows()[0]).dtype

    assert of.on_ranks(2, forward)[0] == torch.bfloat16
    policy = of.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with pytest.raises(RuntimeError, match="expected scalar type BFloat16 but found Float"):
        of.on_ranks(2, lambda: forward(mp_policy=policy))
