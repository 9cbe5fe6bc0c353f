"""What devices have in common, whether they are called cuda or have a name of their own."""

import importlib.util
import time
from types import SimpleNamespace

import torch

from simulated_gpus.build import Unavailable

MEMORY = 16 * 1024**3  # what each device says that it has


def load(library, count):
    """The compiled extension, with its devices registered."""
    spec = importlib.util.spec_from_file_location("native", library)
    try:
        native = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(native)
    except ImportError as error:
        raise Unavailable(f"{library} does not load with torch {torch.__version__}: {error}; remove it") from None
    native.start(count)
    for name in ("broadcast", "broadcast_coalesced", "gather", "scatter"):  # for torch.nn.parallel
        setattr(torch._C, f"_{name}", getattr(native, name))
    torch.cuda.nccl.is_available = lambda tensors: False  # PyTorch's own warns that it was not compiled
    return native


def properties(index):
    return SimpleNamespace(name="simulated GPU", major=8, minor=0, total_memory=MEMORY, multi_processor_count=1)


def exchange(native, index):
    """Makes a device the current one, returns which was."""
    old = native.current()
    native.set_current(index)
    return old


def streams(kind):
    """Classes as torch.cuda has them. Work is done at once, so they have little to do."""

    class Stream(torch.Stream):
        def __new__(cls, device=None, priority=0, **keywords):
            if "stream_id" not in keywords:
                index = device if isinstance(device, int) else device and torch.device(device).index
                index = torch.accelerator.current_device_index() if index is None else index
                keywords["device"] = torch.device(kind, index)
            return super().__new__(cls, priority=priority, **keywords)

        def record_event(self, event=None):
            event = event or Event()
            event.record(self)
            return event

        def wait_event(self, event):
            pass

    class Event(torch.Event):
        def __new__(cls, enable_timing=False, blocking=False, interprocess=False, external=False):
            return super().__new__(cls, kind, enable_timing=enable_timing, blocking=blocking)

        def record(self, stream=None):
            self.time = time.perf_counter()

        def elapsed_time(self, end_event):
            return 1000 * (end_event.time - self.time)

    return Stream, Event
