"""What lesson 14 shows is so, for any number of ranks: shards, traffic, checkpoints, and each trap."""

import re
import sys
import types

import pytest
import torch

from tests.conftest import BOOK
from tests.reading import run_cells

LESSON = "en/14_sharding"
COUNTS = [1, 2, 3, 4, 8]
pytestmark = pytest.mark.filterwarnings("default")  # CommDebugMode's own hooks warn, in the ranks
FUNCTIONS = """setup on-ranks model build rows same inside traffic order mixed half clip checkpoint full hybrid offload
    trap-optimizer trap-one-group trap-method trap-tied trap-rows trap-seed""".split()


@pytest.fixture(scope="module")
def of():
    """The lesson's functions and what its cells leave."""
    return types.SimpleNamespace(**run_cells(LESSON, FUNCTIONS))


def test_rows_are_divided_by_the_rule_of_chunk(of):
    assert [rows["first.weight"] for rows in of.held] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [rows["last.bias"] for rows in of.held] == [[0], [1], []]


def test_the_gradient_is_that_of_one_process(of):
    assert list(of.same) == COUNTS
    assert max(of.same.values()) < 1e-6


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


def test_traffic(of):
    def count(way, wanted):
        forward, backward = of.traffic[way]
        return [name for name, size in forward + backward].count(wanted)

    counted = {way: (count(way, "all-gather"), count(way, "reduce-scatter")) for way in of.ways}
    assert counted == {
        "DDP": (0, 0),
        "FSDP2": (4 * 2 + 1, 4 + 1),
        "reshard_after_forward=2": (4 * 2 + 2, 4 + 1),
        "reshard_after_forward=False": (4 + 1, 4 + 1),
        "MixedPrecisionPolicy": (4 * 2 + 1, 4 + 1),
    }
    ratios = {way: sent / of.sent["DDP"] for way, sent in of.sent.items()}
    expected = [1, 1.5, 4 / 3, 1, 1]  # less what the root group spares, more what fills up uneven shards
    assert list(ratios.values()) == pytest.approx(expected, abs=0.02)
    model_bytes = 4 * sum(parameter.numel() for parameter in of.deep().parameters())
    assert of.sent["DDP"] == 2 * 3 / 4 * model_bytes


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_layer_costs_three_halves_of_ddp_whatever_the_number_of_ranks(of, ranks):
    forward, backward = of.on_ranks(ranks, of.traffic_of_a_step, {"reshard_after_forward": True})[0]
    layer = 4 * (64 * 64 + 64)
    of_a_layer = [size for name, size in forward + backward if size == layer * (ranks - 1) / ranks]
    assert len(of_a_layer) == 4 * 3


def test_prefetch_gathers_before_the_layer_computes(of):
    assert of.forward == "all-gather, all-gather, LAYER 0, all-gather, LAYER 1, all-gather, LAYER 2".split(", ")
    assert of.early == "all-gather, all-gather, all-gather, LAYER 0, all-gather, LAYER 1, LAYER 2".split(", ")
    assert of.backward.index("LAYER 2") == 2  # with the gather of layer 1 under way


def test_mixed_precision(of):
    dtypes = list(of.on_ranks(3, of.mixed)[0].values())
    assert dtypes == [torch.float32, torch.bfloat16, torch.bfloat16, torch.float32]


def test_bfloat16_weights_lose_small_steps(of):
    assert of.changed["bfloat16"] < 282 / 100 < 282 / 2 < of.changed["float32"]

    def without_gradient():
        model, optimizer = of.build()
        model(of.my_rows()[0]).sum().backward()
        return sum((parameter.grad.full_tensor() == 0).sum().item() for parameter in model.parameters())

    assert of.changed["float32"] + of.on_ranks(2, without_gradient)[0] == 282


@pytest.mark.parametrize("ranks", COUNTS)
def test_accumulation_and_clipping(of, ranks):
    kind, norm, clipped, calls, has_no_sync = of.on_ranks(ranks, of.accumulate_and_clip, 3)[0]
    assert kind == "DTensor" and not has_no_sync
    assert norm.item() == pytest.approx(of.one_norm.item(), rel=1e-5)
    assert of.largest_difference(clipped, of.one_clipped) < 1e-6
    assert calls.count("reduce-scatter") == (4 if ranks > 1 else 0)  # one rank alone has nothing to send


def test_shards_may_be_reduced_after_each_micro_batch_as_well(of):
    def accumulate():
        model, optimizer = of.build()
        for x, y in zip(*[tensor.tensor_split(2) for tensor in of.my_rows()]):
            of.share_of_loss(model, x, y).backward()
        return {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}

    assert of.largest_difference(of.on_ranks(3, accumulate)[0], of.gradient) < 1e-6


