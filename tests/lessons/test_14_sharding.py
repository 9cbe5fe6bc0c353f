"""What lesson 14 shows is so, for any number of ranks: shards, traffic, checkpoints, and each trap."""

import ast
import math
import re
import runpy
import sys
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
        of.step(model, optimizer)
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


def test_a_checkpoint_of_four_ranks_is_loaded_by_any_number(of, left, tmp_path):
    assert left["resumed_difference"] < 1e-6
    assert left["files"] == [".metadata", *(f"__{rank}_0.distcp" for rank in range(4))]
    three = of.on_ranks(3, of.train_and_save, tmp_path)[0]
    assert of.largest_difference(of.on_ranks(1, of.load_and_train, tmp_path)[0], three) < 1e-6


def test_get_state_dict_before_the_first_step_is_a_step_to_adam(of):
    def steps():
        model, optimizer = of.build()
        before = of.whole_weights(model)
        of.get_state_dict(model, optimizer)
        changed = of.largest_difference(of.whole_weights(model), before)
        of.step(model, optimizer)
        return changed, {state["step"].item() for state in optimizer.state.values()}

    assert of.on_ranks(2, steps) == [(0, {2})] * 2


@pytest.mark.parametrize("gradients, loaded", [(False, 10), (True, 0)])
def test_gradients_before_get_state_dict_cost_the_optimizer_its_state(of, tmp_path, gradients, loaded):
    """Where there are some, it takes no step, and so has no state to load into; nothing says so."""

    def load():
        model, optimizer = of.build()
        if gradients:
            of.share_of_loss(model, *of.my_rows()).backward()
        model_state, optimizer_state = of.get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        of.dcp.load(state, checkpoint_id=tmp_path)
        of.set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return len(optimizer.state)

    of.on_ranks(2, of.train_and_save, tmp_path)
    assert of.on_ranks(2, load) == [loaded] * 2


@pytest.mark.parametrize("whole", [True, False])
def test_only_whole_weights_cannot_be_loaded_while_the_root_group_is_whole(of, whole):
    def load():
        model, _ = of.build()
        options = of.StateDictOptions(full_state_dict=whole)
        weights = of.get_model_state_dict(model, options=options)
        with torch.no_grad():
            model(torch.randn(4, 5))
        of.set_model_state_dict(model, weights, options=options)

    if whole:
        with pytest.raises(RuntimeError, match="mixed torch.Tensor and DTensor"):
            of.on_ranks(2, load)
    else:
        of.on_ranks(2, load)


def test_async_save_writes_the_same(of, tmp_path):
    def save():
        model, optimizer = of.build()
        of.step(model, optimizer)
        model_state, optimizer_state = of.get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        future = of.dcp.async_save(state, checkpoint_id=tmp_path, process_group=of.dist.new_group(backend="gloo"))
        of.step(model, optimizer)  # while it writes
        future.result()
        return of.whole_weights(model)

    two = of.on_ranks(2, save)[0]
    assert of.largest_difference(of.on_ranks(2, of.load_and_train, tmp_path)[0], two) < 1e-6
    # without result() before the group's end, what is written may be one rank's: each has to have its file
    assert sorted(path.name for path in tmp_path.iterdir()) == [".metadata", "__0_0.distcp", "__1_0.distcp"]


def test_one_key_holds_the_state_of_one_rank(of, tmp_path):
    def own_state_comes_back(key):
        rank = of.dist.get_rank()
        torch.manual_seed(rank)
        key, state = key.format(rank), torch.get_rng_state()
        of.dcp.save({key: state}, checkpoint_id=tmp_path / key[:3])
        loaded = {key: torch.zeros_like(state)}
        of.dcp.load(loaded, checkpoint_id=tmp_path / key[:3])
        return torch.equal(loaded[key], state)

    assert of.on_ranks(3, own_state_comes_back, "one") == [True, False, False]
    assert of.on_ranks(3, own_state_comes_back, "rng-{}") == [True] * 3


def test_whole_weights_are_a_copy_on_one_rank_as_well(of):
    def changed():
        model, optimizer = of.build()
        before = of.whole_weights(model)
        of.step(model, optimizer)
        return of.largest_difference(of.whole_weights(model), before)

    for ranks in [1, 2]:
        assert of.on_ranks(ranks, changed)[0] == pytest.approx(0.01, rel=0.01)


