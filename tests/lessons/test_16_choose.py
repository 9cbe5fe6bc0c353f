"""Lesson 12: its two scripts train alike, and its checker finds every planted trap, and none in healthy models."""

import linecache
import os
import re
import subprocess
import sys
from functools import cache

import pytest
import torch

from tests.conftest import BOOK, EDITIONS
from tests.reading import run_cells

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

# name -> (code that defines my_model, my_batch and perhaps my_keywords and my_loss; the kind of the finding, a piece of its line)
TRAPS = {
    # lesson 7
    "counter": (model("self.steps = 0", "self.steps += 1\nreturn self.fc(x)"), "lost", "steps: changed in forward"),
    "last-output": (
        model("self.last = None", "out = self.fc(x)\nself.last = out\nreturn out"),
        "lost",
        "last: changed in forward",
    ),
    "last-output-new": (model("", "self.last = self.fc(x)\nreturn self.last"), "lost", "last: changed in forward"),
    "shared-list": (
        model("self.seen = []", "self.seen.append(len(x))\nreturn self.fc(x)"),
        "shared",
        "seen: one object",
    ),
    "shared-dict": (
        model("self.notes = {'calls': 0}", "self.notes['calls'] += 1\nreturn self.fc(x)"),
        "shared",
        "notes: one object",
    ),
    "buffer-in-place": (
        model("self.register_buffer('rows', torch.zeros(1))", "self.rows += len(x)\nreturn self.fc(x)"),
        "buffer",
        "rows: of this buffer",
    ),
    "buffer-mean": (
        model(
            "self.register_buffer('mean', torch.zeros(5))",
            "self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))\nreturn self.fc(x)",
        ),
        "buffer",
        "mean: of this buffer",
    ),
    "buffer-assigned": (
        model("self.register_buffer('rows', torch.zeros(1))", "self.rows = self.rows + len(x)\nreturn self.fc(x)"),
        "buffer-lost",
        "rows: this buffer is assigned",
    ),
    "batchnorm": (
        model("self.bn = nn.BatchNorm1d(3)", "return self.bn(self.fc(x))", extra="x = torch.randn(8, 5)"),
        "batchnorm",
        "bn: in training",
    ),
    "batchnorm-no-statistics": (
        model(
            "self.bn = nn.BatchNorm1d(3, track_running_stats=False)",
            "return self.bn(self.fc(x))",
            extra="x = torch.randn(8, 5)",
        )
        + "my_model.eval()",
        "batchnorm",
        "bn: in training",
    ),
    "parameters-next": (
        model("", "here = next(self.parameters()).device\nreturn self.fc(x.to(here))"),
        "parameters",
        "parameters() is empty",
    ),
    "parameters-in-helper": (
        model("", "return self.fc(x.to(self.where()))").replace(
            "    def forward", "    def where(self):\n        return next(self.parameters()).device\n\n    def forward"
        ),
        "parameters",
        "parameters() is empty",
    ),
    "parameters-sum": (
        model("", "return self.fc(x) + sum(p.pow(2).sum() for p in self.parameters())"),
        "parameters",
        "parameters() is empty",
    ),
    "unregistered": (
        model("self.scale = torch.ones(5)", "return self.fc(x * self.scale)"),
        "unregistered",
        "scale: a tensor that is neither",
    ),
    "unregistered-list": (
        model("self.scales = [torch.ones(5), torch.ones(5)]", "return self.fc(x * self.scales[0])"),
        "unregistered",
        "scales: a tensor that is neither",
    ),
    "unregistered-dict": (
        model("self.tables = {'a': torch.ones(5)}", "return self.fc(x * self.tables['a'])"),
        "unregistered",
        "tables: a tensor that is neither",
    ),
    "unregistered-matmul": (
        model("self.mix = torch.eye(5)", "return self.fc(x @ self.mix)"),
        "unregistered",
        "mix: a tensor that is neither",
    ),
    "unregistered-in-child": (
        model("self.child = Child()", "return self.fc(self.child(x))").replace(
            "\nclass Net",
            "\nclass Child(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.shift = torch.ones(5)\n\n    def forward(self, x):\n        return x + self.shift\n\n\nclass Net",
        ),
        "unregistered",
        "child.shift: a tensor",
    ),
    "parameter-list": (
        model("self.weights = [nn.Parameter(torch.ones(5))]", "return self.fc(x * self.weights[0])"),
        "unregistered",
        "weights: a tensor",
    ),
    "module-list": (
        model("self.layers = [nn.Linear(5, 5)]", "return self.fc(self.layers[0](x.float()).to(x.dtype))"),
        "plain-list",
        "layers: modules outside",
    ),
    "device-number": (model("", "return self.fc(x if x.numel() else x.to('cuda:0'))"), "device", "cuda:0"),
    "device-cuda": (model("", "return self.fc(x if x.numel() else x.cuda())"), "device", ".cuda()"),
    "device-fails": (model("", "return self.fc(x.cuda(0))"), "device", ".cuda(0)"),
    "device-keyword": (
        model("", "return self.fc(x) + (0 if x.numel() else torch.ones(3, device='cuda'))"),
        "device",
        "device='cuda",
    ),
    "device-noted": (
        model("self.home = torch.device('cpu')", "return self.fc(x.to(self.home))"),
        "device",
        "self.home",
    ),
    "device-global": (
        model("", "return self.fc(x.to(first))", extra="first = torch.device('cpu', 0)"),
        "device",
        "first: forward names a device",
    ),
    # what virtual devices cannot show
    "bound-method": (
        model("self.op = self.double_it", "return self.op(self.fc(x))").replace(
            "    def forward", "    def double_it(self, x):\n        return 2 * x\n\n    def forward"
        ),
        "bound",
        "op: a method kept in an attribute",
    ),
    "cpu-output": (model("", "return self.fc(x), x.cpu()"), "note-cpu", "Net.forward: an output that is on the CPU"),
    # lesson 6
    "scalar-loss": (model("", "return self.fc(x).pow(2).sum()"), "scalar", "comes back as a vector"),
    "mean-loss": (model("", "return self.fc(x).pow(2).mean()"), "mean", "neither the mean nor the sum"),
    "mean-loss-even": (
        model("", "return self.fc(x).pow(2).mean()", extra="x = torch.randn(8, 5)"),
        "mean",
        "neither the mean nor the sum",
    ),
    "mean-loss-12-rows": (
        model("", "return self.fc(x).pow(2).mean()", extra="x = torch.randn(12, 5)"),
        "note-equal",
        "12: rows, which make equal chunks",
    ),
    "loss-one-entry": (model("", "return self.fc(x).pow(2).mean().view(1)"), "rows", "(1,) → (4,)"),
    "unused": (model("self.spare = nn.Linear(5, 3)"), "unused", "spare.weight, spare.bias: unused"),
    # lesson 8
    "time-major": (
        HEAD + "my_model = nn.GRU(5, 3)\nmy_batch = (torch.randn(8, 6, 5),)",
        "rows",
        "(1, 6, 3) → (4, 6, 3)",
    ),
    "time-major-only": (
        model("self.rnn = nn.GRU(5, 3)", "return self.fc(x[0]), self.rnn(x)[0]", extra="x = torch.randn(8, 6, 5)"),
        "values",
        "other numbers",
    ),
    "hidden-state": (
        model("self.rnn = nn.GRU(5, 3, batch_first=True)", "return self.rnn(x)[1]", extra="x = torch.randn(8, 6, 5)"),
        "rows",
        "(1, 8, 3) → (4, 2, 3)",
    ),
    "matrix-product": (
        model("", "out = self.fc(x)\nreturn out @ out.T", extra="x = torch.randn(8, 5)"),
        "rows",
        "(8, 8) → (8, 2)",
    ),
    "matrix-product-uneven": (model("", "out = self.fc(x)\nreturn out @ out.T"), "sizes", "cannot be joined"),
    "minus-mean": (model("", "out = self.fc(x)\nreturn out - out.mean(0)"), "values", "other numbers"),
    "softmax-dim-0": (model("", "return self.fc(x).softmax(0)"), "values", "other numbers"),
    "transposed": (model("", "return self.fc(x).T"), "sizes", "cannot be joined"),
    "keyword-flag": (
        model("", "return self.fc(x) * 2 if double else self.fc(x)", "x, double") + "my_keywords = {'double': True}",
        "keyword",
        "missing 1 required positional argument",
    ),
    "keyword-flag-now": (
        model("", "return self.fc(x) * 2 if double else self.fc(x)", "x, double", "x = torch.randn(3, 5)")
        + "my_keywords = {'double': True}",
        "keyword",
        "missing 1 required positional argument",
    ),
    "idle": (model(extra="x = torch.randn(3, 5)"), "idle", "3 / 4"),
    "idle-nine": (model(extra="x = torch.randn(5, 5)"), "idle", "5 / 4"),
    "one-row-batchnorm": (
        model("self.bn = nn.BatchNorm1d(3)", "return self.bn(self.fc(x))"),
        "one-row",
        "Expected more than 1 value",
    ),
    "dict-keys": (
        model("", "out = {'y': self.fc(x)}\nif x.shape[0] < 3:\n    out['small'] = x\nreturn out"),
        "keys",
        "different entries",
    ),
    "dict-other-keys": (model("", "return {f'rows {len(x)}': self.fc(x)}"), "keys", "different entries"),
    "none-sometimes": (model("", "return self.fc(x), (None if len(x) == 3 else x)"), "none", "None from some"),
    "none-first-only": (
        model("", "return self.fc(x), (None if x[0, 0] == 0 else x)", extra="x[0, 0] = 0"),
        "none",
        "None from some",
    ),
    "string": (model("", "return self.fc(x), 'mean'"), "ungatherable", "neither tensor nor None"),
    "float": (model("", "return {'y': self.fc(x), 'norm': 0.5}"), "ungatherable", "neither tensor nor None"),
    "item": (model("", "return self.fc(x).pow(2).mean().item()"), "ungatherable", "neither tensor nor None"),
    "object": (
        model("", "return Box(self.fc(x))", extra="class Box:\n    def __init__(self, y):\n        self.y = y"),
        "ungatherable",
        "neither tensor nor None",
    ),
    "packed": (HEAD + PACK.replace(" TOTAL", ""), "sizes", "cannot be joined"),
    "packed-input": (
        HEAD
        + "from torch.nn.utils.rnn import pack_padded_sequence\nmy_model = nn.GRU(5, 3, batch_first=True)\nmy_batch = (pack_padded_sequence(torch.randn(4, 6, 5), torch.tensor([6, 5, 4, 2]), batch_first=True),)",
        "packed-input",
        "PackedSequence is cut",
    ),
    "replica-error": (
        model("", "if len(x) < 10:\n    raise ValueError('only whole batches')\nreturn self.fc(x)"),
        "error",
        "ValueError: only whole batches",
    ),
    "fixed-size": (model("", "return self.fc(x.view(10, 5))"), "error", "a replica fails"),
    "embedding-max-norm": (
        HEAD + "my_model = nn.Embedding(20, 4, max_norm=1.0)\nmy_batch = (torch.randint(20, (10, 3)),)",
        "error",
        "modified inplace",
    ),
    "plain-error": (model("", "return self.fc(x.view(7, 5))"), "plain", "fails without DataParallel too"),
    "table-cut": (
        model("", "return self.fc(x * table[0])", "x, table") + "my_batch = (x, torch.randn(6, 5))",
        "cut",
        "10 / 6: tensor arguments",
    ),
    "table-same-rows": (
        model("", "return self.fc(x @ table)", "x, table", "x = torch.randn(8, 8)").replace(
            "nn.Linear(5, 3)", "nn.Linear(8, 3)"
        )
        + "my_batch = (x, torch.randn(8, 8))",
        "error",
        "a replica fails",
    ),
    "zero-dim-input": (
        model("", "return self.fc(x * scale)", "x, scale") + "my_batch = (x, torch.tensor(0.5))",
        "zero-dim",
        "a 0-d tensor has no rows",
    ),
    "list-argument": (
        model("", "return self.fc(x) + 0 * len(names)", "x, names") + "my_batch = (x, ['a'] * 10)",
        "list",
        "is not cut",
    ),
    "uncopyable": (model("self.generator = (i for i in range(3))"), "copy", "cannot be copied"),
    "loss-fails": (model() + "my_loss = lambda output: output.missing", "loss", "the loss fails"),
}

