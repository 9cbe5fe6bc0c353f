"""Kernels from the provisioner, used as nbclient users do, in a process of their own."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernels are forked on Linux only")

# Executes each code of a list in a kernel of its own, and prints what the kernels have printed.
CLIENT = """
import json, sys
import nbformat
from nbclient import NotebookClient

printed = []
for code in json.loads(sys.argv[1]):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=60, shutdown_kernel="immediate", extra_arguments=["--log-level=ERROR"]).execute()
    printed.append("".join(output.text for output in notebook.cells[0].outputs))
print(json.dumps(printed))
"""


def start(folder, *codes, **environment):
    environment = {"JUPYTER_DEFAULT_PROVISIONER_NAME": "warm-kernel", "WARM_KERNEL_MODULES": "numpy", **environment}
    environment = {**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1", **environment}
    command = [sys.executable, "-c", CLIENT, json.dumps(codes)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


def run(folder, *codes, **environment):
    """What the kernels have printed, and what went to stderr besides."""
    client = start(folder, *codes, **environment)
    said, complaints = client.communicate(timeout=120)
    assert client.returncode == 0, complaints
    return json.loads(said), complaints


def running(mark):
    """The processes whose command line names this mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def gone(mark):
    deadline = time.monotonic() + 20
    while running(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not running(mark)


WARM = "import sys; print('warm_kernel.zygote' in sys.orig_argv)"
SAME = """
import json, os, signal, sys, threading
seen = [sys.path, sys.argv[0], os.getcwd(), __name__, str(sys.flags), sorted(sys.modules["__main__"].__dict__)]
seen += [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
environment = {key: value for key, value in os.environ.items() if not key.startswith("JPY_")}
descriptors = [number for number in (0, 1, 2) if not os.path.exists(f"/proc/self/fd/{number}")]
print(json.dumps([seen, environment, descriptors, os.getsid(0) == os.getpid(), threading.current_thread().name]))
"""


def test_a_kernel_is_as_a_cold_one(tmp_path):
    (warm,), _ = run(tmp_path, SAME)
    (cold,), _ = run(tmp_path, SAME, JUPYTER_DEFAULT_PROVISIONER_NAME="local-provisioner")
    warm, cold = json.loads(warm), json.loads(cold)
    name = "JUPYTER_DEFAULT_PROVISIONER_NAME"
    assert (warm[1].pop(name), cold[1].pop(name)) == ("warm-kernel", "local-provisioner")
    assert warm == cold


def test_modules_are_imported_beforehand_and_seeds_are_fresh(tmp_path):
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    printed, complaints = run(tmp_path, WARM, "import sys; print('numpy' in sys.modules)", code, code)
    assert printed[:2] == ["True\n", "True\n"] and complaints == ""
    assert not set(printed[2].split()) & set(printed[3].split())


@pytest.mark.parametrize(
    ("modules", "reason"),
    [("restless", "2 threads are running after the imports"), ("missing_module", "cannot import missing_module")],
)
def test_where_forking_is_unsafe_kernels_start_cold(tmp_path, modules, reason):
    (tmp_path / "restless.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=[60], daemon=True).start()\n"
    )
    printed, complaints = run(tmp_path, WARM, WARM, WARM_KERNEL_MODULES=modules, PYTHONPATH=str(tmp_path))
    assert printed == ["False\n", "False\n"]
    assert complaints.count(reason) == 1 and "kernels start cold" in complaints


def test_an_open_gpu_means_cold_kernels(tmp_path):
    (tmp_path / "opened.py").write_text(
        "import os\nreal = os.readlink\n"
        "os.readlink = lambda path: '/dev/nvidia0' if str(path).endswith('/0') else real(path)\n"
    )
    printed, complaints = run(tmp_path, WARM, WARM_KERNEL_MODULES="opened", PYTHONPATH=str(tmp_path))
    assert printed == ["False\n"] and "has initialised CUDA" in complaints


def test_what_a_kernel_started_ends_with_it(tmp_path):
    start_sleeper = "import subprocess; started = subprocess.Popen(['sleep', '{}'], start_new_session=True)"
    orphan = "import os; status = os.spawnlp(os.P_WAIT, 'sh', 'sh', '-c', 'setsid sleep 54321.2 & exit 0')"
    codes = [start_sleeper.format("54321.1"), orphan, "import time; time.sleep(1)"]
    run(tmp_path, *codes)
    assert gone("54321.1") and gone("54321.2")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_all_end_with_their_owner(tmp_path, how):
    mark = f"5432{int(how)}.3"
    code = f"import subprocess; subprocess.Popen(['sleep', '{mark}'], start_new_session=True).wait()"
    client = start(tmp_path, code)
    deadline = time.monotonic() + 60
    while not running(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    below = psutil.Process(client.pid).children(recursive=True)
    assert len(below) >= 3  # the zygote, the kernel, its child
    client.send_signal(how)
    client.communicate(timeout=60)
    _, alive = psutil.wait_procs(below, timeout=20)
    assert not alive and not running(mark)


def test_an_interrupt_reaches_the_kernel(tmp_path):
    interrupted = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()
except KeyboardInterrupt:
    print("interrupted")
"""
    assert run(tmp_path, interrupted)[0] == ["interrupted\n"]


def test_a_kernel_that_dies_is_noticed_and_the_next_one_lives(tmp_path):
    client = """
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError
for code in ("import os; os._exit(3)", "print('alive')"):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    try:
        NotebookClient(notebook, timeout=60, extra_arguments=["--log-level=ERROR"]).execute()
        print(notebook.cells[0].outputs[0].text)
    except DeadKernelError:
        print("dead")
"""
    environment = {**os.environ, "JUPYTER_DEFAULT_PROVISIONER_NAME": "warm-kernel"}
    done = subprocess.run([sys.executable, "-c", client], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["dead", "alive"], done.stderr
