"""Random models, batches and modes: virtual devices do what PyTorch's own DataParallel does on several GPUs.

Where they cannot, the difference stands in DIFFERENCES, each with the test that shows it; lesson 4 has the same list
as a table, "Where a virtual device is not a GPU". Runs on real GPUs and, in every `make test`, on simulated ones.
"""

import re
import sys
import threading
from collections import OrderedDict, namedtuple
from contextlib import nullcontext

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrizations

from tests.conftest import BOOK
from tests.reading import run_cells

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
VirtualDataParallel = run_cells("en/04_data_parallel", ["virtual-devices"])["VirtualDataParallel"]
# The same examples in every run: a test that fails one day and passes the next helps nobody.
SEARCH = settings(deadline=None, derandomize=True, max_examples=150, suppress_health_check=list(HealthCheck))

Pair = namedtuple("Pair", "left right")
COUNTS = st.sampled_from([n for n in (1, 2, 3, 8) if n <= max(torch.cuda.device_count(), 1)])
ROWS = st.integers(0, 20)
MODES = {
    "training": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast, float16": lambda: torch.autocast("cuda", torch.float16),
    "autocast, bfloat16": lambda: torch.autocast("cuda", torch.bfloat16),
}


@pytest.fixture(autouse=True)
def gpus():
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 CUDA GPUs, and the tests see {torch.cuda.device_count()}; see make gpu-check")


def on_gpus(model, n, dim=0):
    """PyTorch's DataParallel on n GPUs."""
    return nn.DataParallel(model, device_ids=list(range(n)), dim=dim)


def outcome(call):
    """What a call returns; or the type of its error, with the first and last line of what it says."""
    try:
        return call()
    except Exception as error:
        lines = str(error).replace("virtual device", "device").strip().splitlines() or [""]
        return type(error), lines[0], lines[-1]


