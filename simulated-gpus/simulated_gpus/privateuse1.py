"""Devices with a name of their own: PyTorch's PrivateUse1, which any build has, and a module torch.<name>."""

import types
from contextlib import nullcontext

import torch

from simulated_gpus.build import library
from simulated_gpus.device import exchange, load, properties, streams


def register(name, count):
    torch.utils.rename_privateuse1_backend(name)
    native = load(library(), count)
    torch._register_device_module(name, module(name, native, count))
    torch.utils.generate_methods_for_privateuse1_backend()
    # parallel_apply asks without naming a device, which means CUDA.
    original = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda device_type=name: original(device_type)


def module(name, native, count):
    """torch.<name>, with what PyTorch and most programs ask of torch.cuda."""

    def index_of(device):
        if not isinstance(device, int):
            device = device and torch.device(device).index
        return native.current() if device is None else device

    class device:
        def __init__(self, device):
            self.index = index_of(device)

        def __enter__(self):
            self.old = exchange(native, self.index)

        def __exit__(self, *error):
            native.set_current(self.old)

    def manual_seed_all(seed):
        for generator in native.generators():
            generator.manual_seed(seed)

    Stream, Event = streams(name)
    made = types.ModuleType(f"torch.{name}")
    made.__dict__.update(
        device=device,
        is_available=lambda: True,
        is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False,
        device_count=lambda: count,
        current_device=native.current,
        set_device=lambda device: native.set_current(index_of(device)),
        get_device_properties=lambda device=None: properties(index_of(device)),
        get_device_name=lambda device=None: properties(index_of(device)).name,
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        synchronize=lambda device=None: None,
        empty_cache=lambda: None,
        memory_allocated=lambda device=None: native.bytes(index_of(device))[0],
        max_memory_allocated=lambda device=None: native.bytes(index_of(device))[1],
        reset_peak_memory_stats=lambda device=None: native.reset_peak(index_of(device)),
        default_generators=tuple(native.generators()),
        manual_seed=lambda seed: native.generators()[native.current()].manual_seed(seed),
        manual_seed_all=manual_seed_all,
        get_rng_state=lambda device=None: native.generators()[index_of(device)].get_state(),
        set_rng_state=lambda state, device=None: native.generators()[index_of(device)].set_state(state),
        Stream=Stream,
        Event=Event,
        current_stream=torch.accelerator.current_stream,
        stream=lambda stream: stream or nullcontext(),
    )
    return made
