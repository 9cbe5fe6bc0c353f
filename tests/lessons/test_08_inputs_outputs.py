"""What lesson 8 says of a 0-d tensor that needs a gradient: of the ways to pass it, one keeps all rows and the gradient."""

import pytest
import torch
from torch import nn

from tests.reading import run_cells


class Scale(nn.Module):
    def forward(self, x, scale):
        return x * scale.view(-1, 1) if isinstance(scale, torch.Tensor) else x * scale


@pytest.mark.parametrize(
    "give, rows, trained",
    [
        (lambda scale, x: scale.item(), 6, False),
        (lambda scale, x: scale.view(1), 2, True),
        (lambda scale, x: scale.expand(len(x)), 6, True),
    ],
)
def test_a_0d_tensor_that_is_trained(give, rows, trained):
    virtual = run_cells("en/08_inputs_outputs", ["setup", "virtual-devices"])["VirtualDataParallel"]
    x, scale = torch.ones(6, 2, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    result = virtual(Scale(), 3)(x, give(scale, x))
    result.sum().backward()
    assert (len(result), scale.grad is not None) == (rows, trained)
    assert scale.grad is None or scale.grad == 2 * rows
