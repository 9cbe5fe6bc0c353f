"""Devices in processes of their own: built once, given by a call or by a variable, refused with a reason."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

PACKAGE = pathlib.Path(__file__).resolve().parent.parent
INSTALL = "import torch, simulated_gpus; simulated_gpus.install(2)\n"
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


def test_a_process_starts_no_later_than_a_second_after_torch(name):
    measure = "import time, torch, simulated_gpus\nt = time.perf_counter()\nsimulated_gpus.install(8, {!r})\n"
    measure += "print(time.perf_counter() - t)"
    assert min(float(run(measure.format(name)).stdout) for _ in range(3)) < 1


@pytest.mark.parametrize("value, seen", [("3:{}", "3"), ("0", "0"), (None, "0")])
def test_pytorch_asks_the_package_itself(name, tmp_path, value, seen):
    metadata = tmp_path / "simulated_gpus-0.dist-info"  # as pip writes it
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: simulated-gpus\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\nsimulated-gpus = simulated_gpus:autoload\n")
    variables = {"PYTHONPATH": f"{PACKAGE}:{tmp_path}", "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    if value:
        variables["SIMULATED_GPUS"] = value.format(name)
    done = run("import torch; print(torch.accelerator.device_count(), torch.accelerator.is_available())", **variables)
    assert done.stdout == f"{seen} {seen != '0'}\n", done.stderr


@pytest.mark.parametrize(
    "code, message",
    [
        (INSTALL + "simulated_gpus.install(3)", "Unavailable: this process has 2 simulated GPUs called 'cuda' already"),
        (INSTALL + "simulated_gpus.install(2); print('fine')", ""),
        (INSTALL.replace("(2)", "(65)"), "1 to 64 devices, not 65"),
        (INSTALL.replace("(2)", "(0)"), "1 to 64 devices, not 0"),
        ("import simulated_gpus; simulated_gpus.autoload()", "SIMULATED_GPUS must be a number of devices"),
    ],
)
def test_numbers_of_devices(name, code, message):
    code = code if name == "cuda" else code.replace(")", f", {name!r})") if "autoload" not in code else code
    done = run(code, SIMULATED_GPUS="two")
    assert message.replace("cuda", name) in done.stderr
    assert bool(done.returncode) == bool(message)


def compiler(folder, text):
    """A program that the package takes for the compiler."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return {"CXX": str(path), "XDG_CACHE_HOME": str(folder)}


@pytest.mark.skipif(CUDA_BUILD, reason="this torch is built for GPUs")
@pytest.mark.parametrize(
    "says, expected",
    [
        ("module.cpp:3: fatal error: Python.h: No such file", "Python.h: No such file; Python's header files are missing"),
        ("g++: error: unrecognized option -std=c++20", "unrecognized option -std=c++20; the compiler is too old"),
        ("x.h:9: error: 'new' is not a member of 'at'", "'new' is not a member of 'at'; simulated-gpus is made for torch"),
        ("", "exit code 1"),
    ],
)
def test_a_compiler_that_fails(tmp_path, says, expected):
    done = run(INSTALL, **compiler(tmp_path, f'echo "{says}" >&2; echo "compilation terminated." >&2; exit 1' if says else "exit 1"))
    last = done.stderr.splitlines()[-1]
    assert last.startswith("simulated_gpus.build.Unavailable: simulated GPUs cannot be compiled for torch")
    assert expected in last and ".log" in last
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.skipif(CUDA_BUILD, reason="this torch is built for GPUs")
def test_no_compiler(tmp_path):
    done = run(INSTALL, PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    assert "no simulated GPUs without a C++ compiler: install one" in done.stderr
    done = run(INSTALL, CXX="/nowhere/g++", XDG_CACHE_HOME=str(tmp_path))
    assert "without the C++ compiler /nowhere/g++, which CXX names" in done.stderr


def test_processes_that_start_at_once_build_once(tmp_path):
    """And what was built for another torch, and does not load, is named."""
    text = f'echo built >> {tmp_path}/log; sleep 1; while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"'
    code = "import torch, simulated_gpus; simulated_gpus.install(2, 'simgpu')"
    variables = {**os.environ, "PYTHONPATH": str(PACKAGE), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **compiler(tmp_path, text)}
    start = [subprocess.Popen([sys.executable, "-c", code], env=variables, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate(timeout=60)[1] for process in start]
    assert (tmp_path / "log").read_text() == "built\n"
    assert all("does not load with torch" in text and "remove it" in text for text in said)


@pytest.mark.skipif(not CUDA_BUILD, reason="this torch is built without CUDA")
def test_a_torch_with_cuda():
    assert "is built for GPUs" in run(INSTALL).stderr
