"""How long the book takes to make, beside stock tools: python -m tools.benchmark_engine [--rounds 3] [--markdown]

The same notebooks (lessons 1 to 8, both editions, which start no processes of their own; without labels and links to
them, so that they can be multiplied) are executed and rendered by each way in turn, round by round; the table has medians.
Beside wall time: CPU seconds of all processes, and the most memory that they held at once (PSS, so that what forked
kernels share counts once). The floor is a yardstick: CPU seconds of the kernels beyond their imports, divided by the
cores, and the imports once, and one render, one after the other. What lets them overlap can come below it.
Needs nbmake and pytest-xdist for the line of that name.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import yaml
from rich.console import Console
from rich.table import Table

from book.machine import WARM

ROOT = Path(__file__).resolve().parent.parent
EDITIONS = tuple(sorted(path.parent.name for path in ROOT.glob("notebooks/*/edition.yml")))
BUILT = (".git", ".venv", "_build", "__pycache__", ".ipynb_checkpoints", "*.mo")
STOCK = {"only_build_toc_files": True, "execute": {"execute_notebooks": "force", "timeout": 120}}
LOOP = """
import sys, nbformat
from nbclient import NotebookClient
for path in sys.argv[1:]:
    NotebookClient(nbformat.read(path, as_version=4), timeout=120).execute()
"""

# Executes notebooks in kernels forked from one process; prints the CPU seconds that these took.
KERNELS = """
import os, resource, sys, nbformat, psutil, warm_kernel
from nbclient import NotebookClient
with warm_kernel.prewarm(os.environ) as warm:
    assert warm.wait(), warm.reason
    for path in sys.argv[1:]:
        NotebookClient(nbformat.read(path, as_version=4), timeout=120).execute()
    [zygote] = psutil.Process().children()
    own = zygote.cpu_times()
all = resource.getrusage(resource.RUSAGE_CHILDREN)
print(all.ru_utime + all.ru_stime - own.user - own.system)
"""


def plain(text):
    """Markdown without labels, its links leading away from the book."""
    return re.sub(r"\]\([^)]*\)", "](https://example.org)", re.sub(r"^\([\w-]+\)=$", "", text, flags=re.MULTILINE))


def small_book(folder, times):
    """A copy of the repository with lessons 1 to 8, each `times` times."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*BUILT))
    for edition in EDITIONS:
        for path in (folder / "notebooks" / edition).glob("*.ipynb"):
            notebook = json.loads(path.read_text(encoding="utf-8"))
            path.unlink()
            if path.stem >= "09":  # starts processes
                continue
            for cell in notebook["cells"]:
                if cell["cell_type"] == "markdown":
                    cell["source"] = plain("".join(cell["source"])).splitlines(keepends=True)
            first = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
            title, text = notebook["cells"][0], "".join(notebook["cells"][0]["source"])
            code = "".join(first["source"])
            for copy in range(times):
                first["source"] = f"{code}\ncopy_number = {copy}".splitlines(keepends=True)  # no result serves two
                number = (int(path.stem[:2]) - 1) * times + copy + 1
                title["source"] = re.sub(r"^# \d+\.", f"# {number}.", text, flags=re.MULTILINE).splitlines(
                    keepends=True
                )
                name = path.stem if copy == 0 else f"{path.stem}_{copy}"
                write(path.with_name(f"{name}.ipynb"), notebook)
        for path in (folder / "notebooks" / edition).glob("*.md"):
            path.write_text(plain(path.read_text(encoding="utf-8")), encoding="utf-8")
    names = sorted(path.stem for path in (folder / "notebooks" / EDITIONS[0]).glob("*.ipynb"))
    pages = sorted(path.stem for path in (folder / "notebooks" / EDITIONS[0]).glob("*.md") if path.stem != "index")
    toc = {"format": "jb-book", "root": "index", "chapters": [{"file": name} for name in [*names, *pages]]}
    (folder / "_toc.yml").write_text(yaml.safe_dump(toc), encoding="utf-8")
    return folder


def write(path, notebook):
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    path.write_text(text, encoding="utf-8")


def stock_book(source, target, edition):
    """What a stock Jupyter Book needs of an edition: the same lessons and pages."""
    shutil.copytree(source / "notebooks" / edition, target)
    for path in target.glob("*.md"):  # directives that stock tools do not know
        path.write_text(re.sub(r"^```{.*?^```$", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE), "utf-8")
    shutil.copy(source / "_toc.yml", target)
    (target / "_config.yml").write_text(yaml.safe_dump({"title": edition, **STOCK}))
    return target


class Peak(threading.Thread):
    """Watches the memory of this process's children."""

    def __init__(self):
        super().__init__(daemon=True)
        self.bytes, self.over = 0, threading.Event()

    def run(self):
        while not self.over.wait(1):  # to look takes time from what is measured
            total = 0
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    total += process.memory_full_info().pss
            self.bytes = max(self.bytes, total)


