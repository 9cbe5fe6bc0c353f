"""What lesson 11 shows is so, and its functions are right for any number of ranks.

Left out: `running_means`, `gradients` and `draw` are about two ranks and print what they do; the lesson's own outputs
are checked. What NCCL and SyncBatchNorm do on GPUs is not run.
"""

import ast
import functools
import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.appended import printed
from tests.conftest import BOOK
from tests.reading import run_cells, torchrun

NAME = "11_training_for_real"
RANKS = [1, 2, 3, 4, 8]


@pytest.fixture(scope="module")
def lesson():
    """The lesson's functions, without what its cells do with them."""
    variables = run_cells(f"en/{NAME}", ["setup", "on-ranks", "data", "checkpoint"])
    for cell in BOOK.page(f"en/{NAME}").code:
        if cell.id in ("learning-rate", "stream", "three-ways", "clipping", "my-batches", "recipe", "killed"):
            tree = ast.parse(cell.source)
            tree.body = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
            exec(compile(tree, cell.id, "exec"), variables)
    return variables


def output(run, cell, edition="en"):
    return printed(run, f"{edition}/{NAME}", cell)


def test_four_ranks_need_four_times_the_rate(run):
    lines = output(run, "learning-rate").splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["0.2", "0.5", "0.2"]


def test_each_worker_of_each_rank_reads_the_stream(run):
    text = output(run, "stream")
    assert text.count(": 2 worker processes") == 4
    rows = [re.findall(r"\d+", line.partition("rows ")[2]) for line in text.splitlines() if "rows" in line]
    assert rows == [[str(row) for row in range(8) for _ in range(2)]] * 2 + [list("0145"), list("2367")]


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("ranks", RANKS)
def test_divided_stream_reads_each_row_once(lesson, ranks, workers):
    rows = []
    for rank in range(ranks):
        for number in range(max(1, workers)):
            worker = SimpleNamespace(num_workers=workers, id=number) if workers else None
            lesson["DividedStream"].__iter__.__globals__["get_worker_info"] = lambda worker=worker: worker
            rows += lesson["DividedStream"](rank, ranks)
    assert sorted(rows) == list(range(8))


def test_only_counts_are_the_same_for_any_number_of_ranks(run):
    text = output(run, "three-ways")
    assert text.count("counts added up: 47 of 50 = 94.00%") == 3
    assert re.findall(r"padded by DistributedSampler: (.*) =", text) == ["47 of 50", "48 of 51", "49 of 52"]
    assert len(set(re.findall(r"accuracies: (.*)", text))) == 3


@pytest.mark.parametrize("rows", [50, 5])
def test_evaluation_is_that_of_one_process(lesson, rows):
    """With 5 rows some of 8 ranks have none."""

    def counts():
        torch.manual_seed(0)
        model = DistributedDataParallel(lesson["network"]())
        model.module[1].running_mean += torch.distributed.get_rank()  # as after training; rank 0's counts
        return lesson["evaluate"](model)

    whole = lesson["test_rows"]
    lesson["test_rows"] = torch.utils.data.TensorDataset(*whole[:rows])
    try:
        results = [result for ranks in RANKS for result in lesson["on_ranks"](ranks, counts)]
    finally:
        lesson["test_rows"] = whole
    assert results == [results[0]] * sum(RANKS)
    assert results[0][1] == rows


def test_evaluation_gives_each_layer_back_its_mode(lesson):
    """A frozen BatchNorm stays in eval(), and a layer that overrides train(), as LoRA layers do, is told."""

    class Merging(nn.Linear):
        def train(self, mode=True):
            self.merged = not mode
            return super().train(mode)

    def modes():
        model = nn.Sequential(Merging(8, 8), nn.BatchNorm1d(8).eval(), nn.Linear(8, 3))
        lesson["count_right"](model, range(4))
        return model[0].merged, [module.training for module in model.modules()]

    assert lesson["on_ranks"](1, modes) == [(False, [True, True, False, True])]


