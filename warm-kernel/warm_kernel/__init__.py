"""Jupyter kernels forked from a process that has imported the heavy modules once: see README.md."""

import json
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil
from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

__all__ = ["Warm", "WarmProvisioner", "prewarm"]

MODULES = "WARM_KERNEL_MODULES"
MARK = "WARM_KERNEL_ID"  # a variable of a cold kernel, by which all is found that it has started
LAUNCHER = ["-m", "ipykernel_launcher"]
# These belong to one kernel or to its parent; an environment is the same without them.
VOLATILE = ("JPY_PARENT_PID", "JPY_SESSION_NAME", "PYTHONEXECUTABLE")

log = logging.getLogger("warm_kernel")


class Warm:
    """The kernels of one environment: forked from one process, the zygote, or started cold."""

    _control: socket.socket  # to the zygote, if there is one

    def __init__(self, python: Sequence[str], environment: Mapping[str, str], owned: bool = False) -> None:
        self.reason: str | None = None  # why kernels start cold, once that is known
        self._silent = owned or not environment.get(MODULES)  # nobody need be told the reason by a warning
        self._owned = owned
        self._closed = False
        self._lock, self._waiting = threading.Lock(), threading.Lock()
        self._cold: set[WarmProvisioner] = set()  # those that run
        self._process: subprocess.Popen[bytes] | None = None
        if not environment.get(MODULES):
            self.reason = f"{MODULES} names no modules"
        elif sys.platform != "linux":
            self.reason = f"kernels can be forked on Linux only, and this is {sys.platform}"
        else:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = [*python, "-m", "warm_kernel.zygote", str(theirs.fileno()), environment[MODULES]]
            files: dict[str, Any] = {"stdin": subprocess.DEVNULL, "pass_fds": [theirs.fileno()]}
            with theirs:
                try:  # in a session of its own, since Ctrl-C is for the owner
                    self._process = subprocess.Popen(command, env=environment, start_new_session=True, **files)
                except OSError as error:
                    self.reason = f"cannot start {python[0]}: {error}"

    def wait(self) -> bool:
        """Waits for the imports. True if kernels will be forked; if they start cold, `reason` says why."""
        if self._process and not self.reason:
            said = ""
            # One at a time: a message that is only looked at would wake only one of those who wait for it.
            with self._waiting, suppress(OSError):  # an error: it has ended
                said = self._control.recv(10_000, socket.MSG_PEEK).decode()
            if said != "ready":
                self._process.wait()
                self.reason = said or "the process to fork from has ended before it was ready"
            elif self._ended():
                self.reason = "the process to fork from has ended"
        return not self.reason

    def _ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _close(self) -> None:
        """Ends all kernels of this environment, and the zygote; there will be no others."""
        with self._lock:
            self._closed = True
        for kernel in list(self._cold):
            kernel.end()
        if self._process:
            below = descendants(self._process)
            with suppress(OSError):  # it has ended already
                self._control.shutdown(socket.SHUT_RDWR)  # this ends the zygote, and that ends its kernels
            self._process.wait()
            self._control.close()
            kill(below)  # an import may have started something


@contextmanager
def prewarm(environment: Mapping[str, str]) -> Iterator[Warm]:
    """Starts at once the process from which the kernels of this environment will be forked.

    At the end all kernels of this environment have ended, forked or cold, and any that are asked for later are refused.
    """
    warm = warm_for(KernelManager(kernel_name="python3").format_kernel_cmd(), environment, owned=True)
    try:
        yield warm
    finally:
        warm._close()


