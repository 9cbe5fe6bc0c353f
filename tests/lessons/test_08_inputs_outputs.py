"""What lesson 8 says of a 0-d tensor that needs a gradient: of the ways to pass it, one keeps all rows and the gradient."""

import pytest
import torch
from torch import nn

from tests.reading import run_cells


class Scale(nn.Module):
    def forward(self, x, scale):
        return x * scale.view(-1, 1) if isinstance(scale, torch.Tensor) else x * scale


@pytest.mark.parametrize(
    "give, rows, gradient",
    [
        (lambda scale, x: scale.item(), 6, None),
        (lambda scale, x: scale.view(1), 2, 4),
        (lambda scale, x: scale.expand(len(x)), 6, 12),
    ],
)
def test_a_0d_tensor_that_is_trained(give, rows, gradient):
    virtual = run_cells("en/08_inputs_outputs", ["setup", "virtual-devices"])["VirtualDataParallel"]
    x, scale = torch.ones(6, 2, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    result = virtual(Scale(), 3)(x, give(scale, x))
    result.sum().backward()
    assert (len(result), scale.grad) == (rows, gradient)
