"""Before a test of a lesson forks its process."""

import os

import pytest
import torch

from book import machine


@pytest.fixture(scope="session", autouse=True)
def no_threads_for_imagined_gpus():
    """The first backward pass starts a thread for each GPU, which no fork copies.

    A PyTorch built for CUDA takes the GPUs that fake tensors and the compiler imagine for real ones, so there is a pass
    before any of these.
    """
    if not machine.gpus() and "SIMULATED_GPUS" not in os.environ:
        torch.ones(1, requires_grad=True).backward()