def test_a_whole_state_dict_is_on_rank_0_alone_if_offloaded(left):
    assert left["whole"] == {"false": [282, 282], "true": [282, 0]}


def test_hsdp(of):
    results = of.on_ranks(8, of.hybrid, 2)
    assert [rows for rows, calls, gradient in results] == [[0, 1], [2, 3], [4, 5], [6, 7]] * 2
    for _, calls, gradient in results:
        assert of.largest_difference(gradient, of.gradient) < 1e-6
        assert [calls.count(name) for name in ("all-gather", "reduce-scatter", "all-reduce")] == [7, 4, 4]


def test_pinned_offload_wants_an_accelerator(of):
    if not torch.accelerator.is_available():
        assert "accelerator" in of.on_ranks(2, of.offload, True)[0]
    assert of.on_ranks(2, of.offload, False)[1] == "weights on cpu, gradients on cpu"


def test_traps(of, left):
    assert (left["changed_early"], left["kept_early"], left["kept_after"]) == (False, 10, 0)
    assert (left["gathers"], left["whole_at_once"]) == (1, 282)
    assert "mixed torch.Tensor and DTensor" in of.on_ranks(2, of.call_a_method, False)[0]
    assert of.on_ranks(3, of.call_a_method, True)[0] == "output (5, 8)"
    assert of.on_ranks(2, of.tied, [])[0].endswith("True")
    assert "shared with a parameter already managed" in of.on_ranks(2, of.tied, ["embedding"])[0]
    assert left["mean_difference"] > 1e-4
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


def recipe():
    return next(cell.source for cell in BOOK.page("en/14_sharding").cells if cell.id == "recipe")


def script():
    return re.search(r"```python\n(# train.py.*?)```", recipe(), re.DOTALL)[1]


@pytest.fixture
def started(of, tmp_path, monkeypatch):
    """Starts the script's text on the CPU with Gloo: only the device, the backend and the group, which is there, differ."""
    monkeypatch.chdir(tmp_path)

    def start(model=of.Model, changes=(), after=lambda left: left["steps"], ranks=2, **others):
        text = script()
        for real, here in [
            ('torch.device("cuda", int(os.environ["LOCAL_RANK"]))', 'torch.device("cpu")'),
            ("torch.cuda.set_device(device)", "pass"),
            ('dist.init_process_group("nccl", device_id=device)', "pass"),
            ('init_device_mesh("cuda"', 'init_device_mesh("cpu"'),
            ("dist.destroy_process_group()", "pass"),
            ("steps % 100", "steps % 2"),
            *changes,
        ]:
            assert text.count(real) == 1, real
            text = text.replace(real, here)

        def batches(rank, ranks, done):
            rows = torch.Generator().manual_seed(rank)
            for step in range(5):
                x, y = torch.randn(4, 5, generator=rows), torch.randint(2, (4,), generator=rows)
                if step >= done:
                    yield x, y

        def train():
            sys.modules["my_model"] = types.SimpleNamespace(Model=model, batches=batches, **others)
            left = {}
            exec(compile(text, "train.py", "exec"), left)
            return after(left)

        return of.on_ranks(ranks, train)

    return start


def test_the_script_trains_saves_and_resumes(started, tmp_path):
    text = script()
    order = ['device("meta")', "fully_shard(layer", "fully_shard(model", "to_empty", "torch.nan", "AdamW", "load(f"]
    assert [text.index(words) for words in order] == sorted(text.index(words) for words in order)

    def steps_of_adam(left):
        return left["steps"], [state["step"].item() for state in left["optimizer"].state.values()][0]

    assert started(after=steps_of_adam) == [(5, 5)] * 2
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-4", "checkpoint-5"]
    for incomplete in ["checkpoint-4", "checkpoint-5"]:  # killed while they were written
        (tmp_path / incomplete / ".metadata").unlink()
    assert started(after=steps_of_adam, ranks=3) == [(5, 5)] * 3  # goes on from step 2 of two ranks
    written = (tmp_path / "checkpoint-5" / ".metadata").stat().st_mtime_ns
    assert started(after=steps_of_adam) == [(5, 5)] * 2  # nothing left to do, nothing written again
    assert (tmp_path / "checkpoint-5" / ".metadata").stat().st_mtime_ns == written


