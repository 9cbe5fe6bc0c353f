"""The process that imports modules once and forks a kernel for each request: python -m warm_kernel.zygote FD MODULES

FD is the control socket. First goes out "ready", or why there will be no kernels. A request is a JSON object
{"arguments": [...], "folder": "..."} with three descriptors: the kernel's own socket, its stdout, its stderr.
On its socket go out its process id, and its exit status at the end. If the other end of that socket is closed,
the kernel is killed; if the control socket's is, because the owner has ended in whatever way, all are.
"""

import ctypes
import fcntl
import gc
import importlib
import importlib.util
import json
import os
import select
import selectors
import signal
import socket
import sys
from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

# What every ipykernel imports, some of it only when it starts.
KERNEL = (
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipykernel.zmqshell",
    "ipykernel.debugger",
    "tornado.platform.asyncio",
    "IPython.core.debugger",
    "IPython.core.oinspect",
    "psutil",
    "sqlite3",
)
# OpenBLAS would start its threads at import; ipykernel will set the backend by itself, but after matplotlib's import.
FOR_IMPORTS = {"OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def main(descriptor: str, modules: str) -> None:
    control = socket.socket(fileno=int(descriptor))
    os.set_inheritable(control.fileno(), False)
    # If the owner ends it during the imports, the signal SIGIO does, at once and without a word.
    fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(control, fcntl.F_SETFL, os.O_ASYNC)
    if select.select([control], [], [], 0)[0]:
        return
    # ipykernel notes at its import whose end it must follow: that of its parent, this process.
    os.environ["JPY_PARENT_PID"] = str(os.getpid())
    ours = {key: value for key, value in FOR_IMPORTS.items() if key not in os.environ}
    os.environ.update(ours)
    if sys.path[0] in ("", str(Path.cwd())):
        del sys.path[0]  # as ipykernel_launcher does
    reason = prepare([*KERNEL, *filter(None, modules.split(","))])
    for key in ours:
        del os.environ[key]
    fcntl.fcntl(control, fcntl.F_SETFL, 0)
    with suppress(BrokenPipeError):  # the owner has just ended
        control.send((reason or "ready").encode())
    if not reason:
        Zygote(control).serve()
    os._exit(0)  # the interpreter's own end takes the better part of a second with torch


def prepare(modules: Iterable[str]) -> str | None:
    """Imports the modules; returns why forking would be unsafe, or None."""
    gc.disable()  # imports make much and throw little away: collecting would be a quarter of their time
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            return f"cannot import {name}: {error!r}".partition("\n")[0][:1000]
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"{threads} threads are running after the imports, and a fork copies only one"
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if os.readlink(link).startswith("/dev/nvidia"):
                return "an import has initialised CUDA, which does not survive a fork"
    gc.freeze()  # the collector must not touch, and so copy, the pages that kernels share
    gc.enable()
    return None


class Zygote:
    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.kernels: dict[int, socket.socket] = {}  # by process id
        # What a kernel leaves behind becomes a child of this process.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.ended, wake = socket.socketpair()
        self.ended.setblocking(False)
        wake.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno())
        self.private = [control, self.ended, wake]
        self.selector = selectors.DefaultSelector()
        for file in (control, self.ended):
            self.selector.register(file, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.control:
                    if not self.fork():
                        return self.kill_all()
                elif key.fileobj is self.ended:
                    with suppress(BlockingIOError):
                        self.ended.recv(4096)
                    self.reap()
                else:  # the owner of a kernel has closed its socket
                    pid = next((pid for pid, connection in self.kernels.items() if connection is key.fileobj), None)
                    if pid:
                        self.selector.unregister(key.fileobj)
                        os.kill(pid, signal.SIGKILL)

    def fork(self) -> bool:
        """Makes the kernel that is asked for; false if the owner has gone."""
        request = b""
        files: list[int] = []
        with suppress(ConnectionResetError):  # it has gone without reading all that it was sent
            request, files, _, _ = socket.recv_fds(self.control, 1_000_000, 3)
        if not request:
            return False
        connection = socket.socket(fileno=files[0])
        pid = os.fork()
        if pid == 0:
            for file in (*self.private, connection, *self.kernels.values()):
                file.close()
            self.selector.close()
            become_kernel(json.loads(request), *files[1:])
        for descriptor in files[1:]:
            os.close(descriptor)
        with suppress(OSError):
            connection.send(str(pid).encode())
        self.kernels[pid] = connection
        self.selector.register(connection, selectors.EVENT_READ)
        return True

    def reap(self) -> None:
        """Kills what the kernels have left behind that have ended, and then reports these."""
        ended = [(self.kernels.pop(pid, None), status) for pid, status in ended_children()]
        kill_children(spare=self.kernels)
        for connection, status in ended:
            if connection:
                with suppress(OSError):
                    connection.send(str(os.waitstatus_to_exitcode(status)).encode())
                with suppress(KeyError):
                    self.selector.unregister(connection)
                connection.close()

    def kill_all(self) -> None:
        with suppress(ChildProcessError):  # there are no more
            while True:
                kill_children()
                os.waitpid(-1, 0)  # what that one has left behind is now ours, and next


def ended_children() -> list[tuple[int, int]]:
    """The process ids and the wait statuses of children that have ended, each told once."""
    ended = []
    with suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(child)
    return ended


def kill_children(spare: Container[int] = ()) -> None:
    """Kills all processes below this one, but not the spared children nor what is below those."""
    import psutil

    for child in psutil.Process().children():
        if child.pid not in spare:
            with suppress(psutil.NoSuchProcess):
                for process in [*child.children(recursive=True), child]:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()


def become_kernel(request: dict[str, Any], stdout: int, stderr: int) -> NoReturn:
    """Runs ipykernel in this process, which has just been forked, until it ends."""
    try:
        os.setsid()
        # Whatever the kernel starts stays below it, and so is found when it ends.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for file, standard in ((stdout, 1), (stderr, 2)):
            os.dup2(file, standard)
            os.close(file)
        os.chdir(request["folder"])
        seed_afresh()
        launcher = importlib.util.find_spec("ipykernel_launcher")
        assert launcher and launcher.origin
        sys.argv = [launcher.origin, *request["arguments"]]
        from ipykernel import kernelapp

        kernelapp.launch_new_instance()
    except SystemExit:
        pass
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    finally:
        import atexit

        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # as in main


def seed_afresh() -> None:
    """A fresh process has fresh seeds; forks would all have their parent's."""
    import random

    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


if __name__ == "__main__":
    main(*sys.argv[1:])
