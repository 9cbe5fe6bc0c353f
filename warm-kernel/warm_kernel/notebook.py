"""Runs one notebook in a kernel of its own, within limits: time for a cell, time in all, size of a cell's output."""

from __future__ import annotations

import ast
import asyncio
import atexit
import logging
import tempfile
import threading
import time
from collections.abc import Callable
from queue import Empty
from typing import Any

from jupyter_client.provisioning.factory import KernelProvisionerFactory
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from traitlets.config import Config
from zmq import ZMQError

from warm_kernel import WarmProvisioner

MAX_OUTPUT = 1_000_000  # characters that one cell may put out


class KernelNeverStarted(Exception):
    """What it said on stderr, or why it was not even started."""


class CellFailed(Exception):
    """`cell` is the id of the cell that ran last."""

    def __init__(self, reason: str, cell: str):
        super().__init__(reason)
        self.cell = cell


def run_notebook(
    notebook: Any,
    folder: str,
    environment: dict[str, str],
    timeout: float,
    deadline: float,
    on_cell: Callable[[], None],
    over: threading.Event,
    expressions: dict[str, list[str]],
) -> dict[str, list[Any]]:
    """Executes a notebook (nbformat's), in place, in this folder, until it ends or `over` is set.

    timeout: seconds for a cell; deadline: for the notebook. on_cell: called after each cell.
    Returns, by cell id, the values that the `expressions` of a cell had after it: literals, such as numbers and lists;
    in an expression, `printed` is what the cell wrote to stdout.
    Whatever it has started ends with it. Raises CellFailed or KernelNeverStarted.
    """
    # At shutdown jupyter_client reads from sockets that it has closed, and asyncio finds its tasks unfinished.
    for name in ("tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    current: dict[str, Any] = {}
    values: dict[str, list[Any]] = {}
    ended = threading.Event()

    async def after(cell: Any, cell_index: int, execute_reply: Any) -> None:
        if execute_reply["content"]["status"] == "ok" and cell.id in expressions:
            printed = "".join(each.text for each in cell.outputs if each.get("name") == "stdout")
            values[cell.id] = [await value_of(client, text, printed, cell.id) for text in expressions[cell.id]]
        on_cell()

    with tempfile.TemporaryFile("w+") as log, tempfile.TemporaryDirectory(prefix="kernel-") as sockets:
        client = limited_client(notebook, folder, sockets, timeout, current, after)
        watch = threading.Thread(target=watch_over, args=(client, deadline, ended, over), daemon=True)
        watch.start()
        try:
            # Not `execute`, which leaves its event loop to the garbage collector.
            asyncio.run(client.async_execute(env=environment, stderr=log))
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    cell.outputs = joined(cell.outputs)
            return values
        except CellExecutionError as error:
            raise CellFailed(f"{error.ename}: {error.evalue}", current["id"]) from None
        except CellTimeoutError:
            reason = f"still running after {timeout} s (execute: timeout in _config.yml)"
            raise CellFailed(reason, current["id"]) from None
        # ZMQError: the path of the folder for the sockets is too long.
        except (DeadKernelError, RuntimeError, ZMQError) as error:
            if current:
                died = "the kernel died; did this cell exit, or run out of memory?"
                raise CellFailed(client.given_up or died, current["id"]) from None
            atexit.unregister(client._cleanup_kernel)  # nbclient forgets to, and trips over the missing kernel
            log.seek(0)
            said = log.read().strip() or client.given_up or str(error)
            raise KernelNeverStarted(f"the kernel did not start: {said.splitlines()[-1]}") from None
        finally:
            ended.set()
            watch.join()


async def value_of(client: Any, expression: str, printed: str, cell: str) -> Any:
    """What an expression is worth in the kernel, which neither counts nor remembers that it was asked."""
    bound = f"(lambda printed: ({expression}))({printed!r})"
    asked = client.kc.execute("", silent=True, user_expressions={"value": bound})
    reply: dict[str, Any] = {"parent_header": {}}
    while reply["parent_header"].get("msg_id") != asked:
        try:
            reply = await client.kc.get_shell_msg(timeout=client.timeout)
        except Empty:
            raise CellFailed(f"{expression}: the kernel gives no answer within {client.timeout} s", cell) from None
    found = reply["content"]["user_expressions"]["value"]
    if found["status"] == "error":
        raise CellFailed(f"{expression}: {found['ename']}: {found['evalue']}", cell)
    try:
        return ast.literal_eval(found["data"]["text/plain"])
    except (ValueError, SyntaxError):
        raise CellFailed(f"{expression}: {found['data']['text/plain']} is no literal", cell) from None


def joined(outputs: list[Any]) -> list[Any]:
    """Outputs in which what was written to one stream is one output. (nbclient's own way takes minutes for long lines.)"""
    found: list[Any] = []
    streams: dict[str, Any] = {}  # by name, since the last output of another kind
    for output in outputs:
        if output.output_type != "stream":
            streams.clear()
        elif output.name in streams:
            streams[output.name].text += output.text
            continue
        else:
            streams[output.name] = output
        found.append(output)
    return found


def limited_client(
    notebook: Any, folder: str, sockets: str, timeout: float, current: dict[str, Any], after: Callable[..., Any]
) -> Any:
    """An nbclient that can give up on the whole notebook; then `given_up` says why. `current` follows its cell."""
    # This provisioner forks kernels where it can, and ends what a kernel has started.
    KernelProvisionerFactory.instance().default_provisioner_name = "warm-kernel"

    class LimitedClient(NotebookClient):
        given_up: str | None = None
        size = 0  # of what the current cell has put out

        def give_up(self, reason: str) -> None:
            self.given_up = self.given_up or reason
            manager = self.km  # another thread may set it to None
            if manager and isinstance(manager.provisioner, WarmProvisioner):
                manager.provisioner.end()

        def output(self, outs: Any, msg: Any, display_id: str | None, cell_index: int) -> Any:
            self.size += len(repr(msg["content"]))
            if self.size > MAX_OUTPUT:
                self.give_up(f"put out more than {MAX_OUTPUT:,} characters")
            return None if self.given_up else super().output(outs, msg, display_id, cell_index)

    def begin(cell: Any, cell_index: int) -> None:
        current.update(cell)
        client.size = 0

    # Not TCP: before the kernel opens the ports that were found for it, another program may take one.
    config = Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/socket"}})
    client = LimitedClient(
        notebook,
        config=config,
        kernel_name="python3",
        timeout=timeout,
        resources={"metadata": {"path": folder}},
        shutdown_kernel="immediate",
        record_timing=False,
        on_cell_start=begin,
        on_cell_executed=after,
        extra_arguments=["--log-level=ERROR"],
    )
    return client


def watch_over(client: Any, deadline: float, ended: threading.Event, over: threading.Event) -> None:
    """Gives up on a notebook that takes too long, or when `over` is set; again and again, if its kernel just starts."""
    late = f"the lesson takes longer than {deadline} s in all (execute: deadline in _config.yml)"
    began = time.monotonic()
    while not ended.wait(0.1):
        if over.is_set() or time.monotonic() - began > deadline:
            client.give_up("stopped" if over.is_set() else late)