def test_the_script_names_a_weight_that_nothing_draws(of, started):
    class Bare(of.Model):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.empty(2))

    with pytest.raises(RuntimeError, match="AssertionError: scale has no initial value"):
        started(Bare)


def test_what_the_script_keeps_of_the_values_that_a_module_sets(of, started):
    class Own(of.Model):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(8, 4, padding_idx=3)
            nn.init.zeros_(self.last.bias)  # lost

        def reset_parameters(self):  # has the last word
            nn.init.zeros_(self.last.weight)

    cure = re.search(r"`(weight\.copy_\(.*?\))`, where `row` is `(.*?)`", recipe())
    patch = f"""
def look():
    return {{name: parameter.full_tensor().detach().clone() for name, parameter in model.named_parameters()}}


drawn = look()
weight, padding_idx = model.words.weight, model.words.padding_idx
row = {cure[2]}
with torch.no_grad():
    {cure[1]}
cured = look()["words.weight"]
torch.manual_seed(1 +"""
    drawn, cured = started(
        Own, [("\ntorch.manual_seed(1 +", patch)], after=lambda left: (left["drawn"], left["cured"]), ranks=3
    )[0]
    assert not drawn["last.weight"].any() and drawn["last.bias"].any()
    assert drawn["words.weight"].any(1).all()
    assert cured.any(1).tolist() == [row != 3 for row in range(8)]


def test_the_script_cannot_load_the_state_of_a_parameter_that_the_loss_never_reaches(of, started):
    class Spare(of.Model):
        def __init__(self):
            super().__init__()
            self.spare = nn.Linear(2, 2)

    assert started(Spare) == [5, 5]
    with pytest.raises(RuntimeError, match="Missing key in checkpoint state_dict: optimizer.state.spare"):
        started(Spare)


def test_the_script_loads_a_checkpoint_with_a_frozen_parameter(of, started, tmp_path):
    class Frozen(of.Model):
        def __init__(self):
            super().__init__()
            self.spare = nn.Linear(2, 2).requires_grad_(False)

    assert started(Frozen) == [5, 5]
    written = (tmp_path / "checkpoint-5" / ".metadata").stat().st_mtime_ns
    assert started(Frozen) == [5, 5]  # nothing left to do, nothing written again
    assert (tmp_path / "checkpoint-5" / ".metadata").stat().st_mtime_ns == written


def test_the_script_has_other_dropout_on_each_rank(started):
    first, second = started(after=lambda left: torch.rand(3))
    assert not torch.equal(first, second)


def test_the_script_runs_as_hsdp(started):
    mesh = re.search(r'`init_device_mesh\("cuda", \(4, 8\), (.*?)\)`', recipe())[1]
    change = ('init_device_mesh("cpu", (dist.get_world_size(),))', f'init_device_mesh("cpu", (2, 2), {mesh})')
    assert started(changes=[change], ranks=4) == [5] * 4


def test_the_script_runs_with_lora(of, started):
    class Adapted(of.Model):
        def __init__(self):
            super().__init__()
            self.lora = nn.Linear(5, 2)

        def forward(self, x):
            return super().forward(x) + self.lora(x)

    freeze = """
for name, parameter in model.named_parameters():
    if "lora" not in name:
        parameter.requires_grad_(False)
        parameter.data = parameter.data.bfloat16()
for layer in model.layers:"""
    load = """
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
weights = file() if dist.get_rank() == 0 else {}
options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
for parameter in model.parameters():
    if not parameter.requires_grad:
        nn.init.constant_(parameter, torch.nan)
set_model_state_dict(model, weights, options=options)
for name, parameter in model.named_parameters():
    assert not parameter.to_local().isnan().any(), name
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad]"""

    def file():
        return {name: weight.bfloat16() for name, weight in of.first_weights(of.Model).items()}

    def kept(left):
        return {name: parameter.full_tensor() for name, parameter in left["model"].named_parameters()}

    changes = [
        ("\nfor layer in model.layers:", freeze),
        ("\noptimizer = torch.optim.AdamW(model.parameters()", load),
        ("from torch import nn", "from torch import nn\nfrom my_model import file"),
    ]
    weights = started(Adapted, changes, after=kept, file=file)[1]
    assert all(torch.equal(weights[name], weight) for name, weight in file().items())
    assert weights["lora.weight"].dtype == torch.float32 and weights["first.weight"].dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match=r"AssertionError: first\.weight"):  # names that do not fit
        started(Adapted, changes, file=lambda: {f"base.{name}": weight for name, weight in file().items()})


