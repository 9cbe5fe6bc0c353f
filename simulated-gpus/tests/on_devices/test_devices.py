"""The devices themselves: memory, current device, random numbers, streams, and that they do not mix."""

import copy
import io
import threading
import time
import warnings

import pytest
import torch
from torch import nn

KIND = torch.accelerator.current_accelerator().type
device_module = getattr(torch, KIND)


def gpu(i):
    return torch.device(KIND, i)


def test_there_are_eight():
    assert device_module.is_available() and device_module.device_count() == torch.accelerator.device_count() == 8
    assert torch.ones(1, device=KIND).device == gpu(0)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device=gpu(8))


@pytest.mark.parametrize(
    "mix, message",
    [
        (lambda x, y: x + y, "found at least two devices, {0} and {1}!"),
        (lambda x, y: x.mul_(y), "found at least two devices, {0} and {1}!"),
        (lambda x, y: x @ y, "got mat2 is on {1}, different from other tensors on {0}"),
        (lambda x, y: nn.functional.linear(x, y), "different from other tensors on"),
        (lambda x, y: torch.cat([x, y]), "different from other tensors on {0}"),
        (lambda x, y: x.index_select(0, y[0].long()), "got index is on {1}"),
    ],
)
@pytest.mark.parametrize("other", ["cpu", gpu(2)], ids=str)
def test_devices_do_not_mix(mix, message, other):
    x, y = torch.ones(3, 3, device=gpu(1)), torch.ones(3, 3, device=other)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device") as caught:
        mix(x, y)
    assert message.format(gpu(1), y.device) in str(caught.value)


def test_what_may_come_from_the_cpu():
    x = torch.arange(3.0, device=gpu(1))
    assert (x * torch.tensor(2.0) + 1).tolist() == [1, 3, 5]
    assert x[torch.tensor([2, 0])].tolist() == [2, 0]
    x[torch.tensor([True, False, False])] = 9
    assert x.tolist() == [9, 1, 2] and x.device == gpu(1)


def test_the_current_device_belongs_to_a_thread():
    seen = []
    with device_module.device(3):
        thread = threading.Thread(target=lambda: seen.append(torch.ones(1, device=KIND).device))
        thread.start()
        thread.join()
        seen.append(torch.ones(1, device=KIND).device)
    assert seen == [gpu(0), gpu(3)] and device_module.current_device() == 0


def test_memory_is_counted_for_each_device():
    before = [device_module.memory_allocated(i) for i in range(8)]
    device_module.reset_peak_memory_stats(2)
    x = torch.ones(1000, device=gpu(2))
    used = device_module.memory_allocated(2) - before[2]
    assert used == 4096  # blocks of 512 bytes, as CUDA
    y = x + 1
    del x, y
    assert [device_module.memory_allocated(i) for i in range(8)] == before
    assert device_module.max_memory_allocated(2) >= before[2] + 8192


def test_one_seed_for_all_devices_and_a_generator_for_each():
    torch.manual_seed(0)
    draws = [torch.rand(5, device=gpu(i)) for i in range(8)]
    assert all(torch.equal(draw.cpu(), draws[0].cpu()) for draw in draws)
    state = device_module.get_rng_state(gpu(1))
    following = torch.randn(5, device=gpu(1))
    cpu_before = torch.get_rng_state()
    device_module.set_rng_state(state, gpu(1))
    assert torch.equal(nn.functional.dropout(following * 0 + 1), nn.functional.dropout(following * 0 + 1)) is False
    device_module.set_rng_state(state, gpu(1))
    assert torch.equal(torch.randn(5, device=gpu(1)), following)
    assert torch.equal(torch.get_rng_state(), cpu_before), "the CPU's generator is another one"
    own = torch.Generator(gpu(1)).manual_seed(7)
    assert torch.equal(
        torch.randperm(9, device=gpu(1), generator=own), torch.randperm(9, device=gpu(1), generator=own.manual_seed(7))
    )
    with pytest.raises(RuntimeError, match=f"Expected a '{KIND}' device type for generator"):
        torch.rand(3, device=gpu(1), generator=torch.Generator())


