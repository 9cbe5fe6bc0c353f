"""Real GPUs against virtual devices. Each test needs CUDA and says how many GPUs it lacks."""

import pytest
import torch
from torch import nn

from tests.reading import run_cells

pytestmark = pytest.mark.gpu

VirtualDataParallel = run_cells("en/04_data_parallel", ["virtual-devices"])["VirtualDataParallel"]


def devices(n, kind):
    """The device_ids of n replicas: on n GPUs, or all on GPU 0."""
    needed = n if kind == "each its own GPU" else 1
    if torch.cuda.device_count() < needed:
        pytest.skip(f"needs {needed} CUDA GPUs, and the tests see {torch.cuda.device_count()}; see make gpu-check")
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


@pytest.fixture
def both(n, kind):
    """Puts a model on n replicas, really and virtually."""
    device_ids = devices(n, kind)
    return lambda model: (nn.DataParallel(model, device_ids=device_ids), VirtualDataParallel(model, n))


EITHER = pytest.mark.parametrize("kind", ["each its own GPU", "all on GPU 0"])
# With all replicas on GPU 0, those after the first share one copy of the buffers; and a buffer that is alone of its
# dtype is the model's own in all of them, for Broadcast copies to other GPUs only.
REALLY = pytest.mark.parametrize("kind", ["each its own GPU"])
SEVERAL = pytest.mark.parametrize("n", [2, 3, 8])


@EITHER
@SEVERAL
def test_every_number_of_rows_is_cut_alike(both, kind, n):
    model = Model().to("cuda:0")
    real, virtual = both(model)
    for rows in range(1, 64):
        x = torch.arange(rows * 5.0, device="cuda:0").view(rows, 5)
        sizes = []
        for network in (real, virtual):
            model.seen.clear()
            network(x)
            sizes.append([count for _, count in sorted(model.seen)])
        assert sizes[0] == sizes[1] == [len(chunk) for chunk in x.chunk(n)], rows


def test_all_that_there_are_share_the_rows():
    """Without device_ids, as lesson 4 wraps its model."""
    (first, *_), n = devices(1, "all on GPU 0"), torch.cuda.device_count()
    model = Model().to(f"cuda:{first}")
    network, x = nn.DataParallel(model), torch.randn(30, 5, device="cuda:0")
    network(x)
    assert network.device_ids == list(range(n))
    assert sorted(count for _, count in model.seen) == sorted(len(chunk) for chunk in x.chunk(n))


class Forgetful(nn.Module):
    """Notes what it sees in an attribute, which replicas forget, and in a list, which they share."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 2)
        self.spare = nn.Linear(5, 2)
        self.steps = 0
        self.notes = []

    def forward(self, x):
        self.steps += 1
        found = len(list(self.parameters()))
        state = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cuda"))
        output = self.fc(x)
        self.notes.append((found, *state, str(output.dtype)))
        return output


@EITHER
@SEVERAL
@pytest.mark.parametrize("mode", ["training", "inference_mode", "float16", "bfloat16"])
def test_what_replicas_see_and_forget(both, kind, n, mode):
    model = Forgetful().to("cuda:0")
    modes = {
        "training": torch.enable_grad,
        "inference_mode": torch.inference_mode,
        "float16": lambda: torch.autocast("cuda", torch.float16),
        "bfloat16": lambda: torch.autocast("cuda", torch.bfloat16),
    }
    noted = []
    for network in both(model):
        model.notes.clear()
        with modes[mode]():
            output = network(torch.ones(2 * n, 5, device="cuda:0"))
        noted.append((sorted(model.notes), model.steps, output.dtype, output.requires_grad))
    assert noted[0] == noted[1]
    assert model.steps == 0


@EITHER
@SEVERAL
def test_parameters_that_the_loss_does_not_reach(both, kind, n):
    model = Forgetful().to("cuda:0")
    for network in both(model):
        model.zero_grad()
        network(torch.ones(2 * n, 5, device="cuda:0")).sum().backward()
        assert model.spare.weight.grad is not None and model.spare.weight.grad.abs().sum() == 0
        assert model.fc.weight.grad.abs().sum() > 0


@EITHER
@SEVERAL
def test_hooks_run_once_for_each_replica(both, kind, n):
    model = nn.Linear(5, 2).to("cuda:0")
    calls = []
    model.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    for network in both(model):
        calls.clear()
        network(torch.ones(3 * n - 1, 5, device="cuda:0"))
        assert sorted(calls) == [2] + [3] * (n - 1)


@REALLY
@SEVERAL
def test_batchnorm_remembers_the_first_chunk(both, kind, n):
    x = torch.randn(4 * n, 3, device="cuda:0")
    remembered = []
    for index in range(2):
        torch.manual_seed(0)
        model = nn.BatchNorm1d(3).to("cuda:0")
        both(model)[index](x)
        remembered.append((model.running_mean, model.running_var, model.num_batches_tracked))
    torch.testing.assert_close(remembered[0], remembered[1])
    assert remembered[0][2] == 1


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 2)

    def forward(self, x):
        return self.fc(x).mean()


@EITHER
@SEVERAL
def test_scalars_come_back_as_a_vector_with_a_warning(both, kind, n):
    model = Scalar().to("cuda:0")
    outputs = []
    for network in both(model):
        with pytest.warns(UserWarning, match="all input tensors were scalars"):
            outputs.append(network(torch.randn(2 * n, 5, device="cuda:0")).shape)
    assert outputs[0] == outputs[1] == (n,)


class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 2)

    def forward(self, x):
        if x[0, 0] == 2:
            raise ValueError("row 2")
        return self.fc(x)


@REALLY
@SEVERAL
def test_an_error_names_its_replica(both, kind, n):
    model = Picky().to("cuda:0")
    x = torch.arange(2.0 * n, device="cuda:0")[:, None].expand(-1, 5)
    said = []
    for network in both(model):
        with pytest.raises(ValueError) as caught:
            network(x)
        lines = str(caught.value).strip().splitlines()
        said.append((lines[0].replace("virtual device", "device"), lines[-1]))
    assert said[0] == said[1] == ("Caught ValueError in replica 1 on device 1.", "ValueError: row 2")
