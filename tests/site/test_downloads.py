"""What readers take away: an edition as a zip, notebooks, scripts."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from zipfile import ZipFile

import pytest

from book.files import json_text, notebook_json
from tests.conftest import BOOK, EDITIONS


@pytest.mark.parametrize("edition", EDITIONS)
def test_edition_as_a_zip(html, edition, tmp_path):
    with ZipFile(html / f"one-model-many-gpus-{edition}.zip") as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / f"one-model-many-gpus-{edition}"
    for path in (html / edition).rglob("*"):
        if path.is_file():
            assert (folder / path.relative_to(html / edition)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("edition", EDITIONS)
def test_notebooks_are_the_sources(html, edition):
    for lesson in BOOK.editions[edition].lessons:
        assert (html / edition / lesson.file).read_text("utf-8") == json_text(notebook_json(lesson.cells))


def test_lessons_run_as_scripts(html, tmp_path):
    """Some of them, in the source edition: the editions' code is the same but for words (see book/check.py)."""

    def run(name):
        script = html / BOOK.source.name / f"{name}.py"
        environment = {**os.environ, "MPLBACKEND": "agg", "PYTHONWARNINGS": "ignore:FigureCanvasAgg"}
        return subprocess.run(
            [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(run, ["01_device", "04_data_parallel", "09_cost"]):
            assert (done.returncode, done.stderr) == (0, "")
