"""Lesson 17: the tree is the choice, both scripts train alike, and the checker says what really running a model shows."""

import linecache
import os
import re
import subprocess
import sys
from functools import cache
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.conftest import BOOK, EDITIONS
from tests.reading import judged, run_cells

HEAD = "import torch\nfrom torch import nn\ntorch.manual_seed(0)\nx = torch.randn(10, 5)\n"


def model(init="", forward="return self.fc(x)", head="x", extra=""):
    body = "\n".join("        " + line for line in init.splitlines())
    lines = "\n".join("        " + line for line in forward.splitlines())
    return f"{HEAD}\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(5, 3)\n{body}\n\n    def forward(self, {head}):\n{lines}\n\n{extra}\nmy_model = Net()\nmy_batch = (x,)\n"


PACK = """
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 3, batch_first=True)
    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        output, _ = self.rnn(packed)
        return pad_packed_sequence(output, batch_first=True TOTAL)[0]
my_model = Encoder()
my_batch = (torch.randn(8, 5, 1), torch.tensor([5, 2, 3, 3, 1, 2, 4, 4]))
"""

# name -> (code that defines my_model, my_batch and perhaps my_loss; the kind of DataParallel's finding)
TRAPS = {
    # lesson 7
    "counter": (model("self.steps = 0", "self.steps += 1\nreturn self.fc(x)"), "attribute"),
    "last-output": (
        model("self.last = None", "out = self.fc(x)\nself.last = out\nreturn out"),
        "attribute",
    ),
    "last-output-new": (model("", "self.last = self.fc(x)\nreturn self.last"), "attribute"),
    "shared-list": (
        model("self.seen = []", "self.seen.append(len(x))\nreturn self.fc(x)"),
        "attribute",
    ),
    "shared-dict": (
        model("self.notes = {'calls': 0}", "self.notes['calls'] += 1\nreturn self.fc(x)"),
        "attribute",
    ),
    "buffer-in-place": (
        model("self.register_buffer('rows', torch.zeros(1))", "self.rows += len(x)\nreturn self.fc(x)"),
        "buffer",
    ),
    "buffer-mean": (
        model(
            "self.register_buffer('mean', torch.zeros(5))",
            "self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))\nreturn self.fc(x)",
        ),
        "buffer",
    ),
    "buffer-assigned": (
        model("self.register_buffer('rows', torch.zeros(1))", "self.rows = self.rows + len(x)\nreturn self.fc(x)"),
        "buffer",
    ),
    "batchnorm": (
        model("self.bn = nn.BatchNorm1d(3)", "return self.bn(self.fc(x))", extra="x = torch.randn(8, 5)"),
        "batchnorm",
    ),
    "batchnorm-no-statistics": (
        model(
            "self.bn = nn.BatchNorm1d(3, track_running_stats=False)",
            "return self.bn(self.fc(x))",
            extra="x = torch.randn(8, 5)",
        )
        + "my_model.eval()",
        "batchnorm",
    ),
    "parameters-next": (
        model("", "here = next(self.parameters()).device\nreturn self.fc(x.to(here))"),
        "parameters",
    ),
    "parameters-in-helper": (
        model("", "return self.fc(x.to(self.where()))").replace(
            "    def forward", "    def where(self):\n        return next(self.parameters()).device\n\n    def forward"
        ),
        "parameters",
    ),
    "parameters-sum": (
        model("", "return self.fc(x) + sum(p.pow(2).sum() for p in self.parameters())"),
        "values",
    ),
    "unregistered": (
        model("self.scale = torch.ones(5)", "return self.fc(x * self.scale)"),
        "unregistered",
    ),
    "unregistered-list": (
        model("self.scales = [torch.ones(5), torch.ones(5)]", "return self.fc(x * self.scales[0])"),
        "unregistered",
    ),
    "unregistered-dict": (
        model("self.tables = {'a': torch.ones(5)}", "return self.fc(x * self.tables['a'])"),
        "unregistered",
    ),
    "unregistered-matmul": (
        model("self.mix = torch.eye(5)", "return self.fc(x @ self.mix)"),
        "unregistered",
    ),
    "unregistered-in-child": (
        model("self.child = Child()", "return self.fc(self.child(x))").replace(
            "\nclass Net",
            "\nclass Child(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.shift = torch.ones(5)\n\n    def forward(self, x):\n        return x + self.shift\n\n\nclass Net",
        ),
        "unregistered",
    ),
    "parameter-list": (
        model("self.weights = [nn.Parameter(torch.ones(5))]", "return self.fc(x * self.weights[0])"),
        "unregistered",
    ),
    "module-list": (
        model("self.layers = [nn.Linear(5, 5)]", "return self.fc(self.layers[0](x.float()).to(x.dtype))"),
        "unregistered",
    ),
    "device-number": (model("", "return self.fc(x if x.numel() else x.to('cuda:0'))"), "device"),
    "device-cuda": (model("", "return self.fc(x if x.numel() else x.cuda())"), "device"),
    "device-fails": (model("", "return self.fc(x.cuda(0))"), "device"),
    "device-keyword": (
        model("", "return self.fc(x) + (0 if x.numel() else torch.ones(3, device='cuda'))"),
        "device",
    ),
    # what virtual devices cannot show
    "bound-method": (
        model("self.op = self.double_it", "return self.op(self.fc(x))").replace(
            "    def forward", "    def double_it(self, x):\n        return 2 * x\n\n    def forward"
        ),
        "unregistered",
    ),
    "cpu-output": (model("", "return self.fc(x), x.cpu()"), "device"),
    "cpu-output-before": (model("", "y = self.fc(x)\ny = y.cpu()\nreturn y"), "device"),
    "cpu-output-by-to": (model("", "return self.fc(x).to('cpu')"), "device"),
    "cpu-output-in-helper": (
        model("", "return self.back(self.fc(x))").replace(
            "    def forward", "    def back(self, y):\n        return {'y': y.cpu()}\n\n    def forward"
        ),
        "device",
    ),
    "cpu-output-lengths": (HEAD + PACK.replace(" TOTAL", ", total_length=x.size(1)").replace("[0]", ""), "device"),
    "in-place-with-weight": (
        model("self.position = nn.Parameter(torch.ones(5))", "x += self.position\nreturn self.fc(x)"),
        "in-place",
    ),
    # lesson 6
    "scalar-loss": (model("", "return self.fc(x).pow(2).sum()"), "scalar"),
    "mean-loss": (model("", "return self.fc(x).pow(2).mean()"), "scalar"),
    "mean-loss-even": (
        model("", "return self.fc(x).pow(2).mean()", extra="x = torch.randn(8, 5)"),
        "scalar",
    ),
    "loss-one-entry": (model("", "return self.fc(x).pow(2).mean().view(1)"), "rows"),
    "unused": (model("self.spare = nn.Linear(5, 3)"), "unused"),
    # lesson 8
    "time-major": (
        HEAD + "my_model = nn.GRU(5, 3)\nmy_batch = (torch.randn(8, 6, 5),)",
        "rows",
    ),
    "time-major-only": (
        model("self.rnn = nn.GRU(5, 3)", "return self.fc(x[0]), self.rnn(x)[0]", extra="x = torch.randn(8, 6, 5)"),
        "rows",
    ),
    "hidden-state": (
        model("self.rnn = nn.GRU(5, 3, batch_first=True)", "return self.rnn(x)[1]", extra="x = torch.randn(8, 6, 5)"),
        "rows",
    ),
    "matrix-product": (
        model("", "out = self.fc(x)\nreturn out @ out.T", extra="x = torch.randn(8, 5)"),
        "rows",
    ),
    "matrix-product-uneven": (model("", "out = self.fc(x)\nreturn out @ out.T"), "joined"),
    "minus-mean": (model("", "out = self.fc(x)\nreturn out - out.mean(0)"), "values"),
    "softmax-dim-0": (model("", "return self.fc(x).softmax(0)"), "values"),
    "transposed": (model("", "return self.fc(x).T"), "joined"),
    "keyword-flag": (
        model("", "return self.fc(x) * 2 if double else self.fc(x)", "x, double")
        + "my_loss = lambda network, x: network(x, double=True).sum()",
        "keyword",
    ),
    "idle": (model(extra="x = torch.randn(3, 5)"), "idle"),
    "idle-nine": (model(extra="x = torch.randn(5, 5)"), "idle"),
    "one-row-batchnorm": (
        model("self.bn = nn.BatchNorm1d(3)", "return self.bn(self.fc(x))"),
        "batchnorm",
    ),
    "dict-keys": (
        model("", "out = {'y': self.fc(x)}\nif x.shape[0] < 3:\n    out['small'] = x\nreturn out"),
        "joined",
    ),
    "dict-other-keys": (model("", "return {f'rows {len(x)}': self.fc(x)}"), "joined"),
    "none-sometimes": (model("", "return self.fc(x), (None if len(x) == 3 else x)"), "joined"),
    "none-first-only": (
        model("", "return self.fc(x), (None if x[0, 0] == 0 else x)", extra="x[0, 0] = 0"),
        "joined",
    ),
    "string": (model("", "return self.fc(x), 'mean'"), "joined"),
    "float": (model("", "return {'y': self.fc(x), 'norm': 0.5}"), "joined"),
    "item": (model("", "return self.fc(x).pow(2).mean().item()"), "joined"),
    "object": (
        model("", "return Box(self.fc(x))", extra="class Box:\n    def __init__(self, y):\n        self.y = y"),
        "joined",
    ),
    "packed": (HEAD + PACK.replace(" TOTAL", ""), "joined"),
    "packed-input": (
        HEAD
        + "from torch.nn.utils.rnn import pack_padded_sequence\nmy_model = nn.GRU(5, 3, batch_first=True)\nmy_batch = (pack_padded_sequence(torch.randn(4, 6, 5), torch.tensor([6, 5, 4, 2]), batch_first=True),)",
        "cut",
    ),
    "replica-error": (
        model("", "if len(x) < 10:\n    raise ValueError('only whole batches')\nreturn self.fc(x)"),
        "error",
    ),
    "fixed-size": (model("", "return self.fc(x.view(10, 5))"), "error"),
    "embedding-max-norm": (
        HEAD + "my_model = nn.Embedding(20, 4, max_norm=1.0)\nmy_batch = (torch.randint(20, (10, 3)),)",
        "error",
    ),
    "plain-error": (model("", "return self.fc(x.view(7, 5))"), "plain"),
    "table-cut": (
        model("", "return self.fc(x * table[0])", "x, table") + "my_batch = (x, torch.randn(6, 5))",
        "cut",
    ),
    "table-same-rows": (
        model("", "return self.fc(x @ table)", "x, table", "x = torch.randn(8, 8)").replace(
            "nn.Linear(5, 3)", "nn.Linear(8, 3)"
        )
        + "my_batch = (x, torch.randn(8, 8))",
        "error",
    ),
    "zero-dim-input": (
        model("", "return self.fc(x * scale)", "x, scale") + "my_batch = (x, torch.tensor(0.5))",
        "error",
    ),
    "list-argument": (
        model("", "return self.fc(x) + 0 * len(names)", "x, names") + "my_batch = (x, ['a'] * 10)",
        "cut",
    ),
    "uncopyable": (model("self.generator = (i for i in range(3))"), "copy"),
    "loss-fails": (model() + "my_loss = lambda network, x: network(x).missing", "plain"),
}

