"""What answers on the pages of questions say was tried on two ranks: their code, as both editions have it.

Answers that belong to one lesson are tested with it; these are about no lesson's code.
"""

import contextlib
import copy
import functools
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.conftest import BOOK, EDITIONS
from tests.reading import run_cells


@pytest.fixture(scope="module")
def on_ranks():
    return run_cells("en/14_sharding", ["setup", "on-ranks"])["on_ranks"]


def code(edition, answer, **names):
    """What the code of an answer defines: name -> value."""
    pages = BOOK.editions[edition].pages
    (text,) = [
        page.raw.partition(f"\n({answer})=\n")[2].partition("\n(q-")[0]
        for page in pages.values()
        if f"\n({answer})=\n" in page.raw
    ]
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    return names


def mean_over_ranks(model):
    """The gradients of one process that has the rows of all ranks."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    return [parameter.grad for parameter in model.parameters()]


def same(sharded, expected):
    pairs = zip(sharded.parameters(), expected, strict=True)
    return all(torch.allclose(p.grad.full_tensor(), grad, atol=1e-5) for p, grad in pairs)


def shard(blocks, model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in [*blocks, model]:
        fully_shard(part, mesh=mesh)
    return model


class Words(nn.Module):
    """A language model whose last layer, or whose model, computes the loss."""

    def __init__(self, last, loss_of=None):
        super().__init__()
        self.words, self.layer, self.last, self.loss_of = nn.Embedding(101, 16), nn.Linear(16, 16), last, loss_of

    def forward(self, words, labels):
        hidden, labels = self.layer(self.words(words).flatten(0, 1)), labels.flatten()
        return self.loss_of(self.last, hidden, labels) if self.loss_of else self.last(hidden, labels)


@pytest.mark.parametrize("last_has_a_group", [True, False])
@pytest.mark.parametrize("way", ["HeadLoss", "loss_of"])
@pytest.mark.parametrize("edition", EDITIONS)
def test_the_loss_of_a_large_vocabulary(on_ranks, edition, way, last_has_a_group):
    of = code(edition, "q-large-vocabulary", nn=nn)

    def gradients():
        torch.manual_seed(0)
        plain = Words(nn.Linear(16, 101), lambda last, x, y: nn.functional.cross_entropy(last(x), y))
        if way == "HeadLoss":
            model = Words(of["HeadLoss"](16, 101))
        else:
            model = Words(nn.Linear(16, 101), lambda *three: of["loss_of"](*three, tokens=5))
        model.load_state_dict(plain.state_dict())
        words = torch.randint(101, (4, 6))
        labels = words.roll(dist.get_rank() + 1)
        labels[0, :3] = -100
        shard([model.layer, *([model.last] if last_has_a_group else [])], model)
        model(words, labels).backward()
        plain(words, labels).backward()
        return same(model, mean_over_ranks(plain))

    assert on_ranks(2, gradients) == [True, True]


def test_the_loss_of_a_large_vocabulary_in_16_bits():
    """Its sum is taken in float32, unlike the function's own mean."""
    torch.manual_seed(0)
    last = code("en", "q-large-vocabulary", nn=nn)["HeadLoss"](16, 101).bfloat16()
    hidden, labels = 4 * torch.randn(3, 50, 16, dtype=torch.bfloat16), torch.randint(101, (3, 50))
    found, logits = last(hidden, labels), last(hidden)
    expected = nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
    assert found.dtype == torch.float32
    assert torch.allclose(found, expected, rtol=2e-3)


@pytest.mark.parametrize("edition", EDITIONS)
def test_an_optimizer_inside_the_backward_pass(on_ranks, edition):
    step_in_backward = code(edition, "q-optimizer-in-backward")["step_in_backward"]

    def train(wrap):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        plain, x = copy.deepcopy(model), torch.randn(4, 8) + dist.get_rank()
        network = wrap(model)
        calls = []
        model[0].weight.register_hook(calls.append)
        step_in_backward(model, torch.optim.AdamW)
        optimizer = torch.optim.AdamW(plain.parameters())
        for _ in range(3):
            network(x).square().mean().backward()
            plain(x).square().mean().backward()
            mean_over_ranks(plain)
            optimizer.step()
            optimizer.zero_grad()
        weights = [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in model.parameters()]
        equal = all(torch.allclose(w, p, atol=1e-5) for w, p in zip(weights, plain.parameters(), strict=True))
        return equal, all(p.grad is None for p in model.parameters()), len(calls)

    assert on_ranks(2, train, lambda model: shard([model[0], model[2]], model)) == [(True, True, 0)] * 2
    assert on_ranks(2, train, DistributedDataParallel) == [(False, False, 3)] * 2


