"""Make-believe GPUs in the memory of the CPU: see README.md."""

import os
import sys

MOST = 64  # as in runtime.h
installed = None  # what this process has: (count, name)


def install(count, name="cuda"):
    """Gives this process n devices, for as long as it runs. To be called before the first backward pass.

    Called cuda, they take the place of CUDA in a CPU build of PyTorch; any other name is a kind of device of its own.
    Raises Unavailable, with the reason, where they cannot be had.
    """
    global installed
    from simulated_gpus.build import Unavailable

    if not 1 <= count <= MOST:
        raise ValueError(f"there can be 1 to {MOST} simulated GPUs, not {count}")
    if installed == (count, name):
        return
    if installed:
        raise Unavailable("this process has {} simulated GPUs called {!r} already".format(*installed))
    if name == "cuda":
        from simulated_gpus.cuda import take_place

        take_place(count)
    else:
        from simulated_gpus.privateuse1 import register

        register(name, count)
    installed = (count, name)


def autoload():
    """PyTorch calls this at the end of `import torch`: processes with SIMULATED_GPUS=n get n devices, others none.

    Where they cannot be had the process ends with one line, instead of PyTorch's traceback of how it came to ask.
    """
    count, _, name = os.environ.get("SIMULATED_GPUS", "0").partition(":")
    if not count.isdecimal():
        sys.exit(f"SIMULATED_GPUS must be a number of devices, or number:name, not {count!r}")
    try:
        if int(count):
            install(int(count), name or "cuda")
    except (RuntimeError, ValueError) as reason:
        sys.exit(str(reason))
