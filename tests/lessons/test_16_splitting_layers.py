"""Lesson 16: every recipe on 1, 2, 3, 4 and 8 ranks, compared with one process, and what its prose says.

What cannot run: heads or widths that the ranks do not divide (8 heads, 20 columns on 3 ranks); 1F1B with fewer
micro-batches than stages; interleaved 1F1B where the micro-batches are no multiple of its rounds (m // ranks);
a mesh whose tensor degree does not divide the ranks.
"""

import warnings
from fractions import Fraction

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble
from torch.distributed.tensor import Replicate
from torch.nn.parallel import DistributedDataParallel

from tests.conftest import BOOK
from tests.reading import TORCH, judged, run_cells

CELLS = (
    "setup on-ranks two-matmuls run-cut mlp-run block sequence-plan halves run-pipeline timetable "
    "bubble-functions two-dimensions sent exercise-1 exercise-1-check exercise-3 exercise-3-check"
).split()


TENSOR_DEGREES = {1: 1, 2: 2, 3: 1, 4: 2, 8: 4}  # of how many ranks


@pytest.fixture(scope="module")
def lesson():
    return run_cells("en/16_splitting_layers", CELLS)


@pytest.fixture(scope="module", params=[1, 2, 3, 4, 8])
def everything(request, lesson):
    """All recipes on so many ranks, in one launch: the number, and recipe -> the ranks' results."""
    names = "two_matmuls run_mlp run_block plan sequence_plan run_pipeline schedules"
    matmuls, mlp, block, plan, sequence_plan, pipeline, schedules = map(lesson.get, names.split())
    ranks = request.param

    def run():
        return {
            "matmuls": matmuls(),
            "mlp": mlp()[1],
            "block": block(plan),
            "sequence": block(sequence_plan, True),
            "mesh": lesson["run_mesh"](TENSOR_DEGREES[ranks]),
            **{name: pipeline(kind, 8, parts) for name, kind, parts in schedules},
            "one piece": pipeline(schedules[0][1], 1),
        }

    results = lesson["on_ranks"](ranks, run, seconds=300)
    return ranks, {name: [result[name] for result in results] for name in results[0]}


def test_cut_layers_equal_whole_ones(lesson, everything):
    ranks, found = everything
    assert all(torch.allclose(total, lesson["whole"], atol=1e-5) for total in found["matmuls"])
    assert found["mlp"] == found["block"] == found["sequence"] == [True] * ranks


