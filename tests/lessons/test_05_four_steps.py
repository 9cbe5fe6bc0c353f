"""Lesson 5 finds the types and sizes that the published anatomy of DataParallel has."""

import json
from pathlib import Path

import pytest

from tests.appended import kept
from tests.conftest import EDITIONS

ANATOMY = json.loads(Path(__file__).with_name("published_results.json").read_text(encoding="utf-8"))["anatomy"]


@pytest.mark.parametrize("edition", EDITIONS)
def test_it_has_the_published_anatomy(run, edition):
    left = kept(run, f"{edition}/05_four_steps")
    for rows, published in ((key, value) for key, value in ANATOMY.items() if key.isdigit()):
        found = left["anatomy"][rows]
        assert {key: found[key] for key in published if key in found} == {
            key: value for key, value in published.items() if not key.endswith("_returns")
        }
    assert left["type(chunks).__name__"] == ANATOMY["16"]["scatter_returns"]
    assert left["type(outputs).__name__"] == ANATOMY["16"]["apply_returns"]