def measure(*commands, together=False):
    """(seconds, CPU seconds, peak bytes) of commands, one after the other or at the same time: [(folder, argv), ...]."""
    peak = Peak()
    peak.start()
    before, began = os.times(), time.monotonic()
    running = []
    for folder, command in commands:
        running.append(
            subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
        if not together:
            finish(running.pop())
    for process in running:
        finish(process)
    seconds, after = time.monotonic() - began, os.times()
    peak.over.set()
    peak.join()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, cpu, peak.bytes


def finish(process):
    said, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{process.args}:\n{said[-3000:]}")


def ways(work):
    """name -> a function that makes the book in that way once and returns what `measure` does."""
    book = small_book(work / "book", 1)
    build = (book, [sys.executable, "-m", "book", "build"])
    jupyter_book = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", "--all", "."]
    stock = [(stock_book(book, work / f"stock-{edition}", edition), jupyter_book) for edition in EDITIONS]
    notebooks = [str(path) for edition in EDITIONS for path in sorted((book / "notebooks" / edition).glob("*.ipynb"))]
    edits = iter(range(1_000_000))

    def edited(cell_type):
        number = next(edits)
        for edition in EDITIONS if cell_type == "code" else EDITIONS[:1]:
            path = book / "notebooks" / edition / "03_model.ipynb"
            notebook = json.loads(path.read_text(encoding="utf-8"))
            cell = [cell for cell in notebook["cells"] if cell["cell_type"] == cell_type][1]
            line = f"\nedited = {number}" if cell_type == "code" else f"\nEdited {number} times."
            cell["source"] = ("".join(cell["source"]) + line).splitlines(keepends=True)
            write(path, notebook)
        return measure(build)

    def empty_cache(*options):
        shutil.rmtree(book / "_build", ignore_errors=True)
        return measure((book, [*build[1], *options]))

    found = {
        "this engine, empty cache": empty_cache,
        "this engine, nothing changed": lambda: measure(build),
        "this engine, one prose cell edited": lambda: edited("markdown"),
        "this engine, one code cell edited": lambda: edited("code"),
        "stock jupyter-book, one edition after the other": lambda: measure(*stock),
        "stock jupyter-book, both editions at once": lambda: measure(*stock, together=True),
        "nbclient in a loop (executes only)": lambda: measure((work, [sys.executable, "-c", LOOP, *notebooks])),
        "this engine, --cold, empty cache": lambda: empty_cache("--cold"),
    }
    if find_spec("nbmake") and find_spec("xdist"):
        nbmake = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--nbmake", "-p", "no:cacheprovider", *notebooks]
        found["pytest --nbmake -n 2 (executes only)"] = lambda: measure((work, nbmake))
    return found


def floor(work):
    """Seconds: the kernels' CPU beyond imports divided by the cores, the imports, and one render of all."""
    book = small_book(work / "floor", 1)
    build = [sys.executable, "-m", "book"]
    subprocess.run([*build, "execute"], cwd=book, check=True, capture_output=True)
    render, _, _ = measure((book, [*build, "render"]))
    imports, _, _ = measure((book, [sys.executable, "-c", f"import {', '.join(WARM)}"]))
    notebooks = [str(path) for path in sorted((book / "notebooks").glob("*/*.ipynb"))]
    warm = {"JUPYTER_DEFAULT_PROVISIONER_NAME": "warm-kernel", "WARM_KERNEL_MODULES": ",".join(WARM)}
    command = [sys.executable, "-c", KERNELS, *notebooks]
    done = subprocess.run(command, cwd=work, env={**os.environ, **warm}, check=True, capture_output=True, text=True)
    return float(done.stdout) / os.cpu_count() + imports + render


def growth(work):
    """This engine with an empty cache on 1, 4 and 10 times the notebooks."""
    for times in (1, 4, 10):
        book = small_book(work / f"times-{times}", times)
        yield times, measure((book, [sys.executable, "-m", "book", "build"]))


def main():
    parser = argparse.ArgumentParser("python -m tools.benchmark_engine")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--growth", action="store_true", help="also 1, 4 and 10 times the notebooks")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        found = ways(Path(folder))
        results = {name: [] for name in found}
        for _ in range(arguments.rounds):
            for name, way in found.items():
                results[name].append(way())
                print(f"{name}: {results[name][-1][0]:.1f} s", file=sys.stderr)
        medians = {
            name: [statistics.median(column) for column in zip(*each, strict=True)] for name, each in results.items()
        }
        base = medians["this engine, empty cache"][0]
        for name, (seconds, cpu, memory) in medians.items():
            rows.append([name, f"{seconds:.1f}", f"{seconds / base:.2f}", f"{cpu:.1f}", f"{memory / 1e9:.2f}"])
        least = floor(Path(folder))
        rows.append(["floor", f"{least:.1f}", f"{least / base:.2f}", "", ""])
        if arguments.growth:
            for times, (seconds, cpu, memory) in growth(Path(folder)):
                rows.append([f"{times} times the notebooks", f"{seconds:.1f}", "", f"{cpu:.1f}", f"{memory / 1e9:.2f}"])
    show(["way", "seconds", "ratio", "CPU seconds", "peak GB"], rows, arguments.markdown)


def show(head, rows, markdown):
    if markdown:
        for row in [head, ["---"] * len(head), *rows]:
            print(f"| {' | '.join(row)} |")
    else:
        table = Table(*head)
        for row in rows:
            table.add_row(*row)
        Console().print(table)


if __name__ == "__main__":
    main()
