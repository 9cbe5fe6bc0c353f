"""What CUDA would show, asked of a made-up nvidia-smi; and what machine are given."""

import os

import pytest

from book import machine
from book.model import BookError


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """A machine whose nvidia-smi lists two GPUs. It stands in for the count, never for a result."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU-aa, Made-up A, 1.0'\necho 'GPU-bb, Made-up B, 1.0'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tool


def test_gpus(two_gpus):
    assert machine.gpus() == [machine.Gpu("GPU-aa", "Made-up A", "1.0"), machine.Gpu("GPU-bb", "Made-up B", "1.0")]


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("1", "B"),
        ("GPU-bb", "B"),
        ("GPU-b", "B"),  # CUDA takes the beginning of a name
        ("1,0", "BA"),
        (" 0 , 1 ", "AB"),
        ("0,7,1", "A"),  # it stops at what it does not know
        ("", ""),
        ("-1", ""),
        ("NoDevFiles", ""),
    ],
)
def test_gpus_are_counted_as_cuda_shows_them(two_gpus, monkeypatch, visible, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert "".join(gpu.name[-1] for gpu in machine.gpus()) == names


@pytest.mark.parametrize("script", ["exit 9", "echo NVIDIA-SMI has failed; exit 1", "true"])
def test_a_driver_that_does_not_answer_shows_no_gpus(two_gpus, script):
    two_gpus.write_text(f"#!/bin/sh\n{script}\n")
    assert machine.gpus() == []


def test_a_machine_without_a_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpus() == []


def test_choose_gpus(two_gpus):
    assert [gpu.uuid for gpu in machine.choose_gpus(1)] == ["GPU-aa"]
    assert machine.choose_gpus(0) == []
    with pytest.raises(BookError, match=r"--gpus 3 asks for more .* shows: 2 \(Made-up A, Made-up B\)"):
        machine.choose_gpus(3)


def test_simulated_gpus_are_none_that_can_be_chosen(two_gpus, monkeypatch):
    monkeypatch.setenv("SIMULATED_GPUS", "2")
    with pytest.raises(BookError, match="--gpus 2: what simulated GPUs print is no result; unset SIMULATED_GPUS"):
        machine.choose_gpus(2)
    assert machine.environment(machine.choose_gpus(0))["SIMULATED_GPUS"] == "0"


def test_a_kernel_sees_just_the_gpus_that_were_chosen(two_gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert machine.environment()["CUDA_VISIBLE_DEVICES"] == "1"
    assert machine.environment([])["CUDA_VISIBLE_DEVICES"] == ""
    assert machine.environment(machine.choose_gpus(1))["CUDA_VISIBLE_DEVICES"] == "GPU-bb"


def test_chance_and_date_are_taken_out_of_outputs(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    found = machine.environment()
    assert (found["PYTHONHASHSEED"], found["SOURCE_DATE_EPOCH"], found["PYTHONUTF8"]) == ("0", "0", "1")
    assert os.path.exists(found["MATPLOTLIBRC"])


def test_a_cold_kernel_imports_all_by_itself(monkeypatch):
    monkeypatch.delenv("WARM_KERNEL_MODULES", raising=False)
    assert machine.environment()["WARM_KERNEL_MODULES"].split(",")[0] == "torch"
    monkeypatch.setenv("WARM_KERNEL_MODULES", "json")
    assert machine.environment()["WARM_KERNEL_MODULES"] == "json"
    assert machine.environment(cold=True)["WARM_KERNEL_MODULES"] == ""