def test_meshes_equal_one_process(everything):
    ranks, found = everything
    for rank, (tensor, data, shape, same) in enumerate(found["mesh"]):
        assert same and set(tensor) & set(data) == {rank} and len(tensor) * len(data) == ranks
        assert shape == (32 // ranks + (ranks == 3 and rank < 2), 8)  # on 3: 11, 11 and 10 rows
        assert tensor == list(range(tensor[0], tensor[0] + len(tensor)))  # neighbours: one machine


def test_pipelines_equal_one_process_and_the_formula(lesson, everything):
    ranks, found = everything
    [expected] = lesson["on_ranks"](1, lesson["whole_model"], 2 * ranks)
    for name, micro_batches, parts in [*((n, 8, v) for n, _, v in lesson["schedules"]), ("one piece", 1, 1)]:
        orders = [order for order, _ in found[name]]
        by_stage = sorted((entry for _, entries in found[name] for entry in entries), key=lambda entry: entry[0])
        assert lesson["close"]([gradient for _, part in by_stage for gradient in part], expected)
        for order in orders:
            assert len(order) == len(set(order)) == 2 * micro_batches * parts
        formula = Fraction(ranks - 1, parts * micro_batches + ranks - 1)
        assert [lesson["bubble"](orders, {"F": 1, "B": length}) for length in (1, 2)] == [formula] * 2
        held = [lesson["most_held"](order) for order in orders]
        if name == "GPipe":
            assert held == [8] * ranks
        if name == "1F1B":
            assert held == [ranks - stage for stage in range(ranks)]
        if name == "interleaved 1F1B" and ranks == 4:
            assert held == [11, 9, 7, 5]  # halves: more than 1F1B, less than GPipe


def test_exercise_2(lesson):
    """24 rows in place of 16, so that 6 micro-batches are equal."""
    rows = lesson["make_rows"]
    lesson["make_rows"] = lambda: [torch.cat([part, part[:8]]) for part in rows()]
    orders = [
        order for order, _ in lesson["on_ranks"](4, lesson["run_pipeline"], lesson["ScheduleInterleaved1F1B"], 6, 2)
    ]
    lesson["make_rows"] = rows
    assert lesson["bubble"](orders, {"F": 1, "B": 1}) == Fraction(1, 5)


def test_two_halves(lesson):
    assert lesson["close"](lesson["found"], lesson["on_ranks"](1, lesson["whole_model"], 8)[0])


def test_what_the_ranks_send(lesson, capsys):
    def run():
        lesson["run_block"](lesson["plan"])
        lesson["run_block"](lesson["sequence_plan"], True)
        gated = {name: lesson[kind]() for name, kind in GATED.items()}
        traffic, _ = lesson["run_cut"](lesson["GatedMLP"](8), gated, torch.randn(3, 8))
        if lesson["dist"].get_rank() == 0:
            print(traffic)

    lesson["on_ranks"](2, run)
    lines = [line.partition("forward:") for line in capsys.readouterr().out.splitlines()]
    both = "all_gather_into_tensor × 2 and reduce_scatter_tensor × 2"
    assert [sent for before, found, sent in lines if found] == [
        " all_reduce × 2; backward: all_reduce × 2",
        f" {both}; backward: {both}",
        " all_reduce × 1; backward: all_reduce × 2",  # solution 1
    ]


GATED = {"gate": "ColwiseParallel", "up": "ColwiseParallel", "down": "RowwiseParallel"}


def test_where_cutting_a_layer_breaks(lesson):
    def run():
        mesh = lesson["init_device_mesh"]("cpu", (lesson["dist"].get_world_size(),))
        block = lesson["Block"](96, 8)
        early = {id(parameter) for parameter in block.parameters()}
        lesson["parallelize_module"](block, mesh, lesson["plan"])
        tokens = torch.randn(1, 6, 96)
        with pytest.raises(RuntimeError, match="don't multiply up"):
            block(tokens)  # 8 heads on 3 ranks
        assert id(block.qkv.weight) not in early
        mlp = lesson["MLP"](5)
        plan = {"up": lesson["ColwiseParallel"](), "down": lesson["RowwiseParallel"]()}
        with pytest.raises(RuntimeError, match="same reduction dim"):
            lesson["parallelize_module"](mlp, mesh, plan)(torch.randn(3, 5))

        with torch.device("meta"):
            block = lesson["Block"](96, 24)
        lesson["parallelize_module"](block, mesh, lesson["plan"])
        block.to_empty(device="cpu")
        for parameter in block.parameters():
            torch.nn.init.constant_(parameter, 0.01)
        block(tokens).sum().backward()
        with pytest.raises(RuntimeError, match="got mixed torch.Tensor and DTensor"):
            torch.nn.utils.clip_grad_norm_(block.parameters(), 1.0)

        block = lesson["Block"](96, 24)
        lesson["parallelize_module"](block, mesh, lesson["sequence_plan"])
        assert all(isinstance(parameter, lesson["DTensor"]) for parameter in block.parameters())
        block(tokens.tensor_split(3, dim=1)[lesson["dist"].get_rank()]).sum().backward()
        torch.nn.utils.clip_grad_norm_(block.parameters(), 1.0)
        with pytest.warns(UserWarning, match="could not be resolved"):
            lesson["parallelize_module"](lesson["Block"](), mesh, {"nothing": lesson["ColwiseParallel"]()})

    lesson["on_ranks"](3, run)


@pytest.mark.parametrize(
    "view, order, same",
    [
        ((-1, 3, 4), (3, 0, 2, 1, 4), True),  # the lesson's
        ((24, 3, -1), (3, 0, 2, 1, 4), False),  # self.heads, and the head size left open
        ((3, 24, -1), (2, 0, 3, 1, 4), False),  # both: lesson 13's
        ((3, -1, 4), (2, 0, 3, 1, 4), False),  # all q, all k, all v
    ],
)
def test_views_that_give_no_error_and_wrong_numbers_when_cut(lesson, view, order, same):
    """24 heads of size 4; each view is right in the whole layer."""

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(96, 288, bias=False), torch.nn.Linear(96, 96, bias=False)

        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, view).permute(order)
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(mixed.transpose(1, 2).flatten(-2))

    def cut():
        torch.manual_seed(0)
        attention, x = Attention().double(), torch.randn(2, 6, 96).double()
        expected = attention(x)
        mesh = lesson["init_device_mesh"]("cpu", (4,))
        plan = {"qkv": lesson["ColwiseParallel"](), "out": lesson["RowwiseParallel"]()}
        lesson["parallelize_module"](attention, mesh, plan)
        return torch.allclose(attention(x), expected, atol=1e-3)

    assert lesson["on_ranks"](4, cut) == [same] * 4


