"""What goes wrong while a build is at work: each fault is caused for real, and the next build is as good as ever."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.engine.conftest import EDITIONS, wait_for

# Put on the path of the kernels: each ends at its start.
ENDS_AT_ITS_START = """
import os, sys
if "ipykernel_launcher" in " ".join(sys.orig_argv):
    sys.stderr.write("no more memory\\n")
    os._exit(1)
"""


def test_a_kernel_that_does_not_start_is_an_error_of_its_lesson(book, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(ENDS_AT_ITS_START)
    said = "error: notebooks/en/01_count.ipynb: the kernel did not start: no more memory"
    assert said in book.bad("execute", "01_count", "--edition", "en", "--force", "--cold", path=[tmp_path])


# Ignores what should end it, and so does what it has started, in a session of its own.
STUBBORN = """
import signal, subprocess, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen(["sleep", "12345"], start_new_session=True)
while True:
    time.sleep(1)
"""
# Lesson, edition: the code of its first cell, and what is said of it.
MISBEHAVING = {
    ("01_count", "en"): ("while True:\n    print('x' * 1000)", "put out more than 1,000,000 characters"),
    ("01_count", "zh"): ("1 / 0", "ZeroDivisionError: division by zero"),
    ("02_total", "en"): (STUBBORN, "still running after 8 s"),
    ("02_total", "zh"): ("import os\nos._exit(1)", "the kernel died; did this cell exit, or run out of memory?"),
    ("03_ask", "en"): ("input('Your name? ')", "StdinNotImplementedError"),
    ("03_ask", "zh"): ("breakpoint()  # passed by\nimport pdb; pdb.set_trace()", "StdinNotImplementedError"),
}
SLOW = "import time\ntime.sleep(5)"  # each cell in time, all of them not


@pytest.mark.parametrize("cold", [[], ["--cold"]], ids=["warm", "cold"])
def test_cells_that_misbehave(book, cold):
    book.replace("_config.yml", "timeout: 120", "timeout: 8")
    book.replace("_config.yml", "deadline: 300", "deadline: 12")
    for name in ("03_ask", "04_slow"):
        book.good("new", name, "--like", "02_total")
    for (lesson, edition), (code, _reason) in MISBEHAVING.items():
        book.set_cell("words" if lesson == "01_count" else "tools", code, lesson, [edition])
    for cell in ("tools", "total", "exercise-1"):
        book.set_cell(cell, SLOW, "04_slow")
    began = time.monotonic()
    said = book.bad("execute", *cold)
    assert time.monotonic() - began < 120
    for (lesson, edition), (_code, reason) in MISBEHAVING.items():
        cell = "words" if lesson == "01_count" else "tools"
        assert f"error: notebooks/{edition}/{lesson}.ipynb, cell {cell}: {reason}" in said, said
    for edition in EDITIONS:
        late = rf"notebooks/{edition}/04_slow.ipynb, cell [\w-]+: the lesson takes longer than 12 s in all"
        assert re.search(late, said)
    assert "asyncio" not in said and "Task was destroyed" not in said
    flood = json.dumps(book.outputs("words", edition="en", folder="failed"))
    assert len(flood) < 1_500_000
    # The notebook that failed is kept, as far as it came.
    assert book.outputs("words", edition="zh", folder="failed")[0]["ename"] == "ZeroDivisionError"
    assert set(book.record()) == {f"{edition}/{name}" for edition in EDITIONS for name in ("01_count", "02_total")}


def test_a_stranger_survives(book):
    """What another thread of the same program has started is no concern of an execution."""
    book.set_cell("count-rows", "print('executed just now')", editions=["en"])
    code = """
import subprocess, sys
from book import sources, execute
with subprocess.Popen(["sleep", "60"]) as stranger:
    try:
        book = sources.load(sources.find_root())
        found, fresh = execute.Execution(book).run(book.lessons)
        print(len(fresh), stranger.poll())
    finally:
        stranger.kill()
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=book.folder, env=book.environment([book.folder]), capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "1 None\n", done.stderr


