import threading
import warnings

import torch
from torch import nn
from torch._utils import ExceptionWrapper

# 在 GPU 上，新线程第一次做矩阵乘法时会有警告，可以忽略
warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")


class Broadcast(torch.autograd.Function):
    """把每个张量拷贝 n 份；反向传播时把 n 份梯度相加"""

    @staticmethod
    def forward(ctx, n, *tensors):
        ctx.count = len(tensors)
        copies = [
            t if i == 0 else t.clone() for i in range(n) for t in tensors
        ]
        frozen = [not needed for needed in ctx.needs_input_grad[1:]] * n
        ctx.mark_non_differentiable(*[c for c, f in zip(copies, frozen) if f])
        return tuple(copies)

    @staticmethod
    def backward(ctx, *gradients):
        def add_up(copies):
            # 稠密 + 稀疏可以，稀疏 + 稠密不行
            first, *others = sorted(
                copies, key=lambda gradient: gradient.is_sparse
            )
            return sum(others, first)

        return None, *[
            add_up(gradients[k :: ctx.count]) for k in range(ctx.count)
        ]


class VirtualDataParallel(nn.DataParallel):
    """n 个虚拟设备上的 nn.DataParallel：forward() 是 PyTorch 自己的"""

    def __init__(self, module, n, dim=0):
        # DataParallel 自己的 __init__ 会去找真实的 GPU
        nn.Module.__init__(self)
        self.module = module
        self.dim = dim
        self.device_ids = list(range(n))
        self.output_device = 0
        tensors = [*module.parameters(), *module.buffers(), torch.empty(0)]
        # 模块里没有张量时，视为在 CPU 上
        self.src_device_obj = tensors[0].device

    def split(self, value):
        n = len(self.device_ids)
        if isinstance(value, torch.Tensor):
            chunks = value.to(self.src_device_obj).chunk(n, self.dim)
            # 第一个数据块不拷贝
            return [
                chunk if i == 0 else chunk.clone()
                for i, chunk in enumerate(chunks)
            ]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return [
                type(value)(*parts) for parts in zip(*map(self.split, value))
            ]
        if isinstance(value, tuple) and value:
            return list(zip(*map(self.split, value)))
        if isinstance(value, list) and value:
            return [list(parts) for parts in zip(*map(self.split, value))]
        if isinstance(value, dict) and value:
            return [
                type(value)(items)
                for items in zip(*map(self.split, value.items()))
            ]
        return [value] * n  # 其余的值无法切分，由各设备共用

    def scatter(self, inputs, kwargs, device_ids):
        chunks = self.split(inputs) if inputs else []
        named_chunks = self.split(kwargs) if kwargs else []
        if len(chunks) < len(named_chunks):
            chunks += [()] * (len(named_chunks) - len(chunks))
        elif len(named_chunks) < len(inputs):
            # 按理应当与 chunks 比较，但 PyTorch 的 scatter_kwargs 比较的是
            # inputs，这里与它一致
            named_chunks += [{}] * (len(chunks) - len(named_chunks))
        return tuple(chunks), tuple(named_chunks)

    def replicate(self, module, device_ids):
        parameters = list(module.parameters())
        copies = Broadcast.apply(len(device_ids), *parameters)
        if not torch.is_grad_enabled():
            # 不算梯度时，副本 0 用的就是模型自己的参数
            copies = (*parameters, *copies[len(parameters) :])
        replicas = []
        for i in range(len(device_ids)):
            mine = dict(zip(parameters, copies[i * len(parameters) :]))
            mine |= {b: b if i == 0 else b.clone() for b in module.buffers()}
            twins = {
                m: m._replicate_for_data_parallel() for m in module.modules()
            }
            for original, twin in twins.items():
                for name, child in original._modules.items():
                    setattr(twin, name, twins.get(child))
                for name, tensor in [
                    *original._parameters.items(),
                    *original._buffers.items(),
                ]:
                    setattr(twin, name, mine.get(tensor))
            replicas.append(twins[module])
        return replicas

    def parallel_apply(self, replicas, inputs, kwargs):
        unequal = (
            f"The number of modules {len(replicas)} is not equal to "
            f"the number of kwargs_tup {len(kwargs)}"
        )
        assert len(replicas) == len(kwargs), unequal
        results = [None] * len(replicas)
        device_type = self.src_device_obj.type
        grad = torch.is_grad_enabled()
        autocast = torch.is_autocast_enabled(device_type)

        def work(i):
            torch.set_grad_enabled(grad)
            try:
                with torch.autocast(device_type, enabled=autocast):
                    results[i] = replicas[i](*inputs[i], **kwargs[i])
            except Exception:
                results[i] = ExceptionWrapper(
                    where=f"in replica {i} on virtual device {i}"
                )

        if len(replicas) == 1:
            work(0)  # 只有一个数据块时，不另开线程
        else:
            for i in range(len(replicas)):
                thread = threading.Thread(
                    target=work, args=(i,), name=f"replica {i}"
                )
                thread.start()
                thread.join()  # 依次执行，打印的顺序才固定
        for result in results:
            if isinstance(result, ExceptionWrapper):
                result.reraise()
        return results

    def gather(self, outputs, output_device):
        first = outputs[0]
        if isinstance(first, torch.Tensor):
            if self.dim == 0 and all(o.dim() == 0 for o in outputs):
                warnings.warn(
                    "Was asked to gather along dimension 0, but all input "
                    "tensors were scalars; "
                    "will instead unsqueeze and return a vector."
                )
                outputs = [o.view(1) for o in outputs]
            with torch.autocast(first.device.type, enabled=False):
                # dtype 随第一个输出，与 autocast 无关
                return torch.cat(
                    [o.to(first.dtype) for o in outputs], self.dim
                )
        if first is None:
            return None
        if isinstance(first, dict):
            if any(len(o) != len(first) for o in outputs):
                raise ValueError("All dicts must have the same number of keys")
            return type(first)(
                (k, self.gather([o[k] for o in outputs], output_device))
                for k in first
            )
        parts = map(
            lambda part: self.gather(part, output_device),
            zip(*outputs, strict=True),
        )
        return (
            first._make(parts)
            if hasattr(first, "_fields")
            else type(first)(parts)
        )
