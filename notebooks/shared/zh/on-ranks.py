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

# 让 PyTorch 数 GPU 时不初始化 CUDA：初始化过 CUDA 的进程不能再 fork
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import torch
import torch.distributed as dist

# 创建第一个优化器时要花一秒导入模块：在这里先导入，各个 rank 就不必再导入
torch.optim.SGD([torch.zeros(1)])
gpus = torch.cuda.device_count() if dist.is_nccl_available() else 0
cuda_since = []  # 第一个用到 CUDA 的单元格的编号


# 不用 PyTorch 自带的 start_processes（torchelastic）：它会接管信号处理函数，
# 而且每次出错都要写十来行日志
def on_ranks(ranks, function, *arguments, seconds=60):
    """从本进程 fork 出 ranks 个进程，各自调用 function(*arguments)，
    按 rank 的顺序返回结果。

    返回的张量都在 CPU 上。各个 rank 打印的内容按 rank 的顺序显示，
    警告和日志不显示。集合通信等待超过 seconds 秒就会报错；
    从启动算起，过了 seconds + 5 秒，无论在做什么，所有 rank 都会结束。
    只要有一个 rank 出错，就立刻结束所有 rank，并抛出 RuntimeError，
    说明最先出错的是哪个 rank、为什么出错。
    """
    if sys.platform != "linux":
        raise RuntimeError(
            "on_ranks 只能在 Linux 上用：Windows 上用 WSL，Mac 上在 Colab 或 "
            "Kaggle 里打开这一课"
        )
    if not 1 <= ranks <= 64:
        raise ValueError(f"ranks={ranks}：一台机器上只能用 1 到 64 个 rank")
    if torch.cuda.is_initialized():
        cell = f"单元格 {cuda_since[0]}" if cuda_since else "这个单元格"
        raise RuntimeError(
            f"{cell} 在 notebook 自己的进程里用了 CUDA；要重启内核，"
            "只在由各个 rank 调用的函数里用 CUDA"
        )
    backend = "nccl" if ranks <= gpus else "gloo"  # 为所有 rank 统一选定
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
    # PR_SET_PDEATHSIG：notebook 被杀时，各个 rank 也随之结束
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != multiprocessing.parent_process().pid:
        os._exit(1)  # 在这之前 notebook 就被杀掉了
    os.setsid()  # 让本进程自成一组：它启动的数据加载进程会随它一起结束
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
    )
    # 通信不出本机
    os.environ.update(GLOO_SOCKET_IFNAME="lo", NCCL_SOCKET_IFNAME="lo")
    # 被杀掉的 rank 留下的临时文件，会随文件夹一起删除
    tempfile.tempdir = str(folder)
    torch.set_num_threads(1)  # 各个 rank 共用 CPU 核
    text_file = {"encoding": "utf-8", "errors": "backslashreplace"}
    sys.stdout = open(folder / f"printed-{rank}", "a", 1, **text_file)
    sys.stderr = open(folder / f"errors-{rank}", "a", 1, **text_file)
    os.dup2(sys.stdout.fileno(), 1)  # C++ 和子进程输出的内容也写进这两个文件
    os.dup2(sys.stderr.fileno(), 2)
    logging.disable(logging.WARNING)  # 库的日志会绕过这些文件，写进 notebook
    try:
        if backend == "nccl":
            torch.cuda.set_device(rank)
        options = {
            "rank": rank,
            "world_size": ranks,
            "timeout": timedelta(seconds=seconds),
        }
        os.environ["TORCH_DIST_INIT_BARRIER"] = "1"  # 等所有 rank 都连上再开始
        dist.init_process_group(
            backend, init_method=f"file://{folder}/store", **options
        )
        # 只对这个进程组生效：第 13 课预演时另建的进程组里，没有别的 rank 可等
        os.environ["TORCH_DIST_INIT_BARRIER"] = "0"
        torch.save(function(*arguments), folder / f"result-{rank}")
    except BaseException as error:
        text = f"rank {rank}（共 {ranks} 个）：{type(error).__name__}: {error}"
        text += "\n\n" + traceback.format_exc()
        (folder / f"failure-{rank}").write_text(text, **text_file)
        with contextlib.suppress(FileExistsError):
            # 只记最先出错的：其他 rank 出错，可能只是受它牵连
            os.link(folder / f"failure-{rank}", folder / "first")
        leave_rank(1)
    while not all(
        (folder / f"result-{other}").exists() for other in range(ranks)
    ):
        time.sleep(0.01)  # 提前退出的 rank 会让其他 rank 的连接断开
    leave_rank(0)


def leave_rank(exit_code):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # 直接退出，不去清理属于 notebook 的东西


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
        # 先记下还在运行的进程：此后才结束的，下一轮循环还会再查一次
        running = [each for each in processes if each.exitcode is None]
        failed = (folder / "first").exists()
        if failed:
            # 如果出错是因为别的 rank 被杀掉了，稍等一下就看得出来
            time.sleep(0.1)
        for rank, process in enumerate(processes):
            if process.exitcode and not text_of(folder / f"failure-{rank}"):
                words = text_of(folder / f"errors-{rank}")[-2000:]
                return (
                    f"rank {rank}（共 {len(processes)} 个）：进程结束，退出码 "
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
            return f"rank {late}（共 {len(processes)} 个）：没有按时完成"
        if not running:
            return None
        multiprocessing.connection.wait(
            [process.sentinel for process in running], 0.1
        )


def my_device():
    """本 rank 的设备：GPU 够用时是它自己的 GPU，不够时是 CPU"""
    return (
        torch.device("cuda", dist.get_rank())
        if dist.get_world_size() <= gpus
        else torch.device("cpu")
    )


def note_cuda(result):
    if torch.cuda.is_initialized() and not cuda_since:
        cuda_since.append(result.execution_count)


with contextlib.suppress(NameError):  # 当作普通脚本运行时没有单元格
    get_ipython().events.register("post_run_cell", note_cuda)
print(
    f"本机的 CUDA GPU 个数：{gpus}；rank 比 GPU 多时，所有 rank 都在 CPU "
    "上计算，用 Gloo 通信"
)