HEALTHY = {
    "mlp": HEAD + "my_model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))\nmy_batch = (x,)",
    "mlp-even": HEAD + "my_model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))\nmy_batch = (x[:8],)",
    "one-tensor": HEAD + "my_model = nn.Linear(5, 2)\nmy_batch = x",
    "conv": HEAD
    + "my_model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))\nmy_batch = (torch.randn(8, 3, 9, 9),)",
    "conv-batchnorm-eval": HEAD
    + "my_model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()\nmy_batch = (torch.randn(8, 3, 9, 9),)",
    "transformer-eval": HEAD
    + "my_model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()\nmy_batch = (torch.randn(8, 4, 8),)",
    "transformer-train": HEAD
    + "my_model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)\nmy_batch = (torch.randn(8, 4, 8),)",
    "transformer-embedding": HEAD
    + "my_model = nn.Sequential(nn.Embedding(20, 8), nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False))\nmy_batch = (torch.randint(20, (10, 4)),)",
    "dropout": HEAD + "my_model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 2))\nmy_batch = (x,)",
    "functional-dropout": model("", "return nn.functional.dropout(self.fc(x), 0.5, self.training)"),
    "always-random": model("", "return self.fc(x) + torch.randn(len(x), 3)"),
    "dict-output": model("", "return {'y': self.fc(x), 'pair': (x, [x, None])}"),
    "kwargs": model("", "return self.fc(x) + shift", "x, shift") + "my_batch = {'x': x, 'shift': torch.randn(10, 3)}",
    "kwargs-only": model("", "return self.fc(x) * 2 if double else x", "x, double")
    + "my_batch = {'x': x, 'double': True}",
    "flag-by-position": model("", "return self.fc(x) * 2 if double else x", "x, double") + "my_batch = (x, True)",
    "embedding": HEAD + "my_model = nn.Embedding(20, 4)\nmy_batch = (torch.randint(20, (10, 3)),)",
    "embedding-padding": HEAD
    + "my_model = nn.Embedding(20, 4, padding_idx=0)\nmy_batch = (torch.randint(20, (10, 3)),)",
    "layernorm": HEAD + "my_model = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4))\nmy_batch = (x,)",
    "groupnorm": HEAD + "my_model = nn.Sequential(nn.Linear(5, 4), nn.GroupNorm(2, 4))\nmy_batch = (x,)",
    "instancenorm": HEAD + "my_model = nn.InstanceNorm1d(4)\nmy_batch = (torch.randn(8, 4, 6),)",
    "gru-batch-first": model(
        "self.rnn = nn.GRU(5, 5, batch_first=True)", "return self.fc(self.rnn(x)[0])", extra="x = torch.randn(8, 6, 5)"
    ),
    "lstm-dropout": model(
        "self.rnn = nn.LSTM(5, 5, 2, batch_first=True, dropout=0.3)",
        "return self.fc(self.rnn(x)[0])",
        extra="x = torch.randn(8, 6, 5)",
    ),
    "packed-total-length": HEAD + PACK.replace(" TOTAL", ", total_length=x.size(1)"),
    "buffer-unchanged": model("self.register_buffer('scale', torch.ones(5))", "return self.fc(x * self.scale)"),
    "buffer-counts-calls": model(
        "self.register_buffer('calls', torch.tensor(0))", "self.calls += 1\nreturn self.fc(x)"
    ),
    "cpu-for-a-look": model("", "y = self.fc(x)\ny.detach().cpu().mean()\nreturn y"),
    "in-place": model("", "x.mul_(2)\nreturn self.fc(x)"),
    "in-place-first-layer": HEAD + "my_model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 3))\nmy_batch = (x,)",
    "sparse-gradients": model(
        "self.table = nn.Embedding(10, 3, sparse=True)", "return self.fc(x) + self.table(x[:, 0].abs().long() % 10)"
    ),
    "row-losses": model("", "return self.fc(x).pow(2).mean(1)"),
    "filter": model("", "out = self.fc(x)\nreturn out[x[:, 0] > 0]"),
    "integers-out": model("", "return self.fc(x).argmax(1)"),
    "module-list": model(
        "self.layers = nn.ModuleList([nn.Linear(5, 5)])",
        "for layer in self.layers:\n    x = layer(x)\nreturn self.fc(x)",
    ),
    "device-of-x": model(
        "",
        "here = x.device  # not .cuda(0)\nif x.is_cuda and x.device.type == 'cuda':\n    pass\nreturn self.fc(x) + torch.ones(3, device=x.device, dtype=x.dtype)",
    ),
    "device-without-number": model("", "return self.fc(x.to(device))", extra="device = torch.device('cpu')"),
    "settings": model("self.sizes = [1, 2]\nself.name = 'net'\nself.options = {'p': 0.5}"),
    "frozen": model("self.body = nn.Linear(5, 5).requires_grad_(False)", "return self.fc(self.body(x))"),
    "shared-weights": model(
        "self.other = nn.Linear(5, 3)\nself.other.weight = self.fc.weight", "return self.fc(x) + self.other(x)"
    ),
    "parametrized": HEAD
    + "from torch.nn.utils.parametrizations import weight_norm, spectral_norm\nmy_model = nn.Sequential(weight_norm(nn.Linear(5, 4)), spectral_norm(nn.Linear(4, 3)))\nmy_batch = (x,)",
    "float32-only": model("", "return self.fc(x.float())"),
    "bfloat16": HEAD + "my_model = nn.Linear(5, 3, dtype=torch.bfloat16)\nmy_batch = (x.bfloat16(),)",
    "half-model": HEAD
    + "my_model = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 3)).to(torch.bfloat16)\nmy_batch = (x.bfloat16(),)",
    "wrapped-already": HEAD + "my_model = nn.DataParallel(nn.Linear(5, 3))\nmy_batch = (x,)",
    "talks": model("", "print('In Model', x.size())\nreturn self.fc(x)"),
    "hook": model() + "my_model.register_forward_hook(lambda module, args, output: None)",
    "no-parameters": HEAD + "my_model = nn.Softmax(dim=1)\nmy_batch = (x,)",
    "own-loss": model() + "my_loss = lambda network, x: network(x).pow(2).mean()",
    "constant-zero": model("", "return self.fc(x) - self.fc(x)"),
    "checkpointed": model("", "return torch.utils.checkpoint.checkpoint(self.fc, x, use_reentrant=False)").replace(
        "import torch\n", "import torch\nimport torch.utils.checkpoint\n"
    ),
}