SLEEPS = "import time\nopen({path!r}, 'w').close()\ntime.sleep(60)"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_build(book, tmp_path, how):
    before, run, started = book.site(), book.record(), tmp_path / "started"
    book.set_cell("count-rows", SLEEPS.format(path=str(started)))
    # Unbuffered, as in many containers: what is written to whoever was killed then fails at once.
    with book.running("build", PYTHONUNBUFFERED="1") as process:
        wait_for(started, process)
        process.send_signal(how)
        _out, said = process.communicate(timeout=30)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[how]
    assert "Traceback" not in said
    if how == signal.SIGINT:
        assert "interrupted; the last run and the last site are as they were" in said
    book.wait_until_alone()  # a kernel whose parent was killed notices by itself, within seconds
    assert (book.site(), book.record()) == (before, run)


# Put on the path: in the process that renderers are forked from, and so in them.
IN_THE_RENDERERS = """
import os, sys, time
if "multiprocessing.forkserver" in " ".join(sys.orig_argv):
    {code}
"""


@pytest.mark.parametrize("at", ["the imports of Sphinx", "a cell", "the rendering"])
def test_ctrl_c_in_a_terminal(book, tmp_path, at):
    """It reaches all processes of the build, not only the one that has been called."""
    before, started = book.site(), tmp_path / "started"
    if at == "the imports of Sphinx":
        wait = f"open({str(started)!r}, 'w'); time.sleep(1)"
        (tmp_path / "sitecustomize.py").write_text(IN_THE_RENDERERS.format(code=wait))
    elif at == "a cell":
        book.set_cell("count-rows", SLEEPS.format(path=str(started)))
    else:
        started = book.folder / "_build" / "sphinx" / "en" / "log.txt"
        started.unlink()
    book.replace("notebooks/en/index.md", "# ", "# A changed title: ")
    with book.running("build", path=[tmp_path]) as process:
        wait_for(started, process)
        os.killpg(process.pid, signal.SIGINT)
        _out, said = process.communicate(timeout=30)
    assert process.returncode == 130 and said.splitlines()[-1].startswith("interrupted; "), said
    assert "Traceback" not in said
    book.wait_until_alone()
    assert book.site() == before


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("time.sleep(2); os._exit(1)", "error: no process renders the edition en: "),
        ("sys.modules['jupyter_book.cli.main'] = None", "error: Jupyter Book failed on the edition en:\n"),
    ],
    ids=["dies", "lacks a package"],
)
def test_a_renderer_that_does_not_start(book, tmp_path, code, said):
    before = book.site()
    (tmp_path / "sitecustomize.py").write_text(IN_THE_RENDERERS.format(code=code))
    book.replace("notebooks/en/index.md", "# ", "# A changed title: ")
    done = book.run("render", path=[tmp_path])
    assert done.code == 1 and said in done.err
    assert [line for line in done.err.splitlines() if not line.startswith(("error: ", " "))] == []
    assert book.site() == before
    book.wait_until_alone()


def test_an_impatient_author(book, tmp_path):
    """A second and a third Ctrl-C give no tracebacks."""
    started = tmp_path / "started"
    book.set_cell("count-rows", SLEEPS.format(path=str(started)))
    with book.running("execute") as process:
        wait_for(started, process)
        for _again in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(0.02)
        _out, said = process.communicate(timeout=30)
    assert (process.returncode, said.count("stopping"), "Traceback" in said) == (130, 1, False), said
    book.wait_until_alone()


# Put on the path: stops for good where a renderer has filled the new site and is about to put it in place.
STOPS_BEFORE_IT_RENAMES = """
import pathlib, sys, time
rename = pathlib.Path.rename
def stop(self, target):
    if self.name.strip(".").startswith("html") and {where} in (self.name, pathlib.Path(target).name):
        open({started!r}, "w").close()
        time.sleep(60)
    return rename(self, target)
pathlib.Path.rename = stop
"""