@pytest.mark.parametrize("numbers", [(2**24 + 1, 3), (0.1, 2**24 + 1)])
def test_sums_over_ranks_are_exact(lesson, numbers):
    """float32 has no 2**24 + 1."""
    assert lesson["on_ranks"](1, lesson["sum_over_ranks"], *numbers) == [list(numbers)]


def test_logged_loss_is_not_that_of_rank_0(run):
    numbers = re.findall(r"its rows (\S+), of all rows (\S+)", output(run, "logged-loss"))
    assert len({everyone for _, everyone in numbers}) == 1
    assert all(mine != everyone for mine, everyone in numbers)


def test_same_seed_same_mask(run):
    masks = re.findall(r"mask (.*)", output(run, "seeds"))
    assert masks[0] == masks[1] and masks[2] != masks[3]
    weights = re.findall(r"weight (\S+), in DDP (.*);", output(run, "seeds"))
    assert weights[0][0] != weights[1][0] and len({after for _, after in weights}) == 1


def test_only_activations_are_bfloat16(run):
    text = output(run, "precision")
    assert text.count("bfloat16") == 1 and text.startswith("output of the last layer: torch.bfloat16")
    assert text.count("float32") == 3


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_clipping_after_the_averaging(lesson, ranks):
    wanted_norms, wanted = lesson["on_ranks"](1, lesson["clipped_gradient"], False)[0]
    for norms, gradient in lesson["on_ranks"](ranks, lesson["clipped_gradient"], False):
        torch.testing.assert_close(gradient, wanted)
        assert norms == pytest.approx(wanted_norms)
    early = lesson["on_ranks"](ranks, lesson["clipped_gradient"], True)
    assert not torch.allclose(early[0][1], wanted, atol=1e-4)
    assert len({round(norms[0], 3) for norms, _ in early}) > 1
    alone = lesson["on_ranks"](1, lesson["clipped_gradient"], True)
    assert not torch.allclose(alone[0][1], wanted, atol=1e-4), "not even on one rank"


def test_join_divides_by_all_or_by_those_who_work(run):
    assert re.findall(r"gradients (.*)", output(run, "join")) == [
        "[1.0, 1.0, 0.5]",
        "[1.0, 1.0]",
        "[1.0, 1.0, 1.0]",
        "[1.0, 1.0]",
    ]
    said = " ".join(DistributedDataParallel.join.__doc__.split())
    assert "has additional distributed collective operations, such as ``SyncBatchNorm``" in said


@pytest.mark.parametrize("momentum, same", [(0, True), (0.9, False)])
def test_join_gives_all_ranks_the_weights_but_not_the_momentum(lesson, momentum, same):
    """So one block for all epochs."""

    def weights():
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        rank = torch.distributed.get_rank()
        for steps in [4, 2] if rank == 0 else [2, 2]:  # of a block
            with model.join():
                for _ in range(steps):
                    optimizer.zero_grad()
                    model(torch.ones(8, 4)).pow(2).mean().backward()
                    optimizer.step()
                last = model.module.weight.detach().clone()
        return last, model.module.weight.detach()

    (first, first_after), (second, second_after) = lesson["on_ranks"](2, weights)
    assert torch.allclose(first, second) is same
    assert torch.equal(first_after, second_after)


@pytest.mark.parametrize("calls_of_its_own", [True, False])
def test_join_pairs_a_call_of_ones_own_with_gradients(lesson, calls_of_its_own):
    """At the end of an epoch, too: sums and gradients are wrong then, and nothing says so."""

    def train():
        model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
        gradients, sums = [], []
        with model.join():
            for _epoch in range(2):
                for _ in range(3 - torch.distributed.get_rank()):
                    model.zero_grad()
                    model(torch.ones(1, 1)).sum().backward()
                    gradients.append(model.module.weight.grad.item())
                if calls_of_its_own:
                    total = torch.ones(1)
                    torch.distributed.all_reduce(total)
                    sums.append(total.item())
        return gradients, sums

    (gradients, sums), (_, others) = lesson["on_ranks"](2, train)
    right = [1, 1, 1, 1, 0.5, 0.5]  # rank 1 is in its second epoch when rank 0 ends its first
    assert (gradients == right) is not calls_of_its_own
    assert not sums == others == [2, 2]