TIED = (
    HEAD
    + """
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return FORWARD


my_model = Tied()
my_batch = (torch.randint(9, (10,)),)
"""
)
BOX = "class Box:\n    def __init__(self, y):\n        self.y = y"
BOX_LOSS = "my_loss = lambda network, x: network(x).y.pow(2).mean()\n"
BRANCH = (
    HEAD
    + """
class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x):
        return self.high(x) if x[0, 0] > 0 else self.low(x)


my_model = Branch()
x[:, 0] = torch.tensor([-1.0] * 4 + [1.0] * 6)
my_batch = (x,)
"""
)
METHOD = (
    HEAD
    + """
class Method(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.ones(5, 3))

    def encode(self, x):
        return x @ self.mix

    def forward(self, x):
        return self.encode(x)


my_model = Method()
my_batch = (x,)
my_loss = lambda network, x: network.encode(x).pow(2).mean()
"""
)


def changing(change):
    """A model whose forward changes a weight: `mix` of the root group, or `fc`, a layer with a group of its own."""
    forward = f"with torch.no_grad():\n    {change}\nreturn self.fc(x @ self.mix)"
    return model("self.mix = nn.Parameter(torch.randn(5, 5))", forward)


OUTSIDE = "my_loss = lambda network, x: network(x).pow(2).mean() + sum(p.sum() for p in network.parameters())"

