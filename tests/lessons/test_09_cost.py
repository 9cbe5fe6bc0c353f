"""What lesson 9 calculates: buckets as DDP makes them, and where DDP's own class sends them."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.conftest import BOOK
from tests.reading import run_cells

CELLS = ["setup", "networks", "moved", "launches", "on-ranks", "constants", "describe", "step-parts", "ddp-time"]


@pytest.fixture(scope="module")
def lesson():
    return run_cells("en/09_cost", CELLS)


def sizes_that_ddp_sends(make, row):
    """The sizes in bytes of the buckets of the second step, when DDP has put them in the order of the gradients."""
    sizes = []

    def note(state, bucket):
        sizes.append(bucket.buffer().nbytes)
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    network = DistributedDataParallel(make())
    network.register_comm_hook(None, note)
    for _ in range(2):
        sizes.clear()
        network(torch.randn(row)).sum().backward()
    return sizes


@pytest.mark.parametrize("name, row", [("tiny", (1, 16)), ("dense", (1, 1024))])
def test_buckets_are_those_of_ddp(lesson, name, row):
    (sent,) = lesson["on_ranks"](1, sizes_that_ddp_sends, lesson[f"make_{name}"], row)
    assert [weights for weights, _ in lesson["buckets"](lesson[f"{name}_facts"])] == sent


def test_the_last_bucket_is_full_at_the_end(lesson):
    for _, facts in lesson["networks"]:
        found = lesson["buckets"](facts)
        assert sum(weights for weights, _ in found) == facts["weights"]
        assert found[-1][1] == pytest.approx(1)


def test_ddp_is_never_faster_than_its_computing_alone(lesson):
    for _, facts in lesson["networks"]:
        for n in (1, 2, 8, 64):
            computing = facts["flop"] * -(-256 // n) / facts["rate"]
            assert lesson["ddp_time"](facts, 256, n, lesson["PCIE"]) >= computing


def test_operators_are_those_that_compute(lesson):
    """One for each layer that computes: all but Flatten."""
    for name, facts in lesson["networks"]:
        layers = [layer for layer in lesson[name] if not isinstance(layer, torch.nn.Flatten)]
        assert facts["operators"] == len(layers), name


class Bottleneck(nn.Module):
    """A block of ResNet-50, as https://arxiv.org/abs/1512.03385 and torchvision have it."""

    def __init__(self, size_in, size, stride):
        super().__init__()
        self.way = nn.Sequential(
            *convolution(size_in, size, 1),
            nn.ReLU(),
            *convolution(size, size, 3, stride),
            nn.ReLU(),
            *convolution(size, 4 * size, 1),
        )
        same = size_in == 4 * size and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolution(size_in, 4 * size, 1, stride))

    def forward(self, x):
        return torch.relu(self.way(x) + self.shortcut(x))


def convolution(size_in, size, kernel, stride=1):
    return nn.Conv2d(size_in, size, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(size)


def resnet_50():
    layers, size_in = [*convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for size, blocks, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for block in range(blocks):
            layers.append(Bottleneck(size_in, size, stride if block == 0 else 1))
            size_in = 4 * size
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def test_the_known_example_is_counted(lesson):
    """What the calculator and the prose say of ResNet-50."""
    facts = lesson["describe"](resnet_50(), torch.randn(1, 3, 224, 224), lesson["TF32"])
    launched = [
        func for func in lesson["launched"] if func is not torch.ops.aten.empty.memory_format
    ]  # computes nothing
    cell = next(cell for cell in BOOK.page("en/09_cost").code if cell.id == "your-model")
    preset = eval(cell.metadata["calculator"]["presets"], lesson)["ResNet-50"]
    assert preset == {
        "weights": round(facts["weights"] / 1e6, 1),
        "flop": round(facts["flop"] / 1e9, 1),
        "operators": len(launched),
        "row_in": round(facts["input"] / 1e3),
        "row_out": round(facts["output"] / 1e3),
        "rate": facts["rate"] / 1e12,
    }
    parameters = facts["weights"] / 4
    assert (round(parameters / 1e6, 1), round(facts["flop"] / parameters, -1)) == (25.6, 950)
