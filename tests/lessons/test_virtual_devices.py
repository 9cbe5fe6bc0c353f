"""Virtual devices do what nn.DataParallel does, as far as a CPU can tell."""

import threading
from collections import namedtuple

import pytest
import torch
from torch import nn

from tests.reading import run_cells

VirtualDataParallel = run_cells("en/04_data_parallel", ["virtual-devices"])["VirtualDataParallel"]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double()


class Rnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(5, 6, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0][:, -1]


def test_forward_is_pytorchs_own():
    assert VirtualDataParallel.forward is nn.DataParallel.forward


def test_sizes_are_those_of_chunk():
    for n in range(1, 40):
        network = VirtualDataParallel(nn.Identity(), n)
        for rows in range(200):
            inputs, kwargs = network.scatter((torch.empty(rows, 1),), {}, network.device_ids)
            assert [len(x) for (x,) in inputs] == [len(x) for x in torch.empty(rows, 1).chunk(n)]
            assert len(kwargs) == len(inputs)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [1, 10, 30])
@pytest.mark.parametrize("make", [net, lambda: Rnn().double()], ids=["mlp", "rnn"])
def test_outputs_and_gradients_equal_the_unwrapped_model(n, rows, make):
    model = make()
    x = (
        torch.randn(rows, 4, 5, dtype=torch.double)
        if isinstance(model, Rnn)
        else torch.randn(rows, 5, dtype=torch.double)
    )
    results = []
    for network in (model, VirtualDataParallel(model, n)):
        model.zero_grad()
        leaf = x.clone().requires_grad_()
        output = network(leaf)
        output.pow(2).mean().backward()
        results.append([output.detach(), leaf.grad, *[p.grad.clone() for p in model.parameters()]])
    for plain, virtual in zip(*results, strict=True):
        torch.testing.assert_close(virtual, plain, rtol=1e-12, atol=1e-12)


def test_gradcheck():
    network = VirtualDataParallel(net(), 3)
    assert torch.autograd.gradcheck(network, torch.randn(5, 5, dtype=torch.double, requires_grad=True))


