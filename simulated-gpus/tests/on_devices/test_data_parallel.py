"""What PyTorch's own tests of nn.DataParallel check, in our words, on simulated devices."""

import gc
import io
import threading
import weakref
from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn
from torch.nn.parallel import data_parallel, gather, parallel_apply, replicate, scatter
from torch.nn.parallel._functions import Broadcast

KIND = torch.accelerator.current_accelerator().type
CPU = torch.device("cpu")
Pair = namedtuple("Pair", "a b")


def gpu(i):
    return torch.device(KIND, i)


def on_first(module):
    return module.to(gpu(0))


@pytest.fixture(params=[2, 3, 8])
def n(request):
    return request.param


@pytest.fixture
def ids(n):
    return list(range(n))


class Apply(nn.Module):
    """A model of one linear layer and a function of (self, *arguments)."""

    def __init__(self, function):
        super().__init__()
        self.fc = nn.Linear(5, 2)
        self.function = function

    def forward(self, *arguments, **keywords):
        return self.function(self, *arguments, **keywords)


# ---- scatter


@pytest.mark.filterwarnings("ignore:Using -1 to represent CPU:FutureWarning")  # PyTorch's own Scatter does
@pytest.mark.parametrize("source", [CPU, gpu(0), gpu(1)], ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scatter_cuts_as_chunk_does_and_carries_gradients_back(ids, source, dim):
    x = torch.randn(10, 11, dtype=torch.double, device=source, requires_grad=True)
    chunks = scatter(x, ids, dim)
    assert [c.device for c in chunks] == [gpu(i) for i in range(len(chunks))]
    for chunk, expected in zip(chunks, x.detach().chunk(len(ids), dim), strict=True):
        torch.testing.assert_close(chunk.detach().cpu(), expected.cpu())
    weights = [torch.randn_like(c) for c in chunks]
    torch.autograd.backward(chunks, weights)
    torch.testing.assert_close(x.grad.cpu(), torch.cat([w.cpu() for w in weights], dim))


def test_only_the_chunk_at_home_is_a_view(ids):
    x = torch.zeros(2 * len(ids), 3, device=gpu(0))
    for chunk in scatter(x, ids):
        chunk += 1
    assert x.sum(1).tolist() == [3, 3] + [0] * (2 * len(ids) - 2)


def test_scatter_of_structures(n, ids):
    x = torch.arange(2 * n)
    for value in ([x, {"k": x, "s": "word"}], (x, None, 7), Pair(x, [x]), OrderedDict(a=x)):
        for i, part in enumerate(scatter(value, ids)):
            mine = f"tensor([{2 * i}, {2 * i + 1}], device='{KIND}:{i}')"
            assert str(part) == str(value).replace(str(x), mine)
    assert scatter(("word", 3), ids) == [("word", 3)] * n


def test_scatter_without_devices_or_rows():
    with pytest.raises(RuntimeError, match="at least one device"):
        torch.nn.parallel.comm.scatter(torch.ones(3), [])
    with pytest.raises(RuntimeError, match="same length"):
        torch.nn.parallel.comm.scatter(torch.ones(3), [0, 1], chunk_sizes=[3])
    assert [len(c) for c in torch.nn.parallel.comm.scatter(torch.ones(3), [0, 1], chunk_sizes=[1, 2])] == [1, 2]
    assert [len(c) for c in scatter(torch.ones(0, 3), [0, 1])] == [0, 0]


# ---- gather


@pytest.mark.parametrize("target", [CPU, gpu(0), gpu(1)], ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather_joins_and_carries_gradients_back(n, target, dim):
    shape = [2, 3]
    parts = []
    for i in range(n):
        shape[dim] = i + 1
        parts.append(torch.randn(shape, dtype=torch.double, device=gpu(i), requires_grad=True))
    whole = gather(parts, "cpu" if target == CPU else target.index, dim)
    assert whole.device == target
    torch.testing.assert_close(whole.detach().cpu(), torch.cat([p.detach().cpu() for p in parts], dim))
    weight = torch.randn_like(whole)
    whole.backward(weight)
    torch.testing.assert_close(torch.cat([p.grad.cpu() for p in parts], dim), weight.cpu())


def test_gather_of_scalars_warns(n):
    with pytest.warns(UserWarning, match="all input tensors were scalars"):
        assert gather([torch.tensor(1.0 * i, device=gpu(i)) for i in range(n)], 0).tolist() == list(range(n))


def test_gather_of_structures(n):
    outputs = [
        {"a": torch.ones(1, 2, device=gpu(i)), "b": [Pair(torch.ones(2, device=gpu(i)), None)]} for i in range(n)
    ]
    joined = gather(outputs, 0)
    assert joined["a"].shape == (n, 2) and joined["b"][0].a.shape == (2 * n,) and joined["b"][0].b is None


def test_gather_refuses_what_does_not_fit():
    there = torch.ones(2, 3, device=gpu(1))
    with pytest.raises(ValueError, match="same number of keys"):
        gather([{"a": there}, {"a": there, "b": there}], 0)
    with pytest.raises(RuntimeError, match="invalid shape"):
        gather([there, torch.ones(2, 4, device=gpu(0))], 0)
    with pytest.raises(RuntimeError, match="same number of dimensions"):
        gather([there, torch.ones(2, device=gpu(0))], 0)
    with pytest.raises(AssertionError, match="not implemented for CPU"):
        gather([there.cpu(), there.cpu()], 0)


def test_the_first_output_decides_the_dtype():
    half = torch.full((1,), 0.5, device=gpu(1))
    assert gather([torch.zeros(1, dtype=torch.long, device=gpu(0)), half], 0).tolist() == [0, 0]


def test_channels_last_survives():
    images = [torch.ones(2, 3, 4, 4, device=gpu(i)).to(memory_format=torch.channels_last) for i in range(2)]
    assert gather(images, 0).is_contiguous(memory_format=torch.channels_last)


# ---- replicate


def test_replicas_live_on_their_devices_and_are_copies(n, ids):
    model = on_first(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 2))))
    replicas = replicate(model, ids)
    for i, replica in enumerate(replicas):
        assert {replica[0].weight.device, replica[1].running_mean.device, replica[2][0].bias.device} == {gpu(i)}
        assert replica(torch.randn(4, 3, device=gpu(i))).device == gpu(i)
        assert not list(replica.parameters()) and len(list(replica.modules())) == 5
        torch.testing.assert_close(replica[0].weight.cpu(), model[0].weight.cpu())
    assert replicas[0][1].running_mean is model[1].running_mean
    assert all(replica[1].running_mean is not model[1].running_mean for replica in replicas[1:])