def test_the_script_runs_with_offload(started):
    policy = "mp_policy=policy, offload_policy=CPUOffloadPolicy(pin_memory=False)"  # pinning needs a GPU
    changes = [
        ("(layer, mesh=mesh, mp_policy=policy", f"(layer, mesh=mesh, {policy}"),
        ("(model, mesh=mesh, mp_policy=policy", f"(model, mesh=mesh, {policy}"),
        ("import MixedPrecisionPolicy", "import CPUOffloadPolicy, MixedPrecisionPolicy"),
        ("to_empty(device=device)", 'to_empty(device="cpu")'),
    ]
    assert started(changes=changes) == [5, 5]


def test_evaluation_counts_each_row_once_on_any_number_of_ranks(of):
    alone = of.Model()
    alone.load_state_dict(of.first_weights(of.Model))
    generator = torch.Generator().manual_seed(2)
    data = [
        (torch.randn(rows, 5, generator=generator), torch.randn(rows, 2, generator=generator), size)
        for rows, size in [(1, 4), (13, 4), (50, 12)]
    ]
    right = [(alone(x).argmax(1) == y.argmax(1)).sum().item() for x, y, size in data]

    def evaluate_all():
        model, optimizer = of.build()
        return [of.evaluate(model, x, y, size) for x, y, size in data]

    for ranks in COUNTS:
        calls = [math.ceil(len(x) / (ranks * size)) for x, y, size in data]
        assert of.on_ranks(ranks, evaluate_all, seconds=20) == [list(zip(calls, right, strict=True))] * ranks


def test_evaluation_leaves_the_model_divided_and_in_its_modes(of):
    def evaluate():
        model, optimizer = of.build(reshard_after_forward=False)
        model.layers[1].eval()
        of.evaluate(model, torch.randn(13, 5), torch.randn(13, 2), 4)
        kinds = {type(weight).__name__ for weight in model.parameters()}
        return kinds, [layer.training for layer in model.layers]

    # under no_grad every group stays whole, and the next call would use its old weights
    assert of.on_ranks(2, evaluate) == [({"DTensor"}, [True, False, True])] * 2


def test_evaluation_calls_train_of_modules_that_override_it(of):
    class Merged(nn.Linear):  # as LoRA layers do: merged in evaluation
        merged = False

        def train(self, mode=True):
            self.merged = not mode
            return super().train(mode)

    class Adapted(of.Model):
        def __init__(self):
            super().__init__()
            self.last = Merged(8, 2)

    def evaluate():
        model, optimizer = of.build(Adapted)
        of.evaluate(model, torch.randn(13, 5), torch.randn(13, 2), 4)
        return model.last.merged

    assert of.on_ranks(2, evaluate) == [False] * 2


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


def test_a_file_is_converted_once_and_read_in_shards(of, tmp_path, monkeypatch):
    weights = of.first_weights(of.Model)
    torch.save(weights, tmp_path / "model.pt")
    module = "torch.distributed.checkpoint.format_utils"
    command = [module, "torch_to_dcp", str(tmp_path / "model.pt"), str(tmp_path / "folder")]
    monkeypatch.setattr(sys, "argv", command)

    def convert():  # as `python -m` does, without another start of PyTorch
        runpy.run_module(module, run_name="__main__", alter_sys=False)

    of.on_ranks(1, convert)

    def read():
        model, optimizer = of.build()
        for parameter in model.parameters():
            nn.init.constant_(parameter, torch.nan)
        state = of.get_model_state_dict(model)
        of.dcp.load(state, checkpoint_id=tmp_path / "folder")
        of.set_model_state_dict(model, state)
        return of.whole_weights(model)

    assert of.largest_difference(of.on_ranks(3, read)[0], weights) == 0


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