def test_an_optimizer_inside_the_backward_pass_of_the_last_micro_batch(on_ranks):
    step_in_backward = code("en", "q-optimizer-in-backward")["step_in_backward"]

    def train():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        plain = copy.deepcopy(model)
        shard([model[0], model[2]], model)
        step_in_backward(model, torch.optim.AdamW)
        optimizer = torch.optim.AdamW(plain.parameters())
        for _ in range(2):
            for number in range(3):
                x = torch.randn(4, 8) + dist.get_rank()
                model.set_requires_gradient_sync(number == 2)
                model(x).square().mean().backward()
                plain(x).square().mean().backward()
            mean_over_ranks(plain)
            optimizer.step()
            optimizer.zero_grad()
        pairs = zip(model.parameters(), plain.parameters(), strict=True)
        return all(torch.allclose(p.full_tensor(), q, atol=1e-5) for p, q in pairs)

    assert on_ranks(2, train) == [True, True]


class Counted(nn.Module):
    """A block of which `forward` uses its own number, in one of several ways."""

    def __init__(self, number, uses):
        super().__init__()
        self.layer_idx, self.rate, self.uses, self.linear = number, number / 100, uses, nn.Linear(8, 8)

    def forward(self, x):
        if self.uses == "layer_idx":
            x = x / (self.layer_idx + 1)
        if self.uses == "index":
            x = x + list(range(12))[self.layer_idx]
        if self.uses == "rate":
            x = nn.functional.dropout(x, self.rate, self.training)
        return self.linear(x)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    "uses, setting, options, compilations",
    [
        ("nothing", {}, {}, 2),
        ("layer_idx", {}, {}, 8),
        ("layer_idx", {"allow_unspec_int_on_nn_module": True}, {}, 2),
        ("layer_idx", {"recompile_limit": 64}, {}, 12),
        ("layer_idx", {}, {"isolate_recompiles": True}, 12),
        ("index", {"allow_unspec_int_on_nn_module": True}, {}, 8),
        ("rate", {}, {}, 8),
        ("rate", {"allow_unspec_int_on_nn_module": True}, {}, 8),
    ],
)
def test_how_often_twelve_blocks_are_compiled(caplog, uses, setting, options, compilations):
    torch._dynamo.reset()
    counter, x = CompileCounter(), torch.randn(2, 8)
    with torch._dynamo.config.patch(setting):
        for number in range(12):
            block = Counted(number, uses)
            block.compile(backend=counter, **options)
            x = block(x)
    assert counter.frame_count == compilations
    assert ("hit config.recompile_limit (8)" in caplog.text) == (compilations == 8)


def test_evaluation_is_compiled_again():
    torch._dynamo.reset()
    counter, block = CompileCounter(), Counted(5, "rate")
    block.compile(backend=counter)
    counts = []
    for _ in range(2):
        block.train()(torch.ones(2, 8))
        counts.append(counter.frame_count)
        with torch.no_grad():
            block.eval()(torch.ones(2, 8))
        counts.append(counter.frame_count)
    assert counts == [1, 2, 2, 2]


def partial(forward):
    return functools.partial(checkpoint, forward, use_reentrant=False)


@pytest.mark.parametrize("way, compilations", [("checkpointed", 1), ("partial", 0)])
def test_how_checkpointed_blocks_are_compiled(way, compilations):
    """Lesson 13's function is compiled; a partial, as people write it, is not, and only fullgraph=True says so."""
    (cell,) = [cell.source for cell in BOOK.page("en/13_memory").code if cell.id == "saves"]
    of = {"checkpoint": checkpoint, "partial": partial}
    exec("def checkpointed" + cell.partition("def checkpointed")[2].partition("\n\n\n")[0], of)
    for fullgraph in (False, True):
        torch._dynamo.reset()
        counter, block, x = CompileCounterWithBackend("aot_eager"), Counted(5, "nothing"), torch.ones(2, 8)
        block(x).sum().backward()
        expected = block.linear.weight.grad.clone()
        block.zero_grad()
        block.forward = of[way](block.forward)
        block.compile(backend=counter, fullgraph=fullgraph)
        if fullgraph and not compilations:
            with pytest.raises(RuntimeError, match="found no compiled frames"):
                block(x)
        else:
            block(x).sum().backward()
            assert torch.equal(block.linear.weight.grad, expected)
        assert counter.frame_count == compilations


