"""What real GPUs are asked in `make gpu-check`, asked of simulated ones, where there are no others: PyTorch's own
DataParallel on devices in the memory of the CPU, against virtual devices."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.simulated import environment

FILES = [
    path
    for path in sorted(Path(__file__).parent.glob("test_*.py"))
    if re.search(r"^pytestmark = \W*pytest\.mark\.gpu\b", path.read_text("utf-8"), re.MULTILINE)
]
MARKED = re.compile(r"^(@|pytestmark = \W*)pytest\.mark\.gpu\b", re.MULTILINE)
# Eight devices contain two and three: the tests name their replicas' devices themselves, and have n = 2, 3 and 8. What
# differs where a machine has no more than n is what takes all that there are, and that what needs more skips.
ONLY_THERE = "all_that_there_are or hooks"


@pytest.mark.parametrize("count, tests", [(8, ""), (2, ONLY_THERE), (3, ONLY_THERE)], ids=["8", "2", "3"])
def test_virtual_devices_agree_with_pytorch_on_simulated_gpus(count, tests):
    command = [sys.executable, "-m", "pytest", "--numprocesses=0", "-p", "no:cacheprovider", "--tb=short", "-k", tests]
    done = subprocess.run(
        [*command, *map(str, FILES)], cwd=ROOT, env=environment(count), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert re.search(r"\d+ passed|100%", done.stdout)
    assert ("skipped" in done.stdout) == (count < 8)


@pytest.mark.parametrize("ci, outcome", [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_build_for_cuda_is_an_error_under_ci(monkeypatch, ci, outcome):
    monkeypatch.setattr("torch._C._cuda_getDeviceCount", None, raising=False)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="is built for CUDA; simulated GPUs need a build for the CPU"):
        environment(2)


def test_these_are_all():
    """All files whose tests are marked for GPUs; but for one test of lesson 4, which asks an execution what it saw, and
    for what NCCL and CUDA say themselves."""
    paths = [path for path in (ROOT / "tests").rglob("test_*.py") if MARKED.search(path.read_text("utf-8"))]
    assert {path.name for path in FILES} | {"test_04_data_parallel.py", "test_gpu_messages.py"} == {
        path.name for path in paths
    }
