"""Devices called cuda: what torch.cuda asks of PyTorch's C++, and a CPU build cannot answer."""

import functools
from contextlib import nullcontext
from types import SimpleNamespace

import torch

from simulated_gpus.build import Unavailable, library
from simulated_gpus.device import MEMORY, exchange, load, properties, streams


def take_place(count):
    """Loads the extension, and lets torch.cuda find it where it looks for CUDA."""
    if hasattr(torch._C, "_cuda_getDeviceCount"):
        raise Unavailable(
            f"torch {torch.__version__} is built for GPUs, so that none can be simulated in their place: "
            "install a CPU build, or give the simulated ones a name of their own"
        )
    native = load(library("-DTAKE_THE_PLACE_OF_CUDA"), count)
    for name, function in answers(native, count).items():
        setattr(torch._C, name, function)
    torch.cuda._exchange_device = torch._C._cuda_exchangeDevice
    torch.cuda._maybe_exchange_device = torch._C._cuda_maybeExchangeDevice
    torch.cuda._get_device_properties = properties
    torch.cuda._device_count_nvml = lambda: count  # on a machine with NVIDIA's driver it would count real ones
    torch.cuda._cudart = SimpleNamespace(cudaMemGetInfo=lambda index: (MEMORY - native.bytes(index)[0], MEMORY))
    torch.cuda.default_generators = tuple(native.generators())
    torch.cuda.Stream, torch.cuda.Event = torch.cuda.streams.Stream, torch.cuda.streams.Event = streams("cuda")
    torch.cuda.current_stream = torch.accelerator.current_stream
    torch.cuda.set_stream = torch.accelerator.set_stream
    torch.cuda.stream = lambda stream: stream or nullcontext()  # a stream is a context itself
    torch._C._set_cudnn_enabled(False)  # or recurrent modules would warn of its absence
    make_storages(native)
    replace_nccl()
    torch.cuda._queued_calls.clear()  # questions about the real thing
    torch.cuda._lazy_init()  # seeds the devices, if torch.manual_seed has been called


def answers(native, count):
    """Functions for torch._C, by their names."""

    def memory_stats(index):
        used, peak = native.bytes(index)
        names = ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes")
        return {name: {"all": {"current": used, "peak": peak}} for name in names}

    def nothing(*arguments):
        pass

    return {
        "_cuda_init": nothing,
        "_cuda_getDeviceCount": lambda: count,
        "_cuda_getDevice": native.current,
        "_cuda_setDevice": native.set_current,
        "_cuda_exchangeDevice": lambda index: exchange(native, index) if index >= 0 else -1,
        "_cuda_maybeExchangeDevice": lambda index: exchange(native, index) if index >= 0 else -1,
        "_cuda_canDeviceAccessPeer": lambda one, other: True,
        "_cuda_getCurrentRawStream": lambda index: 0,
        "_cuda_synchronize": nothing,
        "_cuda_emptyCache": nothing,
        "_cuda_memoryStats": memory_stats,
        "_cuda_resetPeakMemoryStats": native.reset_peak,
        "_cuda_resetAccumulatedMemoryStats": nothing,
    }


def make_storages(native):
    """copy.deepcopy and torch.load make storages, and FSDP resizes them, in C++ that was compiled without CUDA."""
    original, resize_in_place = torch.UntypedStorage.__new__, torch.UntypedStorage.resize_

    def new(cls, *arguments, device=None, **keywords):
        if device is None:
            return original(cls, *arguments, **keywords)
        if torch.device(device).type != "cuda":
            return original(cls, *arguments, device=device, **keywords)
        return torch.empty(*(arguments or (0,)), dtype=torch.uint8, device=device).untyped_storage()

    def resize_(self, size):
        if self.device.type != "cuda":
            return resize_in_place(self, size)
        native.resize_storage(self, size)
        return self

    torch.UntypedStorage.__new__, torch.UntypedStorage.resize_ = new, resize_


def replace_nccl():
    """Gloo connects the processes where a program asks for NCCL, and says that it is there."""
    original = torch.distributed.init_process_group

    @functools.wraps(original)
    def init_process_group(backend=None, *arguments, **keywords):
        return original((backend or "gloo").replace("nccl", "gloo"), *arguments, **keywords)

    torch.distributed.init_process_group = torch.distributed.distributed_c10d.init_process_group = init_process_group
    torch.distributed.is_nccl_available = lambda: True