@pytest.mark.parametrize("where", [".html.old", "html"])
def test_a_build_that_is_killed_while_it_swaps_sites(book, tmp_path, where):
    """Before the old site has gone aside (html → .html.old), and between the two renames (.html-… → html)."""
    started = tmp_path / "started"
    before = book.site()
    condition = (
        'pathlib.Path(target).name == "html" and self.name != "html" and "html"' if where == "html" else '".html.old"'
    )
    text = STOPS_BEFORE_IT_RENAMES.format(where=condition, started=str(started))
    (tmp_path / "sitecustomize.py").write_text(text)
    (book.folder / "_build/html/404.html").unlink()
    spoiled = book.site()
    with book.running("render", path=[tmp_path]) as process:
        wait_for(started, process)
        process.kill()
    book.wait_until_alone()
    left = {path.name for path in (book.folder / "_build").iterdir() if "html" in path.name}
    assert len(left) == 2 and (left > {"html"} if where == ".html.old" else left > {".html.old"}), left
    assert where == "html" or book.site() == spoiled
    # Any command that holds the lock removes what is left, and puts back the old site.
    book.good("execute", "01_count")
    assert book.site() == spoiled != before
    assert [path.name for path in (book.folder / "_build").glob("*html*")] == ["html"]


def test_two_builds_at_once(book, tmp_path):
    started = tmp_path / "started"
    book.set_cell("count-rows", SLEEPS.format(path=str(started)))
    with book.running("execute", "01_count") as first:
        wait_for(started, first)
        for command in ("build", "render", "execute"):
            done = book.run(command)
            said = "error: another build is at work in this folder; wait until it has ended, or stop it\n"
            assert (done.code, done.err) == (1, said)
        assert first.poll() is None
    book.wait_until_alone()
    assert "error: not executed yet as they are now: en/01_count" in book.bad("render"), (
        "the lock went with the process"
    )


FULL = "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size})); " + (
    "runpy.run_module('book', run_name='__main__')"
)