# name -> (code, what DDP finds, what FSDP2 finds)
ON_RANKS = {
    "healthy": (HEALTHY["lstm-dropout"], set(), set()),
    "bfloat16": (HEALTHY["half-model"], set(), set()),
    "unused": (TRAPS["unused"][0], {"unused"}, set()),
    "branch": (BRANCH, {"some", "gradient"}, {"gradient"}),
    "hidden": (
        model("self.spare = nn.Linear(5, 3)", "return Box(self.fc(x))", extra=BOX) + BOX_LOSS,
        {"hidden"},
        set(),
    ),
    "hidden-used": (model("", "return Box(self.fc(x))", extra=BOX) + BOX_LOSS, set(), set()),
    "buffer": (TRAPS["buffer-mean"][0], {"buffer"}, {"buffer"}),
    "batchnorm": (TRAPS["batchnorm"][0], {"batchnorm"}, {"batchnorm"}),
    "rows-of-others": (TRAPS["minus-mean"][0], {"gradient"}, {"gradient"}),
    "sum-for-a-loss": (
        model() + "my_loss = lambda network, x: network(x).pow(2).sum()",
        {"gradient"},
        {"gradient"},
    ),
    "list": (TRAPS["shared-list"][0], {"attribute"}, {"attribute"}),
    "fixed-size": (TRAPS["fixed-size"][0], {"part"}, {"part"}),
    "tied": (TIED.replace("FORWARD", "self.head(self.words(x))"), set(), {"tied"}),
    "not-called": (
        TIED.replace("FORWARD", "nn.functional.linear(self.words(x), self.words.weight)").replace(
            "        self.head.weight = self.words.weight\n", "        del self.head\n"
        ),
        set(),
        {"divided"},
    ),
    "outside": (model() + OUTSIDE, set(), {"divided"}),
    "method": (METHOD, {"error"}, {"divided"}),
    "early": (model() + "optimizer = torch.optim.SGD(my_model.parameters())", set(), {"optimizer"}),
    "kept": (model() + "average = dict(my_model.named_parameters())", set(), {"kept"}),
    "kept-inside": (
        model("self.weights = [self.fc.weight]", "return self.fc(x) + self.weights[0].pow(2).sum()"),
        set(),
        {"kept", "gradient"},
    ),
    "scalar-parameter": (
        model("self.scale = nn.Parameter(torch.tensor(1.0))", "return self.fc(x) * self.scale"),
        set(),
        {"error"},
    ),
    # the weights, which forward itself may change
    "max-norm": (TRAPS["embedding-max-norm"][0], {"weight"}, {"weight"}),
    "norm-written-back": (changing("self.mix.div_(self.mix.norm())"), set(), {"weight"}),
    "clipped": (changing("self.mix.data.clamp_(-0.1, 0.1)"), set(), {"weight"}),
    "norm-of-a-layer": (changing("self.fc.weight.div_(self.fc.weight.norm())"), set(), set()),
    "follower": (
        model(
            "self.slow = nn.Linear(5, 3).requires_grad_(False)",
            "with torch.no_grad():\n    self.slow.weight.lerp_(self.fc.weight, 0.1)\nreturn self.fc(x) - self.slow(x)",
        ),
        set(),
        set(),
    ),
    # what changes from step to step
    "spectral-norm": (
        HEAD
        + "from torch.nn.utils.parametrizations import spectral_norm\nmy_model = nn.Sequential(spectral_norm(nn.Linear(5, 4)), nn.ReLU(), nn.Linear(4, 2))\nmy_batch = (x,)",
        set(),
        set(),
    ),
    "warm-up": (
        model("self.steps = 0", "self.steps += 1\nreturn self.fc(x) * min(1, self.steps / 10)"),
        set(),
        set(),
    ),
    "state-kept": (
        model(
            "self.cell, self.state = nn.GRUCell(5, 5), None",
            "self.state = self.cell(x, self.state)\nreturn self.fc(self.state)",
        ),
        {"plain"},
        {"plain"},
    ),
    # PyTorch 2.13's DDP divides the gradients beside a sparse one twice; FSDP2 has no sparse ones.
    "sparse": (HEALTHY["sparse-gradients"], {"gradient"}, {"sparse"}),
}
LIVES_WITH = {"buffer", "batchnorm", "attribute", "kept", "optimizer"}  # the gradients are right all the same