def test_a_norm_left_out_of_the_plan_gets_a_part_of_its_gradient(lesson):
    def gradients():
        dist, whole = lesson["dist"], lesson["Block"]().double()
        torch.manual_seed(0)
        tokens = torch.randn(2, 48, 96).double()
        whole(tokens).pow(2).sum().backward()
        block = lesson["Block"]().double()
        block.load_state_dict(whole.state_dict())
        plan = {name: how for name, how in lesson["sequence_plan"].items() if name != "norm2"}
        lesson["parallelize_module"](block, lesson["init_device_mesh"]("cpu", (2,)), plan)
        block(tokens.tensor_split(2, dim=1)[dist.get_rank()]).pow(2).sum().backward()
        found = dict(zip(dict(block.named_parameters()), lesson["gradients"](block), strict=True))
        wrong = [name for name, one in whole.named_parameters() if not torch.allclose(one.grad, found[name])]
        total = block.norm2.weight.grad.clone()
        dist.all_reduce(total)
        return wrong, torch.allclose(total, whole.norm2.weight.grad)

    assert lesson["on_ranks"](2, gradients) == [(["norm2.weight", "norm2.bias"], True)] * 2


def test_ddp_around_a_cut_model_loses_its_layers(lesson):
    def names(wrapped_along, norm=torch.nn.LayerNorm):
        mesh = lesson["init_device_mesh"]("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        mlp = torch.nn.Sequential(norm(8), lesson["MLP"](8))
        plan = {"1.up": lesson["ColwiseParallel"](), "1.down": lesson["RowwiseParallel"]()}
        lesson["parallelize_module"](mlp, mesh["tensor"], plan)
        network = DistributedDataParallel(mlp, **wrapped_along(mesh["data"]))
        network(torch.ones(3, 8)).sum().backward()
        return list(mlp.state_dict())

    def with_group():
        def along(mesh):
            return {"process_group": mesh.get_group()}

        with pytest.raises(RuntimeError, match="got mixed torch.Tensor and DTensor"):
            names(along)
        with pytest.raises(NotImplementedError, match="c10d.broadcast_.default does not have a sharding strategy"):
            names(along, torch.nn.Identity)  # then the plan names every layer

    lesson["on_ranks"](4, with_group)
    assert lesson["on_ranks"](4, names, lambda mesh: {"device_mesh": mesh}) == [["0.weight", "0.bias"]] * 4


def test_a_loss_of_cut_logits(lesson):
    def losses(plan):
        torch.manual_seed(0)
        whole, rows, labels = torch.nn.Sequential(torch.nn.Linear(8, 16)), torch.randn(12, 8), torch.arange(12) + 4
        expected = torch.nn.functional.cross_entropy(whole(rows), labels)
        expected.backward()
        gradient = whole[0].weight.grad
        lesson["parallelize_module"](whole, lesson["init_device_mesh"]("cpu", (2,)), {"0": plan})
        with torch.distributed.tensor.parallel.loss_parallel():
            loss = torch.nn.functional.cross_entropy(whole(rows), labels)
            loss.backward()
        return torch.allclose(loss.full_tensor(), expected) and torch.allclose(
            lesson["gradients"](whole)[0], gradient, atol=1e-6
        )

    cut = lesson["ColwiseParallel"](output_layouts=torch.distributed.tensor.Shard(-1), use_local_output=False)
    assert lesson["on_ranks"](2, losses, cut) == [True, True]


def test_other_rows_in_a_tensor_group_give_no_error_and_wrong_numbers(lesson):
    def run():
        torch.manual_seed(0)
        model, rows = lesson["MLP"](8), torch.randn(4, 8)
        plan = {"up": lesson["ColwiseParallel"](), "down": lesson["RowwiseParallel"]()}
        lesson["parallelize_module"](model, lesson["init_device_mesh"]("cpu", (2,)), plan)
        mine = rows.tensor_split(2)[lesson["dist"].get_rank()]
        return model(mine)

    torch.manual_seed(0)
    model, rows = lesson["MLP"](8), torch.randn(4, 8)
    for output, mine in zip(lesson["on_ranks"](2, run), rows.tensor_split(2), strict=True):
        assert not torch.allclose(output, model(mine), atol=1e-3)


def test_where_a_pipeline_breaks(lesson):
    with pytest.raises(RuntimeError, match="must be greater than or equal to the number of stages"):
        lesson["on_ranks"](4, lesson["run_pipeline"], lesson["Schedule1F1B"], 2)
    with pytest.raises(RuntimeError, match="multiple of the number of rounds"):
        lesson["on_ranks"](3, lesson["run_pipeline"], lesson["ScheduleInterleaved1F1B"], 16, 2)
    with pytest.raises(RuntimeError, match=r"target size \(torch.Size\(\[5, 8\]\)\) that is different"):
        lesson["on_ranks"](2, lesson["run_pipeline"], lesson["ScheduleGPipe"], 3)  # 6, 5 and 5 rows


def test_a_batch_that_m_does_not_divide_gives_eval_too_many_rows(lesson):
    def evaluate():
        dist = lesson["dist"]
        rank, ranks, (x, _) = dist.get_rank(), dist.get_world_size(), lesson["make_rows"]()
        stage = lesson["PipelineStage"](lesson["make_layers"](ranks)[rank], rank, ranks, torch.device("cpu"))
        return lesson["ScheduleGPipe"](stage, 4).eval(*([x[:10]] if rank == 0 else []))

    rows, _ = lesson["make_rows"]()
    expected = torch.nn.Sequential(*lesson["make_layers"](2))(rows[:10])
    found = lesson["on_ranks"](2, evaluate)[1]
    assert len(found) == 12  # four times the first micro-batch's 3
    real = [part[:size] for part, size in zip(found.split(3), (3, 3, 2, 2), strict=True)]
    assert torch.allclose(torch.cat(real), expected, atol=1e-6)  # the two rows left over were never sent


def first_or_last(lesson, part=None, loss_fn=torch.nn.functional.mse_loss, known=None, **options):
    """On one of two ranks, GPipe with m = 4: the rank's part of the model, and a function that makes one step."""
    rank, (x, y) = lesson["dist"].get_rank(), lesson["make_rows"]()
    if part is None:
        part = lesson["make_layers"](2)[rank]
    stage = lesson["PipelineStage"](part, rank, 2, torch.device("cpu"), **(known or {}))
    schedule = lesson["ScheduleGPipe"](stage, 4, loss_fn=loss_fn, **options)
    return part, lambda: schedule.step(*([x] if rank == 0 else []), target=y if rank == 1 else None)


@pytest.mark.parametrize("options, factor", [({}, 4), ({"scale_grads": False}, 1)])
def test_gradients_of_a_sum_must_not_be_divided_by_m(lesson, options, factor):
    def loss_of(output, target):
        return (output - target).square().sum()

    def gradients():
        part, step = first_or_last(lesson, loss_fn=loss_of, **options)
        step()
        return [parameter.grad for parameter in part.parameters()]

    whole, (x, y) = torch.nn.Sequential(*lesson["make_layers"](2)), lesson["make_rows"]()
    loss_of(whole(x), y).backward()
    found = sum(lesson["on_ranks"](2, gradients), [])
    for gradient, parameter in zip(found, whole.parameters(), strict=True):
        assert torch.allclose(gradient * factor, parameter.grad, atol=1e-4)


def test_gradients_of_an_earlier_step_are_divided_again(lesson):
    def shares():
        part, step = first_or_last(lesson)
        grads = []
        for _ in range(2):
            step()
            grads.append(next(part.parameters()).grad.clone())
        return torch.allclose(grads[1], grads[0] * (1 + 1 / 4))  # 2 would be right

    assert lesson["on_ranks"](2, shares) == [True, True]


def all_gathers_in_a_step(lesson, micro_batches, **options):
    """Those of a stage of two layers, each and together under FSDP2, on a mesh of two stages and two ranks for each."""

    def step():
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipe", "data"))
        part = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        for module in (*part, part):
            fully_shard(module, mesh=mesh["data"], **options)
        number, rows = mesh["pipe"].get_local_rank(), torch.randn(2 * micro_batches, 8)
        stage = PipelineStage(part, number, 2, torch.device("cpu"), group=mesh["pipe"].get_group())
        schedule = lesson["Schedule1F1B"](stage, micro_batches, loss_fn=torch.nn.functional.mse_loss)
        inputs, target = ([], rows) if number else ([rows], None)
        schedule.step(*inputs, target=target)  # finds out the shapes, too
        with torch.profiler.profile() as profile:
            schedule.step(*inputs, target=target)
        names = [event.name for event in profile.events()]
        return names.count("c10d::_allgather_base_"), names.count("c10d::_reduce_scatter_base_")

    return set(lesson["on_ranks"](4, step))


def test_fsdp2_gathers_the_weights_of_a_stage_for_every_micro_batch(lesson):
    [(few, once)], [(many, still_once)] = (all_gathers_in_a_step(lesson, m) for m in (2, 6))
    assert many - few == 2 * 4, "two layers, four more micro-batches"
    assert once == still_once == 2, "the gradients are added up first"
    for m in (2, 6):
        assert all_gathers_in_a_step(lesson, m, reshard_after_forward=False) == {(2, 2)}


@pytest.mark.parametrize("options", [{}, {"reshard_after_forward": False}], ids=["default", "whole"])
def test_fsdp2_in_a_zero_bubble_schedule_needs_weights_that_stay_whole(lesson, options):
    """When the default is right, too, strike the sentence from the cell traffic-why."""
    rows = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))

    def layers():
        torch.manual_seed(0)
        return [torch.nn.Linear(8, 8) for _ in range(8)]

    def gradients():
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipe", "data"))
        place, stages = mesh["pipe"].get_local_rank(), []
        for number in (place, place + 2):
            part = torch.nn.Sequential(*layers()[2 * number : 2 * number + 2])
            for module in (*part, part):
                fully_shard(module, mesh=mesh["data"], **options)
            stages.append(PipelineStage(part, number, 4, torch.device("cpu"), group=mesh["pipe"].get_group()))
        schedule = ScheduleInterleavedZeroBubble(stages, 4, loss_fn=torch.nn.functional.mse_loss)
        schedule.step(*([] if place else [rows]), target=rows if place else None)
        found = [parameter.grad for stage in stages for parameter in stage.submod.parameters()]
        return place, [g if g is None else g.full_tensor() for g in found]

    model = torch.nn.Sequential(*layers())
    torch.nn.functional.mse_loss(model(rows), rows).backward()
    right = []
    for place, found in lesson["on_ranks"](4, gradients):
        expected = [p.grad for number in (place, place + 2) for p in model[2 * number : 2 * number + 2].parameters()]
        pairs = zip(found, expected, strict=True)
        right.append(all(g is not None and torch.allclose(g, e, atol=1e-6) for g, e in pairs))
    assert all(right) == bool(options)


