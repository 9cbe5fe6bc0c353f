"""A small book, as a folder that a test may spoil and as a model. Nothing here starts a kernel or imports PyTorch."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from book import sources
from book.model import Book, Provenance

DATA = Path(__file__).resolve().parent.parent / "data"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(DATA / "minibook", tmp_path / "minibook"))


@pytest.fixture
def small(folder) -> Book:
    return sources.load(folder)


@pytest.fixture(scope="session")
def provenance():
    return Provenance(
        executed="2026-01-02T03:04:05+00:00",
        seconds=1.5,
        accelerator=None,
        gpus=[],
        cuda=None,
        driver=None,
        system="Linux x86_64",
        versions={"python": "3.12.1", "torch": "2.13.0"},
        commit="0123456789ab",
    )


def changed(book, path, **sources_of):
    """The book with other sources of cells in one page: changed(book, "en/01_count", words="x = 1")."""
    page = book.page(path)
    new = [replace(c, source=sources_of.get(c.id.replace("-", "_"), c.source)) for c in page.cells]
    edition = book.editions[page.edition]
    pages = {**edition.pages, page.name: replace(page, cells=tuple(new))}
    return replace(book, editions={**book.editions, edition.name: replace(edition, pages=pages)})