def test_a_full_disk(book):
    """A limit on the size of files stands in for the end of the disk: writing fails in the same way."""
    before, run = book.site(), book.record()
    book.set_cell("count-rows", "print('x\\n' * 50_000)", editions=["en"])
    command = [sys.executable, "-c", FULL.format(size=50_000), "execute", "01_count", "--edition", "en"]
    done = subprocess.run(
        command, cwd=book.folder, env=book.environment([book.folder]), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert re.fullmatch(r"error: .*_build.*\.(json|ipynb): File too large", done.stderr.splitlines()[-1])
    assert (book.site(), book.record()) == (before, run)
    assert not list((book.folder / "_build").rglob("*.part")), "half a file is left behind"
    book.good("execute", "01_count", "--edition", "en")


def test_one_long_line_is_no_burden(book):
    """Putting its pieces together took minutes once, where no time limit of a cell reaches: `good` waits less."""
    book.set_cell("count-rows", "print('x' * 500_000)", editions=["en"])
    book.good("execute", "01_count", "--edition", "en")
    assert "x" * 500_000 in json.dumps(book.outputs("count-rows", edition="en"))


def test_a_run_that_somebody_has_spoiled_heals(book):
    """Each of these once failed for ever. What was executed is known still: no kernel is started."""
    run = book.folder / "_build" / "run"
    for spoil in (
        lambda: (run / "en" / "01_count.ipynb").unlink(),
        lambda: shutil.rmtree(run / "zh"),
        lambda: (run / "zh" / "02_total.ipynb").write_text("{"),
        lambda: (run / "zh" / "02_total.ipynb").write_bytes(b"\xff"),
        lambda: (run / "run.json").write_text(""),
        lambda: (run / "run.json").write_text("{}"),
        lambda: (run / "run.json").unlink(),
        lambda: shutil.rmtree(run),
        lambda: run.rename(run.with_name(".run.old")),
    ):
        before = {path.relative_to(run): path.read_bytes() for path in run.rglob("*.*")}
        spoil()
        assert "lessons: 0 executed, 4 unchanged" in book.good("execute")
        assert {path.relative_to(run): path.read_bytes() for path in run.rglob("*.*")} == before


@pytest.mark.parametrize("spoil", ["file", "record"])
def test_what_is_not_executed_is_not_rendered(book, spoil):
    if spoil == "file":
        (book.folder / "_build/run/en/01_count.ipynb").unlink()
        said = "error: not executed yet as they are now: en/01_count; run: python -m book execute\n"
    else:
        (book.folder / "_build/run/run.json").write_text("")
        said = "error: nothing has been executed yet; run: python -m book execute\n"
    assert book.bad("render") == said


def test_a_damaged_cache_is_made_anew(book):
    for entry in (book.folder / "_build" / "cache").iterdir():
        if json.loads(entry.read_text("utf-8"))["lesson"] == "en/01_count":
            entry.write_text("{")
    assert "lessons: 1 executed, 3 unchanged" in book.good("execute")


def test_a_locale_without_utf8(book):
    before = book.record()
    plain = {"LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    book.good("execute", "01_count", "--edition", "zh", "--force", **plain)
    assert book.outputs("count-rows", edition="zh")[0]["text"] == "行数: 3\n"
    assert set(book.record()) == set(before)


def test_warm_and_cold_kernels_put_out_the_same(book):
    run = book.folder / "_build" / "run"
    before = {path: path.read_bytes() for path in run.rglob("*.ipynb")}
    assert len(before) == 4
    book.good("execute", "--force", "--cold")
    assert {path: path.read_bytes() for path in run.rglob("*.ipynb")} == before


def test_a_busy_port(book):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = book.run("serve", "--port", str(port))
    said = f"error: port {port}: {os.strerror(errno.EADDRINUSE)}; for another one: python -m book serve --port N"
    assert done.code == 1 and done.err.splitlines()[-1] == said and "Traceback" not in done.err


def served(book):
    """The status and the text of a lesson's page as `serve` has it at first."""
    import socket
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with book.running("serve", "--port", str(port)) as process:
        for _ in range(600):
            try:
                answer = urlopen(f"http://127.0.0.1:{port}/en/01_count.html", timeout=10)
                return answer.status, answer.read().decode()
            except HTTPError as error:
                return error.code, error.read().decode()
            except URLError:
                assert process.poll() is None, process.communicate()
                time.sleep(0.1)


def test_the_browser_shows_what_is_wrong(book):
    book.replace("notebooks/en/01_count.ipynb", "what will this cell print?", "what will [it](no.md) print?")
    status, page = served(book)
    assert status == 500 and "error: notebooks/en/01_count.ipynb, cell predict: no file no.md" in page
    assert "livereload.js" in page, "the page comes by itself once it is right"


def test_the_browser_shows_what_the_system_refuses(book):
    book.replace("notebooks/en/index.md", "# ", "# A changed title: ")
    (book.folder / "_build" / "found.json").unlink()
    (book.folder / "_build" / "found.json").mkdir()
    status, page = served(book)
    assert status == 500 and f"error: {book.folder}/_build/found.json: Is a directory" in page


def test_an_unfinished_lesson_is_shown_to_its_author(book):
    """A cell that JupyterLab has just made, no figure's words, no topic, one exercise without a wrong answer."""
    path = book.path("en", "01_count.ipynb")
    notebook = json.loads(path.read_text("utf-8"))
    new = {"id": "3f9a8b2c-0d1e", "cell_type": "markdown", "metadata": {}, "source": ["Written just now."]}
    cells = [cell for cell in notebook["cells"] if not cell["id"].startswith("exercise-2")]
    for cell in cells:
        for name in ("topic", "wrong"):
            cell["metadata"].pop(name, None)
        if cell["id"] == "count-rows":
            cell["source"].append("\n# plt.show()")
    path.write_text(json.dumps({**notebook, "cells": [*cells, new]}), "utf-8")
    said = book.bad("build")
    for missing in (
        "name it for what it does",
        "two exercises",
        "`topic`",
        "`wrong`",
        "mystnb, image, alt",
        "a caption",
    ):
        assert missing in said
    status, page = served(book)
    assert status == 200 and "Written just now." in page
    cells[1]["id"] = cells[0]["id"]
    path.write_text(json.dumps({**notebook, "cells": cells}), "utf-8")
    status, page = served(book)
    assert status == 500 and "two cells have this id" in page