def test_a_zero_bubble_schedule_gives_the_same_gradient(lesson):
    found = lesson["on_ranks"](4, lesson["run_pipeline"], ScheduleInterleavedZeroBubble, 8, 2)
    parts = sorted((entry for _, entries in found for entry in entries), key=lambda entry: entry[0])
    assert lesson["close"]([gradient for _, gradients in parts for gradient in gradients], lesson["expected"])


@pytest.mark.parametrize("shapes_known", [True, False])
def test_batchnorm_of_a_later_stage_counts_a_batch_that_nobody_sent(lesson, shapes_known):
    def batches():
        rows = torch.zeros(4, 8, requires_grad=lesson["dist"].get_rank() > 0)
        known = {"input_args": rows, "output_args": rows.detach().requires_grad_()} if shapes_known else {}
        part = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
        part, step = first_or_last(lesson, part, known=known)
        step()
        return part[1].num_batches_tracked.item()

    assert lesson["on_ranks"](2, batches)[1] == (4 if shapes_known or TORCH > (2, 13) else 5)


@pytest.mark.parametrize("keyed", [True, False])
def test_stages_need_keys_of_their_own_in_a_checkpoint(lesson, keyed, tmp_path):
    def same():
        rank = lesson["dist"].get_rank()
        part = torch.nn.Sequential(*lesson["make_layers"](4)[2 * rank : 2 * rank + 2])
        key = f"stage {rank if keyed else 0}"
        dcp.save({key: part.state_dict()}, checkpoint_id=tmp_path)
        loaded = {key: {name: torch.zeros_like(value) for name, value in part.state_dict().items()}}
        dcp.load(loaded, checkpoint_id=tmp_path)
        return all(torch.equal(value, loaded[key][name]) for name, value in part.state_dict().items())

    assert all(lesson["on_ranks"](2, same)) == keyed


