import contextlib
import functools
import math
import unittest.mock
import weakref

import torch
import torch.distributed as dist

# lets fake tensors through FSDP2's collectives
import torch.distributed._tools.fake_collectives
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint as recomputed


def peak(model, batch, gpus, how, checkpoint=False, precision=None):
    """Rehearses training with Adam on fake tensors; returns the bytes of the
    fullest moment of the fullest GPU, by kind.

    model: a function without arguments that builds the model. If the model
    returns one number, that is the loss; otherwise the mean of the squares of
    what it returns is used as the loss.
    batch: the tensors to call the model with, a row for each example of the
    whole batch, or a function that makes them
    how: "one", "DataParallel", "DDP" or "FSDP2"
    checkpoint: activation checkpointing of each block, that is of each element
    of a ModuleList or Sequential
    precision: to compute in another dtype than that of the weights, for
    example torch.bfloat16
    """
    if how not in ("one", "DataParallel", "DDP", "FSDP2"):
        raise ValueError(
            f'how: "one", "DataParallel", "DDP" or "FSDP2", not {how!r}'
        )
    if how == "one" and gpus != 1:
        raise ValueError(f'how="one" is for 1 GPU, not {gpus}')
    return on_ranks(
        1, rehearse, model, batch, gpus, how, checkpoint, precision
    )[0]


def rehearse(model, batch, gpus, how, checkpoint, precision):
    # the group of on_ranks: no other rank is needed here
    dist.destroy_process_group()
    with contextlib.ExitStack() as stack:
        if how == "FSDP2":
            # nobody else is there, nothing is sent
            dist.init_process_group("fake", rank=0, world_size=gpus)
            mesh = dist.init_device_mesh("cpu", (gpus,))
        fake = stack.enter_context(FakeTensorMode())
        with unittest.mock.patch.object(torch.utils, "swap_tensors", set_data):
            module = model()
        rows = [
            fake.from_tensor(tensor)
            for tensor in (batch() if callable(batch) else batch)
        ]
        # the largest part
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
                network(*rows)  # the first forward pass lays the shards out
            module.reshard()
        weights = list(module.parameters())
        # as plain tensors: before 2.13, PyTorch makes fake tensors of its own
        # for a step on DTensors
        shards = [
            nn.Parameter(plain(weight), weight.requires_grad)
            for weight in weights
        ]
        # foreach=True is what a GPU gets
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
        step()  # the first step makes the optimizer's state
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
    # lets a model change the dtype of its weights: PyTorch would swap them,
    # which fails for fake ones
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
    """Follows each storage from the operation that makes it to its end."""

    def __init__(self, module, optimizer, others):
        super().__init__()
        self.parameters = list(module.parameters())
        # storage -> its kind, its bytes, and a weak reference that tells of
        # its end
        self.known = {}
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
            return NotImplemented  # it comes back with the shards
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

        def resize(storage, size):
            # FSDP2 allocates and frees the weights of a block in this way
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
    """GPU 0 with DataParallel: replica 0 completes its gradients before they
    are added up, and all outputs come here.
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
        # in place of the sum over the replicas
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