def test_running_values_are_rank_0s(run):
    assert re.findall(r"steps (.*)", output(run, "batchnorm")) == ["[0.0, 0.0, 0.0]", "[1.0, 1.0, 1.0]"]


def test_sync_batchnorm(run):
    text = output(run, "sync-batchnorm")
    assert "same as BatchNorm: True" in text and "expected input tensor to be on GPU" in text


def test_options_for_unused_parameters(run):
    verdicts = [line.rpartition(": ")[2] for line in output(run, "unused").splitlines() if line.startswith(" ")]
    assert [verdict == "4 steps done" for verdict in verdicts] == [False, True, True, False, True, False]


def gradients_of_two_layers(trains_at_the_wrapping):
    """The first layer trains when DDP wraps the model, and not in the passes, or the other way round."""
    torch.manual_seed(0)
    first = nn.Linear(4, 4).requires_grad_(trains_at_the_wrapping)
    model = DistributedDataParallel(nn.Sequential(first, nn.Linear(4, 1)))
    first.requires_grad_(not trains_at_the_wrapping)
    torch.manual_seed(torch.distributed.get_rank())
    for _ in range(2):
        model(torch.randn(8, 4)).pow(2).mean().backward()
    return first.weight.grad, model.module[1].weight.grad


def test_ddp_waits_for_a_layer_that_is_frozen_after_the_wrapping(lesson):
    with pytest.raises(RuntimeError, match="Expected to have finished reduction"):
        lesson["on_ranks"](2, gradients_of_two_layers, True)


def test_ddp_does_not_average_a_layer_that_is_unfrozen_after_the_wrapping(lesson):
    (first, last), (other_first, other_last) = lesson["on_ranks"](2, gradients_of_two_layers, False)
    assert not torch.allclose(first, other_first)
    assert torch.equal(last, other_last)


def test_static_graph_needs_its_first_backward_pass_outside_no_sync(lesson):
    def backward(outside):
        model = DistributedDataParallel(nn.Linear(4, 1), static_graph=True)
        if outside:
            model(torch.ones(1, 4)).sum().backward()
        with model.no_sync():
            model(torch.ones(1, 4)).sum().backward()
        model(torch.ones(1, 4)).sum().backward()

    lesson["on_ranks"](2, backward, True)
    with pytest.raises(RuntimeError, match="expect_autograd_hooks_ INTERNAL ASSERT FAILED"):
        lesson["on_ranks"](2, backward, False)


@pytest.mark.parametrize("ranks", RANKS)
def test_batches_are_the_same_rows_for_any_number_of_ranks(lesson, ranks):
    def together(ranks):
        parts = lesson["on_ranks"](ranks, lesson["my_batches"], 400, 64, 0)
        for step in zip(*parts, strict=True):
            assert max(map(len, step)) - min(map(len, step)) <= 1
        return [sorted(row for part in step for row in part) for step in zip(*parts, strict=True)]

    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    assert together(ranks) == [sorted(step.tolist()) for step in order[: 6 * 64].split(64)]


def test_recipe_is_one_process_on_any_number_of_ranks(lesson, tmp_path):
    """To rounding, for a model without dropout and BatchNorm, in float32."""
    source = next(cell.source for cell in BOOK.page(f"en/{NAME}").code if cell.id == "recipe")
    source = source.partition("\ntemporary_folder =")[0]
    assert source.count("dtype=torch.bfloat16") == 1
    exact = {**lesson, "network": lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))}
    exec(source.replace("dtype=torch.bfloat16", "dtype=torch.bfloat16, enabled=False"), exact)
    lesson["on_ranks"](1, exact["train"], tmp_path / "last.pt", 1)
    assert (
        torch.load(tmp_path / "last.pt", weights_only=True)["steps_done"] == 6
    )  # the last, though 4 does not divide it
    wanted = lesson["on_ranks"](1, exact["train"], tmp_path / "1.pt", 2)[0]
    for ranks in RANKS[1:]:
        for weights in lesson["on_ranks"](ranks, exact["train"], tmp_path / f"{ranks}.pt", 2):
            torch.testing.assert_close(weights, wanted, rtol=0, atol=1e-5)
    # Killed on 4 ranks, and resumed on 2
    killed(lesson, 4, tmp_path / "killed.pt", exact["train"])
    resumed = lesson["on_ranks"](2, exact["train"], tmp_path / "killed.pt", 2)[0]
    torch.testing.assert_close(resumed, wanted, rtol=0, atol=1e-5)


