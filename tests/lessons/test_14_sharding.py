"""What lesson 11 shows is so: bytes, bubbles and shards."""

import sys

import pytest
import torch

from tests.appended import kept
from tests.reading import run_cells


@pytest.fixture(scope="module")
def left(run):
    return kept(run, "en/14_sharding")


def test_bytes(left):
    assert left["weight_bytes"] == 4 * left["parameters"] == left["gradient_bytes"]
    assert left["state_bytes"] == 8 * left["parameters"] + 4 * 8  # eight step counters


def test_activations_are_five_tensors(left):
    assert left["activations"] == {str(rows): 5 * rows * 256 * 4 for rows in (32, 64)}
    assert left["checkpointed_bytes"] == 2 * 32 * 256 * 4
    assert left["accumulated_bytes"] == 5 * 8 * 256 * 4
    assert 2 * left["bf16_bytes"] == left["weight_bytes"]


def test_memory_per_gpu(left):
    one, dp_first, dp_others, ddp, fsdp = left["list(memory(4).values())"]
    assert [sum(parts) for parts in (one, dp_first, dp_others, ddp, fsdp)] == [28, 20, 11, 19, 7.8]
    assert ddp[:3] == dp_first[:3] == one[:3]
    assert fsdp[:3] == [part / 4 for part in one[:3]]
    assert dp_first[3] == dp_others[3] == ddp[3] == fsdp[3] == one[3] / 4


def test_split_by_hand(left):
    assert left["same_output"] and left["same_gradient"] and left["same_accumulated"]
    half = left["weight_bytes"] // 2
    assert left["size(halves.first.parameters())"] == left["size(halves.second.parameters())"] == half


def test_bubble(left):
    assert left["bubbles_checked"] == 16 * 64
    assert left["idle_cells"] == {"1": 24, "4": 24}
    for row in left["schedule(4,5)"]:  # each stage does each micro-batch once forward, once backward
        assert sorted(number for number in row if number is not None) == sorted([0, 1, 2, 3, 4] * 2)


def test_shards(left):
    held = [report["held"] for report in left["reports"]]
    assert [rank["0.weight"] for rank in held] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [rank["0.bias"] for rank in held] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [rank["2.weight"] for rank in held] == [[0], [1], []]
    assert [rank["2.bias"] for rank in held] == [[0], [1], []]
    assert sum(report["state numbers"] for report in left["reports"]) == 2 * 66


def test_one_step_is_the_same(left):
    assert left["difference"] < 1e-6
    first = left["reports"][0]["after the step"]
    assert all(report["after the step"] == first for report in left["reports"])


def test_inside_and_outside_forward(left):
    for report in left["reports"]:
        assert report["outside forward"] == report["in state_dict"] == "DTensor"
        assert report["inside forward"] == ["Parameter"]


def test_each_layer_is_gathered_twice(left):
    for report in left["reports"]:
        gathers = [number for call, number in report["traffic"].items() if "gather" in call]
        scatters = [number for call, number in report["traffic"].items() if "reduce_scatter" in call]
        assert (gathers, scatters) == ([4], [2])
        assert len(report["traffic"]) == 2


def test_a_whole_checkpoint_is_on_rank_0_alone_if_offloaded(left):
    assert [report["whole checkpoint"] for report in left["reports"]] == [[66, 66], [66, 0], [66, 0]]


def test_one_process_loads_what_three_have_saved(left):
    assert left["loaded_equal"]
    assert left["loaded_state"] == 66
    assert not left["folder.exists()"]


def test_an_early_optimizer_keeps_the_whole_weight(left):
    for report in left["reports"]:
        assert report["known to the early optimizer"] == 0
        assert report["kept by the early optimizer"] and not report["kept without it"]


def test_the_script_has_the_whole_model_on_no_gpu_and_no_cpu_unasked(monkeypatch):
    script = run_cells("en/14_sharding", ["fsdp-script"])["script"]
    steps = [script.index(words) for words in ('device("meta")', "fully_shard(model", "to_empty", "Adam(model")]
    assert steps == sorted(steps)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setenv("LOCAL_RANK", str(torch.cuda.device_count()))
    with pytest.raises((AttributeError, AssertionError, RuntimeError), match="(?i)cuda"):
        exec(compile(script, "train.py", "exec"), {"__name__": "__main__"})
