"""Lesson 15's training is that of one process on any number of ranks, killed and resumed; so is its script, as changed."""

import ast
import contextlib
import copy
import io
import math
import os
import re
import runpy
import signal
import sys
import types

import pytest
import torch
from torch import nn

from tests.appended import kept, printed
from tests.conftest import BOOK, EDITIONS
from tests.reading import run_cells, torchrun

LESSON = "en/15_sharded_training"
COUNTS = [1, 2, 3, 4, 8]
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef)
pytestmark = pytest.mark.filterwarnings("default")  # DTensor warns of random numbers on CPUs, in the ranks
DATA = ("generator", "x", "y", "train_rows", "test_rows")


@pytest.fixture(scope="module")
def left(run):
    return kept(run, LESSON)


@pytest.fixture(scope="module")
def of():
    """The lesson's functions and data, without its launches."""
    found = run_cells(LESSON, ["setup", "on-ranks"])
    for cell in BOOK.page(LESSON).code:
        for node in ast.parse(cell.source).body if cell.id not in ("figures", "on-ranks") else []:
            if isinstance(node, DEFINITIONS) or isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in DATA:
                exec(compile(ast.Module([node], []), f"{LESSON}:{cell.id}", "exec"), found)
    return types.SimpleNamespace(**found)


def text_of(id):
    return next(cell.source for cell in BOOK.page(LESSON).cells if cell.id == id)


def folded(name):
    """The code of a folded block, by the name of a function in it."""
    blocks = re.findall(r"```python\n(.*?)```", text_of("script-look"), re.DOTALL)
    return next(block.rstrip() for block in blocks if f"def {name}(" in block)


@pytest.fixture
def script(run, monkeypatch):
    """What the script's text defines, after these changes; its ranks are then those of on_ranks."""
    monkeypatch.setattr(sys, "argv", ["train.py", "--cpu"])

    def defined(*changes):
        text = printed(run, LESSON, "script")
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        found = {"__name__": "train"}
        exec(compile(text, "train.py", "exec"), found)
        return types.SimpleNamespace(**found)

    return defined


SHORT = (
    "epochs=3, batch_size=64, learning_rate=0.1, seed=0, save_every=4",
    "epochs=1, batch_size=64, learning_rate=0.1, seed=0, save_every=2",
)
# What is random or looks at other rows goes, and what rounds to 16 bits: then each number of ranks trains alike.
EXACT = [
    ("nn.BatchNorm1d(32)", "nn.Identity()"),
    ("nn.Dropout(0.2)", "nn.Identity()"),
    ("dtype=torch.bfloat16", "enabled=False"),
    SHORT,
]


@pytest.fixture
def trained(of):
    """Trains with a script's functions on so many ranks; returns the weights in one vector."""

    def train(here, ranks, *arguments, killed_in=None):
        def on_rank():
            steps = []

            def before_step(*_):
                steps.append(len(steps))
                if steps[-1] == killed_in:
                    os.kill(os.getpid(), signal.SIGKILL)

            of.register_optimizer_step_pre_hook(before_step)
            model = here.train(*arguments)
            return torch.cat([weight.flatten() for weight in whole_weights(model).values()])

        return of.on_ranks(ranks, on_rank)[0]

    return train


def whole_weights(model):
    return {name: parameter.full_tensor().detach().clone() for name, parameter in model.named_parameters()}


def test_the_page_shows_it(run, left):
    assert left["agrees"] == {"mean_of_own_rows": False, "share_of_the_mean": True}
    assert left["saved_after"] == 8
    assert left["reads"] == [[0, 1], [1, 2], [2, 3]]
    numbers = left["whole"]["false"][0]
    assert left["whole"] == {"false": [numbers] * 2, "true": [numbers, 0]}
    text = printed(run, LESSON, "killed")
    assert "rank 3 of 4: ended with exit code -9" in text and text.endswith("bit for bit: True\n")
    trained, resumed = printed(run, LESSON, "recipe").splitlines(), text.partition("resumed run:\n")[2].splitlines()
    assert resumed[:2] == trained[1:]
    assert printed(run, LESSON, "other-ranks").endswith("within 1e-5: False\n")


def test_the_weights_at_the_start_are_those_of_one_process(of):
    torch.manual_seed(0)
    expected = of.network().state_dict()
    for ranks in COUNTS:
        for found in of.on_ranks(ranks, lambda: whole_weights(of.build(0))):
            assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("ranks", COUNTS)