# name -> code; kinds that begin with "note" are no findings
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
    "kwargs": model("", "return self.fc(x) + shift", "x, shift")
    + "my_batch = (x,)\nmy_keywords = {'shift': torch.randn(10, 3)}",
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
    "own-loss": model() + "my_loss = lambda output: output.pow(2).mean()",
    "constant-zero": model("", "return self.fc(x) - self.fc(x)"),
    "checkpointed": model("", "return torch.utils.checkpoint.checkpoint(self.fc, x, use_reentrant=False)").replace(
        "import torch\n", "import torch\nimport torch.utils.checkpoint\n"
    ),
}


@cache
def checker(edition):
    return run_cells(f"{edition}/16_choose", ["setup", "virtual-devices", "advice", "checker"])["check"]


def findings(edition, name, code):
    """What the checker says of a model: [(kind, line)]."""
    filename = f"<{name}>"
    linecache.cache[filename] = (len(code), None, code.splitlines(True), filename)  # for inspect, as in a notebook
    variables = {"__name__": "__main__"}
    exec(compile(code, filename, "exec"), variables)
    keywords, loss = variables.get("my_keywords"), variables.get("my_loss")
    return checker(edition)(variables["my_model"], variables["my_batch"], keywords, loss=loss)


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("name", TRAPS)
def test_a_planted_trap_is_found(edition, name):
    code, kind, words = TRAPS[name]
    lines = [line for found, line in findings(edition, name, code) if found == kind]
    assert len(lines) == 1
    assert edition == "zh" or words in lines[0]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_model_is_left_in_peace(name):
    assert [line for kind, line in findings("en", name, HEALTHY[name]) if not kind.startswith("note")] == []


