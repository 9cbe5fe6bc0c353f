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

# Sockets of a kernel: a port that was chosen for it may be taken by another program before it starts.
SOCKETS = """
import os, tempfile
from traitlets.config import Config

def sockets():
    return Config({"KernelManager": {"transport": "ipc", "ip": tempfile.mkdtemp(dir=os.getcwd()) + "/socket"}})
"""

# Executes each code of a list in a kernel of its own, and prints what the kernels have printed.
CLIENT = f"""{SOCKETS}
import json, sys
import nbformat
from nbclient import NotebookClient

printed = []
for code in json.loads(sys.argv[1]):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    options = dict(timeout=60, shutdown_kernel="immediate", extra_arguments=["--log-level=ERROR"])
    NotebookClient(notebook, config=sockets(), **options).execute()
    printed.append("".join(output.text for output in notebook.cells[0].outputs))
print(json.dumps(printed))
"""


def path(folder):
    """Modules are found in the folder, too."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def start(folder, *codes, **environment):
    environment = {"JUPYTER_DEFAULT_PROVISIONER_NAME": "warm-kernel", "WARM_KERNEL_MODULES": "numpy", **environment}
    environment = {**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1", "PYTHONPATH": path(folder), **environment}
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
    printed, complaints = run(tmp_path, WARM, WARM, WARM_KERNEL_MODULES=modules)
    assert printed == ["False\n", "False\n"]
    assert complaints.count(reason) == 1 and "kernels start cold" in complaints


def test_an_open_gpu_means_cold_kernels(tmp_path):
    (tmp_path / "opened.py").write_text(
        "import os\nreal = os.readlink\n"
        "os.readlink = lambda path: '/dev/nvidia0' if str(path).endswith('/0') else real(path)\n"
    )
    printed, complaints = run(tmp_path, WARM, WARM_KERNEL_MODULES="opened")
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
    client = f"""{SOCKETS}
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError
for code in ("import os; os._exit(3)", "print('alive')"):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    try:
        options = dict(timeout=60, extra_arguments=["--log-level=ERROR"])
        NotebookClient(notebook, config=sockets(), **options).execute()
        print(notebook.cells[0].outputs[0].text)
    except DeadKernelError:
        print("dead")
"""
    environment = {**os.environ, "JUPYTER_DEFAULT_PROVISIONER_NAME": "warm-kernel"}
    done = subprocess.run(
        [sys.executable, "-c", client], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["dead", "alive"], done.stderr


# For scripts that use the package by itself: `results` executes each code in a kernel, all at the same time.
PRELUDE = f"""{SOCKETS}
import asyncio, json, os, signal, subprocess, sys, threading, time
import nbformat, psutil, warm_kernel
from concurrent.futures import ThreadPoolExecutor
from nbclient import NotebookClient
from warm_kernel import prewarm

environment = dict(os.environ)

def execute(code, **options):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    options = dict(timeout=60, shutdown_kernel="immediate", extra_arguments=["--log-level=ERROR"]) | options
    try:
        NotebookClient(notebook, config=sockets(), **options).execute(env=environment)
    except Exception as error:
        return type(error).__name__
    return "".join(output.text for output in notebook.cells[0].outputs).strip()

def below():
    return [child.name() for child in psutil.Process().children(recursive=True)]

def await_file(name):
    while not os.path.exists(name):
        time.sleep(0.05)
"""


def script(folder, code, **environment):
    """What a script has printed, and what went to stderr besides."""
    environment = {"JUPYTER_DEFAULT_PROVISIONER_NAME": "warm-kernel", "WARM_KERNEL_MODULES": "numpy", **environment}
    environment = {**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1", "PYTHONPATH": path(folder), **environment}
    command = [sys.executable, "-c", PRELUDE + code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_what_a_notebook_opened_for_its_messages_is_closed_with_it(tmp_path):
    # Left to the garbage collector, an event loop sometimes finds its own socket closed, and says so on stderr.
    code = """
import gc, warnings
from warm_kernel.notebook import run_notebook
warnings.simplefilter("always", ResourceWarning)
def attempt(code):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    try:
        run_notebook(notebook, ".", environment, 60, 60, lambda: None, threading.Event(), {})
    except Exception as error:
        print(type(error).__name__)
for code in ("1", "1 / 0", "import os; os._exit(3)"):
    thread = threading.Thread(target=attempt, args=(code,))
    thread.start()
    thread.join()
