import contextlib
import functools
import math
import unittest.mock
import weakref

import torch
import torch.distributed as dist

# 让假张量能通过 FSDP2 的集合通信
import torch.distributed._tools.fake_collectives
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint as recomputed


def peak(model, batch, gpus, how, checkpoint=False, precision=None):
    """用假张量（fake tensor）预演 Adam 的一步训练，看显存占用最多的那个 GPU：
    返回峰值那一刻，各类内容各占多少字节。

    model：不带参数的函数，返回模型。如果模型的输出是一个数，就把它当作损失；
    否则用输出的平方的均值代替损失
    batch：调用模型时传入的张量，每行一个样本，要包含整个批次；也可以是返回这些
    张量的函数
    how："one"、"DataParallel"、"DDP" 或 "FSDP2"
    checkpoint：是否对每个块（ModuleList 或 Sequential 的元素）做激活值检查点
    precision：计算用的 dtype，与权重的 dtype 不同时才写，例如 torch.bfloat16
    """
    if how not in ("one", "DataParallel", "DDP", "FSDP2"):
        raise ValueError(
            f'how 应为 "one"、"DataParallel"、"DDP" 或 "FSDP2"，不能是 {how!r}'
        )
    if how == "one" and gpus != 1:
        raise ValueError(f'how="one" 只用于 1 个 GPU，不能是 {gpus} 个')
    return on_ranks(
        1, rehearse, model, batch, gpus, how, checkpoint, precision
    )[0]


def rehearse(model, batch, gpus, how, checkpoint, precision):
    dist.destroy_process_group()  # on_ranks 建立的进程组，这里用不着
    with contextlib.ExitStack() as stack:
        if how == "FSDP2":
            # 没有别的进程，什么也不会发送
            dist.init_process_group("fake", rank=0, world_size=gpus)
            mesh = dist.init_device_mesh("cpu", (gpus,))
        fake = stack.enter_context(FakeTensorMode())
        with unittest.mock.patch.object(torch.utils, "swap_tensors", set_data):
            module = model()
        rows = [
            fake.from_tensor(tensor)
            for tensor in (batch() if callable(batch) else batch)
        ]
        # 行数最多的 GPU 占用的显存最多，所以只取最大的一份
        rows = [
            tensor[: math.ceil(len(tensor) / gpus)].clone() for tensor in rows
        ]
        if checkpoint:
            for block in blocks(module):
                options = {"use_reentrant": False, "preserve_rng_state": False}
                block.forward = functools.partial(
                    recomputed, block.forward, **options
                )
        if how == "FSDP2":
            policy = MixedPrecisionPolicy(
                param_dtype=precision, reduce_dtype=precision and torch.float32
            )
            for part in [*blocks(module), module]:
                fully_shard(part, mesh=mesh, mp_policy=policy)
        buckets = (
            [
                torch.empty_like(weight)
                for weight in module.parameters()
                if weight.requires_grad
            ]
            if how == "DDP"
            else []
        )
        network = OnGpu0(module, gpus) if how == "DataParallel" else module
        if how == "FSDP2":
            with torch.no_grad():
                network(*rows)  # 第一次前向传播时，FSDP2 才完成分片的初始化
            module.reshard()
        weights = list(module.parameters())
        # 用普通张量：2.13 以前的 PyTorch 在 DTensor 上更新一步时，
        # 自己还会另外创建一些假张量
        shards = [
            nn.Parameter(plain(weight), weight.requires_grad)
            for weight in weights
        ]
        # 在 GPU 上，Adam 默认 foreach=True
        optimizer = torch.optim.Adam(shards, foreach=True)

        def step():
            for shard, weight in zip(shards, weights):
                shard.grad = plain(weight.grad)
            optimizer.step()
            optimizer.zero_grad()
            module.zero_grad()

        for weight in weights:
            weight.grad = (
                torch.zeros_like(weight) if weight.requires_grad else None
            )
        step()  # 第一步创建优化器状态
        with Rehearsal(module, optimizer, [*rows, *buckets]) as rehearsal:
            with torch.autocast(
                "cpu",
                precision,
                enabled=precision is not None and how != "FSDP2",
            ):
                output = network(*rows)
            loss = output if output.dim() == 0 else output.square().mean()
            del output
            loss.backward()
            del loss
            step()
    return rehearsal.fullest


def set_data(weight, changed):
    # 让模型能改变权重的 dtype：PyTorch 对假张量会改用交换张量的办法，
    # 而那样会失败
    weight.data = changed.data


