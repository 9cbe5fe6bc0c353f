"""What PyTorch's own tests check of the whole DataParallel, in our words, on virtual devices.

The tests are those that simulated-gpus has for PyTorch's own class, but for LEFT_OUT; here its place is taken by the
virtual one.
"""

import importlib.util

import pytest
import torch

from tests.conftest import ROOT
from tests.reading import run_cells

pytestmark = pytest.mark.gpu
if torch.cuda.device_count() < 8:
    pytest.skip(
        f"needs 8 CUDA GPUs, and the tests see {torch.cuda.device_count()}; see make gpu-check",
        allow_module_level=True,
    )

VirtualDataParallel = run_cells("en/04_data_parallel", ["virtual-devices"])["VirtualDataParallel"]
FILE = ROOT / "simulated-gpus" / "tests" / "on_devices" / "test_data_parallel.py"
spec = importlib.util.spec_from_file_location("upstream", FILE)
upstream = importlib.util.module_from_spec(spec)
spec.loader.exec_module(upstream)

n, ids = upstream.n, upstream.ids
BY_HAND = "calls PyTorch's own functions by hand; test_virtual_and_simulated compares what whole calls do"
LEFT_OUT = {
    "test_scatter_cuts_as_chunk_does_and_carries_gradients_back": BY_HAND,
    "test_only_the_chunk_at_home_is_a_view": BY_HAND,
    "test_scatter_of_structures": BY_HAND,
    "test_scatter_without_devices_or_rows": BY_HAND,
    "test_gather_joins_and_carries_gradients_back": BY_HAND,
    "test_gather_of_scalars_warns": BY_HAND,
    "test_gather_of_structures": BY_HAND,
    "test_gather_refuses_what_does_not_fit": BY_HAND,
    "test_the_first_output_decides_the_dtype": BY_HAND,
    "test_channels_last_survives": BY_HAND,
    "test_replicas_live_on_their_devices_and_are_copies": BY_HAND,
    "test_without_gradients_the_first_replica_keeps_its_parameters": BY_HAND,
    "test_shared_parameters_stay_shared": BY_HAND,
    "test_gradients_are_added_up": BY_HAND,
    "test_a_replica_can_be_saved": BY_HAND,
    "test_each_module_gets_its_input": BY_HAND,
    "test_replicas_run_at_the_same_time_each_with_its_device_current": "virtual replicas take turns, on one device",
    "test_an_error_names_its_replica": "it knows its replica by get_device(), and all virtual ones have the same",
    "test_other_orders_of_devices_and_another_output_device": "virtual devices have no arguments for them",
    "test_a_model_in_the_wrong_place": "it is moved after it was wrapped: see lesson 4's table of differences",
    "test_batchnorm_remembers_the_first_chunk_and_dropout_draws_alike": "random numbers: see the same table",
}
assert LEFT_OUT.keys() <= vars(upstream).keys()
globals().update({name: f for name, f in vars(upstream).items() if name.startswith("test_") and name not in LEFT_OUT})


@pytest.fixture(autouse=True)
def virtual(monkeypatch):
    """Puts virtual devices in the place of nn.DataParallel."""

    def wrap(module, device_ids=None, dim=0):
        return VirtualDataParallel(module, len(device_ids or range(8)), dim)

    monkeypatch.setattr(upstream.nn, "DataParallel", wrap)