def test_without_gradients_the_first_replica_keeps_its_parameters(n, ids):
    with torch.no_grad():
        replicas = replicate(on_first(nn.Linear(3, 2)), ids, detach=True)
    assert len(list(replicas[0].parameters())) == 2


def test_shared_parameters_stay_shared(ids):
    model = on_first(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    model[1].weight = model[0].weight
    for replica in replicate(model, ids):
        assert replica[0].weight is replica[1].weight


def test_each_copy_has_a_version_counter_of_its_own(ids):
    model = on_first(Apply(lambda self, x: self.fc(x) * self.scale.mul_(2).sum() + self.shift))
    model.register_buffer("scale", torch.ones(1))
    model.register_buffer("shift", torch.ones(1))
    on_first(model)
    nn.DataParallel(model, ids)(torch.ones(8, 5)).sum().backward()
    assert model.scale.item() == 2  # the first replica's is the model's


def test_gradients_are_added_up(n, ids):
    weight = torch.randn(3, dtype=torch.double, device=gpu(0), requires_grad=True)
    frozen = torch.ones(2, device=gpu(0))
    copies = Broadcast.apply(ids, weight, frozen)
    assert [c.requires_grad for c in copies] == [True, False] * n
    sum((i + 1) * copy.sum().to(gpu(0)) for i, copy in enumerate(copies[::2])).backward()
    assert weight.grad.tolist() == [n * (n + 1) / 2] * 3
    assert torch.autograd.gradcheck(lambda w: sum(c.pow(2).to(gpu(0)) for c in Broadcast.apply(ids, w)), weight)


def test_parameter_lists_and_dicts(ids):
    def forward(self, x):
        return self.fc(x) * self.list[0] + self.dict["a"]

    model = Apply(forward)
    model.list = nn.ParameterList([nn.Parameter(torch.ones(2))])
    model.dict = nn.ParameterDict({"a": nn.Parameter(torch.ones(2))})
    nn.DataParallel(on_first(model), ids)(torch.ones(8, 5)).sum().backward()
    assert model.dict["a"].grad.tolist() == [8, 8]


def test_a_replica_can_be_saved(ids):
    model = on_first(nn.Linear(3, 2))
    for replica in replicate(model, ids, detach=True):
        file = io.BytesIO()
        torch.save(replica, file)
        file.seek(0)
        torch.testing.assert_close(
            torch.load(file, weights_only=False).weight.detach().cpu(), model.weight.detach().cpu()
        )


def test_zero_grad_of_a_replica_warns(ids):
    model = on_first(Apply(lambda self, x: self.zero_grad() or self.fc(x)))
    with pytest.warns(UserWarning, match="zero_grad.*has no effect"):
        nn.DataParallel(model, ids)(torch.ones(8, 5))


# ---- parallel_apply


@pytest.mark.parametrize("bare", [True, False])
def test_each_module_gets_its_input(bare):
    modules = [nn.Linear(3, 2).to(gpu(i)) for i in range(2)]
    inputs = [torch.randn(4, 3, device=gpu(i)) for i in range(2)]
    outputs = parallel_apply(modules, inputs if bare else [(x,) for x in inputs])
    for module, x, output in zip(modules, inputs, outputs, strict=True):
        torch.testing.assert_close(output, module(x))


def test_replicas_run_at_the_same_time_each_with_its_device_current(n, ids):
    meeting = threading.Barrier(n)  # passed only by n threads at once
    seen = set()

    def forward(self, x):
        meeting.wait(timeout=20)
        seen.add((torch.accelerator.current_device_index(), x.get_device(), torch.empty(0, device=KIND).get_device()))
        return self.fc(x)

    nn.DataParallel(on_first(Apply(forward)), ids)(torch.ones(n, 5))
    assert seen == {(i, i, i) for i in ids}


def test_an_error_names_its_replica(ids):
    def forward(self, x):
        if x.get_device() == 1:
            raise KeyError("lost")
        return self.fc(x)

    with pytest.raises(KeyError, match="Caught KeyError in replica 1 on device 1"):
        nn.DataParallel(on_first(Apply(forward)), ids)(torch.ones(8, 5))


def test_modes_reach_the_threads_but_for_the_dtype_of_autocast(ids):
    def forward(self, x):
        modes.append((torch.is_grad_enabled(), torch.is_autocast_enabled(KIND), self.fc(x).dtype))
        return x

    network = nn.DataParallel(on_first(Apply(forward)), ids)
    modes = []
    with torch.autocast(KIND, dtype=torch.bfloat16):
        assert network.module.fc(torch.ones(1, 5, device=gpu(0))).dtype == torch.bfloat16
    with torch.no_grad(), torch.autocast(KIND, dtype=torch.bfloat16):
        network(torch.ones(8, 5))
    assert set(modes) == {(False, True, torch.float16)}  # as on CUDA: bfloat16 asked for, the default got


# ---- the whole


def test_the_same_as_the_plain_model(n, ids):
    model = on_first(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double())
    for rows in (1, n, 10, 33):
        x = torch.randn(rows, 5, dtype=torch.double, device=gpu(0), requires_grad=True)
        results = []
        for network in (model, nn.DataParallel(model, ids)):
            loss = network(x).pow(2).mean()
            results.append([loss.detach(), *torch.autograd.grad(loss, [x, *model.parameters()])])
        torch.testing.assert_close(*results)


def test_second_derivatives(ids):
    model = on_first(nn.Sequential(nn.Linear(3, 2), nn.Tanh()).double())
    x = torch.randn(8, 3, dtype=torch.double, device=gpu(0), requires_grad=True)
    assert torch.autograd.gradgradcheck(nn.DataParallel(model, ids), x)


def test_a_gradient_that_forward_itself_computes(ids):
    """As in a gradient penalty: its graph has ended with forward, and backward still goes through it."""

    def penalty(model, x):
        (slope,) = torch.autograd.grad(model.fc(x).tanh().sum(), x, create_graph=True)
        return slope.pow(2).sum(1)

    model = on_first(Apply(penalty).double())
    x = torch.randn(8, 5, dtype=torch.double, device=gpu(0), requires_grad=True)
    results = []
    for network in (model, nn.DataParallel(model, ids)):
        loss = network(x).mean()
        gc.collect()
        results.append([loss.detach(), *torch.autograd.grad(loss, [x, model.fc.weight])])
    torch.testing.assert_close(*results)


def test_used_twice_before_backward(n, ids):
    model = on_first(nn.Linear(5, 2))
    network = nn.DataParallel(model, ids)
    (network(torch.ones(n, 5)).sum() + network(torch.ones(2 * n, 5)).sum()).backward()
    assert model.bias.grad.tolist() == [3 * n] * 2


@pytest.mark.parametrize("arguments", [((), {}), (([],), {}), (({},), {}), (((),), {})], ids=str)
def test_inputs_without_tensors(ids, arguments):
    positional, keywords = arguments
    model = on_first(Apply(lambda self, *a, **k: self.fc(torch.ones(1, 5, device=self.fc.weight.device))))
    assert nn.DataParallel(model, ids)(*positional, **keywords).shape[1] == 2


@pytest.mark.parametrize("dtype", [torch.float, torch.double, torch.half])
def test_keyword_arguments_only(n, ids, dtype):
    model = on_first(Apply(lambda self, *, x, scale: self.fc(x) * scale).to(dtype))
    x = torch.ones(2 * n, 5, dtype=dtype)
    torch.testing.assert_close(nn.DataParallel(model, ids)(x=x, scale=2), model(x=x.to(gpu(0)), scale=2))


def test_structures_in_and_out(n, ids):
    def forward(self, pair, *, more):
        y = self.fc(pair.a)
        return {"y": [y, (y + more["x"][0], None)], "rows": torch.tensor([len(y)], device=y.device)}

    x = torch.ones(3 * n, 5)
    output = nn.DataParallel(on_first(Apply(forward)), ids)(Pair(x, 1), more={"x": [torch.ones(3 * n, 2), "word"]})
    assert output["rows"].tolist() == [3] * n
    torch.testing.assert_close(output["y"][1][0], output["y"][0] + 1)


def test_other_orders_of_devices_and_another_output_device():
    model = nn.Linear(5, 2).to(gpu(1))
    output = nn.DataParallel(model, device_ids=[gpu(1), 0], output_device=2)(torch.ones(4, 5))
    assert output.device == gpu(2)
    assert data_parallel(model, torch.ones(4, 5, device=gpu(1)), (1, 0), 3).device == gpu(3)


def test_all_replicas_on_one_device(n):
    model = on_first(nn.Linear(5, 2))
    output = nn.DataParallel(model, [0] * n)(torch.ones(2 * n, 5))
    output.sum().backward()
    assert model.bias.grad.tolist() == [2 * n] * 2


def test_a_model_in_the_wrong_place(ids):
    network = nn.DataParallel(nn.Linear(5, 2), ids)
    network.module.to(gpu(1))
    with pytest.raises(RuntimeError, match=f"must have its parameters and buffers on device {KIND}:0"):
        network(torch.ones(4, 5))
    network.to(gpu(0))(torch.ones(4, 5))  # moved after wrapping


def test_buffers_that_require_gradients(ids):
    model = Apply(lambda self, x: self.fc(x) * self.scale)
    model.register_buffer("scale", torch.ones(2, requires_grad=True))
    on_first(model)
    scale = model.scale = model.scale.detach().requires_grad_()
    nn.DataParallel(model, ids)(torch.ones(8, 5)).sum().backward()
    assert scale.grad is not None


def test_complex_numbers(ids):
    model = on_first(nn.Linear(3, 2, dtype=torch.cfloat))
    x = torch.randn(8, 3, dtype=torch.cfloat, device=gpu(0))
    torch.testing.assert_close(nn.DataParallel(model, ids)(x), model(x))


def test_sparse_gradients(ids):
    results = []
    for network in (lambda m: m, lambda m: nn.DataParallel(m, ids)):
        torch.manual_seed(0)
        model = on_first(nn.Embedding(10, 3, sparse=True))
        network(model)(torch.arange(8, device=gpu(0))).sum().backward()
        assert model.weight.grad.is_sparse
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        results.append((model.weight.grad.to_dense(), model.weight.detach()))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("packed", [False, True])
def test_recurrent_models(make, packed):
    plain = make(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    x = torch.randn(6, 5, 3)
    other = make(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    other.load_state_dict(plain.state_dict())
    on_first(other)
    if packed:
        lengths = [5, 4, 4, 2, 1, 1]
        pack = nn.utils.rnn.pack_padded_sequence
        one, many = plain(pack(x, lengths, True))[0].data, other(pack(x.to(gpu(0)), lengths, True))[0].data
    else:
        one, many = plain(x)[0], nn.DataParallel(other, [0, 1, 2])(x)[0]
    one.pow(2).sum().backward()
    many.pow(2).sum().backward()
    torch.testing.assert_close(many.detach().cpu(), one.detach())
    torch.testing.assert_close([p.grad.cpu() for p in other.parameters()], [p.grad for p in plain.parameters()])


def test_lazy_layers_must_be_run_first(ids):
    with pytest.raises((ValueError, RuntimeError), match="uninitialized"):
        nn.DataParallel(on_first(nn.LazyLinear(2)), ids)(torch.ones(8, 5))


def test_batchnorm_remembers_the_first_chunk_and_dropout_draws_alike(n, ids):
    norm = on_first(nn.BatchNorm1d(3))
    x = torch.randn(4 * n, 3)
    nn.DataParallel(norm, ids)(x)
    torch.testing.assert_close(norm.running_mean.cpu(), 0.1 * x[:4].mean(0))
    torch.manual_seed(0)
    masks = nn.DataParallel(nn.Dropout(), ids)(torch.ones(n, 50)).cpu()
    assert 0 < masks[0].sum() < 100 and (masks == masks[0]).all()


@pytest.mark.parametrize("of_weights", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("of_images", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_convolution(ids, of_weights, of_images):
    plain = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4), nn.MaxPool2d(2))
    plain = plain.to(memory_format=of_weights)
    x = torch.randn(8, 3, 9, 9).to(memory_format=of_images)
    one = plain(x)
    one.sum().backward()
    expected = [p.grad.clone() for p in plain.parameters()]
    plain.zero_grad()
    many = nn.DataParallel(on_first(plain), ids)(x)
    many.sum().backward()
    torch.testing.assert_close(many.detach().cpu(), one.detach())
    torch.testing.assert_close([p.grad.cpu() for p in plain.parameters()], expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.parametrize("how", ["script", "trace"])
def test_scripted_and_traced_models(how, ids):
    model = nn.Sequential(nn.Linear(5, 3), nn.Tanh())
    made = torch.jit.script(model) if how == "script" else torch.jit.trace(model, torch.ones(2, 5))
    made = on_first(made)
    x = torch.randn(8, 5, device=gpu(0))
    torch.testing.assert_close(nn.DataParallel(made, ids)(x), made(x))


class Twice(nn.Module):
    """Its two children are one module, and its weight is theirs, too."""

    def __init__(self, child):
        super().__init__()
        self.first = self.second = child
        self.weight = child.weight

    def forward(self, x):
        return self.second(self.first(x)) + x @ self.weight


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.parametrize("scripted", ["nothing", "child", "all"])
def test_children_and_weights_shared_by_scripted_modules(scripted, ids):
    child = nn.Linear(5, 5)
    model = Twice(torch.jit.script(child) if scripted == "child" else child)
    model = on_first(torch.jit.script(model) if scripted == "all" else model)
    x = torch.randn(8, 5, device=gpu(0))
    results = []
    for network in (model, nn.DataParallel(model, ids)):
        output = network(x)
        results.append([output.detach(), *torch.autograd.grad(output.sum(), list(model.parameters()))])
    torch.testing.assert_close(*results)


def test_nothing_is_left_over(ids):
    gc.collect()
    gc.disable()
    try:
        model = on_first(nn.Linear(5, 2))
        network = nn.DataParallel(model, ids)
        network(torch.ones(8, 5)).sum().backward()
        gone = weakref.ref(model)
        del model, network
        assert gone() is None  # without a collection: no cycles
    finally:
        gc.enable()
