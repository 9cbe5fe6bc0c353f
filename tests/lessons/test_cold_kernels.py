"""A lesson puts out the same whenever it runs, in a kernel that was forked and in one that has imported all by itself."""

import json
import re

import pytest
import torch

from book.runs import run_folder
from tests.conftest import BOOK, copy_repository, execute, needed


@pytest.fixture(scope="module")
def executed_cold(tmp_path_factory, request):
    """Another copy of the repository, in which cold kernels have executed the source edition."""
    folder = copy_repository(tmp_path_factory.mktemp("cold") / "repository")
    if said := execute(folder, needed(request, "executed_cold"), "--cold", "--edition", BOOK.source.name):
        pytest.fail(said, pytrace=False)
    return folder


# One of each kind; the job "cold" of book.yml executes all lessons.
KINDS = [f"{BOOK.source.name}/{name}" for name in ("01_device", "02_random_dataset", "04_data_parallel", "07_replicas")]


def without_times(path):
    """The text of an executed lesson without what its cells have measured."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if "(measured" in "".join(cell["source"]) and cell["cell_type"] == "code":
            cell["outputs"] = []
    return json.dumps(notebook, indent=1)


@pytest.mark.parametrize("lesson", KINDS)
def test_a_cold_kernel_puts_out_the_same(shipped, executed_cold, lesson):
    """To the byte, figures too. Where there are GPUs, times are measured, and replicas print in any order."""
    texts = [without_times(run_folder(folder) / f"{lesson}.ipynb") for folder in (executed_cold, shipped)]
    if torch.cuda.is_available():
        texts = [sorted(re.sub(r"[\d.]+ (ms|GB/s)", r"\1", text).splitlines()) for text in texts]
    assert texts[0] == texts[1]
