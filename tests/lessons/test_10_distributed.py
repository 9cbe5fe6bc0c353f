"""What lesson 10 shows is so: ranks, rows, gradients, a killed process, two addresses."""

import re
import sys
import types

import pytest
import torch

from tests.appended import kept
from tests.conftest import BOOK

SCRIPTS = ["train", "gradient", "accumulate", "resume"]


@pytest.fixture(scope="module")
def left(run):
    return kept(run, "en/10_distributed")


def test_two_ranks_train_as_one_process(left):
    two = left["two"]
    assert [result["rank"] for result in two] == [0, 1]
    assert {result["world_size"] for result in two} == {2}
    assert [result["sizes"] for result in two] == [[15, 15, 15, 5]] * 2
    assert left["two_agree"]
    assert left["two_difference"] < 1e-5


def test_three_ranks_repeat_two_rows(left):
    three = left["three"]
    assert [result["rank"] for result in three] == [0, 1, 2]
    assert {result["world_size"] for result in three} == {3}
    assert [sum(result["sizes"]) for result in three] == [34, 34, 34]
    assert left["three_agree"]
    assert left["three_difference"] > 1e-5


def test_rows_of_each_rank(left):
    assert left["rows_of_rank"] == [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]]
    assert left["chunk_rows"] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_set_epoch_changes_the_order(left):
    forgotten, called = left["forgotten_orders"], left["epoch_orders"]
    assert forgotten[0] == forgotten[1] == forgotten[2] == called[0]
    assert called[0] != called[1] != called[2] != called[0]


def test_gradient_of_even_uneven_and_weighted_shards(left):
    assert left["even_difference"] < 1e-6
    assert left["uneven_difference"] > 1e-2
    assert left["weighted_difference"] < 1e-6


def test_no_sync_holds_back_all_but_the_last(left):
    assert left["no_sync_agree"] == [False, False, True]
    assert left["all_reduces"] == {"whole": 1, "plain": 3, "no_sync": 1}
    assert left["no_sync_difference"] < 1e-6
    assert left["plain_difference"] < 1e-5


def test_resumed_run_ends_with_the_same_weights(left):
    assert left["restart_count"] == 1
    assert left["resumed_step"] == 6
    assert left["first_life"]["steps"] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert left["second_life"]["steps"] == [6, 7, 8, 9, 10, 11]
    assert left["resumed_weights"] == left["two"][0]["weights"]
    assert left["killed_equals_unkilled"]


def test_two_machines_meet(left):
    hello = left["hello"]
    assert [worker["RANK"] for worker in hello] == [0, 1]
    assert [worker["LOCAL_RANK"] for worker in hello] == [0, 0]
    assert [worker["GROUP_RANK"] for worker in hello] == [0, 1]
    assert {worker["WORLD_SIZE"] for worker in hello} == {2}
    assert {worker["sum"] for worker in hello} == {3.0}
    assert {worker["address"] for worker in hello} == set(left["addresses"])
    assert all(set(worker["all_addresses"]) == set(left["addresses"]) for worker in hello)


def test_the_folder_is_gone(left):
    assert not left["folder.exists()"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_fails_where_its_gpu_is_missing(name, monkeypatch):
    """A reader takes it home: it must not train on the CPU unasked."""
    (cell,) = [cell.source for cell in BOOK.page("en/10_distributed").code if cell.id == f"{name}-script"]
    script = re.search(r'write_text\("""(.*?)"""', cell, re.DOTALL)[1]
    monkeypatch.setitem(sys.modules, "rows", types.SimpleNamespace(RandomDataset=None))
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    missing = torch.cuda.device_count()
    for variable, value in {"LOCAL_RANK": missing, "LOCAL_WORLD_SIZE": missing + 1}.items():
        monkeypatch.setenv(variable, str(value))
    with pytest.raises((AttributeError, AssertionError, RuntimeError), match="(?i)cuda"):
        exec(compile(script, f"{name}.py", "exec"), {"__name__": "__main__"})