class Attention(nn.Module):
    def __init__(self, head_size=4, heads=4, is_causal=False):
        super().__init__()
        self.head_size, self.is_causal, width = head_size, is_causal, head_size * heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        heads = [part.unflatten(-1, (-1, self.head_size)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=self.is_causal)
        return self.out(mixed.transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("edition", EDITIONS)
def test_one_layer_for_q_k_and_v_is_cut_piece_by_piece(on_ranks, edition):
    reorder = code(edition, "q-tp-fused", torch=torch)["piece_by_piece"]

    def right(reordered):
        torch.manual_seed(0)
        attention, x = Attention(), torch.randn(2, 5, 16)
        expected = attention(x)
        if reordered:
            before = attention.qkv.weight.clone()
            reorder(attention.qkv, 2, 3)
            reorder(attention.qkv, 3, 2)  # put back
            assert torch.equal(attention.qkv.weight, before)
            reorder(attention.qkv, dist.get_world_size())
        plan = {"qkv": ColwiseParallel(), "out": RowwiseParallel()}
        parallelize_module(attention, init_device_mesh("cpu", (dist.get_world_size(),)), plan)
        return torch.allclose(attention(x), expected, atol=1e-5)

    assert on_ranks(2, right, True) == [True, True]
    assert on_ranks(2, right, False) == [False, False]


@pytest.mark.parametrize("edition", EDITIONS)
def test_context_parallelism(on_ranks, edition):
    step = code(edition, "q-context-parallel")["step"]

    def right():
        torch.manual_seed(0)
        model, batch = Attention(), torch.randn(2, 9, 16)
        loss = nn.functional.mse_loss(model(batch[:, :-1]), batch[:, 1:])
        loss.backward()
        expected = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        with sdpa_kernel(SDPBackend.MATH):
            found = step(init_device_mesh("cpu", (2,)), model, nn.functional.mse_loss, batch)
        dist.all_reduce(found)
        pairs = zip(mean_over_ranks(model), expected, strict=True)
        return torch.allclose(found / 2, loss), all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)

    assert on_ranks(2, right) == [(True, True)] * 2


def test_context_parallelism_with_causal_attention_needs_a_gpu(on_ranks):
    step = code("en", "q-context-parallel")["step"]

    def causal():
        batch = torch.randn(2, 9, 16)
        with sdpa_kernel(SDPBackend.MATH), pytest.raises(RuntimeError, match="got mixed torch.Tensor and DTensor"):
            step(init_device_mesh("cpu", (2,)), Attention(is_causal=True), nn.functional.mse_loss, batch)

    on_ranks(2, causal)


class View(nn.Module):
    returns_it = False

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        self.auxiliary = self.second(self.first(x)).square().mean()
        result = self.second(self.first(x).relu()).unsqueeze(0).squeeze(0)
        return (result, self.auxiliary) if self.returns_it else result


def written_into(block, h):
    out = block(h)
    out += h
    return out.square().sum()


def only_an_attribute(block, h):
    block(h)
    return block.auxiliary


def only_what_is_returned(block, h):
    block.returns_it = True
    return block(h)[1]


class Calls(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.block, self.way = View(), way

    def forward(self, x):
        return self.way(self.block, x)


@pytest.mark.filterwarnings("default:FSDP2-wrapped module .* returned a view tensor")
@pytest.mark.parametrize(
    "way, fails",
    [
        (written_into, True),
        (lambda block, h: (block(h) + h).square().sum(), False),
        (only_an_attribute, True),
        (only_what_is_returned, False),
        (lambda block, h: block(h).square().sum() + block.auxiliary, False),
    ],
)
def test_when_fsdp2_finds_freed_weights(on_ranks, way, fails):
    def gradients():
        torch.manual_seed(0)
        model, x = Calls(way), torch.randn(4, 8) + dist.get_rank()
        plain = copy.deepcopy(model)
        shard([model.block], model)
        model(x).backward()
        plain(x).backward()
        return same(model, mean_over_ranks(plain))

    if fails:
        with pytest.raises(RuntimeError, match="out of bounds for storage of size 0"):
            on_ranks(2, gradients)
    else:
        assert on_ranks(2, gradients) == [True, True]


@pytest.mark.parametrize("first_inside", [True, False])
def test_the_first_backward_pass_with_static_graph(on_ranks, first_inside):
    def train():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        plain, right = copy.deepcopy(model), []
        network = DistributedDataParallel(model, static_graph=True)
        for update in range(3):
            for number in range(3):
                x = torch.randn(4, 8) + dist.get_rank()
                quiet = number < 2 and (first_inside or (update, number) != (0, 0))
                with network.no_sync() if quiet else contextlib.nullcontext():
                    network(x).square().mean().backward()
                plain(x).square().mean().backward()
            pairs = zip(model.parameters(), mean_over_ranks(plain), strict=True)
            right.append(all(torch.allclose(p.grad, grad, atol=1e-5) for p, grad in pairs))
            model.zero_grad()
            plain.zero_grad()
        return right

    if first_inside:
        with pytest.raises(RuntimeError, match="expect_autograd_hooks_ INTERNAL ASSERT FAILED"):
            on_ranks(2, train)
    else:
        assert on_ranks(2, train) == [[True] * 3] * 2


def test_what_fully_shard_refuses(on_ranks):
    def refused():
        mesh = init_device_mesh("cpu", (2,))
        for container in (nn.ModuleList([nn.Linear(4, 4)]), nn.ModuleDict({"a": nn.Linear(4, 4)})):
            with pytest.raises(ValueError, match="does not support containers that do not implement forward"):
                fully_shard(container, mesh=mesh)
        for cured in (False, True):
            image = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
            if cured:
                for p in image.parameters():
                    p.data = p.data.contiguous()
                fully_shard(image, mesh=mesh)(torch.ones(2, 3, 8, 8)).sum().backward()
            else:
                with pytest.raises(NotImplementedError, match="does not support non-contiguous parameters yet"):
                    fully_shard(image, mesh=mesh)
        for cured in (False, True):
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            fully_shard([*model], mesh=mesh)
            if cured:
                fully_shard(model, mesh=mesh)(torch.ones(2, 4)).sum().backward()
            else:
                with pytest.raises(RuntimeError, match="requires a single root module"):
                    model(torch.ones(2, 4))

    on_ranks(2, refused)


@pytest.mark.parametrize("optimize_ddp", [True, False])
def test_ddp_compiles_checkpointed_blocks(on_ranks, optimize_ddp):
    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(640, 640), nn.GELU()) for _ in range(4))

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x

    def gradients():
        torch._dynamo.reset()
        torch._dynamo.config.optimize_ddp = optimize_ddp
        torch.manual_seed(0)
        model, counter = Blocks(), CompileCounter()
        plain, x = copy.deepcopy(model), torch.randn(3, 640) + dist.get_rank()
        network = DistributedDataParallel(model, bucket_cap_mb=2)
        network.compile(backend=counter)
        network(x).sum().backward()
        plain(x).sum().backward()
        pairs = zip(model.parameters(), mean_over_ranks(plain), strict=True)
        return all(torch.allclose(p.grad, grad, atol=1e-4) for p, grad in pairs)

    assert on_ranks(2, gradients) == [True, True]


