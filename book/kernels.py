"""Runs one notebook in a kernel of its own, within limits: time per cell, time in all, size of a cell's output.

Kernels are forked from a process that has imported the lessons' modules (see warm-kernel/), or start cold.
"""

import atexit
import ctypes
import logging
import sys
import tempfile
import threading
from contextlib import suppress

import psutil
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from warm_kernel import LAUNCHER, zygote_for, zygote_pids

from .lessons import BookError

MAX_OUTPUT = 1_000_000  # characters that one cell may put out
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class KernelNeverStarted(BookError):
    """Most often because another program took the ports that were chosen for it."""


class CellFailed(BookError):
    """`cell` is the id of the cell that ran last."""

    def __init__(self, reason, cell):
        super().__init__(reason)
        self.cell = cell


class LimitedClient(NotebookClient):
    """An nbclient that can give up on the whole notebook; then `given_up` says why."""

    given_up = None
    size = 0  # of what the current cell has put out

    def give_up(self, reason):
        self.given_up = self.given_up or reason
        with suppress(AttributeError):  # it has no kernel yet, or no more
            kill(self.km.provisioner.pid)

    def output(self, outs, msg, display_id, cell_index):
        self.size += len(repr(msg["content"]))
        if self.size > MAX_OUTPUT:
            self.give_up(f"put out more than {MAX_OUTPUT:,} characters")
        return None if self.given_up else super().output(outs, msg, display_id, cell_index)


def prepare(cold, environment):
    """To be called once, before any kernel is started in this environment. cold: import everything in each kernel."""
    factory = KernelProvisionerFactory.instance()
    factory.default_provisioner_name = "local-provisioner" if cold else "warm-kernel"
    # At shutdown jupyter_client sometimes reads from a socket that it has closed, and tornado tells the reader.
    logging.getLogger("tornado").setLevel(logging.CRITICAL)
    if sys.platform == "linux":  # so that whatever a kernel leaves behind becomes our child, and is found
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    if not cold:  # the imports take longer than all else that comes before the first cell
        threading.Thread(target=zygote_for, args=([sys.executable, *LAUNCHER], environment), daemon=True).start()


def run_notebook(notebook, folder, environment, timeout, deadline, on_cell):
    """Executes a notebook, in place, in this folder.

    timeout: seconds for a cell; deadline: for the notebook. Raises CellFailed or KernelNeverStarted.
    """
    current = {}
    with tempfile.TemporaryFile("w+") as log:

        def begin(cell, cell_index):
            current.update(cell)
            client.size = 0

        client = LimitedClient(
            notebook,
            kernel_name="python3",
            timeout=timeout,
            resources={"metadata": {"path": folder}},
            shutdown_kernel="immediate",
            record_timing=False,
            coalesce_streams=True,
            on_cell_start=begin,
            on_cell_executed=lambda **_: on_cell(),
            extra_arguments=["--log-level=ERROR"],
        )
        late = f"the lesson takes longer than {deadline} s in all (execute: deadline in _config.yml)"
        watch = threading.Timer(deadline, client.give_up, [late])
        watch.daemon = True
        watch.start()
        try:
            client.execute(env=environment, stderr=log)
        except CellExecutionError as error:
            raise CellFailed(f"{error.ename}: {error.evalue}", current["id"]) from None
        except CellTimeoutError:
            raise CellFailed(
                f"still running after {timeout} s (execute: timeout in _config.yml)", current["id"]
            ) from None
        except (DeadKernelError, RuntimeError):
            if current:
                died = "the kernel died; did this cell exit, or run out of memory?"
                raise CellFailed(client.given_up or died, current["id"]) from None
            atexit.unregister(client._cleanup_kernel)  # nbclient forgets to, and trips over the missing kernel
            log.seek(0)
            said = log.read().strip() or client.given_up or "it said nothing"
            raise KernelNeverStarted(f"the kernel did not start: {said.splitlines()[-1]}") from None
        finally:
            watch.cancel()


def kill(pid):
    """Ends a process and all below it."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [*process.children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess):
                each.kill()


def children():
    """Process ids of this process's children."""
    return {child.pid for child in psutil.Process().children()}


def kill_leftovers(spared):
    """Ends all kernels, forked or not, and what they have started; `spared` are process ids of other children."""
    zygotes = zygote_pids()
    for pid in children() - spared - zygotes:
        kill(pid)
    for pid in zygotes:
        with suppress(psutil.NoSuchProcess):
            for kernel in psutil.Process(pid).children():
                kill(kernel.pid)