def test_the_script_trains_as_one_process_does(script, trained, tmp_path, ranks):
    """Without FSDP2: one process, the same rows in each step, the same schedule and clipping."""
    here = script(*EXACT)
    weights = trained(here, ranks, tmp_path)
    torch.manual_seed(0)
    model = here.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=6, cycle_momentum=False)
    for rows in torch.randperm(400, generator=torch.Generator().manual_seed(0))[:384].split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(here.x[rows]), here.y[rows]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    expected = nn.utils.parameters_to_vector(model.parameters())
    assert torch.allclose(weights, expected, atol=1e-5)


@pytest.mark.parametrize("saved, resumed", [(4, 3), (3, 1)])
def test_a_run_goes_on_with_another_number_of_ranks(script, trained, tmp_path, saved, resumed):
    here = script(*EXACT)
    whole = trained(here, 1, tmp_path / "whole")
    with pytest.raises(RuntimeError, match="exit code -9"):
        trained(here, saved, tmp_path / "cut", killed_in=5)
    (tmp_path / "cut" / "step-4" / ".metadata").unlink()  # as if it had been killed while it wrote this one
    assert here.complete(tmp_path / "cut") == [2]
    assert torch.allclose(trained(here, resumed, tmp_path / "cut"), whole, atol=1e-5)


@pytest.mark.parametrize("killed_in", [1, 5])
def test_a_resumed_run_ends_bit_for_bit_like_an_undisturbed_one(script, trained, tmp_path, killed_in):
    here = script(SHORT)
    whole = trained(here, 3, tmp_path / "whole")
    with pytest.raises(RuntimeError, match="exit code -9"):
        trained(here, 3, tmp_path / "cut", killed_in=killed_in)
    assert torch.equal(trained(here, 3, tmp_path / "cut"), whole)