@cache
def checker(edition="en"):
    cells = ["setup", "on-ranks", "virtual-devices", "advice", "checker", "checker-data-parallel", "checker-ranks"]
    return run_cells(f"{edition}/17_choose", cells)


def prepared(name, code):
    """Model, batch and loss of a code, and all its variables."""
    filename = f"<{name}>"
    linecache.cache[filename] = (len(code), None, code.splitlines(True), filename)  # for inspect, as in a notebook
    variables = {"__name__": "__main__"}
    exec(compile(code, filename, "exec"), variables)
    network, batch = variables["my_model"], variables["my_batch"]
    network = network.module if isinstance(network, torch.nn.DataParallel) else network
    batch = batch if isinstance(batch, (tuple, dict)) and not hasattr(batch, "_fields") else (batch,)
    return network, batch, variables.get("my_loss") or checker()["some_loss"], variables


@pytest.mark.parametrize("name", TRAPS)
def test_a_planted_trap_is_found(name):
    code, kind = TRAPS[name]
    network, batch, loss, _ = prepared(name, code)
    kinds = {found for found, _ in checker()["ask_data_parallel"](network, batch, loss)}
    assert kind in kinds
    assert kinds <= {*checker()["ADVICE"], *checker()["DATA_PARALLEL"]}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_model_is_left_in_peace(name):
    network, batch, loss, _ = prepared(name, HEALTHY[name])
    assert checker()["ask_data_parallel"](network, batch, loss) == []


@pytest.mark.parametrize("name", ON_RANKS)
def test_ddp_and_fsdp2_find_what_is_planted(name):
    code, ddp, fsdp2 = ON_RANKS[name]
    network, batch, loss, variables = prepared(name, code)
    lines = checker()["ask"](network, batch, loss, tools=["DDP", "FSDP2"])
    assert {tool: {kind for kind, _ in found} for tool, found in lines.items()} == {"DDP": ddp, "FSDP2": fsdp2}, lines
    assert variables  # an early optimizer lives as long as these


@pytest.mark.parametrize(
    "name", [name for name in ON_RANKS if name not in ("healthy", "bfloat16", "fixed-size", "state-kept")]
)
@pytest.mark.parametrize("tool", ["DDP", "FSDP2"])
def test_the_verdict_is_what_training_shows(name, tool):
    """Trained in the plainest way, without the checker: it fails or differs exactly where the checker says so."""
    code, ddp, fsdp2 = ON_RANKS[name]
    network, batch, loss, _ = prepared(name, code)
    tools, wrong = checker(), (ddp if tool == "DDP" else fsdp2) - LIVES_WITH
    if tools["gpus"]:
        pytest.skip("compares on the CPU")
    network.eval()
    (expected,) = tools["on_ranks"](1, train, "plain", network, batch, loss)
    try:
        trained = tools["on_ranks"](3, train, tool, network, batch, loss)
    except RuntimeError:
        assert wrong
        return
    same = all(torch.allclose(rank[key], expected[key], atol=1e-5) for rank in trained for key in expected)
    assert same == (not wrong)


def train(tool, network, batch, loss):
    """Two steps of SGD; returns the weights."""
    count, wrapped = dist.get_world_size(), network
    mine = tuple(tensor.tensor_split(count)[dist.get_rank()] for tensor in batch)
    if tool == "DDP":
        wrapped = DistributedDataParallel(network)
    if tool == "FSDP2":
        for child in network.children():
            fully_shard(child)
        fully_shard(network)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (loss(wrapped, *mine) * count * len(mine[0]) / len(batch[0])).backward()
        optimizer.step()
    weights = {name: weight.detach() for name, weight in network.named_parameters()}
    return {name: weight.full_tensor() if tool == "FSDP2" else weight for name, weight in weights.items()}


