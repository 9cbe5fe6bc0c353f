"""What the lessons run on: GPUs, operating system, versions."""

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

from .lessons import ROOT, BookError

# Packages whose version can change what a lesson prints or draws.
PACKAGES = ("torch", "matplotlib", "numpy", "ipykernel", "nbclient")
# What the lessons import, or what that imports when it is first used: an optimizer, a figure.
WARM = (
    "torch",
    "torch._dynamo",
    "torch._subclasses.schema_check_mode",
    "torch.utils.data",
    "torch.utils.checkpoint",
    "torch.utils.flop_counter",
    "matplotlib.pyplot",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "IPython.core.magics.basic",
    "IPython.core.magics.execution",
    "IPython.core.magics.history",
    "IPython.core.pylabtools",
)


@dataclass(frozen=True)
class Gpu:
    uuid: str
    name: str
    driver: str


def gpus():
    """The NVIDIA GPUs that CUDA would show now: those of the machine, less what
    CUDA_VISIBLE_DEVICES hides. Asks nvidia-smi, since importing torch takes seconds."""
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", "--query-gpu=uuid,name,driver_version", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        return []
    found = [Gpu(*line.split(", ")) for line in answer.stdout.strip().splitlines()]
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return found
    # CUDA stops at the first entry that it does not know.
    visible = []
    for entry in filter(None, shown.split(",")):
        match = [g for i, g in enumerate(found) if entry.strip() == str(i) or g.uuid.startswith(entry.strip())]
        if not match:
            break
        visible += match[:1]
    return visible


def choose_gpus(count):
    """The first `count` GPUs of those that CUDA would show."""
    found = gpus()
    if count > len(found):
        has = ", ".join(gpu.name for gpu in found) or "none"
        raise BookError(f"--gpus {count} asks for more GPUs than this machine shows: {len(found)} ({has})")
    return found[:count]


def assert_visible(chosen):
    """Raises BookError if PyTorch, shown just these GPUs, sees another number of them."""
    count = "import torch; print(torch.cuda.device_count())"
    answer = subprocess.run(
        [sys.executable, "-c", count], env=kernel_environment(chosen), capture_output=True, text=True
    )
    if answer.stdout.strip() != str(len(chosen)):
        raise BookError(
            f"{len(chosen)} GPUs were asked for, but torch {version('torch')} sees "
            f"{answer.stdout.strip() or answer.stderr.strip()}; is it a build without CUDA?"
        )


def kernel_environment(shown=None):
    """The environment of a kernel; it sees just the GPUs `shown`, if any are given.

    PYTHONHASHSEED, SOURCE_DATE_EPOCH and matplotlibrc take chance and date out of the outputs, PYTHONUTF8 the locale.
    """
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": "0",
        "MATPLOTLIBRC": str(ROOT / "book" / "matplotlibrc"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "PYTHONUTF8": "1",
        "WARM_KERNEL_MODULES": os.environ.get("WARM_KERNEL_MODULES", ",".join(WARM)),
    }
    if shown is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in shown)
    return environment


@cache
def versions():
    """Versions of Python and of the packages that outputs depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def system():
    return f"{platform.system()} {platform.machine()}"


def commit():
    """The commit of the sources, with a + if files differ from it; None outside a git checkout."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    answer = subprocess.run(command, capture_output=True, text=True) if shutil.which("git") else None
    return answer.stdout.strip() if answer and answer.returncode == 0 else None