def test_events_and_streams():
    first, second = (device_module.Event(enable_timing=True) for _ in range(2))
    first.record()
    time.sleep(0.01)
    second.record()
    second.synchronize()
    assert 10 <= first.elapsed_time(second) < 1000
    side = device_module.Stream(gpu(1))
    with device_module.stream(side):
        assert device_module.current_stream(1) == side and device_module.current_device() == 1
    side.wait_stream(device_module.current_stream())
    device_module.current_stream().wait_event(side.record_event())
    device_module.synchronize(1)
    assert device_module.current_stream(1) != side


def test_pinned_memory():
    x = torch.ones(30, 5)
    assert x.pin_memory().is_pinned() and x.pin_memory()[3:].is_pinned() and not x.is_pinned()
    assert torch.equal(x.pin_memory().to(KIND, non_blocking=True).cpu(), x)


def test_copies_and_files():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(gpu(2))
    twin = copy.deepcopy(model)
    assert twin[0].weight.device == gpu(2) and torch.equal(twin[0].weight, model[0].weight)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    for target in (None, "cpu", gpu(3)):
        file.seek(0)
        weight = torch.load(file, map_location=target)["0.weight"]
        assert weight.device == torch.device(target or gpu(2)) and torch.equal(weight.cpu(), model[0].weight.cpu())


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_optimizers(make):
    weights = []
    for place in ("cpu", gpu(1)):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(place)
        optimizer = make(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 3, device=place)).pow(2).sum().backward()
            optimizer.step()
        weights.append(model.weight.detach().cpu())
    torch.testing.assert_close(*weights)


def test_writing_over_what_is_read_is_noticed():
    x = torch.arange(6.0, device=gpu(1))
    with pytest.raises(RuntimeError, match="single memory location"):
        x[1:].mul_(x[:-1])


def test_results_take_the_size_that_they_need():
    x, out = torch.ones(2, 3, device=gpu(1)), torch.empty(0, device=gpu(1))
    torch.mm(x, x.T, out=out)
    assert out.tolist() == [[3, 3], [3, 3]]
    values, indices = torch.tensor([3.0, 1, 2], device=gpu(1)).sort()
    assert values.tolist() == [1, 2, 3] and indices.device == gpu(1)


def test_attention():
    torch.manual_seed(0)
    plain = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(4, 5, 8)
    expected = plain(x).detach()
    torch.testing.assert_close(plain.to(gpu(1))(x.to(gpu(1))).detach().cpu(), expected)
    torch.testing.assert_close(plain.eval()(x.to(gpu(1))).detach().cpu(), expected)


def test_collectives_and_ddp():
    backend = "nccl" if KIND == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        x, gathered = torch.ones(2, device=gpu(1)), [torch.zeros(2, device=gpu(1))]
        torch.distributed.all_reduce(x)
        torch.distributed.all_gather(gathered, x + 1)
        assert x.tolist() == [1, 1] and gathered[0].tolist() == [2, 2]
        if KIND == "cuda":
            model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2).to(gpu(1)))
            for _ in range(2):  # the second time, DDP asks how long the first one took
                model.zero_grad()
                model(torch.ones(4, 3, device=gpu(1))).sum().backward()
                assert model.module.bias.grad.tolist() == [4, 4]
            del model  # before its group; afterwards PyTorch 2.13 sometimes waits for ever
    finally:
        torch.distributed.destroy_process_group()


def test_a_storage_is_resized_as_fsdp_does():
    x = torch.arange(4.0, device=gpu(1))
    storage = x.untyped_storage()
    storage.resize_(8)
    assert storage.nbytes() == 8 and storage.device == gpu(1)
    storage.resize_(16)
    assert x[:2].tolist() == [0, 1]
    storage.resize_(0)
    assert storage.nbytes() == 0


@pytest.mark.parametrize("loss", [nn.functional.mse_loss, nn.functional.smooth_l1_loss])
def test_a_loss_is_silent(loss):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loss(torch.zeros(3, 1, device=gpu(1)), torch.ones(3, 1, device=gpu(1))) > 0
