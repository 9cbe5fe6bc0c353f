"""What real GPUs are asked in `make gpu-check`, asked of simulated ones, where there are no others: PyTorch's own
DataParallel on 8 devices in the memory of the CPU, against virtual devices."""

import os
import re
import subprocess
import sys

import pytest
import torch
from simulated_gpus.build import Unavailable, library

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def simulated():
    """The environment of a process that has 8 simulated GPUs."""
    if hasattr(torch._C, "_cuda_getDeviceCount"):
        pytest.skip("this torch is built for GPUs, and simulated ones cannot take their name")
    try:
        library("-DTAKE_THE_PLACE_OF_CUDA")
    except Unavailable as reason:
        if os.environ.get("CI"):
            pytest.fail(str(reason))
        pytest.skip(str(reason))
    return {**os.environ, "SIMULATED_GPUS": "8"}


def test_virtual_devices_agree_with_pytorch_on_simulated_gpus(simulated):
    command = [sys.executable, "-m", "pytest", "--numprocesses=0", "-p", "no:cacheprovider", "--tb=short"]
    tests = str(ROOT / "tests" / "lessons" / "test_real_gpus.py")
    done = subprocess.run([*command, tests], cwd=ROOT, env=simulated, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "skipped" not in done.stdout and re.search(r"\d+ passed|100%", done.stdout)