def stages_in_ddp(lesson, **options):
    """Two stages on two ranks each, GPipe with m = 4: stage -> whether its gradients are one process's, in the second step."""

    def gradients():
        mesh = lesson["init_device_mesh"]("cpu", (2, 2), mesh_dim_names=("pipe", "data"))
        stage, place = mesh["pipe"].get_local_rank(), mesh["data"].get_local_rank()
        x, y = (rows.tensor_split(2)[place] for rows in lesson["make_rows"]())
        part = torch.nn.Sequential(*lesson["make_layers"](4)[2 * stage : 2 * stage + 2])
        network = DistributedDataParallel(part, process_group=mesh["data"].get_group(), **options)
        pipe = {"group": mesh["pipe"].get_group()}
        schedule = lesson["ScheduleGPipe"](
            lesson["PipelineStage"](network, stage, 2, torch.device("cpu"), **pipe),
            4,
            loss_fn=torch.nn.functional.mse_loss,
        )
        for step in range(2):
            network.zero_grad()
            try:
                schedule.step(*([x] if stage == 0 else []), target=y if stage else None)
            except RuntimeError as error:
                raise RuntimeError(f"step {step}: {error.__cause__ or error}") from error
        return [parameter.grad for parameter in part.parameters()]

    expected, found = lesson["whole_model"](4), lesson["on_ranks"](4, gradients)
    return [lesson["close"](found[2 * stage], expected[4 * stage : 4 * stage + 4]) for stage in (0, 1)]


