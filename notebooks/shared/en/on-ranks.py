import contextlib
import ctypes
import logging
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

# lets PyTorch count GPUs without starting CUDA, which cannot be forked
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import torch
import torch.distributed as dist

# the first optimizer takes a second to import: once here, not in each rank
torch.optim.SGD([torch.zeros(1)])
gpus = torch.cuda.device_count() if dist.is_nccl_available() else 0
cuda_since = []  # the number of the first cell that used CUDA


# why not PyTorch's own start_processes (of torchelastic)? It takes over signal
# handlers, and logs ten lines for each failure
def on_ranks(ranks, function, *arguments, seconds=60):
    """Calls function(*arguments) in `ranks` processes, forked from this one;
    returns their results in the order of ranks.

    Tensors come back on the CPU. What the ranks print appears rank by rank;
    their warnings and logs are not shown. A collective call that waits for
    longer than `seconds` raises. All ranks are ended `seconds` + 5 seconds
    after the start, whatever they are doing. If a rank fails, all are ended
    at once, and RuntimeError names the rank that failed first, and says why.
    """
    if sys.platform != "linux":
        raise RuntimeError(
            "on_ranks needs Linux: on Windows use WSL; on a Mac open this "
            "lesson in Colab or Kaggle"
        )
    if not 1 <= ranks <= 64:
        raise ValueError(f"{ranks} ranks? 1 to 64 make sense on one machine")
    if torch.cuda.is_initialized():
        cell = f"cell {cuda_since[0]}" if cuda_since else "this cell"
        raise RuntimeError(
            f"{cell} used CUDA in the notebook itself; restart, and use it "
            "only in functions on ranks"
        )
    # decided once, for all ranks
    backend = "nccl" if ranks <= gpus else "gloo"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank in range(ranks):
            for kind in ("printed", "errors", "failure"):
                (folder / f"{kind}-{rank}").touch()
        processes = []
        try:
            for rank in range(ranks):
                arguments_of_rank = (
                    rank,
                    ranks,
                    folder,
                    backend,
                    seconds,
                    function,
                    arguments,
                )
                processes.append(
                    multiprocessing.get_context("fork").Process(
                        target=one_rank, args=arguments_of_rank
                    )
                )
                processes[-1].start()
            failure = first_failure(
                processes, folder, time.monotonic() + seconds + 5
            )
        finally:
            for process in processes:
                end_rank(process)
            for rank in range(ranks):
                print(text_of(folder / f"printed-{rank}"), end="")
        if failure:
            raise RuntimeError(failure)
        return [
            torch.load(folder / f"result-{rank}", "cpu", weights_only=False)
            for rank in range(ranks)
        ]


def one_rank(rank, ranks, folder, backend, seconds, function, arguments):
    # PR_SET_PDEATHSIG: a notebook that is killed takes its ranks along
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != multiprocessing.parent_process().pid:
        os._exit(1)  # the notebook was killed before the call to prctl
    # a group of its own, so that the workers of its data loaders end with it
    os.setsid()
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
    )
    # stay on this machine
    os.environ.update(GLOO_SOCKET_IFNAME="lo", NCCL_SOCKET_IFNAME="lo")
    # what ranks leave behind when killed is deleted with the folder
    tempfile.tempdir = str(folder)
    torch.set_num_threads(1)  # the ranks share the cores
    text_file = {"encoding": "utf-8", "errors": "backslashreplace"}
    sys.stdout = open(folder / f"printed-{rank}", "a", 1, **text_file)
    sys.stderr = open(folder / f"errors-{rank}", "a", 1, **text_file)
    # what C++ and other programs write goes there, too
    os.dup2(sys.stdout.fileno(), 1)
    os.dup2(sys.stderr.fileno(), 2)
    # what libraries log would go past the files, into the notebook
    logging.disable(logging.WARNING)
    try:
        if backend == "nccl":
            torch.cuda.set_device(rank)
        options = {
            "rank": rank,
            "world_size": ranks,
            "timeout": timedelta(seconds=seconds),
        }
        # nobody starts before all are connected
        os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
        dist.init_process_group(
            backend, init_method=f"file://{folder}/store", **options
        )
        # for this group only: the fake groups of lesson 13 would wait
        # for ranks that do not exist
        os.environ["TORCH_DIST_INIT_BARRIER"] = "0"
        torch.save(function(*arguments), folder / f"result-{rank}")
    except BaseException as error:
        text = f"rank {rank} of {ranks}: {type(error).__name__}: {error}"
        text += "\n\n" + traceback.format_exc()
        (folder / f"failure-{rank}").write_text(text, **text_file)
        with contextlib.suppress(FileExistsError):
            # failures of other ranks may follow from it
            os.link(folder / f"failure-{rank}", folder / "first")
        leave_rank(1)
    while not all(
        (folder / f"result-{other}").exists() for other in range(ranks)
    ):
        time.sleep(0.01)  # a rank that leaves early would cut off the others
    leave_rank(0)


def leave_rank(exit_code):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # without tidying up what belongs to the notebook


def end_rank(process):
    if process.pid:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()


def text_of(path):
    return path.read_text(encoding="utf-8", errors="replace")


def first_failure(processes, folder, deadline):
    while True:
        # noted first: a rank that ends later is checked in the next round
        running = [each for each in processes if each.exitcode is None]
        failed = (folder / "first").exists()
        if failed:
            # if this one failed because another rank was killed, the wait
            # gives that rank's exit code time to show
            time.sleep(0.1)
        for rank, process in enumerate(processes):
            if process.exitcode and not text_of(folder / f"failure-{rank}"):
                words = text_of(folder / f"errors-{rank}")[-2000:]
                return (
                    f"rank {rank} of {len(processes)}: ended with exit code "
                    f"{process.exitcode}\n\n{words}"
                )
        if failed:
            return text_of(folder / "first")
        if time.monotonic() > deadline:
            late = [
                rank
                for rank in range(len(processes))
                if not (folder / f"result-{rank}").exists()
            ]
            return f"ranks {late} of {len(processes)}: not done in time"
        if not running:
            return None
        multiprocessing.connection.wait(
            [process.sentinel for process in running], 0.1
        )


def my_device():
    """The device of this rank: a GPU of its own where there are enough,
    otherwise the CPU.
    """
    return (
        torch.device("cuda", dist.get_rank())
        if dist.get_world_size() <= gpus
        else torch.device("cpu")
    )


def note_cuda(result):
    if torch.cuda.is_initialized() and not cuda_since:
        cuda_since.append(result.execution_count)


with contextlib.suppress(NameError):  # as a plain script it has no cells
    get_ipython().events.register("post_run_cell", note_cuda)
print(
    f"CUDA GPUs on this machine: {gpus}; with more ranks than GPUs, all "
    "ranks compute on the CPU, with Gloo"
)