MINUS_MEAN = "y = self.fc(x)\ny = y - y.mean(0)\n"


@pytest.mark.parametrize(
    "code",
    [
        model("self.spare = nn.Linear(5, 3)", f"{MINUS_MEAN}return Box(y)", extra=BOX),
        model("", f"{MINUS_MEAN}return torch.distributions.Normal(y, 1.0)"),
        model() + "my_loss = lambda network, x: (network(x).mean(), {})",
        model() + "my_loss = lambda network, x: (network(x) * float('nan')).mean()",
    ],
)
def test_where_no_gradient_can_be_compared_ddp_and_fsdp2_get_no_good_report(code):
    network, batch, loss, _ = prepared("nothing-to-compare", code)
    for found in checker()["ask"](network, batch, loss, tools=["DDP", "FSDP2"]).values():
        assert {kind for kind, _ in found} == {"loss"}


def test_a_wrong_gradient_is_found_though_others_are_a_thousand_times_larger():
    """In float32, where 0.001 of the largest gradient used to count as equal."""
    layers = ", ".join([*["nn.Linear(3, 3), nn.Sigmoid()"] * 3, "nn.Linear(3, 3)"])
    forward = "y = self.fc(x.float())\nreturn self.rest((y - y.mean(0)) / y.std(0))"
    network, batch, loss, _ = prepared("small", model(f"self.rest = nn.Sequential({layers})", forward))
    lines = checker()["ask"](network, batch, loss, tools=["DDP", "FSDP2"])
    assert all("fc.weight" in dict(found)["gradient"] for found in lines.values())


def compiled(part):
    """A model of which torch.compile has compiled itself, its call or a part."""
    layer, options = torch.nn.Linear(5, 5), {"backend": "eager"}
    if part == "a part":
        return torch.nn.Sequential(torch.compile(layer, **options), torch.nn.ReLU())
    model = torch.nn.Sequential(layer, torch.nn.ReLU())
    if part == "its call":
        model.compile(**options)
    if part == "forward":
        model[0].forward = torch.compile(model[0].forward, **options)
    if part == "DataParallel":
        return torch.compile(torch.nn.DataParallel(model), **options)
    return torch.compile(model, **options) if part == "the whole" else model


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("part", ["the whole", "its call", "a part", "forward", "DataParallel"])
def test_a_compiled_model_is_refused_where_it_fails(edition, part):
    """DataParallel takes none (lesson 7), but can be compiled; a compiled part cannot be taken off, nor be copied, and
    what is set as a module's forward stays the original's."""
    found = checker(edition)["ask"](compiled(part), (torch.randn(10, 5),))
    kinds = {tool: [kind for kind, _ in lines] for tool, lines in found.items()}
    others = {"a part": ["compiled"], "forward": ["forward"]}.get(part, [])
    mine = {"forward": ["forward"], "DataParallel": []}.get(part, ["compiled"])
    assert kinds == {"DataParallel": mine, "DDP": others, "FSDP2": others}


@pytest.mark.parametrize("edition", EDITIONS)
def test_a_synchronized_batchnorm_is_not_reported_as_batchnorm(edition):
    """Without a process group it runs on the CPU, too; with one it fails there, and the report says so."""
    network, batch, loss, _ = prepared("batchnorm", TRAPS["batchnorm"][0])
    tools = checker(edition)
    assert ("batchnorm", "bn") in tools["study"](network, batch, loss, 0, 3)["found"]
    network = torch.nn.SyncBatchNorm.convert_sync_batchnorm(network)
    assert tools["study"](network, batch, loss, 0, 3)["found"] == []
    if not tools["gpus"]:
        found = tools["ask"](network, batch, loss, tools=["DDP", "FSDP2"])
        assert {kind for lines in found.values() for kind, _ in lines} == {"plain"}


def test_the_notebook_and_its_random_numbers_stay_as_they_were():
    network, batch, _, _ = prepared("counter", TRAPS["counter"][0])
    state, weights = torch.get_rng_state(), [p.clone() for p in network.parameters()]
    checker()["ask"](network, batch)
    assert torch.equal(torch.get_rng_state(), state) and network.steps == 0
    assert all(torch.equal(p, old) and p.grad is None for p, old in zip(network.parameters(), weights, strict=True))


@pytest.mark.parametrize("edition, ranks", [("en", "rank 0 of 3: "), ("zh", "rank 0（共 3 个）：")])
def test_a_fault_is_the_last_error_of_the_traceback(edition, ranks):
    text = f"{ranks}DistBackendError: lost\n\nTraceback (most recent call last):\ntorch.distributed.DistBackendError: lost\nmore"
    assert (
        checker(edition)["fault"](text, torch.nn.Linear(1, 1), checker(edition)["some_loss"])
        == "DistBackendError: lost"
    )


@pytest.mark.parametrize("name", ["ADVICE", "DATA_PARALLEL", "DDP", "FSDP2"])
def test_all_editions_know_the_same_kinds(name):
    assert len({tuple(checker(edition)[name]) for edition in EDITIONS}) == 1