class Witness(nn.Module):
    """Notes in a list, which replicas share, what each replica is."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 2)
        self.register_buffer("scale", torch.ones(1))
        self.seen = []
        self.counter = 0

    def forward(self, x):
        self.counter += 1
        self.seen.append((self, threading.current_thread(), self.fc.weight, self.scale, list(self.parameters())))
        return self.fc(x) * self.scale


def test_each_replica_has_its_own_parameters_and_thread():
    model = Witness()
    VirtualDataParallel(model, 4)(torch.ones(8, 5))
    replicas, threads, weights, buffers, parameters = zip(*model.seen, strict=True)
    assert len(set(replicas)) == len(set(threads)) == 4
    assert threading.current_thread() not in threads
    assert len({weight.data_ptr() for weight in weights}) == 4
    assert len({buffer.data_ptr() for buffer in buffers}) == 4
    assert weights[0].data_ptr() == model.fc.weight.data_ptr(), "replica 0 shares the model's memory"
    assert buffers[0].data_ptr() == model.scale.data_ptr()
    assert parameters == ([],) * 4, "a replica has no parameters() of its own"
    assert model.counter == 0, "what forward sets on a replica is lost"


def test_one_device_and_no_rows_to_spare():
    model = Witness()
    VirtualDataParallel(model, 1)(torch.ones(3, 5))
    assert model.seen[0][0] is model, "one device needs no replica"
    model.seen.clear()
    VirtualDataParallel(model, 8)(torch.ones(10, 5))
    assert len(model.seen) == 5, "10 rows on 8 devices make 5 chunks"


def test_batch_norm_keeps_the_statistics_of_replica_0():
    x = torch.randn(12, 3)
    model, alone = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    VirtualDataParallel(model, 3)(x)
    alone(x[:4])
    torch.testing.assert_close(model.running_mean, alone.running_mean)
    assert model.num_batches_tracked.item() == 1


def test_unused_parameters_get_zeros_and_frozen_ones_nothing():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused, self.frozen = (nn.Parameter(torch.ones(3)) for _ in range(3))
            self.frozen.requires_grad_(False)

        def forward(self, x):
            assert not self.frozen.requires_grad
            return x * self.used * self.frozen

    model = Half()
    VirtualDataParallel(model, 2)(torch.ones(4, 3)).sum().backward()
    assert model.used.grad.tolist() == [4, 4, 4]
    assert model.unused.grad.tolist() == [0, 0, 0]
    assert model.frozen.grad is None


def test_shared_modules_stay_shared_and_missing_ones_missing():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = self.second = nn.Linear(3, 3, bias=False)
            self.nothing = None
            self.register_buffer("empty", None)

        def forward(self, x):
            assert self.first is self.second and self.nothing is self.empty is None
            return self.second(self.first(x))

    model, x = Twice(), torch.randn(6, 3)
    torch.testing.assert_close(VirtualDataParallel(model, 3)(x), model(x))


def test_grad_mode_and_autocast_reach_the_replicas():
    class Modes(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2)
            self.seen = []

        def forward(self, x):
            self.seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
            return self.fc(x)

    model = Modes()
    with torch.no_grad(), torch.autocast("cpu"):
        output = VirtualDataParallel(model, 2)(torch.ones(4, 3))
    assert model.seen == [(False, True)] * 2
    assert not output.requires_grad and output.dtype == torch.bfloat16


Pair = namedtuple("Pair", "left right")


def test_containers_go_in_and_come_out():
    class Containers(nn.Module):
        def forward(self, pair, items, *, named, flag):
            assert isinstance(pair, Pair) and isinstance(items, list) and flag == "shared"
            return {"pair": pair, "sum": (pair.left + items[0], named), "none": None}

    x = torch.arange(6.0).view(6, 1)
    output = VirtualDataParallel(Containers(), 2)(Pair(x, x + 1), [x + 2], named=x + 3, flag="shared")
    assert isinstance(output["pair"], Pair) and output["none"] is None
    torch.testing.assert_close(output["pair"].right, x + 1)
    torch.testing.assert_close(output["sum"], (x + x + 2, x + 3))


@pytest.mark.parametrize("first", [{"a": 1}, {"a": 1, "b": 2}])
def test_dicts_of_different_keys_do_not_gather(first):
    class Keys(nn.Module):
        def forward(self, x):
            return {key: x for key in ("a", "b")[: len(first) if x[0, 0] == 0 else 3 - len(first)]}

    with pytest.raises(ValueError, match="All dicts must have the same number of keys"):
        VirtualDataParallel(Keys(), 2)(torch.arange(4.0).view(4, 1))


def test_fewer_rows_than_devices_repeat_what_is_no_tensor():
    class TwoArguments(nn.Module):
        def forward(self, x, flag=None):
            return x

    with pytest.raises(TypeError, match="replica 1 on virtual device 1[\\s\\S]*missing 1 required positional argument"):
        VirtualDataParallel(TwoArguments(), 3)(torch.ones(1, 2), flag=True)


def test_the_first_exception_comes_back_with_its_replica():
    class Fails(nn.Module):
        def forward(self, x):
            if x[0, 0] >= 2:
                raise ValueError("too large")
            return x

    with pytest.raises(ValueError, match="Caught ValueError in replica 1 on virtual device 1[\\s\\S]*too large"):
        VirtualDataParallel(Fails(), 3)(torch.arange(6.0).view(6, 1))


def test_scalar_outputs_come_back_as_a_vector_with_a_warning():
    class Loss(nn.Module):
        def forward(self, x):
            return x.sum()

    with pytest.warns(UserWarning, match="scalars"):
        losses = VirtualDataParallel(Loss(), 3)(torch.ones(6, 1))
    assert losses.tolist() == [2, 2, 2]


def test_another_dimension():
    model = nn.Identity()
    x = torch.randn(2, 6)
    network = VirtualDataParallel(model, 3, dim=1)
    assert [part.shape for (part,) in network.scatter((x,), {}, network.device_ids)[0]] == [(2, 2)] * 3
    torch.testing.assert_close(network(x), x)
