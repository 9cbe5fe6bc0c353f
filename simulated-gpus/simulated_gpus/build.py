"""Compiles the extension, once for each PyTorch, and keeps it."""

import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import torch

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = [HERE / name for name in ("module.cpp", "parallel.h", "operators.h", "runtime.h")]
FLAGS = ["-std=c++20", "-O1", "-fPIC", "-shared", "-w", "-DTORCH_EXTENSION_NAME=native"]
# What the compiler says -> what to do about it.
ADVICE = {
    "Python.h": "Python's header files are missing; install python3-dev",
    "unrecognized": "the compiler is too old; install g++ 11 or clang 14, or newer",
    "Killed": "the compiler ran out of memory; it needs about 2 GB",
    "": "simulated-gpus is made for torch 2.13 and may need a change for another one",
}


class Unavailable(RuntimeError):
    """The devices cannot be had here; the message says why, and what to install."""


def library(*definitions):
    """The path of the extension, compiled for this PyTorch and Python with these definitions."""
    folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "simulated-gpus"
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in [*SOURCES, pathlib.Path(__file__)]))
    digest.update(repr((definitions, torch.__version__, sys.implementation.cache_tag, platform.machine())).encode())
    target = folder / f"native-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder):
            if not target.exists():  # another process may have built it while this one waited
                build(target, definitions)
    return target


def build(target, definitions):
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = pathlib.Path(scratch) / target.name
        done = subprocess.run([*command(), *definitions, "-o", str(made)], capture_output=True, text=True)
        if done.returncode:
            log = target.with_suffix(".log")
            log.write_text(done.stdout + done.stderr)
            raise Unavailable(f"{complaint(done)} (all of it: {log})")
        made.replace(target)  # whole or not at all


def command():
    """What compiles the extension, but for the name of the result."""
    named = os.environ.get("CXX", "").split()
    found = named or [path for path in map(shutil.which, ("g++", "clang++", "c++")) if path][:1]
    if not found or not shutil.which(found[0]):
        what = f"the C++ compiler {named[0]}, which CXX names" if named else "a C++ compiler"
        raise Unavailable(f"no simulated GPUs without {what}: install one (Debian, Ubuntu: apt-get install g++)")
    root = pathlib.Path(torch.__file__).parent
    headers = [root / "include", root / "include/torch/csrc/api/include", sysconfig.get_paths()["include"]]
    libraries = [f"-L{root / 'lib'}", *(f"-l{name}" for name in ("c10", "torch_cpu", "torch", "torch_python"))]
    undefined = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    return [*found, *FLAGS, str(SOURCES[0]), *(f"-I{path}" for path in headers), *libraries, *undefined]


def complaint(done):
    """The compiler's last line that speaks of an error, and what may help."""
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    last = next((line for line in reversed(lines) if "error" in line.lower()), lines[-1])
    advice = next(text for words, text in ADVICE.items() if words in done.stderr)
    return f"simulated GPUs cannot be compiled for torch {torch.__version__}: {last.strip()}; {advice}"


class alone:
    """Lets one process at a time build."""

    def __init__(self, folder):
        self.file = open(folder / "lock", "w")

    def __enter__(self):
        try:
            import fcntl
        except ImportError:
            return  # Windows; at worst two processes build the same
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *error):
        self.file.close()