def test_ddp_around_stages(lesson):
    assert stages_in_ddp(lesson, find_unused_parameters=True) == [True, True]
    assert stages_in_ddp(lesson, static_graph=True) == [True, False]
    with pytest.raises(RuntimeError, match="step 1: .*rebuilt parameter indices size is not same"):
        stages_in_ddp(lesson)


def test_timetable_says_when_ranks_wait_for_each_other(lesson):
    assert "forever" in lesson["check_order"]("B0 F0 F1 B1 F2 B2")
    assert "12 units" in lesson["check_order"]("F0 B0 F1 B1 F2 B2")
    assert "✗" in lesson["check_order"]("F0 F1 F2 B0 B1 B2")
    assert "✗" in lesson["check_order"]("F0 F0 B0 F2 B1 B2")
    assert "right" in lesson["check_order"]("F0 F1 B0 F2 B1 B2")


@pytest.mark.parametrize("n, width, layers", [(8, 4096, 32), (4, 1024, 24), (64, 8192, 80)])
def test_where_the_lines_cross(lesson, n, width, layers):
    """DDP and FSDP2 send as many bytes, and tensor parallelism too where all GPUs together have 6 · width tokens."""
    sent = lesson["sent"](6 * width / n, n, width, layers)
    assert sent["tensor"] == pytest.approx(sent["FSDP2"]) == pytest.approx(sent["DDP"])
    sent = lesson["sent"](24 * (n - 1) / n**2 * width * layers, n, width, layers)
    assert sent["pipeline"] == pytest.approx(sent["DDP"])


