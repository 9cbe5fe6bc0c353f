"""Real GPUs against virtual devices. Each test needs CUDA and says how many GPUs it lacks."""

import pytest
import torch
from torch import nn

from tests.notebook import run_cells

pytestmark = pytest.mark.gpu

VirtualDataParallel = run_cells("en", "04_data_parallel", only={"virtual-devices"})[0]["VirtualDataParallel"]


def devices(n, kind):
    """The device_ids of n replicas: on n GPUs, or all on GPU 0."""
    needed = n if kind == "each its own GPU" else 1
    if torch.cuda.device_count() < needed:
        pytest.skip(f"needs {needed} CUDA GPUs, this machine shows {torch.cuda.device_count()}")
    return list(range(n)) if needed > 1 else [0] * n


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 2)
        self.seen = []

    def forward(self, x):
        self.seen.append((x[0, 0].item(), len(x)))
        return self.fc(x).tanh()


@pytest.mark.parametrize("rows", [1, 10, 30])
@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("kind", ["each its own GPU", "all on GPU 0"])
def test_real_and_virtual_agree(kind, n, rows):
    device_ids = devices(n, kind)
    model = Model().double().to("cuda:0")
    # The first feature counts the rows, so that replicas can be put in order.
    x = torch.randn(rows, 5, dtype=torch.double, device="cuda:0")
    x[:, 0] = torch.arange(rows)
    results = []
    for network in (nn.DataParallel(model, device_ids=device_ids), VirtualDataParallel(model, n)):
        model.seen.clear()
        model.zero_grad()
        output = network(x)
        output.pow(2).mean().backward()
        sizes = [count for _, count in sorted(model.seen)]
        results.append((sizes, output.detach(), [p.grad.clone() for p in model.parameters()]))
    (real_sizes, *real), (virtual_sizes, *virtual) = results
    assert real_sizes == virtual_sizes == [len(chunk) for chunk in x.chunk(n)]
    torch.testing.assert_close(real, virtual)


def test_lesson_4_measures_what_it_can():
    if not torch.cuda.device_count():
        pytest.skip("needs 1 CUDA GPU, this machine shows 0")
    variables, _ = run_cells("en", "04_data_parallel")
    for n, label in variables["labels"].items():
        assert label == ("measured" if n <= torch.cuda.device_count() else "virtual")