def plain(value):
    """A value that can be compared: tensors by dtype, shape and numbers."""
    if isinstance(value, torch.Tensor):
        numbers = value.detach().to_dense().cpu()
        return "tensor", str(value.dtype), tuple(value.shape), numbers.tolist(), value.requires_grad
    if isinstance(value, dict):
        return type(value), [(key, plain(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [plain(part) for part in value]
    return re.sub(" at 0x[0-9a-f]+", "", value) if isinstance(value, str) else value


# What goes in: containers of tensors of the batch's rows and of everything else.


class Odd:
    """Neither a tensor nor a container: shared by all replicas."""

    def __eq__(self, other):
        return isinstance(other, Odd)

    __hash__ = None


def tensors(rows):
    """Of several dtypes. A complex vector has a second dimension for PyTorch's scatter, so complex ones are matrices."""
    sizes = st.sampled_from([(rows,), (rows, 2), (rows, 2, 3)])
    numbers = sizes.map(lambda size: torch.arange(float(torch.Size(size).numel()), dtype=torch.float64).view(size))
    others = st.sampled_from([torch.float64, torch.float32, torch.int64, torch.bool])
    return st.builds(torch.Tensor.to, numbers, others) | st.just(torch.ones(rows, 2, dtype=torch.complex64))


def structures(rows):
    leaves = tensors(rows) | st.sampled_from([None, 7, 2.5, "text", True]) | st.builds(Odd)

    def containers(parts):
        few = st.lists(parts, max_size=3)
        return (
            few
            | few.map(tuple)
            | st.builds(Pair, parts, parts)
            | st.dictionaries(st.sampled_from("abc"), parts, max_size=3)
            | st.dictionaries(st.sampled_from("abc"), parts, max_size=3).map(OrderedDict)
        )

    return st.recursive(leaves, containers, max_leaves=6)


class Echo(nn.Module):
    """Returns what it gets, and notes it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.notes = []

    def forward(self, *inputs, **kwargs):
        self.notes.append(plain([inputs, kwargs]))
        return inputs, kwargs


@SEARCH
@given(st.data())
def test_structures_go_in_and_come_out(data):
    rows, n, dim = data.draw(ROWS, "rows"), data.draw(COUNTS, "devices"), data.draw(st.sampled_from([0, 0, 1]), "dim")
    inputs = data.draw(st.lists(structures(rows), max_size=3), "inputs")
    kwargs = data.draw(st.dictionaries(st.sampled_from(["p", "q"]), structures(rows), max_size=2), "kwargs")
    found = []
    for wrap in (on_gpus, VirtualDataParallel):
        model = Echo().to("cuda:0")
        network = wrap(model, n, dim)
        found.append(
            (plain(outcome(lambda network=network: network(*inputs, **kwargs))), sorted(map(repr, model.notes)))
        )
    assert found[0] == found[1]


# Random models.


class Everything(nn.Module):
    """A model with the parts that are drawn; each acts on a batch of 4 numbers a row."""

    def __init__(self, parts):
        super().__init__()
        self.parts = parts
        self.fc = nn.Linear(4, 4)
        self.tied = self.fc if "shared module" in parts else nn.Linear(4, 4)
        if "tied weights" in parts:
            self.tied.weight = self.fc.weight
        self.pieces = nn.ParameterList([torch.ones(4), torch.full((4,), 2.0)])
        self.named = nn.ParameterDict({"shift": torch.full((4,), 0.5)})
        self.unused = nn.Linear(2, 2)
        self.frozen = nn.Parameter(torch.full((4,), 3.0), requires_grad=False)
        self.register_buffer("scale", torch.full((4,), 1.5))
        self.register_buffer("passing", torch.ones(4), persistent=False)
        self.register_buffer("none", None)
        self.register_parameter("no_parameter", None)
        self.norm = nn.BatchNorm1d(4)
        self.table = nn.Embedding(5, 4, sparse="sparse" in parts)
        self.weighted = parametrizations.weight_norm(nn.Linear(4, 4))
        self.calls, self.notes, self.label = 0, [], "a text"
        if "hooks" in parts:
            self.fc.register_forward_hook(lambda module, inputs, output: output + 1)
            self.tied.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))

    def forward(self, x, factor=1.0):
        assert self.none is None and self.no_parameter is None and self.label == "a text"
        seen = sorted(name for name, _ in self.named_parameters())
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cuda")
        self.calls += 1
        if "in place" in self.parts:
            x.mul_(2)
        for part in self.parts:
            x = getattr(self, "apply_" + part.replace(" ", "_"), lambda x: x)(x)
        self.notes.append(repr((tuple(x.shape), seen, modes, self.training, self.calls, str(x.dtype))))
        return x * factor

    def apply_shared_module(self, x):
        return self.tied(self.fc(x))

    apply_tied_weights = apply_hooks = apply_shared_module

    def apply_lists(self, x):
        return x * self.pieces[0] + self.pieces[1] + self.named["shift"]

    def apply_buffers(self, x):
        self.passing.add_(1)
        return x * self.scale + self.passing + self.frozen

    def apply_norm(self, x):
        return self.norm(x) if len(x) > 1 else x

    def apply_sparse(self, x):
        return x + self.table(torch.arange(len(x), device=x.device) % 5)

    def apply_parametrization(self, x):
        return self.weighted(x)

    def apply_new_attribute(self, x):
        self.added = self.label = "set in forward"
        self.scale = self.scale * 2
        return x * self.scale

    def apply_integers_first(self, x):
        return x.long() if x.shape[0] and float(x.detach().flatten()[0]) < 1 else x

    def apply_scalar(self, x):
        return x.sum()

    def apply_fails(self, x):
        if x.shape[0] < 4:
            raise ValueError("fewer than 4 rows")
        return x


PARTS = sorted(name[6:].replace("_", " ") for name in vars(Everything) if name.startswith("apply_")) + ["in place"]


def run(wrap, parts, n, rows, mode, train):
    """Everything that one call, its backward pass and what follows leave behind."""
    torch.manual_seed(0)
    model = Everything(parts).double().to("cuda:0").train(train)
    network = wrap(model, n)
    batch = torch.linspace(-1, 2, rows * 4, dtype=torch.float64, device="cuda:0").view(rows, 4)
    rows_before = batch.clone()
    with MODES[mode]():
        output = outcome(lambda: network(batch, factor=0.5))
    found = {"output": plain(output), "rows changed": plain((batch != rows_before).any(1))}
    if isinstance(output, torch.Tensor) and output.requires_grad:
        found["backward"] = outcome(lambda: output.double().pow(2).sum().backward())
    gradients = {name: p.grad if p.grad is None else p.grad.to_dense() for name, p in model.named_parameters()}
    found["gradients"] = {
        name: g if g is None else [round(v, 9) for v in g.flatten().tolist()] for name, g in gradients.items()
    }
    found["buffers"] = {name: plain(b) for name, b in model.named_buffers()}
    found["what stays"] = model.calls, model.label, hasattr(model, "added")
    found["what replicas saw"] = sorted(model.notes)
    found["state"] = {name: plain(value) for name, value in network.state_dict().items()}
    return found


@SEARCH
@given(
    st.lists(st.sampled_from(PARTS), max_size=4, unique=True),
    COUNTS,
    ROWS,
    st.sampled_from(sorted(MODES)),
    st.booleans(),
)
def test_random_models_do_the_same(parts, n, rows, mode, train):
    real, virtual = (run(wrap, parts, n, rows, mode, train) for wrap in (on_gpus, VirtualDataParallel))
    for what in real:
        assert real[what] == virtual[what], what


# Where they cannot agree: the first column of lesson 4's table, and a function that shows the difference.

DIFFERENCES = {}


def difference(row):
    return lambda show: DIFFERENCES.setdefault(row, show)


class Does(nn.Module):
    """A model that calls a function with itself and its input; one weight, so that it has a device."""

    def __init__(self, act):
        super().__init__()
        self.act, self.weight = act, nn.Parameter(torch.ones(1))

    def forward(self, *inputs, **kwargs):
        return self.act(self, *inputs, **kwargs)

    def times_weight(self, x):
        return x * self.weight


def each(act, *inputs, dim=0, home="cuda:0"):
    """The outcomes of a model on 2 virtual devices and on 2 GPUs."""
    virtual = VirtualDataParallel(Does(act).to(home), 2, dim)
    real = on_gpus(Does(act).to("cuda:0"), 2, dim)
    return tuple(outcome(lambda network=network: network(*inputs)) for network in (virtual, real))


ROWS_OF_4 = torch.arange(4.0)[:, None]


@difference("a tensor stays on the first device")
def _():
    table = torch.ones(1, device="cuda:0")
    virtual, real = each(lambda model, x: x + table, ROWS_OF_4)
    assert virtual.flatten().tolist() == [1, 2, 3, 4]
    assert real[0] is RuntimeError and "Expected all tensors to be on the same device" in real[2]


@difference("the number of a device, such as `x.get_device()`")
def _():
    virtual, real = each(lambda model, x: x.new_full(x.shape, x.get_device()), ROWS_OF_4)
    assert (virtual.flatten().tolist(), real.flatten().tolist()) == ([0, 0, 0, 0], [0, 0, 1, 1])


@difference("a method of the model, kept in an attribute, as in `self.act = self.my_act`")
def _():
    def forward(model, x):
        return model.kept(x)

    virtual, real = Does(forward), Does(forward).to("cuda:0")
    for model in (virtual, real):
        model.kept = model.times_weight
    assert VirtualDataParallel(virtual, 2)(ROWS_OF_4).flatten().tolist() == [0, 1, 2, 3]
    assert outcome(lambda: on_gpus(real, 2)(ROWS_OF_4))[0] is RuntimeError


@difference("an output on the CPU")
def _():
    virtual, real = each(lambda model, x: x.cpu(), ROWS_OF_4, home="cpu")
    assert virtual.tolist() == ROWS_OF_4.tolist()
    assert real[:2] == (AssertionError, "Gather function not implemented for CPU tensors")


@difference("outputs whose sizes do not match")
def _():
    virtual, real = each(lambda model, x: x[:, : int(x[0, 0]) + 1].expand(-1, int(x[0, 0]) + 1), ROWS_OF_4)
    assert virtual[0] is real[0] is RuntimeError
    assert virtual[1].startswith("Sizes of tensors must match") and real[1].startswith("Input tensor at index 1")


@difference("how the replicas run")
def _():
    def meet(*arguments):
        barrier.wait()

    def in_forward(model, x):
        meet()
        return x

    def in_backward(model, x):
        x = model.times_weight(x)
        x.register_hook(meet)
        return x

    hooked = Does(Does.times_weight)
    hooked.register_forward_hook(meet)
    for model in (Does(in_forward), hooked, Does(in_backward)):
        barrier = threading.Barrier(2, timeout=0.2)
        virtual = VirtualDataParallel(model, 2)
        assert outcome(lambda: virtual(ROWS_OF_4).sum().backward())[0] is threading.BrokenBarrierError  # noqa: B023
        barrier = threading.Barrier(2, timeout=30)
        real = on_gpus(model.to("cuda:0"), 2)(ROWS_OF_4)
        if real.requires_grad:
            real.sum().backward()


@difference("random numbers")
def _():
    def draw(model, x):
        return torch.rand(len(x), 1, device=x.device)

    torch.manual_seed(0)
    virtual, real = each(draw, ROWS_OF_4)
    assert len(set(virtual.flatten().tolist())) == 4
    torch.manual_seed(0)
    real = on_gpus(Does(draw).to("cuda:0"), 2)(ROWS_OF_4).flatten().tolist()
    assert real[:2] == real[2:]


@difference("a batch on the CPU, changed in place")
def _():
    def change(model, x):
        return x.add_(10)

    changed = []
    for network in (VirtualDataParallel(Does(change), 2), on_gpus(Does(change).to("cuda:0"), 2)):
        batch = ROWS_OF_4.clone()
        with torch.no_grad():
            network(batch)
        changed.append(batch.flatten().tolist())
    assert changed == [[10, 11, 2, 3], [0, 1, 2, 3]]
    virtual, real = each(lambda model, x: x.add_(model.weight), ROWS_OF_4.clone())
    assert virtual[0] is RuntimeError and real.flatten().tolist() == [1, 2, 3, 4]


@difference("autocast without a dtype")
def _():
    def multiply(model, x):
        return x @ x.T[:, :1]

    with torch.autocast("cpu"):
        virtual = VirtualDataParallel(Does(multiply), 2)(ROWS_OF_4)
    with torch.autocast("cuda"):
        real = on_gpus(Does(multiply).to("cuda:0"), 2)(ROWS_OF_4)
    assert (virtual.dtype, real.dtype) == (torch.bfloat16, torch.float16)


@difference("weights in channels_last, or otherwise not contiguous")
def _():
    def strides(model, x):
        seen.append((model.kernel.stride(), model.turned.stride()))
        return x

    kept = []
    for wrap in (VirtualDataParallel, on_gpus):
        model, seen = Does(strides), []
        model.kernel = nn.Parameter(torch.ones(2, 3, 2, 2).to(memory_format=torch.channels_last))
        model.turned = nn.Parameter(torch.ones(2, 3).T)
        wrap(model.to("cuda:0"), 2)(ROWS_OF_4)
        kept.append(set(seen))
    as_it_was, contiguous = ((12, 1, 6, 3), (1, 3)), ((12, 4, 2, 1), (2, 1))
    assert kept == [{as_it_was}, {as_it_was, contiguous}]


@difference("`output_device`, or another order of devices")
def _():
    model = Does(Does.times_weight).to("cuda:1")
    assert outcome(lambda: VirtualDataParallel(model, 2, output_device=1))[0] is TypeError
    output = nn.DataParallel(model, device_ids=[1, 0], output_device=0)(ROWS_OF_4)
    assert (output.device.index, output.flatten().tolist()) == (0, [0, 1, 2, 3])


@difference("wrapped first, moved afterwards")
def _():
    virtual = VirtualDataParallel(Does(lambda model, x: x), 2).to("cuda:0")
    assert "must have its parameters and buffers on device cpu" in outcome(lambda: virtual(ROWS_OF_4))[1]
    on_gpus(Does(lambda model, x: x), 2).to("cuda:0")(ROWS_OF_4)


@difference("one `DataParallel` inside another")
def _():
    virtual = VirtualDataParallel(VirtualDataParallel(Does(lambda model, x: x * model.weight), 2), 2)
    assert virtual(ROWS_OF_4).tolist() == ROWS_OF_4.tolist()
    inner = on_gpus(Does(lambda model, x: x * model.weight).to("cuda:0"), 2)
    assert outcome(lambda: on_gpus(inner, 2)(ROWS_OF_4))[0] is RuntimeError


@difference("forward-mode automatic differentiation")
def _():
    def derivative(network, x):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(network(forward_ad.make_dual(x, torch.ones_like(x)))).tangent

    virtual = VirtualDataParallel(Does(lambda model, x: x * model.weight).to("cuda:0"), 2)
    real = on_gpus(Does(lambda model, x: x * model.weight).to("cuda:0"), 2)
    x = ROWS_OF_4.to("cuda:0")
    assert derivative(virtual, x).flatten().tolist() == [1, 1, 1, 1]
    assert outcome(lambda: derivative(real, x))[0] is NotImplementedError


@difference("a `PackedSequence`")
def _():
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(3, 4, 1), [3, 3, 2, 1])
    virtual, real = each(lambda model, x: x.data, packed, home="cpu")
    assert isinstance(virtual, torch.Tensor)
    assert real[0] is ValueError and real[1].startswith("batch_sizes should always be on CPU")


@difference("complex numbers, cut along dimension -1")
def _():
    virtual, real = each(lambda model, x: x, torch.ones(2, 4) + 1j, dim=-1)
    assert virtual.shape == (2, 4) and real[0] is RuntimeError


@difference("conjugated complex outputs")
def _():
    virtual, real = each(lambda model, x: x.conj(), ROWS_OF_4 + 1j)
    assert isinstance(virtual, torch.Tensor) and real[0] is RuntimeError


@difference("a buffer that requires gradients, changed in place")
def _():
    def change(model, x):
        model.level.add_(1)
        return x * model.level

    said = []
    for wrap in (VirtualDataParallel, on_gpus):
        model = Does(change)
        model.register_buffer("level", torch.ones(1).requires_grad_().clone())
        said.append(outcome(lambda wrap=wrap, model=model: wrap(model.to("cuda:0"), 2)(ROWS_OF_4)))
    assert isinstance(said[0], torch.Tensor) and said[1][0] is RuntimeError


@difference("outputs of which one is an empty vector and the others are matrices")
def _():
    virtual, real = each(lambda model, x: x if x[0, 0] == 0 else x.new_empty(0), ROWS_OF_4)
    assert virtual.shape == (2, 1) and real[0] is RuntimeError


@difference("`sys.exit()` in a replica")
def _():
    virtual, real = each(lambda model, x: sys.exit(), ROWS_OF_4)
    assert virtual is None and real[0] is KeyError


@pytest.mark.parametrize("row", DIFFERENCES)
def test_a_difference_that_lesson_4_names(row):
    DIFFERENCES[row]()


def table(edition):
    """The rows of the lesson's tables of differences, as lists of columns."""
    (text,) = [cell.source for cell in BOOK.page(f"{edition}/04_data_parallel").cells if cell.id == "not-a-gpu"]
    lines = [row for part in text.split("|---|---|---|\n")[1:] for row in part.partition("\n\n")[0].splitlines()]
    return [line.removeprefix("| ").split(" | ") for line in lines]


def test_lesson_4_names_these_differences():
    assert [row[0] for row in table(BOOK.source.name)] == list(DIFFERENCES)


@pytest.mark.parametrize("edition", [edition.name for edition in BOOK.translations])
def test_a_translation_of_lesson_4_names_them_in_the_same_order(edition):
    """Row by row, what happens has the same code in it: names of errors above all."""
    both = (edition, BOOK.source.name)
    here, source = ([re.findall("`[^`]+`", " ".join(row[1:])) for row in table(name)] for name in both)
    assert here == source