gc.collect()
"""
    assert script(tmp_path, code, WARM_KERNEL_MODULES="") == (["CellFailed", "CellFailed"], "")


def test_a_notebook_needs_no_port_that_another_program_could_take(tmp_path):
    code = """
from warm_kernel.notebook import run_notebook
asked = "from ipykernel.connect import get_connection_info; print(get_connection_info(unpack=True)['transport'])"
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(asked)])
run_notebook(notebook, ".", environment, 60, 60, lambda: None, threading.Event(), {})
print(notebook.cells[0].outputs[0].text.strip())
"""
    assert script(tmp_path, code) == (["ipc"], "")


def test_a_folder_of_temporary_files_with_too_long_a_path_is_an_error_in_words(tmp_path):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    code = """
from warm_kernel.notebook import KernelNeverStarted, run_notebook
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])
try:
    run_notebook(notebook, ".", environment, 60, 60, lambda: None, threading.Event(), {})
except KernelNeverStarted as error:
    print(error)
"""
    [said], _ = script(tmp_path, code, TMPDIR=str(long), WARM_KERNEL_MODULES="")
    assert said.startswith("the kernel did not start: File name too long")
    assert not [name for name in long.iterdir() if name.name.startswith("kernel-")]


def test_prewarm_starts_one_process_for_all_kernels_and_ends_it(tmp_path):
    code = f"""
code = {WARM + "; import psutil; print(psutil.Process().ppid())"!r}
with prewarm(environment) as warm, ThreadPoolExecutor(4) as pool:
    [zygote] = psutil.Process().children()
    said = set(pool.map(execute, [code] * 4))
    print(said == {{f"True\\n{{zygote.pid}}"}}, warm.wait(), warm.reason)
print(below(), execute(code))
"""
    said, complaints = script(tmp_path, code)
    assert said == ["True True None", "[] RuntimeError"] and complaints == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("del environment['WARM_KERNEL_MODULES']", "WARM_KERNEL_MODULES names no modules"),
        ("environment['WARM_KERNEL_MODULES'] = ''", "WARM_KERNEL_MODULES names no modules"),
        ("environment['WARM_KERNEL_MODULES'] = 'missing'", "cannot import missing: ModuleNotFoundError"),
        ("environment['WARM_KERNEL_MODULES'] = 'broken'", "cannot import broken: OSError"),
        ("environment['WARM_KERNEL_MODULES'] = 'deadly'", "the process to fork from has ended before it was ready"),
        ("warm_kernel.sys = type('', (), {**vars(sys), 'platform': 'darwin'})", "kernels can be forked on Linux only"),
    ],
)
def test_prewarm_says_why_kernels_start_cold(tmp_path, change, reason):
    (tmp_path / "broken.py").write_text("raise OSError('one line\\nanother')")
    (tmp_path / "deadly.py").write_text("import os; os._exit(1)")
    code = f"""
{change}
with prewarm(environment) as warm:
    print(warm.wait(), warm.reason)
    print(execute({WARM!r}))
"""
    said, complaints = script(tmp_path, code)
    assert said[0].startswith(f"False {reason}") and said[1:] == ["False"] and complaints == ""


def test_without_prewarm_a_warning_says_so_once_where_nothing_can_be_forked(tmp_path):
    code = f"""
warm_kernel.sys = type("", (), {{**vars(sys), "platform": "darwin"}})
print(execute({WARM!r}), execute({WARM!r}))
"""
    said, complaints = script(tmp_path, code)
    assert said == ["False False"]
    assert complaints == "warm-kernel: kernels can be forked on Linux only, and this is darwin; kernels start cold\n"


def test_without_modules_kernels_start_cold(tmp_path):
    printed, complaints = run(tmp_path, WARM, WARM_KERNEL_MODULES="")
    assert printed == ["False\n"] and complaints == ""


def test_prewarm_can_be_left_during_the_imports(tmp_path):
    (tmp_path / "slow.py").write_text("import os, time; os.mkdir(f'started-{os.getpid()}'); time.sleep(60)")
    code = """
def at_work():
    return any(name.startswith("started") for name in os.listdir())

for seconds in (0, 0.2, None):  # None: until the imports have begun, which takes a while on a busy machine
    with prewarm({**environment, "WARM_KERNEL_MODULES": "slow", "COUNT": str(seconds)}):
        time.sleep(seconds or 0)
        while seconds is None and not at_work():
            time.sleep(0.1)
        began = time.monotonic()
    print(below(), time.monotonic() - began < 10)