@pytest.mark.parametrize("edition, mention", [("en", r"lesson (\d+), “(.*?)”"), ("zh", r"第 (\d+) 课，“(.*?)”")])
def test_the_sections_it_names_exist(edition, mention):
    lessons = BOOK.editions[edition].lessons
    names = ("ADVICE", "DATA_PARALLEL", "DDP", "FSDP2")
    advice = [text for name in names for text in checker(edition)[name].values()]
    named = re.findall(mention, "\n".join(advice))
    assert len(named) > 12
    for number, title in named:
        text = "\n".join(cell.source for cell in lessons[int(number) - 1].cells)
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert title in [heading.replace("`", "") for heading in headings], (number, title)


# ---- the choice


@pytest.mark.parametrize("edition", EDITIONS)
def test_the_tree_has_the_answers_of_the_function_and_no_others(edition):
    lesson = run_cells(f"{edition}/17_choose", ["setup", "choose", "tree-plot"])
    leaves = {tool for _, answers in lesson["rungs"] for _, tool in answers} | {*lesson["otherwise"]}
    said = set()
    sizes = product((1e9, 30e9, 200e9, 1200e9, 1e13), (1e9, 150e9))
    for (stays, passes), gpus, machines, flags in product(sizes, (1, 2, 8), (1, 4), product((False, True), repeat=3)):
        need = {"weights": stays, "gradients": 0, "optimizer": 0, "activations": passes, "temporary": 0}
        said.add(lesson["choose"](need, 80e9, gpus, machines, *flags))
    assert said == leaves


@pytest.mark.parametrize("edition", EDITIONS)
def test_the_choice_contradicts_neither_itself_nor_memory(edition):
    lesson = run_cells(f"{edition}/17_choose", ["setup", "choose", "table"])
    choose, need = lesson["choose"], lesson["need"]
    plain, offload = choose(need(1, passes=1), 80e9, 1), choose(need(70), 80e9, 1)
    assert plain != offload == choose(need(70), 80e9, 8)
    assert choose(need(70), 80e9, 8, 4) == choose(need(7), 80e9, 8) != choose(need(7), 80e9, 8, 4)
    for billions, machines, training in product((1, 7, 70, 400), (1, 2, 4, 16), (True, False)):
        tool, total = choose(need(billions), 80e9, 8, machines, training), billions * 16e9 + 10e9
        assert (tool == offload) == (total / (8 * machines) > 72e9)
        twice = training * billions * 4e9  # the gradients, in DDP's buckets
        assert (tool in ("DDP", "independent processes", "独立进程")) == (total + twice <= 72e9)
    for gpus, fast_link in product((1, 2), (True, False)):  # the gradients fit once, not twice
        tool = choose(need(4, passes=5), 80e9, gpus, 2, fast_link=fast_link)
        assert tool == ("HSDP" if gpus > 1 else "FSDP2" if fast_link else choose(need(7), 80e9, 1, 4, fast_link=False))


@pytest.mark.parametrize("edition", EDITIONS)
def test_the_choice_goes_by_the_bytes_that_it_returns(edition):
    lesson = run_cells(f"{edition}/17_choose", ["setup", "choose"])
    pick, choose, last = lesson["pick"], lesson["choose"], lesson["choose"](weighing(0, 100e9), 80e9, 1)
    sizes = product((1e9, 30e9, 60e9, 200e9, 1200e9, 1e13), (1e9, 10e9, 60e9, 150e9))
    for (stays, passes), gpus, machines, flags in product(sizes, (1, 2, 8), (1, 4), product((False, True), repeat=3)):
        situation = weighing(stays, passes), 80e9, gpus, machines, *flags
        tool, each = pick(*situation)
        assert tool == choose(*situation)
        assert (each <= 72e9) == (tool != last)
        assert passes / (gpus * machines) <= each <= 1.25 * stays + passes


def weighing(stays, passes):
    parts = {"weights": 0.25, "gradients": 0.25, "optimizer": 0.5}
    return {"activations": passes, "temporary": 0, **{kind: part * stays for kind, part in parts.items()}}


@pytest.mark.parametrize(
    "tool, each, situation",
    [
        ("plain model", 70, (weighing(60e9, 10e9), 80e9, 1)),
        ("DDP", 60, (weighing(40e9, 10e9), 80e9, 8)),
        ("independent processes", 50, (weighing(40e9, 10e9), 80e9, 8, 1, False)),
        ("HSDP", 24, (weighing(112e9, 10e9), 80e9, 8, 4)),
        ("tensor + sequence parallelism", 166 / 8, (weighing(16e9, 150e9), 80e9, 8)),
        ("FSDP2", 45, (weighing(1120e9, 10e9), 80e9, 8, 4)),
        ("tensor parallelism + pipeline", 1130 / 16, (weighing(1120e9, 10e9), 80e9, 8, 2)),
        ("CPU offload", 10, (weighing(1120e9, 10e9), 80e9, 8)),
        ("fewer rows first", 150, (weighing(1120e9, 150e9), 80e9, 8)),
    ],
)
def test_what_each_gpu_needs(tool, each, situation):
    pick = run_cells("en/17_choose", ["setup", "choose"])["pick"]
    assert pick(*situation) == (tool, pytest.approx(each * 1e9))