@pytest.mark.parametrize("edition", EDITIONS)
def test_nodes_of_a_graph_are_divided_into_equal_parts(edition):
    my_nodes, nodes = code(edition, "q-graph-ddp", torch=torch)["my_nodes"], torch.arange(100, 4197)
    parts = [my_nodes(nodes, rank, 4, seed=3) for rank in range(4)]
    assert [len(part) for part in parts] == [1024] * 4
    assert len({*torch.cat(parts).tolist()}) == 4096
    assert not torch.equal(parts[0], my_nodes(nodes, 0, 4, seed=4)), "another order in each epoch"


def test_a_model_that_ignores_the_number_of_labels_of_the_step():
    """Four micro-batches: four times the gradient, where nothing divides by their number."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(16, 4), torch.randint(3, (16,))
    nn.functional.cross_entropy(model(x), y).backward()
    whole = model.weight.grad.clone()
    model.zero_grad()
    for rows, labels in zip(x.chunk(4), y.chunk(4), strict=True):
        nn.functional.cross_entropy(model(rows), labels).backward()
    assert torch.allclose(model.weight.grad, 4 * whole, atol=1e-6)


def test_rows_that_do_not_count_spoil_gradients_if_only_a_mask_leaves_them_out():
    def gradient(loss_of, label):
        logits = torch.randn(4, 5, requires_grad=True)
        loss = loss_of(logits, torch.full((4,), label))
        loss.backward()
        assert loss.isnan()
        return logits.grad

    def masked(logits, labels):
        loss, mask = nn.functional.cross_entropy(logits, labels, reduction="none"), torch.zeros(4)
        return (loss * mask).sum() / mask.sum()

    assert torch.equal(gradient(nn.functional.cross_entropy, -100), torch.zeros(4, 5))
    assert gradient(masked, 2).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("edition", EDITIONS)
def test_the_loop_that_accumulates(on_ranks, edition, dtype):
    """Six batches, four to an update: two updates, and on two ranks the weights of one that has all rows."""

    def trained():
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [rows[dist.get_rank() :: dist.get_world_size()] for rows in 0.1 * torch.randn(6, 8, 3)]
        done = code(
            edition,
            "q-accumulation",
            torch=torch,
            nn=nn,
            nullcontext=contextlib.nullcontext,
            device=torch.device("cpu"),
            dtype=dtype,
            k=4,
            loader=[(rows, rows.sum(1, keepdim=True)) for rows in batches],
            loss_function=nn.functional.mse_loss,
            model=model,
            optimizer=optimizer,
            scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1),
        )
        return done["scheduler"].last_epoch, nn.utils.parameters_to_vector(model.parameters()).detach()

    ((updates, expected),) = on_ranks(1, trained)
    torch.manual_seed(0)
    assert updates == 2 and not torch.allclose(nn.Linear(3, 1).bias, expected[-1:], atol=1e-4)
    for updates, weights in on_ranks(2, trained):
        assert updates == 2 and torch.allclose(weights, expected, atol=1e-4)


@pytest.mark.parametrize("edition", EDITIONS)
def test_a_warm_up_before_a_scheduler_of_ones_own(edition):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.8)
    schedulers = torch.optim.lr_scheduler
    names = {name: getattr(schedulers, name) for name in ("LinearLR", "SequentialLR")}
    main = schedulers.StepLR(optimizer, 2, gamma=0.5)
    scheduler = code(edition, "q-learning-rate", optimizer=optimizer, main=main, n=8, w=4, **names)["scheduler"]
    rates = []
    for _ in range(8):
        rates += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([0.1, 0.275, 0.45, 0.625, 0.8, 0.8, 0.4, 0.4])


@pytest.mark.parametrize("edition", EDITIONS)
def test_a_pipeline_of_stages_that_fsdp2_divides(on_ranks, edition):
    """On a mesh of 2 × 2, two steps: the weights of one process, whose gradients are clipped, too."""

    def layers():
        torch.manual_seed(0)
        return [nn.Linear(4, 4) for _ in range(4)]

    rows = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(rows, 5 * rows.roll(1, 1))

    def trained():
        names = code(
            edition,
            "q-pipeline-ddp",
            torch=torch,
            nn=nn,
            dist=dist,
            init_device_mesh=lambda kind, shape, **names: init_device_mesh("cpu", (2, 2), **names),
            make_stage=lambda place: nn.Sequential(*layers()[2 * place : 2 * place + 2]),
            fully_shard=fully_shard,
            PipelineStage=PipelineStage,
            Schedule1F1B=Schedule1F1B,
            device=torch.device("cpu"),
            m=4,
            loss_function=nn.functional.mse_loss,
            DistributedSampler=functools.partial(DistributedSampler, shuffle=False),
            DataLoader=DataLoader,
            dataset=dataset,
            rows=8,
        )
        return names["place"], [p.full_tensor().detach() for p in names["part"].parameters()]

    model = nn.Sequential(*layers())
    optimizer, norms = torch.optim.AdamW(model.parameters()), []
    for inputs, labels in DataLoader(dataset, 16):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), labels).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
    assert min(norms) > 1, "clipped in both steps"
    expected = list(model.parameters())
    for place, found in on_ranks(4, trained):
        for one, other in zip(found, expected[4 * place : 4 * place + 4], strict=True):
            assert torch.allclose(one, other, atol=1e-5)