"""
    said, complaints = script(tmp_path, code)
    assert said == ["[] True"] * 3 and complaints == ""


def test_an_owner_killed_during_the_imports_leaves_nothing(tmp_path):
    mark = "54326.1"
    (tmp_path / "slow.py").write_text(f"import os, sys, time; os.rename('a', '{mark}'); time.sleep(60)")
    (tmp_path / "a").touch()
    client = start(tmp_path, "1", WARM_KERNEL_MODULES="slow")
    while not (tmp_path / mark).exists():
        time.sleep(0.1)
    below = psutil.Process(client.pid).children(recursive=True)
    client.kill()
    _, alive = psutil.wait_procs(below, timeout=10)
    assert below and not alive and client.communicate()[1] == ""


# Starts a process in a session of its own, one that is nobody's child, and (unless it dies) one without an environment.
STUBBORN = """
import os, signal, subprocess, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen(["sleep", "{0}1"], start_new_session=True)
subprocess.run(["sh", "-c", "setsid sleep {0}2 & exit 0"])
if "{1}" != "die":
    subprocess.Popen(["sleep", "{0}3"], start_new_session=True, env={{}})
open("running", "w").close()
if "{1}" == "die":
    os._exit(3)
if "{1}" == "run":
    time.sleep(60)
"""
MODULES = pytest.mark.parametrize("modules", ["numpy", ""], ids=["warm", "cold"])


@MODULES
@pytest.mark.parametrize(
    ("how", "then"),
    [
        ("print(execute(code, timeout=3))", "run"),  # nbclient kills it
        ("print(execute(code))", "die"),
        ("print(execute(code, shutdown_kernel='graceful'))", "return"),
        (
            "pool = ThreadPoolExecutor()\nfuture = pool.submit(execute, code)\nawait_file('running')\n"
            "[provisioner] = started\nprovisioner.end()\nprint(future.result())",
            "run",
        ),
        (
            "with ThreadPoolExecutor() as pool, prewarm(environment):\n    future = pool.submit(execute, code)\n"
            "    await_file('running')\nprint(future.result())",
            "run",
        ),
    ],
    ids=["killed", "dies", "shut-down", "ended", "prewarm-left"],
)
def test_what_a_kernel_leaves_behind_ends_and_nothing_else(tmp_path, modules, how, then):
    mark = f"5433{time.time_ns() % 10**9}."
    code = f"""
started = []
real = warm_kernel.WarmProvisioner.post_launch
async def post_launch(self, **kwargs):
    started.append(self)
    await real(self, **kwargs)
warm_kernel.WarmProvisioner.post_launch = post_launch
bystander = subprocess.Popen(["sleep", "{mark}0"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=-3)
code = {STUBBORN.format(mark, then)!r}
{how}
for _ in range(20):
    left = [process.pid for process in psutil.process_iter(["cmdline"]) if "{mark}" in str(process.info["cmdline"])]
    left.remove(os.getpid())
    if left == [bystander.pid]:
        break
    time.sleep(0.1)
print(left == [bystander.pid], bystander.poll())
bystander.kill()
"""
    said, complaints = script(tmp_path, code, WARM_KERNEL_MODULES=modules)
    assert said[-1] == "True None", complaints


@MODULES
def test_kernels_that_are_just_being_started_end_with_prewarm_too(tmp_path, modules):
    code = """
began = time.monotonic()
try:
    with ThreadPoolExecutor(6) as pool, prewarm(environment) as warm:
        futures = [pool.submit(execute, "import time; time.sleep(60)") for _ in range(12)]
        warm.wait()
        time.sleep(1)
        raise KeyboardInterrupt
except KeyboardInterrupt:
    pass
print(below(), time.monotonic() - began < 30, {"RuntimeError", "DeadKernelError"} >= {f.result() for f in futures})
"""
    said, complaints = script(tmp_path, code, WARM_KERNEL_MODULES=modules)
    assert said == ["[] True True"], complaints


def test_kernels_end_if_the_process_they_were_forked_from_is_killed(tmp_path):
    code = """
with ThreadPoolExecutor() as pool, prewarm(environment) as warm:
    future = pool.submit(execute, "open('running', 'w').close()\\nwhile True: pass")
    await_file("running")
    [zygote] = psutil.Process().children()
    [kernel] = zygote.children()
    zygote.kill()
    print(psutil.wait_procs([kernel], timeout=5)[1], future.result())
    print(warm.wait(), warm.reason, execute("print('cold')"))
"""
    said, complaints = script(tmp_path, code)
    assert said == ["[] DeadKernelError", "False the process to fork from has ended cold"]
