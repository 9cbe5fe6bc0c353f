"""Jupyter kernels forked from a process that has imported the heavy modules once: see README.md."""

import atexit
import json
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading

from jupyter_client.provisioning.local_provisioner import LocalProvisioner

LAUNCHER = ["-m", "ipykernel_launcher"]
ZYGOTE = "warm_kernel.zygote"
# Belong to one kernel or one parent, and make no other environment.
VOLATILE = ("JPY_PARENT_PID", "JPY_SESSION_NAME")

log = logging.getLogger("warm_kernel")


class WarmProvisioner(LocalProvisioner):
    """Local kernels; those of ipykernel are forked from a zygote, if one can be had."""

    async def launch_kernel(self, cmd, **kwargs):
        environment = {key: str(value) for key, value in (kwargs.get("env") or os.environ).items() if value is not None}
        zygote = zygote_for(cmd, environment)
        files = [kwargs.get("stdout"), kwargs.get("stderr")]
        if zygote is None or subprocess.PIPE in files:
            return await super().launch_kernel(cmd, **kwargs)
        folder = pathlib.Path(kwargs.get("cwd") or pathlib.Path.cwd())
        arguments = cmd[cmd.index(LAUNCHER[1]) + 1 :]
        self.process = ForkedKernel(zygote, arguments, folder, *files)
        self.pid = self.pgid = self.process.pid
        self.cwd = folder
        return self.connection_info


class Zygote:
    """The process from which kernels are forked, once `wait` has returned."""

    def __init__(self, python, environment):
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        modules = environment.get("WARM_KERNEL_MODULES", "")
        self.process = subprocess.Popen(
            [*python, "-m", ZYGOTE, str(theirs.fileno()), modules],
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the owner
        )
        theirs.close()
        atexit.register(self.end)

    def wait(self):
        """Returns when it has imported the modules. Raises RuntimeError, saying why, if kernels must start cold."""
        said = self.control.recv(10_000).decode()
        if said != "ready":
            self.end()
            raise RuntimeError(said or "the zygote did not start")

    def alive(self):
        return self.process.poll() is None

    def end(self):
        """Ends it, and with it its kernels."""
        self.control.close()
        self.process.wait()


class ForkedKernel:
    """A kernel made by a zygote: as much of subprocess.Popen as LocalProvisioner uses."""

    stdin = stdout = stderr = None

    def __init__(self, zygote, arguments, folder, stdout, stderr):
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps({"arguments": arguments, "folder": str(folder)}).encode()
        files = [descriptor(stdout, 1), descriptor(stderr, 2)]
        socket.send_fds(zygote.control, [request], [theirs.fileno(), *files])
        theirs.close()
        self.returncode = None
        self.pid = int(self.connection.recv(100) or 0)
        if not self.pid:
            raise RuntimeError("the zygote has ended")

    def wait(self, timeout=None):
        if self.returncode is None:
            self.connection.settimeout(timeout)
            try:
                said = self.connection.recv(100)
            except TimeoutError:
                raise subprocess.TimeoutExpired("kernel", timeout) from None
            self.returncode = int(said) if said else -signal.SIGKILL
            self.connection.close()
        return self.returncode

    def poll(self):
        try:
            return self.wait(timeout=0)
        except (BlockingIOError, subprocess.TimeoutExpired):
            return None

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def descriptor(file, default):
    """The file descriptor for what subprocess takes as stdout or stderr."""
    if file is None:
        return default
    if file == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    return file if isinstance(file, int) else file.fileno()


zygotes = {}  # what a zygote is started with -> the zygote, or None if it is not to be
lock = threading.Lock()


def zygote_for(cmd, environment):
    """The zygote for this kernel command and environment, or None if the kernel must start cold."""
    place = next((i for i in range(len(cmd)) if cmd[i : i + 2] == LAUNCHER), None)
    if sys.platform != "linux" or place is None:
        return None
    kept = {key: value for key, value in environment.items() if key not in VOLATILE}
    key = (*cmd[:place], *sorted(kept.items()))
    with lock:
        if key not in zygotes or (zygotes[key] and not zygotes[key].alive()):
            zygotes[key] = Zygote(cmd[:place], kept)
            try:
                zygotes[key].wait()
            except RuntimeError as reason:
                log.warning("warm-kernel: %s; kernels start cold", reason)
                zygotes[key] = None
        return zygotes[key]


def zygote_pids():
    """Process ids of the zygotes of this process, those included that are just starting."""
    return {zygote.process.pid for zygote in zygotes.values() if zygote}