def test_one_tensor_group_one_seed(lesson):
    """Dropout on what each rank of a group has whole: other seeds make other outputs, and no error."""

    def outputs(seed_of):
        mesh = lesson["init_device_mesh"]("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        torch.manual_seed(0)
        model = torch.nn.Sequential(lesson["MLP"](8), torch.nn.Dropout(0.5))
        plan = {"0.up": lesson["ColwiseParallel"](), "0.down": lesson["RowwiseParallel"]()}
        lesson["parallelize_module"](model, mesh["tensor"], plan)
        rows = torch.randn(6, 8)
        torch.manual_seed(seed_of(mesh))
        return model(rows).detach()

    by_rank = lesson["on_ranks"](4, outputs, lambda mesh: 5 + torch.distributed.get_rank())
    by_group = lesson["on_ranks"](4, outputs, lambda mesh: 5 + mesh["data"].get_local_rank())
    assert not torch.allclose(by_rank[0], by_rank[1])
    assert torch.allclose(by_group[0], by_group[1]) and torch.allclose(by_group[2], by_group[3])
    assert not torch.allclose(by_group[0], by_group[2])


@pytest.mark.parametrize("sharded, message", [(False, "got mixed"), (True, "must have the same mesh")])
def test_clipping_refuses_a_plan_that_leaves_layers_out(lesson, sharded, message):
    def clip():
        mesh = lesson["init_device_mesh"]("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        model = torch.nn.Sequential(torch.nn.LayerNorm(8), lesson["MLP"](8), torch.nn.Tanh())
        plan = {"1.up": lesson["ColwiseParallel"](), "1.down": lesson["RowwiseParallel"]()}
        lesson["parallelize_module"](model, mesh["tensor"], plan)
        if sharded:
            lesson["fully_shard"](model, mesh=mesh["data"])
        model(torch.randn(6, 8)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    with pytest.raises(RuntimeError, match=message):
        lesson["on_ranks"](4, clip)


def test_names_that_the_prose_mentions():
    from torch.distributed.pipelining import ScheduleZBVZeroBubble  # noqa: F401
    from torch.distributed.tensor.parallel import loss_parallel  # noqa: F401

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.distributed.tensor.experimental import context_parallel  # noqa: F401


def test_one_weight_in_two_layers_has_to_be_tied_again(lesson):
    """Before that, each layer has a weight of its own, with a part of the gradient."""

    def tied():
        torch.manual_seed(0)
        model = torch.nn.ModuleDict({"words": torch.nn.Embedding(8, 4), "head": torch.nn.Linear(4, 8, bias=False)})
        model.head.weight = model.words.weight
        return model

    def gradient(model):
        model.head(model.words(torch.arange(8))).sin().sum().backward()
        return model.words.weight.grad

    def cut(again):
        model = tied()
        words = lesson["RowwiseParallel"](input_layouts=Replicate())
        head = lesson["ColwiseParallel"](output_layouts=Replicate())
        mesh = lesson["init_device_mesh"]("cpu", (lesson["dist"].get_world_size(),))
        lesson["parallelize_module"](model, mesh, {"words": words, "head": head})
        assert model.head.weight is not model.words.weight
        if again:
            model.head.weight = model.words.weight
        return gradient(model).full_tensor()

    whole = gradient(tied())
    for again in (True, False):
        for found in lesson["on_ranks"](2, cut, again):
            assert torch.allclose(found, whole, atol=1e-5) is again


@pytest.mark.parametrize(
    "plan, said",
    [
        ('{"[gu]*": ColwiseParallel(), "down": RowwiseParallel()}', "✓ Exercise 1: right"),  # gate and up
        # Right, but two matrices are not cut.
        (
            '{"down": RowwiseParallel(input_layouts=__import__("torch").distributed.tensor.Replicate())}',
            "✗ Exercise 1: which",
        ),
        ('{"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": ColwiseParallel()}', "✗ Exercise 1: "),
        ("[ColwiseParallel(), RowwiseParallel()]", "✗ Exercise 1: a dict"),
        ('{"gate": "columns"}', "✗ Exercise 1: rank "),
    ],
)
def test_exercise_1_runs_the_plan(lesson, plan, said):
    (check,) = [cell.source for cell in BOOK.page("en/16_splitting_layers").code if cell.id == "exercise-1-check"]
    assert judged(lesson, check, f"gated_plan = {plan}").startswith(said)


def test_what_a_rank_keeps_of_a_block(lesson):
    """More than its share: lesson 17 says about a quarter for 8 ranks, and more without sequence parallelism."""

    def kept(plan, by_tokens):
        torch.manual_seed(0)
        dist, block, x = lesson["dist"], lesson["Block"](), torch.randn(2, 48, 96)
        rank, ranks, storages = dist.get_rank(), dist.get_world_size(), {}
        lesson["parallelize_module"](block, lesson["init_device_mesh"]("cpu", (ranks,)), plan)
        x = x.tensor_split(ranks, dim=1)[rank].clone() if by_tokens else x
        own = {storage(parameter)._cdata for parameter in block.parameters()}

        def pack(tensor):
            storages[storage(tensor)._cdata] = storage(tensor).nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            block(x.requires_grad_())
        return sum(size for data, size in storages.items() if data not in own)

    whole = lesson["on_ranks"](1, kept, {}, False)[0]
    with_sequence = lesson["on_ranks"](8, kept, lesson["sequence_plan"], True)[0]
    tensor_alone = lesson["on_ranks"](8, kept, lesson["plan"], False)[0]
    assert with_sequence / whole == pytest.approx(0.27, abs=0.01)
    assert tensor_alone / whole == pytest.approx(0.41, abs=0.01)


def storage(tensor):
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return getattr(tensor, "elem", tensor).untyped_storage()  # of one that is still on its way