def test_what_it_chooses_fits():
    lesson = run_cells("en/17_choose", ["setup", "on-ranks", "choose", "peak", "my-need"])
    choose, peak, build, batch, need = (lesson[name] for name in ("choose", "peak", "build", "batch", "my_need"))
    largest = {tool: sum(peak(build, batch, 8, tool).values()) for tool in ("DDP", "DataParallel", "FSDP2")}
    for memory in range(4, 21):
        for quick in (False, True):
            tool = choose(need, memory * 1e9, 8, quick=quick)
            assert largest[tool] <= memory * 1e9, (tool, memory)


@pytest.mark.parametrize("rows, memory", [(8192, 4), (12288, 13)])
def test_what_it_chooses_may_need_more(rows, memory):
    """As the page shows: `my_need` is a single moment, and with another tool another one is the fullest."""
    lesson = run_cells("en/17_choose", ["setup", "on-ranks", "choose", "peak", "my-need"])
    peak, build = lesson["peak"], lesson["build"]
    tool, each = lesson["pick"](peak(build, lambda: [torch.empty(rows, 8192)], 1, "one"), memory * 1e9, 8)
    assert each < 0.9 * memory * 1e9
    assert sum(peak(build, lambda: [torch.empty(8 * rows, 8192)], 8, tool).values()) > memory * 1e9


# ---- the migration


@cache
def migration():
    return run_cells("en/17_choose", ["setup", "on-ranks", "before-script", "after-script", "run-both"])


def difference(folder):
    """The largest between the weights that the two scripts have saved."""
    old, new = (torch.load(folder / name, map_location="cpu") for name in ("before.pt", "after.pt"))
    return max((old[key] - new[key]).abs().max() for key in old)


def write_scripts(folder, batch=24, outputs=1):
    """Both scripts, and what the old one has trained."""
    one_output = ("rows.sum(dim=1, keepdim=True)", "nn.Linear(16, 1)")
    several = (f"rows[:, :{outputs}]", f"nn.Linear(16, {outputs})")
    for name in ("before", "after"):
        script = migration()[name]
        if outputs > 1:
            for old, new in zip(one_output, several, strict=True):
                assert script.count(old) == 1
                script = script.replace(old, new)
        if name == "before":
            script = script.replace("batch_size=24", f"batch_size={batch}")
        (folder / f"{name}.py").write_text(script, encoding="utf-8")
    migration()["on_ranks"](1, migration()["run_old"], folder)


@pytest.mark.parametrize("processes, batch", [(1, 24), (2, 24), (3, 24), (4, 24), (5, 20), (7, 21), (8, 24)])
def test_the_new_script_trains_as_the_old_one(processes, batch, tmp_path):
    write_scripts(tmp_path, batch)
    migration()["on_ranks"](processes, migration()["run_new"], tmp_path)
    assert difference(tmp_path) < 1e-6


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_the_new_script_trains_alike_with_several_outputs_for_each_row(processes, tmp_path):
    write_scripts(tmp_path, outputs=3)
    migration()["on_ranks"](processes, migration()["run_new"], tmp_path)
    assert difference(tmp_path) < 1e-6


def test_every_process_of_the_new_script_draws_its_own_masks(tmp_path):
    save = "    torch.save(torch.rand(9), f'draws{rank}.pt')\n"
    after = migration()["after"].replace("    if rank == 0:\n", f"{save}    if rank == 0:\n")
    (tmp_path / "after.py").write_text(after, encoding="utf-8")
    migration()["on_ranks"](2, migration()["run_new"], tmp_path)
    draws = [torch.load(tmp_path / f"draws{rank}.pt") for rank in range(2)]
    assert not torch.equal(*draws)


def test_without_the_weight_only_equal_parts_train_as_before():
    cells = ["setup", "on-ranks", "before-script", "after-script", "run-both", "unweighted"]
    lesson = run_cells("en/17_choose", cells)
    assert lesson["weighted"] not in lesson["script"] and lesson["mean"] in lesson["script"]
    assert lesson["alike"] == {2: True, 3: False, 8: False}


def test_torchrun_starts_the_new_script(tmp_path):
    write_scripts(tmp_path)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    done = start(tmp_path, *launcher, "--nproc-per-node=3", "after.py", "--cpu")
    assert done.returncode == 0, done.stderr[-3000:]
    assert difference(tmp_path) < 1e-6


def test_the_new_script_fails_where_its_gpu_is_missing(tmp_path):
    write_scripts(tmp_path)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    done = start(tmp_path, "after.py", **alone, LOCAL_RANK=str(torch.cuda.device_count()))
    assert done.returncode != 0 and "set_device" in done.stderr


def start(folder, *command, **environment):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)


BUFFER = 'self.register_buffer("steps", torch.tensor(0))'


@pytest.mark.parametrize(
    "kept, steps, output",
    [
        (BUFFER, "self.steps += 1", "2 * self.head(self.words(x))"),
        (BUFFER, "self.steps.fill_(1)", "self.head(self.words(x))"),
        ("Repaired.steps = 0", "Repaired.steps += 1", "self.head(self.words(x))"),  # once for each replica
        ("pass", "pass", "self.head(self.words(x))"),
    ],
)
def test_exercise_3_wants_the_same_output_and_every_step(kept, steps, output):
    cells = {cell.id: cell.source for cell in BOOK.page("en/17_choose").code}
    variables = dict(checker())
    exec(cells["planted"], variables)
    answer = f"""
class Repaired(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.words.weight
        {kept}

    def forward(self, x):
        {steps}
        return {output}
"""
    assert judged(variables, cells["exercise-3-check"], answer).startswith("✗ Exercise 3: no trap is left, but")