def test_a_checkpoint_of_four_ranks_is_loaded_by_any_number(of, tmp_path):
    assert of.resumed_difference < 1e-6
    assert of.files == [".metadata", *(f"__{rank}_0.distcp" for rank in range(4))]
    three = of.on_ranks(3, of.train_and_save, tmp_path)[0]
    for ranks in (1, 8):
        assert of.largest_difference(of.on_ranks(ranks, of.load_and_train, tmp_path)[0], three) < 1e-6


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


def test_a_whole_state_dict_is_on_rank_0_alone_if_offloaded(of):
    assert of.whole == {False: [282, 282], True: [282, 0]}


def test_hsdp(of):
    assert [rows for rows, calls, gradient in of.results] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    for ranks, hosts in [(4, 2), (8, 2)]:
        rows, calls, gradient = of.on_ranks(ranks, of.hybrid, hosts)[0]
        assert of.largest_difference(gradient, of.gradient) < 1e-6
        assert [calls.count(name) for name in ("all-gather", "reduce-scatter", "all-reduce")] == [7, 4, 4]


def test_pinned_offload_wants_an_accelerator(of):
    if not torch.accelerator.is_available():
        assert "accelerator" in of.on_ranks(2, of.offload, True)[0]
    assert of.on_ranks(2, of.offload, False)[1] == "weights on cpu, gradients on cpu"


def test_traps(of):
    assert (of.changed_early, of.kept_early, of.kept_after) == (False, 10, 0)
    assert (of.gathers, of.whole_at_once) == (1, 282)
    assert "mixed torch.Tensor and DTensor" in of.on_ranks(2, of.call_a_method, False)[0]
    assert of.on_ranks(3, of.call_a_method, True)[0] == "output (5, 8)"
    assert of.on_ranks(2, of.tied, [])[0].endswith("True")
    assert "shared with a parameter already managed" in of.on_ranks(2, of.tied, ["embedding"])[0]
    assert of.mean_difference > 1e-4
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


def test_a_sharded_model_cannot_be_copied(of):
    def copied():
        import copy

        model, optimizer = of.build()
        with pytest.raises(AssertionError, match="does not support deepcopy"):
            copy.deepcopy(model)

    of.on_ranks(2, copied)


@pytest.mark.parametrize("edition", ["en", "zh"])
def test_the_script_trains_saves_and_resumes(of, tmp_path, monkeypatch, edition):
    """Its text, on the CPU with Gloo: only the device, the backend and the group, which is there already, differ."""
    cell = next(cell for cell in BOOK.page(f"{edition}/14_sharding").cells if cell.id == "recipe")
    script = re.search(r"```python\n(# train.py.*?)```", cell.source, re.DOTALL)[1]
    order = ['device("meta")', "fully_shard(layer", "fully_shard(model", "to_empty", "AdamW", "load("]
    assert [script.index(words) for words in order[:5]] == sorted(script.index(words) for words in order[:5])
    for real, here in [
        ('torch.device("cuda", int(os.environ["LOCAL_RANK"]))', 'torch.device("cpu")'),
        ("torch.cuda.set_device(device)", "pass"),
        ('dist.init_process_group("nccl", device_id=device)', "pass"),
        ('init_device_mesh("cuda"', 'init_device_mesh("cpu"'),
        ("dist.destroy_process_group()", "pass"),
    ]:
        assert script.count(real) == 1
        script = script.replace(real, here)
    monkeypatch.chdir(tmp_path)

    class Classifier(of.Model):
        pass

    def batches(rank, ranks):
        generator = torch.Generator().manual_seed(rank)
        return [(torch.randn(4, 5, generator=generator), torch.randint(2, (4,), generator=generator)) for _ in range(2)]

    def train():
        sys.modules["my_model"] = types.SimpleNamespace(Model=Classifier, batches=batches)
        left = {}
        exec(compile(script, "train.py", "exec"), left)
        return [state["step"].item() for state in left["optimizer"].state.values()][0]

    assert of.on_ranks(2, train) == [2, 2]
    assert of.on_ranks(3, train) == [4, 4, 4]  # goes on from the checkpoint of two


def test_nothing_private_is_used(of):
    code = "\n".join(cell.source for cell in BOOK.page(LESSON).code if cell.id != "on-ranks")
    assert not re.search(r"(torch|distributed)\.(\w+\.)*_\w+ import|import torch\._", code)
    assert issubclass(of.Traffic, of.CommDebugMode) and hasattr(of.CommDebugMode, "__torch_dispatch__")


