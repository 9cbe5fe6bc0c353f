"""What lessons run on: GPUs, versions, the environment of their kernels."""

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from .model import BookError

# Packages whose version can change what a lesson prints or draws.
PACKAGES = ("torch", "matplotlib", "numpy", "ipykernel", "nbclient", "warm-kernel")
# What kernels import before they are forked: the lessons' modules, and what those import when they are first used.
WARM = """
    torch torch._dynamo torch._subclasses.schema_check_mode torch.utils.data torch.utils.checkpoint
    torch.utils.flop_counter matplotlib.pyplot matplotlib.backends.backend_agg matplotlib.backends.backend_svg
    IPython.core.magics.basic IPython.core.magics.execution IPython.core.magics.history IPython.core.pylabtools
""".split()
LIMITS = {"timeout": 120, "deadline": 300}  # seconds for a cell, for a lesson; _config.yml may have others


@dataclass(frozen=True)
class Gpu:
    uuid: str
    name: str
    driver: str


def gpus() -> list[Gpu]:
    """The NVIDIA GPUs that CUDA would show now: those of the machine, less what CUDA_VISIBLE_DEVICES hides."""
    # nvidia-smi is asked, since importing torch takes seconds.
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", "--query-gpu=uuid,name,driver_version", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True)
    lines = [] if answer.returncode else answer.stdout.strip().splitlines()
    found = [Gpu(*line.split(", ")) for line in lines]
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is None:
        return found
    chosen: list[Gpu] = []
    for entry in filter(None, visible.split(",")):
        match = [g for i, g in enumerate(found) if entry.strip() == str(i) or g.uuid.startswith(entry.strip())]
        if not match:  # CUDA stops at the first entry that it does not know
            break
        chosen += match[:1]
    return chosen


def choose_gpus(count: int) -> list[Gpu]:
    """The first `count` GPUs of those that CUDA would show. Raises BookError if there are fewer."""
    if count and os.environ.get("SIMULATED_GPUS", "0") != "0":
        raise BookError(f"--gpus {count}: what simulated GPUs print is no result; unset SIMULATED_GPUS")
    found = gpus()
    if count > len(found):
        names = ", ".join(gpu.name for gpu in found) or "none"
        raise BookError(f"--gpus {count} asks for more GPUs than this machine shows: {len(found)} ({names})")
    return found[:count]


def assert_visible(chosen: list[Gpu]) -> None:
    """Raises BookError if PyTorch, shown just these GPUs, sees another number of them."""
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    answer = subprocess.run(command, env=environment(chosen), capture_output=True, text=True)
    if (seen := answer.stdout.strip()) != str(len(chosen)):
        asked = f"{len(chosen)} GPUs were asked for, but torch {version('torch')} sees {seen or answer.stderr.strip()}"
        raise BookError(f"{asked}; is it a build without CUDA?")


def environment(gpus: list[Gpu] | None = None, cold: bool = False) -> dict[str, str]:
    """The environment of a kernel. It sees just these GPUs, if any are given; cold: it imports all by itself.

    PYTHONHASHSEED, SOURCE_DATE_EPOCH and matplotlibrc take chance and date out of the outputs, PYTHONUTF8 the locale.
    """
    found = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": "0",
        "MATPLOTLIBRC": str(Path(__file__).with_name("matplotlibrc")),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "PYTHONUTF8": "1",
        "WARM_KERNEL_MODULES": "" if cold else os.environ.get("WARM_KERNEL_MODULES", ",".join(WARM)),
    }
    if gpus is not None:
        found |= {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus), "SIMULATED_GPUS": "0"}
    return found


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that outputs depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
