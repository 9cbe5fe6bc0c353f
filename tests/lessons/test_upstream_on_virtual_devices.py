"""What PyTorch's own tests check of the whole DataParallel, in our words, on virtual devices.

The tests are those that simulated-gpus has for PyTorch's own class; here its place is taken by the virtual one. Left
out: the order of devices and the output device, which virtual devices have no arguments for; a model that is moved
after it was wrapped, and random numbers, which stand in lesson 4's table of differences; and PyTorch's functions
`scatter`, `gather`, `replicate` and `parallel_apply`, called by hand (test_virtual_and_simulated compares the methods).
"""

import importlib.util

import pytest
import torch

from tests.conftest import ROOT
from tests.reading import run_cells

pytestmark = pytest.mark.gpu
if torch.cuda.device_count() < 8:
    pytest.skip(f"needs 8 CUDA GPUs, this machine shows {torch.cuda.device_count()}", allow_module_level=True)

VirtualDataParallel = run_cells("en/04_data_parallel", ["virtual-devices"])["VirtualDataParallel"]
FILE = ROOT / "simulated-gpus" / "tests" / "on_devices" / "test_data_parallel.py"
spec = importlib.util.spec_from_file_location("upstream", FILE)
upstream = importlib.util.module_from_spec(spec)
spec.loader.exec_module(upstream)

n, ids = upstream.n, upstream.ids
test_the_same_as_the_plain_model = upstream.test_the_same_as_the_plain_model
test_second_derivatives = upstream.test_second_derivatives
test_used_twice_before_backward = upstream.test_used_twice_before_backward
test_inputs_without_tensors = upstream.test_inputs_without_tensors
test_keyword_arguments_only = upstream.test_keyword_arguments_only
test_structures_in_and_out = upstream.test_structures_in_and_out
test_all_replicas_on_one_device = upstream.test_all_replicas_on_one_device
test_buffers_that_require_gradients = upstream.test_buffers_that_require_gradients
test_complex_numbers = upstream.test_complex_numbers
test_sparse_gradients = upstream.test_sparse_gradients
test_recurrent_models = upstream.test_recurrent_models
test_lazy_layers_must_be_run_first = upstream.test_lazy_layers_must_be_run_first
test_a_convolution = upstream.test_a_convolution
test_scripted_and_traced_models = upstream.test_scripted_and_traced_models
test_nothing_is_left_over = upstream.test_nothing_is_left_over


@pytest.fixture(autouse=True)
def virtual(monkeypatch):
    """Puts virtual devices in the place of nn.DataParallel."""

    def wrap(module, device_ids=None, dim=0):
        return VirtualDataParallel(module, len(device_ids or range(8)), dim)

    monkeypatch.setattr(upstream.nn, "DataParallel", wrap)