class WarmProvisioner(LocalProvisioner):
    """Local kernels; those of ipykernel are forked from a zygote, if one can be had. What they have started ends too."""

    process: Any = None
    warm: Warm | None = None
    below: Iterable[psutil.Process] = ()  # what the kernel had started when it was last asked to end
    mark = ""  # of a cold kernel

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        given = kwargs.get("env") or os.environ
        self.warm = warm = warm_for(cmd, {key: str(value) for key, value in given.items() if value is not None})
        files = [kwargs.get("stdout"), kwargs.get("stderr")]
        forked = warm.wait() and not any(file in (subprocess.PIPE, subprocess.STDOUT) for file in files)
        if warm.reason and not warm._silent:
            warm._silent = True
            log.warning("warm-kernel: %s; kernels start cold", warm.reason)
        self.below, self.mark = (), ""
        with warm._lock:  # nothing in this block waits, in spite of its `await`
            if warm._closed:
                raise RuntimeError("prewarm() has ended for this environment")
            if not forked:
                self.mark = uuid.uuid4().hex
                warm._cold.add(self)
                return await super().launch_kernel(cmd, **{**kwargs, "env": {**given, MARK: self.mark}})
            self.cwd = pathlib.Path(kwargs.get("cwd") or pathlib.Path.cwd())
            request = {"arguments": cmd[cmd.index(LAUNCHER[1]) + 1 :], "folder": str(self.cwd)}
            self.process = ForkedKernel(warm._control, request, *files)
        self.pid = self.pgid = self.process.pid
        return self.connection_info

    async def shutdown_requested(self, restart: bool = False) -> None:
        self.remember()
        await super().shutdown_requested(restart)

    async def kill(self, restart: bool = False) -> None:
        self.end()

    async def cleanup(self, restart: bool = False) -> None:
        self.end()
        await super().cleanup(restart)

    def end(self) -> None:
        """Kills the kernel and all that it has started. Any thread may call this at any time."""
        self.remember()
        process = self.process  # another thread may set it to None
        if process:
            with suppress(OSError, subprocess.TimeoutExpired):
                process.kill()
                process.wait(timeout=5)
        kill(self.below)
        if self.mark:
            for _ in range(5):  # while we looked, another may have been started
                kill(found := marked(self.mark))
                if not found:
                    break
        if self.warm:
            self.warm._cold.discard(self)

    def remember(self) -> None:
        """Notes what is below the kernel: once the kernel has ended, nothing is below it."""
        process = self.process
        if process:
            self.below = {*self.below, *descendants(process)}


class ForkedKernel:
    """A kernel made by a zygote: as much of subprocess.Popen as LocalProvisioner uses."""

    stdin = stdout = stderr = None

    def __init__(self, control: socket.socket, request: Mapping[str, Any], stdout: Any, stderr: Any) -> None:
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(os.devnull, "w") as null:
            special: dict[Any, Any] = {subprocess.DEVNULL: null}
            files = [theirs, special.get(stdout, stdout) or 1, special.get(stderr, stderr) or 2]
            socket.send_fds(
                control, [json.dumps(request).encode()], [f if isinstance(f, int) else f.fileno() for f in files]
            )
        self.lock = threading.Lock()
        self.returncode: int | None = None
        self.pid = int(self.connection.recv(100) or 0)
        if not self.pid:
            raise RuntimeError("the zygote has ended")

    def wait(self, timeout: float | None = None) -> int:
        with self.lock:
            if self.returncode is None:
                self.connection.settimeout(timeout)
                try:
                    said = self.connection.recv(100)
                except (BlockingIOError, TimeoutError):
                    raise subprocess.TimeoutExpired("kernel", timeout or 0) from None
                self.returncode = int(said) if said else -signal.SIGKILL
                self.connection.close()
            return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(timeout=0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def descendants(process: Any) -> list[psutil.Process]:
    """All that is below a process of ours, sessions of their own included; nothing once that has ended."""
    found: list[psutil.Process] = []
    with suppress(psutil.Error):
        if process.poll() is None:  # or its id may be another's by now
            found = psutil.Process(process.pid).children(recursive=True)
    return found


def marked(mark: str) -> list[psutil.Process]:
    """The processes with this mark in their environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(list(processes), timeout=1)


known: dict[tuple[Any, ...], Warm] = {}  # by what a zygote is started with
lock = threading.Lock()


def warm_for(cmd: Sequence[str], environment: Mapping[str, str], owned: bool = False) -> Warm:
    """Where the kernel with this command and environment belongs."""
    place = next((i for i in range(len(cmd)) if list(cmd[i : i + 2]) == LAUNCHER), None)
    if place is None:
        return Warm(cmd, {})  # no ipykernel
    kept = {key: value for key, value in environment.items() if key not in VOLATILE}
    key = (*cmd[:place], *sorted(kept.items()))
    with lock:
        warm = known.get(key)
        if owned or not warm or (warm._ended() and not warm._owned and not warm.reason):
            warm = known[key] = Warm(cmd[:place], kept, owned)
        return warm
