"""Executes notebooks in place, each in its folder with a kernel of its own: python tools/run_alone.py NOTEBOOK …

Needs nbclient and nothing of this repository, so that it runs with any set of packages (see hosted.sh).
"""

import logging
import subprocess
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

logging.getLogger("tornado").setLevel(logging.CRITICAL)  # jupyter_client's races at shutdown


def run(path):
    notebook = nbformat.read(path, as_version=4)
    folder = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=60, resources=folder, extra_arguments=["--log-level=ERROR"])
    for tries_left in (2, 1, 0):
        try:
            client.execute(stderr=subprocess.DEVNULL if tries_left else None)
            break
        except RuntimeError:  # another program has taken a port that was chosen for the kernel
            if not tries_left or client.code_cells_executed:
                raise
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        run(Path(argument).resolve())
