"""What answers quote of CUDA and NCCL stands in both editions, and one real GPU says it in these words."""

import os
import re
import subprocess
import sys

import pytest
import torch
import yaml

from tests.conftest import BOOK, EDITIONS, ROOT

PRELUDE = """
import contextlib
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn


def group(backend, rank=0, ranks=1, folder=None):
    store = f"file://{folder or tempfile.mkdtemp()}/store"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=ranks)


def replicas(module):
    return nn.DataParallel(module.to("cuda:0"), device_ids=[0, 0])


def ranks(function):
    torch.multiprocessing.start_processes(function, (tempfile.mkdtemp(),), nprocs=2, start_method="fork")


"""
MESSAGES = yaml.safe_load((ROOT / "tests" / "data" / "gpu_messages.yml").read_text("utf-8"))
EACH = pytest.mark.parametrize("entry", MESSAGES, ids=lambda entry: f"{entry['answer']}: {entry['message'][:40]}")


@EACH
@pytest.mark.parametrize("edition", EDITIONS)
def test_the_answer_quotes_it(edition, entry):
    page, label = entry["answer"].split("#")
    source = BOOK.page(f"{edition}/{page}").cells[0].source
    answer = re.search(rf"^\({label}\)=\n(.*?)(?=^\([\w-]+\)=\n|\Z)", source, re.DOTALL | re.MULTILINE)[1]
    assert entry["message"].strip() in answer


@pytest.mark.gpu
@EACH
def test_a_gpu_says_it(tmp_path, entry):
    if not torch.cuda.is_available() or os.environ.get("SIMULATED_GPUS"):
        pytest.skip("needs 1 CUDA GPU; see make gpu-check")
    program = tmp_path / "program.py"
    program.write_text(PRELUDE + entry["program"], "utf-8")
    environment = {**os.environ, **entry.get("environment", {})}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, timeout=60)
    assert entry["message"] in done.stdout + done.stderr