def blocks(module):
    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        return list(module)
    return [block for child in module.children() for block in blocks(child)]


def plain(tensor):
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def storages(tensors):
    return {
        storage._cdata: storage
        for storage in [plain(tensor).untyped_storage() for tensor in tensors]
    }.values()


class Rehearsal(TorchDispatchMode):
    """跟踪每块存储：从创建它的算子开始，到存储被释放为止"""

    def __init__(self, module, optimizer, others):
        super().__init__()
        self.parameters = list(module.parameters())
        self.known = {}  # 存储 -> 类别、字节数、释放时发出通知的弱引用
        self.bytes = dict.fromkeys(
            ["weights", "optimizer", "activations", "temporary", "gathered"],
            0,
        )
        self.fullest = {}
        for kind, tensors in [
            ("weights", [*module.parameters(), *module.buffers()]),
            (
                "optimizer",
                [
                    tensor
                    for state in optimizer.state.values()
                    for tensor in state.values()
                ],
            ),
            ("temporary", others),
        ]:
            for storage in storages(tensors):
                self.follow(storage, kind)

    def follow(self, storage, kind=None):
        key = storage._cdata
        old, size, end = self.known.get(key) or (
            "temporary",
            0,
            weakref.ref(storage, lambda _: self.forget(key)),
        )
        if kind is None or old in ("weights", "optimizer", "gathered"):
            kind = old
        self.bytes[old] -= size
        self.bytes[kind] += storage.nbytes()
        self.known[key] = (kind, storage.nbytes(), end)

    def forget(self, key):
        kind, size, _ = self.known.pop(key)
        self.bytes[kind] -= size

    def parts(self):
        gradients = storages(
            weight.grad
            for weight in self.parameters
            if weight.grad is not None
        )
        parts = {
            "weights": self.bytes["weights"],
            "gradients": sum(storage.nbytes() for storage in gradients),
            "optimizer": self.bytes["optimizer"],
            "activations": self.bytes["activations"],
        }
        parts["temporary"] = sum(self.bytes.values()) - sum(parts.values())
        return parts

    def __torch_dispatch__(
        self, operation, types, arguments=(), keywords=None
    ):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # 换成分片之后，还会再调用一次
        result = operation(*arguments, **keywords or {})
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.follow(tensor.untyped_storage())
        if sum(self.bytes.values()) > sum(self.fullest.values()):
            self.fullest = self.parts()
        return result

    def __enter__(self):
        def save(tensor):
            if not isinstance(tensor, DTensor):
                self.follow(tensor.untyped_storage(), "activations")
            return tensor

        def resize(storage, size):  # FSDP2 靠它分配、释放一个块的权重
            plain_resize(storage, size)
            self.follow(storage, "gathered")

        plain_resize = torch.UntypedStorage.resize_
        self.stack = contextlib.ExitStack()
        self.stack.enter_context(
            torch.autograd.graph.saved_tensors_hooks(
                save, lambda tensor: tensor
            )
        )
        self.stack.enter_context(
            unittest.mock.patch.object(torch.UntypedStorage, "resize_", resize)
        )
        return super().__enter__()

    def __exit__(self, *error):
        self.stack.close()
        return super().__exit__(*error)


class OnGpu0(nn.Module):
    """GPU 0 上的 DataParallel：各副本的梯度要等全部算完才相加；
    输出也都收集到这里
    """

    def __init__(self, module, gpus):
        super().__init__()
        self.module, self.gpus = module, gpus

    def forward(self, *rows):
        names, weights = zip(
            *[
                pair
                for pair in self.module.named_parameters()
                if pair[1].requires_grad
            ]
        )
        replica = dict(zip(names, Replicate.apply(*weights)))
        return Gather.apply(
            torch.func.functional_call(self.module, replica, rows), self.gpus
        )


class Replicate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *weights):
        return tuple(weight.view_as(weight) for weight in weights)

    @staticmethod
    def backward(ctx, *gradients):
        # 代替各副本梯度之和
        return tuple(gradient.clone() for gradient in gradients)


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output, gpus):
        ctx.shape, ctx.gpus = output.shape, gpus
        return (
            output.new_empty(gpus * output.shape[0], *output.shape[1:])
            if output.dim()
            else output.new_empty(gpus)
        )

    @staticmethod
    def backward(ctx, gradient):
        return gradient[: len(gradient) // ctx.gpus].view(ctx.shape), None
