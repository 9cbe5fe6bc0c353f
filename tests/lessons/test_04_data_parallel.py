"""Lesson 4 finds what the published DataParallel tutorial prints."""

import io
import json
import re
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.appended import kept, printed
from tests.conftest import BOOK, EDITIONS

NAME = "04_data_parallel"
PUBLISHED = json.loads(Path(__file__).with_name("published_results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("edition", EDITIONS)
def test_it_leaves_the_published_splits(run, edition):
    splits = kept(run, f"{edition}/{NAME}")["splits"]
    assert list(splits) == ["1", "2", "3", "8"]
    assert splits["1"] == PUBLISHED["no_or_one_gpu"]["replica_rows"]
    for count, published in PUBLISHED["gpus"].items():
        assert splits[count] == published["replica_rows"]


def published_lines(published):
    inside, outside = (PUBLISHED["line_formats"][place].replace("\\t", "\t") for place in ("inside", "outside"))
    lines = [inside.replace("[R", f"[{rows}") for batch in published["replica_rows"] for rows in batch]
    return lines + [outside.replace("[B", f"[{batch}") for batch in PUBLISHED["parameters"]["batches"]]


def test_it_prints_the_published_lines(run):
    cases = {"1": PUBLISHED["no_or_one_gpu"], **PUBLISHED["gpus"]}
    for count, published in cases.items():
        lines = printed(run, f"en/{NAME}", f"run-{count}").splitlines()
        label = lines.pop(1 if "banner" in published else 0)
        assert label.startswith(("(virtual, on ", "(measured, on "))
        banner = [published["banner"]] if "banner" in published else []
        assert Counter(lines) == Counter(banner + published_lines(published))


def test_it_prints_the_same_sizes_in_chinese(run):
    for count in (1, 2, 3, 8):
        english, chinese = (printed(run, f"{edition}/{NAME}", f"run-{count}") for edition in ("en", "zh"))
        sizes = [Counter(re.findall(r"torch\.Size\(.*?\)", text)) for text in (english, chinese)]
        assert sizes[0] == sizes[1]
        assert "模型内" in chinese


def source(edition, id):
    (cell,) = [cell for cell in BOOK.page(f"{edition}/{NAME}").cells if cell.id == id]
    return cell.source


@pytest.mark.parametrize("edition", EDITIONS)
def test_a_replica_writes_its_line_at_once(edition):
    """What print writes in pieces, threads on real GPUs can tear."""
    names = {"nn": nn}
    exec(source(edition, "model-class"), names)
    pieces = []
    with redirect_stdout(SimpleNamespace(write=pieces.append, flush=lambda: None)):
        names["Model"](5, 2)(torch.ones(3, 5))
    (line,) = filter(None, pieces)
    assert line.startswith("\t") and line.endswith("\n")


@pytest.mark.parametrize("edition", EDITIONS)
def test_it_does_not_wrap_where_dataparallel_cannot_copy(edition):
    with redirect_stdout(io.StringIO()) as text:
        exec(source(edition, "devices-found"), {"device": torch.device("xpu")})
    assert "Intel" in text.getvalue()


@pytest.mark.parametrize("edition", EDITIONS)
def test_only_forward_is_shared(run, edition):
    sizes = re.findall(r"torch\.Size\(\[(\d+), 5\]\)", printed(run, f"{edition}/{NAME}", "only-forward-run"))
    assert sizes == ["15", "15", "30"]


@pytest.mark.gpu
def test_it_measures_what_it_can(run):
    for n, label in kept(run, f"en/{NAME}")["labels"].items():
        assert label == ("measured" if int(n) <= torch.cuda.device_count() else "virtual")
