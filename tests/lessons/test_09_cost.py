"""What lesson 9 calculates: buckets as DDP makes them, and where DDP's own class sends them."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

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
