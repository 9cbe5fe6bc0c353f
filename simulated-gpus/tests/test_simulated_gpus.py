"""Devices in processes of their own: built once, given by a call or by a variable, refused with a reason."""

import os
import pathlib
import re
import subprocess
import sys
import threading

import pytest
import simulated_gpus
import torch
from simulated_gpus.build import Unavailable, library
from simulated_gpus.device import load

PACKAGE = pathlib.Path(__file__).resolve().parent.parent
CUDA_BUILD = hasattr(torch._C, "_cuda_getDeviceCount")


def run(code, *arguments, **environment):
    """This code in a Python of its own, with the package and nothing simulated yet."""
    kept = {key: value for key, value in os.environ.items() if key not in ("SIMULATED_GPUS", "CXX")}
    environment = {**kept, "PYTHONPATH": str(PACKAGE), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **environment}
    command = [sys.executable, *(["-c", code] if code else []), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="session", params=["cuda", "simgpu"])
def name(request):
    """A name for devices that can be had here: builds the extension, if it is not there from the last time."""
    if request.param == "cuda" and CUDA_BUILD:
        pytest.skip("this torch is built for GPUs")
    made = run(f"import torch, simulated_gpus; simulated_gpus.install(2, {request.param!r})")
    if made.returncode:
        reason = made.stderr.strip().splitlines()[-1]
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return request.param


def test_on_devices(name):
    """The tests in on_devices/, which need the devices in their own process."""
    tests = str(PACKAGE / "tests" / "on_devices")
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-o", "addopts="]
    done = run("", "-m", "pytest", tests, *options, SIMULATED_GPUS=f"8:{name}")
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout and "failed" not in done.stdout


@pytest.fixture
def variables(tmp_path):
    """What lets a process find the package as one that pip has installed."""
    metadata = tmp_path / "simulated_gpus-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: simulated-gpus\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\nsimulated-gpus = simulated_gpus:autoload\n")
    return {"PYTHONPATH": f"{PACKAGE}:{tmp_path}", "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}


@pytest.mark.parametrize("asked, seen", [("3:{}", "3 True"), ("0", "0 False")])
def test_pytorch_asks_the_package_itself(name, variables, asked, seen):
    code = "import torch; print(torch.accelerator.device_count(), torch.accelerator.is_available())"
    done = run(code, SIMULATED_GPUS=asked.format(name), **variables)
    assert done.stdout == f"{seen}\n", done.stderr


@pytest.mark.skipif(CUDA_BUILD, reason="this torch is built for GPUs")
@pytest.mark.parametrize(
    "compiler, said",
    [
        (
            "/nowhere/g++",
            "no simulated GPUs without the C\\+\\+ compiler /nowhere/g\\+\\+, which CXX names: install one .*",
        ),
        (
            "false",
            "simulated GPUs cannot be compiled for torch .*: exit code 1; simulated-gpus is made for torch 2.13 .*",
        ),
    ],
)
def test_a_program_that_asks_in_vain_ends_with_one_line(variables, tmp_path, compiler, said):
    done = run("import torch", SIMULATED_GPUS="2", CXX=compiler, XDG_CACHE_HOME=str(tmp_path / "cache"), **variables)
    assert done.returncode == 1 and re.fullmatch(f"{said}\n", done.stderr), done.stderr


REFUSED = """
import os, torch, simulated_gpus
def attempt(*arguments):
    try:
        simulated_gpus.install(*arguments) if arguments else simulated_gpus.autoload()
    except (RuntimeError, ValueError, SystemExit) as error:
        print(str(error).splitlines()[0])
attempt()
attempt(65, {name!r})
attempt(2, {name!r})
attempt(2, {name!r})
attempt(3, {name!r})
"""


def test_numbers_of_devices(name):
    lines = run(REFUSED.format(name=name), SIMULATED_GPUS="two").stdout.splitlines()
    assert lines == [
        "SIMULATED_GPUS must be a number of devices, or number:name, not 'two'",
        "there can be 1 to 64 simulated GPUs, not 65",
        f"this process has 2 simulated GPUs called {name!r} already",
    ]


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Lets the package take a shell script for the compiler, and keep what it builds in a folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def install(script):
        path = tmp_path / "compiler"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))

    return install


@pytest.mark.parametrize(
    "said, expected",
    [
        (
            "fatal error: Python.h: No such file",
            "fatal error: Python.h: No such file; Python's header files are missing",
        ),
        ("g++: error: unrecognized option -std=c++20", "-std=c++20; the compiler is too old; install g++ 11"),
        ("x.h:9: error: no 'new' in 'at'", "x.h:9: error: no 'new' in 'at'; simulated-gpus is made for torch 2.13"),
        ("", "exit code 1; simulated-gpus is made for torch 2.13"),
    ],
)
def test_a_compiler_that_fails(compiler, tmp_path, said, expected):
    compiler(f'echo "{said}" >&2; {"echo compilation terminated. >&2;" if said else ""} exit 1')
    with pytest.raises(Unavailable) as caught:
        library()
    message = str(caught.value)
    assert message.startswith(f"simulated GPUs cannot be compiled for torch {torch.__version__}: ")
    assert expected in message and ".log" in message
    assert not list(tmp_path.rglob("*.so"))


def test_no_compiler(compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="no simulated GPUs without a C\\+\\+ compiler: install one"):
        library()
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with pytest.raises(Unavailable, match="without the C\\+\\+ compiler /nowhere/g\\+\\+, which CXX names"):
        library()


def test_processes_that_start_at_once_build_once(compiler, tmp_path):
    compiler(f'echo built >> {tmp_path}/log; sleep 0.3; while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"')
    threads = [threading.Thread(target=library) for _ in range(4)]  # each opens the lock's file anew, as a process does
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "log").read_text() == "built\n"
    with pytest.raises(Unavailable, match="does not load with torch .*remove it"):
        load(library(), 2)


@pytest.mark.skipif(not CUDA_BUILD, reason="this torch is built without CUDA")
def test_a_torch_with_cuda():
    with pytest.raises(Unavailable, match="is built for GPUs"):
        simulated_gpus.install(2)
