"""What goes wrong while a build is at work: each fault is caused for real."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import EDITIONS, MARK, processes_of, run_book, set_code, site

# Put on the path of the kernels: each ends at its start, as it does when another program has taken its port.
ENDS_AT_ITS_START = """
import os, sys
if "ipykernel_launcher" in " ".join(sys.orig_argv):
    tries = len(os.listdir({folder!r}))
    if tries < {times}:
        open({folder!r} + "/" + str(tries), "w").close()
        sys.stderr.write("Address already in use\\n")
        os._exit(1)
"""


@pytest.mark.parametrize("times", [2, 3])
def test_a_kernel_that_does_not_start_gets_three_tries(repository, tmp_path, times):
    tries, path = tmp_path / "tries", tmp_path / "path"
    tries.mkdir()
    path.mkdir()
    (path / "sitecustomize.py").write_text(ENDS_AT_ITS_START.format(folder=str(tries), times=times))
    set_code(repository, "03_model", "exercise-1", "answer = 15")
    done = run_book(repository, "execute", "03_model", "--language", "en", "--cold", PYTHONPATH=str(path))
    if times == 2:
        assert (done.returncode, "Address" in done.stderr) == (0, False)
    else:
        assert done.returncode == 1 and "Traceback" not in done.stderr
        said = "error: notebooks/en/03_model.ipynb: the kernel did not start: Address already in use"
        assert said in done.stderr


# Ignores what should end it, and so does what it has started, in a session of its own.
STUBBORN = """
import signal, subprocess, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen(["sleep", "12345"], start_new_session=True)
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("cold", [[], ["--cold"]])
def test_cells_that_misbehave(repository, spoiled, cold):
    config = repository / "_config.yml"
    limits = {"timeout: 120": "timeout: 7", "deadline: 300": "deadline: 15"}
    text = config.read_text(encoding="utf-8")
    for old, new in limits.items():
        text = text.replace(old, new)
    config.write_text(text, encoding="utf-8")
    cells = {
        "01_device": "while True:\n    print('x' * 1000)",
        "02_random_dataset": "input('Your name? ')",
        "03_model": "breakpoint()  # passed by\nimport pdb; pdb.set_trace()",
        "04_data_parallel": STUBBORN,
        "05_four_steps": "import os\nos._exit(1)",
    }
    for name, code in cells.items():
        set_code(repository, name, "setup", code)
    # Each cell in time, all of them not.
    for cell in ("setup", "figures", "data", "one-device"):
        set_code(repository, "06_gradients", cell, "import time\ntime.sleep(4)")
    said = spoiled("execute", *cells, "06_gradients", "--language", "en", *cold)
    for name, reason in {
        "01_device": "put out more than 1,000,000 characters",
        "02_random_dataset": "StdinNotImplementedError",
        "03_model": "StdinNotImplementedError",
        "04_data_parallel": "still running after 7 s",
        "05_four_steps": "the kernel died; did this cell exit, or run out of memory?",
    }.items():
        assert f"error: notebooks/en/{name}.ipynb, cell setup: {reason}" in said
    assert re.search(r"06_gradients.ipynb, cell [\w-]+: the lesson takes longer than 15 s in all", said)
    flood = json.loads((repository / "_build" / "failed" / "en" / "01_device.ipynb").read_text(encoding="utf-8"))
    assert len(json.dumps(flood)) < 1_500_000


def test_a_full_disk(repository, spoiled):
    """A limit on the size of files stands in for the end of the disk: writing fails in the same way."""
    set_code(repository, "03_model", "run-model", "print('x' * 100_000)")
    limit = f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({50_000}, {50_000}))"
    command = [
        sys.executable,
        "-c",
        f"{limit}; runpy.run_module('book', run_name='__main__')",
        "execute",
        "03_model",
        "--language",
        "en",
    ]
    run_before = (repository / "_build" / "run" / "run.json").read_bytes()
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ") and "File too large" in done.stderr
    assert (repository / "_build" / "run" / "run.json").read_bytes() == run_before
    assert not list((repository / "_build").rglob("*.part")), "half a file is left behind"


def test_two_builds_at_once(repository):
    started = repository / "started"
    set_code(repository, "03_model", "run-model", f"import time\nopen({str(started)!r}, 'w').close()\ntime.sleep(60)")
    command = [sys.executable, "-m", "book", "execute", "03_model"]
    first = subprocess.Popen(command, cwd=repository, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while not started.exists():
        assert first.poll() is None
        time.sleep(0.1)
    second = run_book(repository, "build")
    assert second.returncode == 1
    assert "error: another build is at work in this folder; wait until it has ended, or stop it" in second.stderr
    first.kill()
    first.communicate()
    assert run_book(repository, "render").returncode == 0, "the lock went with the process"


def test_a_locale_without_utf8(repository, book):
    plain = {"LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    assert run_book(repository, "execute", "03_model", "--force", **plain).returncode == 0
    for edition in EDITIONS:
        path = f"_build/run/{edition}/03_model.ipynb"
        assert (repository / path).read_bytes() == (book / path).read_bytes()
    assert run_book(repository, "render", **plain).returncode == 0


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_build(repository, how):
    site_before = site(repository)
    started = repository / "started"
    set_code(repository, "03_model", "run-model", f"import time\nopen({str(started)!r}, 'w').close()\ntime.sleep(60)")
    command = [sys.executable, "-m", "book", "build"]
    # Unbuffered, as in many containers: what is written to whoever was killed then fails at once.
    environment = {**os.environ, MARK: str(repository), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, cwd=repository, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not started.exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(how)
    _, said = process.communicate(timeout=30)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[how]
    assert "Traceback" not in said
    # A kernel whose parent was killed notices by itself, within seconds.
    deadline = time.monotonic() + 20
    while processes_of(repository) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not processes_of(repository)
    assert site(repository) == site_before


def test_a_damaged_cache_is_made_anew(repository):
    for entry in (repository / "_build" / "cache").iterdir():
        if json.loads(entry.read_text(encoding="utf-8"))["lesson"] == "en/03_model":
            entry.write_text("{")
    done = run_book(repository, "execute")
    assert done.returncode == 0
    fresh = [line for line in done.stdout.splitlines() if "03_model" in line and "unchanged" not in line]
    assert len(fresh) == 1 and " en " in fresh[0]
