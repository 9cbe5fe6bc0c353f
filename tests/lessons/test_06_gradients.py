"""What lesson 6 says of losses whose rows do not count the same, and of parameters that a step does not use."""

import pytest
import torch
from torch import nn

from tests.reading import run_cells


@pytest.fixture(scope="module")
def virtual():
    return run_cells("en/06_gradients", ["setup", "virtual-devices"])["VirtualDataParallel"]


class WithLoss(nn.Module):
    def __init__(self, loss):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.loss = nn.Linear(5, 3), loss

    def forward(self, x, y):
        return self.loss(self.layer(x), y)


@pytest.mark.parametrize(
    "reduction, join, right",
    [
        ("mean", lambda losses, weights: losses.mean(), False),
        ("none", lambda losses, weights: losses.mean(), False),
        ("none", lambda losses, weights: losses.sum() / weights.sum(), True),
    ],
)
@pytest.mark.filterwarnings("ignore:Was asked to gather along dimension 0")
def test_with_class_weights_equal_chunks_do_not_make_a_mean_right(virtual, reduction, join, right):
    weights = torch.tensor([1.0, 2.0, 4.0])
    x, y = torch.randn(10, 5), torch.arange(10) % 3
    alone = WithLoss(nn.CrossEntropyLoss(weight=weights))
    alone(x, y).backward()
    model = WithLoss(nn.CrossEntropyLoss(weight=weights, reduction=reduction))
    join(virtual(model, 2)(x, y), weights[y]).backward()
    assert torch.allclose(model.layer.weight.grad, alone.layer.weight.grad, atol=1e-6) == right


@pytest.mark.parametrize("forget", [False, True])
def test_momentum_moves_a_head_that_the_step_does_not_use(virtual, forget):
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleList([nn.Linear(5, 1), nn.Linear(5, 1)])

        def forward(self, x, which):
            return self.heads[which](x)

    model = TwoHeads()
    network, optimizer = virtual(model, 3), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for which in (0, 1):
        before = model.heads[0].bias.item()
        optimizer.zero_grad()
        network(torch.ones(6, 5), which).mean().backward()
        if forget:
            for parameter in model.heads[1 - which].parameters():
                parameter.grad = None
        optimizer.step()
    assert (model.heads[0].bias.item() == before) == forget
