"""Faults in the virtual devices are noticed: each makes them differ from PyTorch's own DataParallel on GPUs.

Each test takes the source of the cell `virtual-devices`, replaces a line of it, and asks both classes the same question.
"""

import pytest
import torch
from torch import nn

from tests.conftest import BOOK

pytestmark = pytest.mark.gpu

(SOURCE,) = [cell.source for cell in BOOK.page("en/04_data_parallel").code if cell.id == "virtual-devices"]


def virtual_class(*replacements):
    """VirtualDataParallel, with these lines replaced."""
    source = SOURCE
    for right, wrong in replacements:
        assert source.count(right) == 1, (
            f"the cell virtual-devices has no {right!r} any more: inject the fault elsewhere"
        )
        source = source.replace(right, wrong)
    variables = {"__name__": "virtual-devices"}
    exec(compile(source, "virtual-devices", "exec"), variables)
    return variables["VirtualDataParallel"]


class Watching(nn.Module):
    """Notes what `look` finds in each replica."""

    def __init__(self, look):
        super().__init__()
        self.fc = nn.Linear(5, 2)
        self.register_buffer("steps", torch.zeros(1))
        self.look = look
        self.notes = []

    def forward(self, x):
        self.notes.append((x[0, 0].item(), self.look(self, x)))
        return self.fc(x)


def watched(wrap, look=lambda module, x: None):
    """A model that watches, on two devices; its batch, numbered in the first column; and what it has noted, in order."""
    torch.manual_seed(0)
    model = Watching(look).to("cuda:0")
    x = torch.randn(10, 5, device="cuda:0")
    x[:, 0] = torch.arange(10)
    return wrap(model), x, lambda: [note for _, note in sorted(model.notes)]


def gradient(wrap):
    network, x, _ = watched(wrap)
    network(x).sum().backward()
    return [round(number, 3) for number in network.module.fc.weight.grad.flatten().tolist()]


def steps_of_each(wrap):
    """A change in place reaches no other replica."""
    network, x, notes = watched(wrap, lambda module, x: module.steps.add_(1).clone().item())
    network(x)
    return notes()


def parameters_of_each(wrap):
    network, x, notes = watched(wrap, lambda module, x: len(list(module.parameters())))
    with torch.no_grad():
        network(x)
    return notes()


def rows_after_a_change(wrap):
    network, x, _ = watched(wrap, lambda module, x: x.mul_(2).numel())
    network(x)
    return x[:, 0].tolist()


def dtypes_of_each(wrap):
    network, x, notes = watched(wrap, lambda module, x: str(module.fc(x).dtype))
    with torch.autocast("cuda", torch.bfloat16):
        network(x)
    return notes()


AUTOCAST = "autocast = torch.is_autocast_enabled(device_type)"
# The fault -> what shows it, and the line that has it.
FAULTS = {
    "Broadcast.backward takes the average": (gradient, [("sum(others, first)", "sum(others, first) / len(copies)")]),
    "buffers are not copied": (steps_of_each, [("{b: b if i == 0 else b.clone() for b", "{b: b for b")]),
    "replica 0 loses its parameters without gradients": (
        parameters_of_each,
        [("copies = (*parameters, *copies[len(parameters) :])", "pass")],
    ),
    "chunks are views": (rows_after_a_change, [("chunk if i == 0 else chunk.clone()", "chunk")]),
    "autocast's dtype is handed on": (
        dtypes_of_each,
        [
            (AUTOCAST, f"{AUTOCAST}; dtype = torch.get_autocast_dtype(device_type)"),
            ("torch.autocast(device_type, enabled=autocast)", "torch.autocast(device_type, dtype, enabled=autocast)"),
        ],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault):
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 CUDA GPUs, and the tests see {torch.cuda.device_count()}; see make gpu-check")
    show, replacements = FAULTS[fault]
    right, wrong = virtual_class(), virtual_class(*replacements)
    real = show(lambda model: nn.DataParallel(model, device_ids=[0, 1]))
    assert show(lambda model: right(model, 2)) == real
    assert show(lambda model: wrong(model, 2)) != real, fault