@pytest.mark.parametrize("edition, mention", [("en", r"lesson (\d+), “(.*?)”"), ("zh", r"第 (\d+) 课，“(.*?)”")])
def test_the_sections_it_names_exist(edition, mention):
    lessons = BOOK.editions[edition].lessons
    (advice,) = [cell.source for cell in BOOK.page(f"{edition}/16_choose").cells if cell.id == "advice"]
    named = re.findall(mention, advice)
    assert len(named) > 20
    for number, title in named:
        text = "\n".join(cell.source for cell in lessons[int(number) - 1].cells)
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert title in [heading.replace("`", "") for heading in headings], (number, title)


@pytest.mark.parametrize("processes", [1, 8])
def test_the_new_script_trains_as_the_old_one_on_any_number_of_processes(processes, tmp_path):
    """The two scripts as a reader would copy them; the last of the batches has fewer rows than there are processes."""
    scripts = run_cells("en/16_choose", ["before-script", "after-script"])
    rows = torch.randn(104, 5, generator=torch.Generator().manual_seed(0))
    torch.save({"rows": rows, "targets": rows.sum(dim=1, keepdim=True).tanh()}, tmp_path / "data.pt")
    for name in ("before", "after"):
        (tmp_path / f"{name}.py").write_text(scripts[name], encoding="utf-8")
    assert start(tmp_path, "before.py").returncode == 0
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    done = start(tmp_path, *launcher, f"--nproc-per-node={processes}", "after.py", "--cpu")
    assert done.returncode == 0, done.stderr[-3000:]
    old, new = (torch.load(tmp_path / f"{name}.pt", map_location="cpu") for name in ("before", "after"))
    assert max((old[key] - new[key]).abs().max() for key in old) < 1e-6


def test_the_new_script_fails_where_its_gpu_is_missing(tmp_path):
    (tmp_path / "after.py").write_text(run_cells("en/16_choose", ["after-script"])["after"], encoding="utf-8")
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    done = start(tmp_path, "after.py", **alone, LOCAL_RANK=str(torch.cuda.device_count()))
    assert done.returncode != 0 and "set_device" in done.stderr


def start(folder, *command, **environment):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("edition", EDITIONS)
def test_what_the_choice_says_of_a_model_that_is_too_large(edition):
    choose = run_cells(f"{edition}/16_choose", ["choose"])["choose"]
    by_hand = choose(4, fits=False, script=False)
    assert choose(1, fits=False) == choose(1, fits=False, training=False) != choose(1)
    assert choose(1, machines=8, fits=False, training=False) not in (by_hand, choose(1))
    assert choose(4, fits=False, training=False) not in (by_hand, choose(4, training=False))