def killed(lesson, ranks, checkpoint, train):
    """One life of two epochs, until the last rank is killed."""
    original, lesson["train"] = lesson["train"], functools.partial(train, epochs=2)
    try:
        with pytest.raises(RuntimeError, match=f"^rank {ranks - 1} of {ranks}: ended with exit code -9"):
            lesson["on_ranks"](ranks, lesson["train_until_killed"], checkpoint)
    finally:
        lesson["train"] = original
    assert torch.load(checkpoint, weights_only=True)["steps_done"] == 8
    assert [path.name for path in checkpoint.parent.glob("*.part")] == []


@pytest.mark.parametrize("ranks", RANKS)
def test_a_resumed_run_ends_like_an_undisturbed_one(lesson, tmp_path, ranks):
    undisturbed = lesson["on_ranks"](ranks, lesson["train"], tmp_path / "undisturbed.pt", 2)
    killed(lesson, ranks, tmp_path / "killed.pt", lesson["train"])
    resumed = lesson["on_ranks"](ranks, lesson["train"], tmp_path / "killed.pt", 2)
    for weights in [*undisturbed, *resumed]:
        if ranks <= 2:
            assert torch.equal(weights, undisturbed[0])
        else:
            torch.testing.assert_close(weights, undisturbed[0], rtol=0, atol=1e-5)


def test_a_run_is_resumed_only_with_its_own_settings_and_rows(lesson, tmp_path, monkeypatch):
    train = functools.partial(lesson["train"], tmp_path / "run.pt")
    settings = {"epochs": 1, "batch_size": 64, "learning_rate": 0.1, "seed": 0}
    lesson["on_ranks"](1, functools.partial(train, **settings))
    written = (tmp_path / "run.pt").stat().st_mtime_ns
    for name, other in (("epochs", 2), ("batch_size", 128), ("learning_rate", 0.01), ("seed", 1)):
        with pytest.raises(RuntimeError, match="saved with "):
            lesson["on_ranks"](1, functools.partial(train, **{**settings, name: other}))
    lesson["on_ranks"](1, functools.partial(train, **settings))  # has nothing left to do
    assert (tmp_path / "run.pt").stat().st_mtime_ns == written
    monkeypatch.setitem(lesson, "train_rows", torch.utils.data.Subset(lesson["train_rows"], range(300)))
    with pytest.raises(RuntimeError, match="saved with "):
        lesson["on_ranks"](1, functools.partial(train, **settings))


def small_state():
    """What `save` and `load` take: a model, an optimizer and a scheduler."""
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1)


@pytest.mark.parametrize("finders, steps", [([], [0, 0]), ([0, 1], [8, 8]), ([0], None), ([1], None)])
def test_all_ranks_find_the_checkpoint_or_none(lesson, tmp_path, finders, steps):
    def load():
        state = small_state()
        lesson["save"](tmp_path / "saved.pt", *state, 8, {})
        torch.distributed.barrier()  # rank 0 has written
        found = torch.distributed.get_rank() in finders
        return lesson["load"](tmp_path / ("saved.pt" if found else "none.pt"), *state, {})

    if steps:
        assert lesson["on_ranks"](2, load) == steps
    else:
        with pytest.raises(RuntimeError, match="only some ranks find"):
            lesson["on_ranks"](2, load)


def test_ranks_that_find_checkpoints_of_different_age_stop(lesson, tmp_path):
    def load():
        rank = torch.distributed.get_rank()
        state = small_state()
        for steps in (4, 8):
            lesson["save"](tmp_path / f"{steps}.pt", *state, steps, {})
        torch.distributed.barrier()  # rank 0 has written
        lesson["load"](tmp_path / ("4.pt" if rank else "8.pt"), *state, {})

    with pytest.raises(RuntimeError, match="the ranks found different versions"):
        lesson["on_ranks"](2, load)