def test_two_checkpoints_are_kept(of, script, tmp_path):
    here = script(SHORT)
    of.on_ranks(2, lambda: here.train(tmp_path) and None)
    assert here.complete(tmp_path) == [4, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-4", "step-6"]


def test_a_finished_run_has_nothing_to_do(script, trained, tmp_path):
    here = script(SHORT)
    first = trained(here, 2, tmp_path)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert torch.equal(trained(here, 2, tmp_path), first)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == written


def test_other_settings_are_refused(script, trained, tmp_path):
    here = script(SHORT)
    trained(here, 2, tmp_path)
    with pytest.raises(RuntimeError, match=r"saved with .*'epochs': 1.*, not with .*'epochs': 4"):
        trained(here, 2, tmp_path, 4)


def test_settings_within_settings_are_compared_with_the_saved_ones(of, script, tmp_path):
    here = script()

    def start(rate, load):
        model = here.build(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        settings = {"optimizer": {"rate": rate}}
        if load:
            here.load(tmp_path, model, optimizer, scheduler, settings)
        else:
            here.save(tmp_path, model, optimizer, scheduler, 1, settings)

    of.on_ranks(2, start, 0.1, False)
    of.on_ranks(2, start, 0.1, True)
    with pytest.raises(RuntimeError, match=r"saved with .*0\.1.*, not with .*0\.7"):
        of.on_ranks(2, start, 0.7, True)


def test_ranks_that_find_different_checkpoints_say_so(of, script, trained, tmp_path):
    here = script(SHORT)
    trained(here, 2, tmp_path / "0")
    (tmp_path / "1").mkdir()

    def train():
        here.train(tmp_path / str(here.dist.get_rank()))

    with pytest.raises(RuntimeError, match="the ranks find different checkpoints"):
        of.on_ranks(2, train)


def test_the_script_runs_under_torchrun(of, run, tmp_path):
    """And prints what the recipe prints on two ranks."""
    for edition in EDITIONS:
        compile(printed(run, f"{edition}/15_sharded_training", "script"), edition, "exec")
    started = torchrun(printed(run, LESSON, "script"), tmp_path, 2)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        of.on_ranks(2, of.trained_weights, tmp_path / "in-the-page")
    assert started == said.getvalue()
    assert (tmp_path / "checkpoints" / "step-18" / ".metadata").exists()


def test_evaluation_counts_each_row_once_on_any_number_of_ranks(of):
    def evaluate_all():
        model = of.build(0)
        calls = []
        model.register_forward_hook(lambda *_: calls.append("call"))
        return of.evaluate(model, 4), len(calls)

    torch.manual_seed(0)
    alone = of.network().eval()
    right = (alone(of.x[400:]).argmax(1) == of.y[400:]).sum().item()
    for ranks in COUNTS:
        calls = math.ceil(math.ceil(50 / ranks) / 4)
        assert of.on_ranks(ranks, evaluate_all, seconds=20) == [([right, 50], calls)] * ranks


def test_evaluation_leaves_the_model_divided_and_in_its_modes(of):
    def evaluate():
        model = of.build(0)
        model.layers[1].eval()
        of.evaluate(model)
        kinds = {type(weight).__name__ for weight in model.parameters()}
        return kinds, [layer.training for layer in model.layers]

    assert of.on_ranks(2, evaluate) == [({"DTensor"}, [True, False])] * 2


def test_evaluation_between_backward_and_step_loses_nothing(of):
    def step(with_evaluation, reshard=True):
        model = of.build(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if not reshard:
            for module in model.modules():
                if isinstance(module, of.FSDPModule):
                    module.reshard = lambda: None
        model(of.x[:8]).sum().backward()
        if with_evaluation:
            of.evaluate(model)
        optimizer.step()
        model.eval()
        return model(of.x[:8]).detach()

    plain = of.on_ranks(2, step, False)[0]
    assert torch.equal(of.on_ranks(2, step, True)[0], plain)
    assert not torch.equal(of.on_ranks(2, step, True, False)[0], plain)  # the old weights of the root group


def test_a_checkpoint_has_rank_0s_buffers(of, tmp_path):
    def save_and_load():
        model = of.build(0)
        model.layers[0][1].running_mean.fill_(of.dist.get_rank())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        of.save(tmp_path, model, optimizer, scheduler, 1, {})
        model.layers[0][1].running_mean.fill_(5)
        of.load(tmp_path, model, optimizer, scheduler, {})
        return model.layers[0][1].running_mean[0].item()

    assert of.on_ranks(3, save_and_load) == [0] * 3


def test_get_state_dict_before_the_first_step_is_a_step_to_adam(of):
    def steps():
        model = of.build(0)
        optimizer = torch.optim.Adam(model.parameters())
        before = whole_weights(model)
        of.get_state_dict(model, optimizer)
        changed = [name for name, weight in whole_weights(model).items() if not torch.equal(weight, before[name])]
        model(of.x[:8]).sum().backward()
        optimizer.step()
        return changed, {state["step"].item() for state in optimizer.state.values()}

    assert of.on_ranks(2, steps) == [([], {2})] * 2


@pytest.mark.parametrize("gradients, loaded", [(False, 12), (True, 0)])
def test_gradients_before_get_state_dict_cost_the_optimizer_its_state(of, tmp_path, gradients, loaded):
    """Where there are some, it takes no step, and so has no state to load into; nothing says so."""

    def load():
        model = of.build(0)
        optimizer = torch.optim.Adam(model.parameters())
        if gradients:
            model(of.x[:8]).sum().backward()
        model_state, optimizer_state = of.get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        of.dcp.load(state, checkpoint_id=tmp_path)
        of.set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return len(optimizer.state)

    def save():
        model = of.build(0)
        model_state, optimizer_state = of.get_state_dict(model, torch.optim.Adam(model.parameters()))
        of.dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=tmp_path)

    of.on_ranks(2, save)
    assert of.on_ranks(2, load) == [loaded] * 2


@pytest.mark.parametrize("whole", [True, False])
def test_only_whole_weights_cannot_be_loaded_while_the_root_group_is_whole(of, whole):
    def load():
        model = of.build(0)
        options = of.StateDictOptions(full_state_dict=whole)
        weights = of.get_model_state_dict(model, options=options)
        with torch.no_grad():
            model(of.x[:8])
        of.set_model_state_dict(model, weights, options=options)

    if whole:
        with pytest.raises(RuntimeError, match="mixed torch.Tensor and DTensor"):
            of.on_ranks(2, load)
    else:
        of.on_ranks(2, load)


def test_async_save_writes_the_same(of, tmp_path):
    def save():
        model = of.build(0)
        state = {"model": of.get_model_state_dict(model)}
        future = of.dcp.async_save(state, checkpoint_id=tmp_path, process_group=of.dist.new_group(backend="gloo"))
        before = whole_weights(model)
        with torch.no_grad():  # while it writes
            for parameter in model.parameters():
                parameter.to_local().add_(1)
        future.result()
        return before

    def load():
        model = of.build(1)
        state = {"model": of.get_model_state_dict(model)}
        of.dcp.load(state, checkpoint_id=tmp_path)
        return whole_weights(model)

    before, loaded = of.on_ranks(2, save)[0], of.on_ranks(2, load)[0]
    assert all(torch.equal(loaded[name], before[name]) for name in before)
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


def test_a_file_is_converted_once_and_read_in_shards(of, tmp_path, monkeypatch):
    weights = of.network().state_dict()
    torch.save(weights, tmp_path / "model.pt")
    module = "torch.distributed.checkpoint.format_utils"
    command = [module, "torch_to_dcp", str(tmp_path / "model.pt"), str(tmp_path / "folder")]
    monkeypatch.setattr(sys, "argv", command)

    def convert():  # as `python -m` does, without another start of PyTorch
        runpy.run_module(module, run_name="__main__", alter_sys=False)

    of.on_ranks(1, convert)

    def read():
        model = of.build(1)
        state = of.get_model_state_dict(model)
        of.dcp.load(state, checkpoint_id=tmp_path / "folder")
        of.set_model_state_dict(model, state)
        return whole_weights(model)

    read = of.on_ranks(3, read)[0]
    assert all(torch.equal(weight, weights[name]) for name, weight in read.items())


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_whole_file_is_loaded_in_place_of_the_new_weights(of, script, tmp_path, monkeypatch, contiguous):
    """Whatever the order of its numbers in memory, but for `contiguous()`: then only rank 0 has its part right."""
    weights = of.network().state_dict()
    transposed = {
        name: weight.t().contiguous().t() if weight.dim() == 2 else weight for name, weight in weights.items()
    }
    torch.save(transposed, tmp_path / "model.pt")
    monkeypatch.chdir(tmp_path)
    line = re.search(r"\n    weights = \{name: tensor\.contiguous.*\n", text_of("build"))[0]
    here = script(
        ("network().state_dict()", 'torch.load("model.pt", map_location="cpu")'),
        *([] if contiguous else [(line, "\n")]),
    )
    loaded = of.on_ranks(3, lambda: whole_weights(here.build(0)))[0]
    assert all(torch.equal(weight, weights[name]) for name, weight in loaded.items()) == contiguous
    rows = loaded["first.weight"].tensor_split([11])[0]
    assert torch.equal(rows, weights["first.weight"][:11])


def test_the_script_has_other_dropout_on_each_rank(of, script, tmp_path):
    here = script(SHORT)

    def draw():
        here.train(tmp_path)
        return torch.rand(3)

    first, second = of.on_ranks(2, draw)
    assert not torch.equal(first, second)


def test_the_script_cannot_load_the_state_of_a_parameter_that_the_loss_never_reaches(script, trained, tmp_path):
    spare = ("            last=nn.Linear(32, 3),", "            last=WithSpare(32, 3),")
    module = (
        "\n\n\ndef network",
        """


class WithSpare(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.spare = nn.Parameter(torch.ones(4))


def network""",
    )
    here = script(SHORT, spare, module)
    trained(here, 2, tmp_path)
    with pytest.raises(RuntimeError, match=r"Missing key in checkpoint state_dict: optimizer.state.last.spare"):
        trained(here, 2, tmp_path)
    frozen = script(
        SHORT, spare, (module[0], module[1].replace("torch.ones(4))", "torch.ones(4), requires_grad=False)"))
    )
    for _ in range(2):
        trained(frozen, 2, tmp_path / "frozen")


def test_the_script_runs_as_hsdp(script, trained, tmp_path):
    mesh = re.search(r'`init_device_mesh\("cuda", \(4, 8\), (.*?)\)`', text_of("script-look"))[1]
    change = (
        "init_device_mesh(my_device().type, (dist.get_world_size(),))",
        f'init_device_mesh("cpu", (2, 2), {mesh})',
    )
    one = trained(script(*EXACT), 1, tmp_path / "one")
    assert torch.allclose(trained(script(*EXACT, change), 4, tmp_path / "hsdp"), one, atol=1e-5)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_accumulation_with_labels_that_do_not_count(of, script, ranks):
    here = script(*EXACT)
    labels = here.y[:60].clone()
    labels[:25] = -100

    def gradient():
        model = here.build(0)
        rank, count = here.dist.get_rank(), here.dist.get_world_size()
        parts = [
            (here.x[rows].tensor_split(count)[rank], labels[rows].tensor_split(count)[rank])
            for rows in torch.arange(60).split(20)
        ]
        exec(folded("backward_of_a_step"), here.__dict__)
        here.backward_of_a_step(model, parts)
        return model.first.weight.grad.full_tensor()

    torch.manual_seed(0)
    model = here.network()
    nn.functional.cross_entropy(model(here.x[:60]), labels).backward()
    assert torch.allclose(of.on_ranks(ranks, gradient)[0], model.first.weight.grad, atol=1e-6)


@pytest.mark.parametrize("named", [True, False])
def test_the_state_of_an_optimizer_goes_by_the_names_of_parameters(of, named):
    """Of a run in one process: what only numbers them is accepted, and trains wrongly."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    torch.manual_seed(0)
    plain = of.network().eval()
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.01)

    def step(model, optimizer):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(of.x[:8]), of.y[:8]).backward()
        optimizer.step()

    step(plain, optimizer)
    state = copy.deepcopy(get_optimizer_state_dict(plain, optimizer) if named else optimizer.state_dict())
    weights = {name: weight.clone() for name, weight in plain.state_dict().items()}
    step(plain, optimizer)

    def go_on():
        model = of.build(0).eval()
        options = of.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        first = of.dist.get_rank() == 0
        of.set_model_state_dict(model, weights if first else {}, options=options)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        set_optimizer_state_dict(model, optimizer, state if first else {}, options=options)
        step(model, optimizer)
        return whole_weights(model)

    found = of.on_ranks(2, go_on)[0]
    assert all(torch.allclose(found[name], plain.state_dict()[name], atol=1e-6) for name in found) == named


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def two_groups(model):
    weights, biases = [[p for p in model.parameters() if (p.ndim > 1) == matrix] for matrix in (True, False)]
    return torch.optim.AdamW([{"params": biases, "weight_decay": 0}, {"params": weights, "weight_decay": 0.1}], lr=0.01)


@pytest.mark.parametrize("make_optimizer", [momentum, two_groups, None])
@pytest.mark.parametrize("edition", EDITIONS)
def test_a_run_on_one_gpu_goes_on_with_fsdp2(of, script, tmp_path, make_optimizer, edition):
    """With the code of an answer, q-one-gpu-state, and with the optimizer that it shows (None)."""
    page = BOOK.editions[edition].pages["questions_checkpoints"].raw
    code = re.search(r"```python\n(def load_from_one_gpu.*?)```", page, re.DOTALL)[1]
    here = script(*EXACT)
    if make_optimizer is None:
        exec(re.search(r"```python\n(def make_optimizer.*?)```", page, re.DOTALL)[1], here.__dict__)
        make_optimizer = here.make_optimizer
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    here.__dict__.update(
        get_optimizer_state_dict=get_optimizer_state_dict, set_optimizer_state_dict=set_optimizer_state_dict
    )
    exec(code, here.__dict__)

    def steps(model, optimizer, scheduler, count=3):
        for _ in range(count):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(here.x[:8]), here.y[:8]).backward()
            optimizer.step()
            scheduler.step()

    def begin(model):
        optimizer = make_optimizer(model)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)

    torch.manual_seed(0)
    plain, optimizer, scheduler = begin(here.network())
    steps(plain, optimizer, scheduler)
    file = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    for values in file["optimizer"]["state"].values():  # column by column, as after training in another memory format
        for name, value in values.items():
            values[name] = value.t().contiguous().t() if value.ndim == 2 else value
    torch.save({**file, "steps_done": 3}, tmp_path / "one-gpu.pt")
    steps(plain, optimizer, scheduler)

    def go_on():
        model, optimizer, scheduler = begin(here.build(1))
        done = here.load_from_one_gpu(tmp_path / "one-gpu.pt", model, optimizer, scheduler, make_optimizer)
        here.save(tmp_path / "sharded", model, optimizer, scheduler, done, {})
        model, optimizer, scheduler = begin(here.build(2))  # and from a checkpoint of its own
        assert here.load(tmp_path / "sharded", model, optimizer, scheduler, {}) == done == 3
        steps(model, optimizer, scheduler)
        return whole_weights(model)

    for ranks in [2, 3]:
        found = of.on_ranks(ranks, go_on)[0]
        assert all(torch.allclose(found[name], weight, atol=1e-5) for name, weight in plain.state_dict().items())


def test_labels_that_do_not_count(of, script):
    """The divisor of the page, with labels that only some ranks have: the gradient of one process."""
    count = re.search(r"`n = (sum_over_ranks\(.*?\)\[0\])`", text_of("script-look"))[1]
    here = script(*EXACT)
    labels = here.y[:64].clone()
    labels[:20] = -100

    def gradient():
        model = here.build(0)
        rank, ranks = here.dist.get_rank(), here.dist.get_world_size()
        mine, rows = labels.tensor_split(ranks)[rank], here.x[:64].tensor_split(ranks)[rank]
        n = eval(count, {"labels": mine, "sum_over_ranks": here.sum_over_ranks})
        (nn.functional.cross_entropy(model(rows), mine, reduction="sum") * ranks / n).backward()
        return model.first.weight.grad.full_tensor()

    alone = of.on_ranks(1, gradient)[0]
    torch.manual_seed(0)
    model = here.network()
    nn.functional.cross_entropy(model(here.x[:64]), labels).backward()
    for found in [alone, of.on_ranks(3, gradient)[0]]:
        assert torch.allclose(found, model.first.weight.grad, atol=1e-6)


def test_activation_checkpointing_changes_no_name_and_no_gradient(of, script, trained, tmp_path):
    line = re.search(r"`(layer\.forward = .*?)`", text_of("script-look"))[1]
    imported = re.search(r"`(from torch\.utils\.checkpoint .*?)`", text_of("script-look"))[1]
    (saves,) = [cell.source for cell in BOOK.page("en/13_memory").code if cell.id == "saves"]
    function = "def checkpointed" + saves.partition("def checkpointed")[2].partition("\n\n\n")[0]
    plain, wrapped = (
        script(*EXACT),
        script(
            *EXACT,
            ("import math\n", f"import math\n{imported}\n\n\n{function}\n\n\n"),
            ("    for layer in model.layers:\n", f"    for layer in model.layers:\n        {line}\n"),
        ),
    )

    def names():
        return list(wrapped.build(0).state_dict())

    assert of.on_ranks(2, names)[0] == list(plain.network().state_dict())
    one = trained(plain, 2, tmp_path / "plain")
    assert torch.allclose(trained(wrapped, 2, tmp_path / "wrapped"), one, atol=1e-6)


def test_the_script_runs_with_lora(of, script, tmp_path):
    adapter = f"""{folded("add_adapters")}

def network():
    model = without_adapters()
    add_adapters(model)
    return model


def without_adapters():"""
    freeze = """        model = network()
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            parameter.requires_grad_(False)
        if "lora_" not in name and ".1." not in name:  # BatchNorm is .1.
            parameter.data = parameter.data.bfloat16()
"""
    whole = "\n    model_state, optimizer_state = get_state_dict(model, optimizer"
    to_load = 'path = f"{folder}/step-{steps_done}"'
    trained_only = "options=StateDictOptions(ignore_frozen_params=True)"
    here = script(
        SHORT,
        ("def network():", adapter),
        ("        model = network()\n", freeze),
        ("SGD(\n        model.parameters()", "SGD(\n        [p for p in model.parameters() if p.requires_grad]"),
        (
            "        outputs = model(inputs.to(my_device()))",
            "        with torch.autocast(my_device().type, dtype=torch.bfloat16):\n"
            "            outputs = model(inputs.to(my_device()))",
        ),
        *((f"{before}{whole})", f"{before}{whole}, {trained_only})") for before in ("copy_buffers(model)", to_load)),
        ("optim_state_dict=state", "options=StateDictOptions(strict=False),\n        optim_state_dict=state"),
    )

    def train():
        last = here.train(tmp_path).last
        weight, trained = last.base.weight, last.lora_b.weight
        return weight.dtype, weight.full_tensor(), trained.dtype, trained.full_tensor()

    torch.manual_seed(0)
    model = here.network()
    dtype, weight, of_adapter, trained = of.on_ranks(2, train)[0]
    assert (dtype, of_adapter) == (torch.bfloat16, torch.float32)
    assert torch.equal(weight, model.last.base.weight.bfloat16())
    assert not torch.equal(trained, model.last.lora_b.weight)
    names = of.dcp.FileSystemReader(max(tmp_path.glob("step-*"))).read_metadata().state_dict_metadata
    assert {name for name in names if name.startswith("model.last")} == {
        "model.last.lora_a.weight",
        "model.last.lora_b.weight",
    }
    resumed = of.on_ranks(3, train)[0]  # from its checkpoint, which is the end of the training
    assert torch.equal(resumed[1], weight) and torch.equal(resumed[3], trained)


def test_the_script_runs_with_offload(script, trained, tmp_path):
    policy = "offload_policy=CPUOffloadPolicy(pin_memory=False)"  # pinning needs a GPU
    here = script(
        *EXACT,
        ("fully_shard(layer, mesh=mesh)", f"fully_shard(layer, mesh=mesh, {policy})"),
        ("fully_shard(model, mesh=mesh)", f"fully_shard(model, mesh=mesh, {policy})"),
        ("import FSDPModule, ", "import CPUOffloadPolicy, FSDPModule, "),
        ("to_empty(device=my_device())", 'to_empty(device="cpu")'),
    )
    one = trained(script(*EXACT), 1, tmp_path / "one")
    assert torch.allclose(trained(here, 2, tmp_path / "offload"), one, atol=1e-5)


@pytest.fixture
def in_place(of, script):
    """The script with its weights initialized in place; what a module sets by itself, and its weights afterwards."""
    functions = folded("fill_in_place")

    def build(ranks, last="nn.Linear(32, 3)", extra="", after=whole_weights, seed="seed"):
        text = text_of("build")
        cut = text[text.index("    torch.manual_seed(seed)") : text.index("    return model")]
        here = script(
            ("\n\n\ndef build(seed):", f"\n\n\n{functions}\n{extra}\n\ndef build(seed):"),
            (cut, f"    fill_in_place(model, {seed})\n"),
            ("            last=nn.Linear(32, 3),", f"            last={last},"),
        )
        return of.on_ranks(ranks, lambda: after(here.build(0)))

    return build


def test_weights_initialized_in_place(in_place):
    for weights in in_place(3, seed="seed + mesh.get_local_rank()"):
        assert all(weight.isfinite().all() for weight in weights.values())
    rows = in_place(2)[0]["first.weight"].tensor_split(2)
    assert torch.equal(*rows)  # on CPUs, with one seed: the page's warning
    rows = in_place(2, seed="seed + mesh.get_local_rank()")[0]["first.weight"].tensor_split(2)
    assert not torch.equal(*rows)


def test_a_weight_that_nothing_draws_is_named(in_place):
    extra = """

class Bare(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.scale = nn.Parameter(torch.empty(2))
"""
    with pytest.raises(RuntimeError, match=r"AssertionError: last.scale has no initial value"):
        in_place(2, "Bare(32, 3)", extra)


def test_what_is_kept_in_place_of_the_values_that_a_module_sets(in_place):
    extra = """

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(8, 4, padding_idx=3)
        self.linear = nn.Linear(32, 3)
        nn.init.zeros_(self.linear.bias)  # lost

    def reset_parameters(self):  # has the last word
        nn.init.zeros_(self.linear.weight)
"""
    cure = re.search(r"`(weight\.copy_\(.*?\))`, where `row` is `(.*?)`", text_of("script-look"))

    def look(model):
        drawn = whole_weights(model)
        with torch.no_grad():
            weight, padding_idx = model.last.words.weight, model.last.words.padding_idx
            names = {"torch": torch, "weight": weight, "padding_idx": padding_idx}
            names["row"] = eval(cure[2], names)
            eval(cure[1], names)
        return drawn, whole_weights(model)["last.words.weight"]

    drawn, cured = in_place(3, "Own()", extra, look)[0]
    assert not drawn["last.linear.weight"].any() and drawn["last.linear.bias"].any()
    assert drawn["last.words.weight"].any(1).all()
    assert cured.any(1).tolist() == [row != 3 for row in range(8)]


def test_nothing_private_is_used():
    code = "\n".join(cell.source for cell in BOOK.page(LESSON).code if cell.id != "on-ranks")
    assert not re.search(r"(torch|distributed)\.(\w+\.)*_\w+ import|import torch\._", code)