def test_nan_stops_all_ranks_before_it_reaches_the_checkpoint(lesson, tmp_path, monkeypatch):
    rows = lesson["train_rows"]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    bad = order[3 * 64]  # in step 4, the first that would be saved
    monkeypatch.setitem(
        lesson,
        "train_rows",
        [(torch.full_like(x, torch.nan) if number == bad else x, y) for number, (x, y) in enumerate(rows)],
    )

    def train():
        with pytest.raises(RuntimeError, match="non-finite"):
            lesson["train"](tmp_path / "run.pt")

    lesson["on_ranks"](2, train)
    assert not (tmp_path / "run.pt").exists()


def test_ranks_with_fewer_batches_stop_all_if_told_to(lesson):
    def steps():
        model = DistributedDataParallel(nn.Linear(1, 1))
        with model.join(throw_on_early_termination=True):
            for _ in range(3 - torch.distributed.get_rank()):
                model(torch.ones(1, 1)).sum().backward()
                torch.distributed.all_reduce(torch.ones(1))

    with pytest.raises(RuntimeError, match="exhausted"):
        lesson["on_ranks"](2, steps)


@pytest.mark.parametrize("plain", [False, True])
def test_numpys_state_can_be_loaded_only_as_plain_numbers(tmp_path, plain):
    name, keys, *rest = np.random.get_state()
    torch.save((name, keys.tolist() if plain else keys, *rest), tmp_path / "state.pt")
    if plain:
        np.random.set_state(torch.load(tmp_path / "state.pt", weights_only=True))
    else:
        with pytest.raises(pickle.UnpicklingError):
            torch.load(tmp_path / "state.pt", weights_only=True)


@pytest.mark.parametrize("states", [0, 2])
def test_a_run_goes_on_where_other_devices_have_other_random_states(lesson, tmp_path, states):
    """A rank on a GPU has two states, one on a CPU has one."""

    def load():
        state = small_state()
        lesson["save"](tmp_path / "saved.pt", *state, 8, {})
        saved = torch.load(tmp_path / "saved.pt", weights_only=True)
        saved["random_states"] = [[torch.get_rng_state()] * states]
        torch.save(saved, tmp_path / "saved.pt")
        return lesson["load"](tmp_path / "saved.pt", *state, {}), torch.initial_seed()

    assert lesson["on_ranks"](1, load) == [(8, 8000)]


def test_the_last_digit_differs_because_of_the_buckets(lesson, tmp_path):
    """With an option that keeps DDP from arranging them anew, three ranks resume bit for bit, too."""
    keep = functools.partial(DistributedDataParallel, find_unused_parameters=True)
    original, lesson["DistributedDataParallel"] = lesson["DistributedDataParallel"], keep
    try:
        undisturbed = lesson["on_ranks"](3, lesson["train"], tmp_path / "undisturbed.pt", 2)[0]
        killed(lesson, 3, tmp_path / "killed.pt", lesson["train"])
        resumed = lesson["on_ranks"](3, lesson["train"], tmp_path / "killed.pt", 2)[0]
    finally:
        lesson["DistributedDataParallel"] = original
    assert torch.equal(resumed, undisturbed)


def test_what_the_lesson_says_of_its_restarts(run):
    text = output(run, "killed")
    assert "rank 1 of 2: ended with exit code -9" in text and "steps in the checkpoint: 8" in text
    assert text.endswith("bit for bit: True\n")
    whole, resumed = output(run, "recipe").splitlines(), text.partition("resumed run:\n")[2].splitlines()
    assert resumed[:2] == whole[1:]
    assert output(run, "other-ranks").endswith("within 1e-5: False\n")


def test_the_script_runs_under_torchrun(run, tmp_path):
    """And prints what the recipe prints on two ranks."""
    for edition in ("en", "zh"):
        compile(output(run, "script", edition), edition, "exec")
    assert torchrun(output(run, "script"), tmp_path, 2) == output(run, "recipe")
    assert (tmp_path / "checkpoint.pt").exists()
