"""Lesson 18: its checks refuse what is wrong or wasteful, with the right words, and accept what is right.

Each answer is judged by the lesson's own cells, in this process. All counts are of steps, bytes and micro-batches; no
test looks at a clock.
"""

import functools
import math
import threading

import matplotlib
import pytest
import torch

from tests.appended import solutions
from tests.conftest import BOOK, EDITIONS
from tests.reading import judged, run_cells

matplotlib.use("agg")  # before anything draws

NAME = "18_puzzles"
SOLUTIONS = {int(id.removeprefix("exercise-")): code for id, code in solutions(BOOK.source.pages[NAME]).items()}
NUMBERS = range(1, 10)


def changed(number, *pairs):
    """The solution with some of its text replaced."""
    answer = SOLUTIONS[number]
    for old, new in pairs:
        assert old in answer, (number, old)
        answer = answer.replace(old, new)
    return answer


# each rank copies all stages and computes whole micro-batches, in place of a pipeline
DATA_PARALLEL = """
def {name}(rank, stage, m, inputs, targets):
    n, r = rank.ranks, rank.number
    others = [other for other in range(n) if other != r]
    for other in others:
        for weight in stage.parameters():
            rank.send(weight, other)
    stages = []
    for other in range(n):
        stages.append(stage if other == r else copy.deepcopy(stage))
        if other != r:
            with torch.no_grad():
                for weight in stages[-1].parameters():
                    weight.copy_(rank.receive(other))
    for i in range(m):
        if r == 0 and i % n:
            rank.send(inputs[i], i % n)
        if r == n - 1 and i % n != r:
            rank.send(targets[i], i % n)
    for i in range(r, m, n):
        x = inputs[i] if r == 0 else rank.receive(0)
        for each in stages:
            x = each(x)
        y = targets[i] if r == n - 1 else rank.receive(n - 1)
        gradient = x.detach().sub(y)
        del y
        x.backward(gradient.mul_(2 / gradient.numel() / m))
        del x, gradient

    def gradients(each):
        return [torch.zeros_like(w) if w.grad is None else w.grad for w in each.parameters()]

    mine = gradients(stage)
    for other in others:
        for gradient in gradients(stages[other]):
            rank.send(gradient, other)
        del gradient
        stages[other] = None
    for other in others:
        for gradient in mine:
            gradient += rank.receive(other)
    return mine
"""
# number of the puzzle -> wrong or wasteful answers, each with words of what the check says
WRONG = {
    1: [
        (
            changed(1, ("math.ceil(len(batch) / rank.ranks)", "len(batch) // rank.ranks")),
            "returns shape (0, 5), not (1, 5)",
        ),
        # one empty chunk only
        (
            """
def scatter(rank, batch):
    if rank.number > 0:
        return rank.receive(0)
    chunks = list(batch.chunk(rank.ranks))
    if len(chunks) < rank.ranks:
        chunks.append(batch[:0])
    for other in range(1, rank.ranks):
        rank.send(chunks[other], other)
    return chunks[0]
""",
            "IndexError: list index out of range",
        ),
        # no return on rank 0
        (changed(1, ("    return batch[:size]", "")), "(ranks: 2, rows: 8): rank 0 returns nothing"),
        # works, but not on one rank
        (
            changed(
                1, ("    if rank.number > 0:", "    if rank.ranks == 1:\n        return None\n    if rank.number > 0:")
            ),
            "(ranks: 1, rows: 4): no rank returns anything",
        ),
        (
            """
def scatter(rank, batch):
    if rank.number == 0:
        for other in range(1, rank.ranks):
            rank.send(batch, other)
    else:
        batch = rank.receive(0)
    size = math.ceil(len(batch) / rank.ranks)
    return batch[rank.number * size : (rank.number + 1) * size]
""",
            "right, but rank 0 sends 2 times what is needed",
        ),
        (
            """
def scatter(rank, batch):
    if rank.number > 0:
        return rank.receive(0)
    chunks = batch.split(math.ceil(len(batch) / rank.ranks))
    for other, chunk in enumerate(chunks[1:], 1):
        rank.send(chunk, other)
    return chunks[0]
""",
            "rank 3 waits for rank 0 (which has ended) in line 4",
        ),
        (
            """
box = {}


def scatter(rank, batch):
    if rank.number == 0:
        box["batch"] = batch
    batch = box["batch"]
    size = math.ceil(len(batch) / rank.ranks)
    return batch[rank.number * size : (rank.number + 1) * size]
""",
            "this tensor is in the memory of rank 0",
        ),
        (
            """
def scatter(rank, batch):
    size = math.ceil(len(batch) / rank.ranks)
    return batch[rank.number * size : (rank.number + 1) * size]
""",
            "TypeError: object of type 'NoneType' has no len()",
        ),
        # Python numbers in a global
        (
            """
box = {}


def scatter(rank, batch):
    if rank.number == 0:
        box["batch"] = batch.tolist()
    batch = torch.tensor(box["batch"])
    size = math.ceil(len(batch) / rank.ranks)
    return batch[rank.number * size : (rank.number + 1) * size]
""",
            "right, but rank 0 sends only 0 bytes, and this exercise takes at least 80. Where do the numbers come from?",
        ),
        (
            changed(
                1,
                (
                    "rank.send(batch[other * size : (other + 1) * size], other)",
                    "rank.send(other, batch[other * size : (other + 1) * size])",
                ),
            ),
            "rank 0: TypeError: send(tensor, to) needs a tensor, not int (line ",
        ),
    ],
    2: [
        # the mean of means
        (
            changed(2, ("gradient * rows", "gradient.clone()"), ("float(rows)", "1.0")),
            "they are the plain mean of the gradients, as if all ranks had the same number of rows",
        ),
        # the sum, neither weighted nor divided
        (
            changed(2, ("gradient * rows", "gradient.clone()"), ("total / count", "total")),
            "they are the plain sum of the gradients, without weights",
        ),
        (
            """
box = {}


def mean_gradient(rank, gradient, rows):
    box[rank.ranks, rank.number] = gradient.tolist(), rows
    if rank.number > 0:
        rank.send(torch.ones(0), 0)
        return None
    for other in range(1, rank.ranks):
        rank.receive(other)
    each = [box[rank.ranks, r] for r in range(rank.ranks)]
    total = sum(torch.tensor(mean) * its for mean, its in each)
    return total / sum(its for _, its in each)
""",
            "right, but rank 0 sends only 0 bytes, and this exercise takes at least 160. Where",
        ),
        # the sum, not divided
        (changed(2, ("total / count", "total")), "they are 5 times the right ones"),
        (
            """
def mean_gradient(rank, gradient, rows):
    for other in range(rank.ranks):
        if other != rank.number:
            rank.send(gradient, other)
            rank.send(torch.tensor(float(rows)), other)
    total, count = gradient * rows, rows
    for other in range(rank.ranks):
        if other != rank.number:
            gradient, rows = rank.receive(other), rank.receive(other)
            total, count = total + gradient * rows, count + rows
    return total / count
""",
            "right, but rank 0 sends 2 times what is needed",
        ),
        # takes all gradients before the numbers of rows: they get mixed up
        (
            """
def mean_gradient(rank, gradient, rows):
    if rank.number > 0:
        rank.send(gradient * rows, 0)
        rank.send(torch.tensor(float(rows)), 0)
        return None
    return gradient * rows + sum(
        rank.receive(other) for other in range(1, rank.ranks)
    )
""",
            "they are 5 times the right ones",
        ),
        (changed(2, ("rank.send(count, 0)", "pass")), "rank 0 waits for rank 1 (which has ended) in line"),
        # as if only the last rank had fewer
        (
            """
def mean_gradient(rank, gradient, rows):
    if rank.number > 0:
        rank.send(gradient, 0)
        rank.send(torch.tensor(rows), 0)
        return None
    total, count = gradient * rows, rows
    for other in range(1, rank.ranks):
        mean, its = rank.receive(other), rank.receive(other)
        its = its if other == rank.ranks - 1 else rows
        total, count = total + mean * its, count + its
    return total / count
""",
            "(ranks: 4, rows of each: (1, 4, 2, 3)): rank 0 returns wrong numbers: 40 of 40 are off",
        ),
    ],
    3: [
        (
            changed(3, ("range(1, rank.ranks):\n        rank.send", "range(1, 2):\n        rank.send")),
            "ValueError: no link to rank 1 of 1",
        ),
        (changed(3, ("return rank.receive(0)", "return tensor")), "rank 1 did not receive all that rank 0 sent"),
        (
            """
def add_up(rank, tensor):
    total = tensor.clone()
    for other in range(rank.ranks):
        if other != rank.number:
            total += rank.receive(other)
            rank.send(tensor, other)
    return total
""",
            "rank 0 waits for rank 1 in line 6, rank 1 waits for rank 0 in line 6",
        ),
        # sends every running total to everybody
        (
            """
def add_up(rank, tensor):
    others = [o for o in range(rank.ranks) if o != rank.number]
    for other in others:
        rank.send(tensor, other)
        rank.send(tensor, other)
    total = tensor.clone()
    for other in others:
        rank.receive(other)
        total += rank.receive(other)
    return total
""",
            "right, but rank 0 sends 2 times what is needed",
        ),
        (changed(3, ("return total", "return total / rank.ranks")), "they are 0.5 times the right ones"),
        # only rank 0 has the sum
        (
            """
def add_up(rank, tensor):
    if rank.number > 0:
        rank.send(tensor, 0)
        return tensor
    return sum([rank.receive(other) for other in range(1, rank.ranks)], tensor)
""",
            "(ranks: 2, numbers: 24): rank 1 returns wrong numbers: they are what rank 1 was given\n",
        ),
        # makes the others' numbers anew
        (
            """
def add_up(rank, tensor):
    return sum(numbers(len(tensor), seed=seed) for seed in range(rank.ranks))
""",
            "right, but rank 0 sends only 0 bytes, and this exercise takes at least 96. Where do the numbers come from?",
        ),
    ],
    4: [
        (SOLUTIONS[3].replace("add_up", "ring"), "times what is needed"),
        (changed(4, ("tensor.tensor_split(n)", "tensor.chunk(n)")), "IndexError"),
        # one step short: one part is not complete
        (
            changed(
                4,
                (
                    "for step in range(n - 1):\n        rank.send(parts[(r + 1",
                    "for step in range(n - 2):\n        rank.send(parts[(r + 1",
                ),
            ),
            "some are sums over only a part of the ranks",
        ),
        # off by one in the second half
        (
            changed(
                4,
                ("rank.send(parts[(r + 1 - step) % n]", "rank.send(parts[(r - step) % n]"),
                ("parts[(r - step) % n] = rank.receive", "parts[(r - step - 1) % n] = rank.receive"),
            ),
            "(ranks: 2, numbers: 6): rank 0 returns wrong numbers: some are sums over only a part of the ranks\n",
        ),
        # some are counted twice
        (
            changed(4, ("% n] + arrived", "% n] + 2 * arrived")),
            "numbers: 6): rank 0 returns wrong numbers: 6 of 6 are off, the largest difference is",
        ),
        (
            """
def ring(rank, tensor):
    return sum(numbers(len(tensor), seed=seed) for seed in range(rank.ranks))
""",
            "right, but rank 0 sends only 0 bytes, and this exercise takes at least 24. Where do the numbers come from?",
        ),
        # the whole tensor goes round
        (
            """
def ring(rank, tensor):
    n, r = rank.ranks, rank.number
    total, moving = tensor.clone(), tensor
    for step in range(n - 1):
        rank.send(moving, (r + 1) % n)
        moving = rank.receive((r - 1) % n)
        total += moving
    return total
""",
            "right, but rank 0 sends 1.25 times what is needed",
        ),
        # receives first
        (
            changed(
                4,
                (
                    "        rank.send(parts[(r - step) % n], (r + 1) % n)\n        arrived = rank.receive((r - 1) % n)\n",
                    "        arrived = rank.receive((r - 1) % n)\n        rank.send(parts[(r - step) % n], (r + 1) % n)\n",
                ),
            ),
            "rank 0 waits for rank 1 in line",
        ),
        # one rank after the other
        (
            """
def ring(rank, tensor):
    n, r = rank.ranks, rank.number
    parts = list(tensor.tensor_split(n))

    def pass_on(part):
        if r == 0:
            rank.send(part, (r + 1) % n)
        arrived = rank.receive((r - 1) % n)
        if r > 0:
            rank.send(part, (r + 1) % n)
        return arrived

    for step in range(n - 1):
        arrived = pass_on(parts[(r - step) % n])
        parts[(r - step - 1) % n] = parts[(r - step - 1) % n] + arrived
    for step in range(n - 1):
        parts[(r - step) % n] = pass_on(parts[(r + 1 - step) % n])
    return torch.cat(parts)
""",
            "12 steps, needed 4, allowed 8. Let all ranks send and receive in every step, not one rank at a time.",
        ),
    ],
    5: [
        (
            changed(5, ("len(bucket) == 2", "len(bucket) == 8")),
            "right, but it takes 1.33 times what is needed: 24 steps",
        ),
        (changed(5, ("len(bucket) == 2", "True")), "right, but it takes 1.39 times what is needed: 25 steps"),
        # a last bucket of two, after two of three
        (
            changed(5, ("len(bucket) == 2", "len(bucket) == 3 or len(waits) == 2 and len(bucket) == 2")),
            "21 steps, needed 18, allowed 20. Start an all-reduce as soon as some gradients are there, and wait only at "
            "the end. A tensor takes whole steps (36 numbers each): buckets that are too small, or of an odd number of "
            "gradients, leave the link partly empty; buckets that are too big start late.",
        ),
        # the backward pass inside start
        (
            """
def ddp(rank, layers, x, y):
    wait = rank.start(lambda: torch.cat(list(gradients_of(layers, x, y))))
    return list((all_reduce(rank, wait()) / rank.ranks).split(36))
""",
            "rank 0: RankError: layers cannot run inside start, which is for communication only (line 3",
        ),
        # waits at once
        (
            changed(
                5,
                (
                    "waits.append(rank.start(all_reduce, rank, torch.cat(bucket)))",
                    "waits.append(partial(lambda a: a, all_reduce(rank, torch.cat(bucket))))",
                ),
            ),
            "right, but it takes 1.33 times what is needed: 24 steps",
        ),
        (changed(5, ("(sums / rank.ranks)", "sums")), "they are 3 times the right ones"),
        # every gradient to every rank, which two ranks would not notice
        (
            """
def ddp(rank, layers, x, y):
    others = [o for o in range(rank.ranks) if o != rank.number]
    gradients = []
    for gradient in gradients_of(layers, x, y):
        gradients.append(gradient)
        for other in others:
            rank.send(gradient, other)
    for other in others:
        for number in range(len(gradients)):
            gradients[number] = gradients[number] + rank.receive(other)
    return [gradient / rank.ranks for gradient in gradients]
""",
            "right, but rank 0 sends 1.5 times what is needed",
        ),
        # one buffer for all buckets
        (
            """
def ddp(rank, layers, x, y):
    waits, buffer = [], x.new_empty(2, 36)
    for number, gradient in enumerate(gradients_of(layers, x, y)):
        buffer[number % 2] = gradient
        if number % 2:
            waits.append(rank.start(all_reduce, rank, buffer.view(-1)))
    sums = torch.cat([wait() for wait in waits])
    return list((sums / rank.ranks).split(36))
""",
            "RankError: a tensor was changed before its wait()",
        ),
        # the same, hidden in a closure
        (
            """
def ddp(rank, layers, x, y):
    waits, buffer = [], x.new_empty(2, 36)
    for number, gradient in enumerate(gradients_of(layers, x, y)):
        buffer[number % 2] = gradient
        if number % 2:
            waits.append(rank.start(lambda: all_reduce(rank, buffer.view(-1))))
    sums = torch.cat([wait() for wait in waits])
    return list((sums / rank.ranks).split(36))
""",
            "RankError: a tensor was changed before its wait()",
        ),
        (
            changed(
                5,
                (
                    "return list((sums / rank.ranks).split(len(layers[0])))",
                    "return list((sums / rank.ranks).split(36))[::-1]",
                ),
            ),
            "the tensors are right, but in a different order",
        ),
        # never waits
        (
            changed(
                5,
                (
                    "waits.append(rank.start(all_reduce, rank, torch.cat(bucket)))",
                    "rank.start(lambda b: waits.append(all_reduce(rank, b)), torch.cat(bucket))",
                ),
                ("[wait() for wait in waits]", "waits"),
            ),
            "rank 0: RankError: something was started, but its wait() was never called",
        ),
        # all rows on all ranks, in place of an all-reduce
        (
            """
def ddp(rank, layers, x, y):
    x, y = [all_gather(rank, a.view(-1)).view(-1, 6) for a in (x, y)]
    return list(gradients_of(layers, x, y))
""",
            "right, but it takes 1.89 times what is needed",
        ),
        # another backward pass, past the given layers
        (
            """
def ddp(rank, layers, x, y):
    output = x
    for weights in layers:
        weights.requires_grad_()
        output = torch.tanh(output @ weights.view(6, 6))
    loss_of(output, y).backward()
    gradients = torch.cat([weights.grad for weights in layers[::-1]])
    return list((all_reduce(rank, gradients) / rank.ranks).split(36))
""",
            "right, but the layers computed for 0 steps instead of 16",
        ),
        (
            """
def ddp(rank, layers, x, y):
    return list(gradients_of(layers, x, y))
""",
            "(ranks: 3): rank 0 returns wrong numbers for tensor 0: they are the gradients of the rank's own rows only\n",
        ),
        (
            changed(
                5,
                (
                    "rank.start(all_reduce, rank, torch.cat(bucket))",
                    "rank.start(lambda b: rank.start(all_reduce, rank, b)(), torch.cat(bucket))",
                ),
            ),
            "rank 0: RankError: start cannot be called inside start (line ",
        ),
        # all rows on all ranks, past the given layers, which compute for nothing
        (
            """
def ddp(rank, layers, x, y):
    list(gradients_of([weights.clone() for weights in layers], x, y))
    output, y = [all_gather(rank, a.view(-1)).view(-1, 6) for a in (x, y)]
    for weights in layers:
        output = torch.tanh(output @ weights.requires_grad_().view(6, 6))
    return list(torch.autograd.grad(loss_of(output, y), layers[::-1]))
""",
            "right, but rank 0 sends only 96 bytes, and this exercise takes at least 1,152. Each gradient is all-reduced once.",
        ),
    ],
    6: [
        # every rank keeps all of Adam's numbers
        (
            """
def sharded_adam(rank, weights, batches):
    part = weights.double()
    first, second = torch.zeros_like(part), torch.zeros_like(part)
    for step, (x, y) in enumerate(batches, 1):
        gradient = all_reduce(rank, gradient_of(part.float(), x, y))
        adam(part, gradient / rank.ranks, first, second, step)
    return part.float()
""",
            "right, but rank 0 holds, beyond what it was given,",
        ),
        (
            changed(6, ("reduce_scatter(rank, gradient)", "all_reduce(rank, gradient).chunk(rank.ranks)[rank.number]")),
            "right, but rank 0 sends 1.5 times what is needed: 72,576 bytes, needed 48,384, allowed 60,480. "
            "Reduce-scatter, then all-gather, once each for every update, in float32.",
        ),
        (
            changed(6, ("reduce_scatter(rank, gradient)", "gradient.chunk(rank.ranks)[rank.number]")),
            "the largest difference is",
        ),
        # the sum, not divided, from which Adam makes almost the same
        (
            changed(6, ("reduce_scatter(rank, gradient) / rank.ranks", "reduce_scatter(rank, gradient)")),
            "they are what Adam makes of the sum of the gradients, not of their mean",
        ),
        (
            changed(6, ("enumerate(batches, 1)", "enumerate(batches)")),
            "rank 0: ValueError: steps count from 1, not from 0 (line ",
        ),
        (changed(6, ("return weights", "return weights * math.nan")), "2304 of 2304 are nan\n"),
        # the own rows only: of the own shard, and of all weights
        (
            changed(6, ("reduce_scatter(rank, gradient) / rank.ranks", "gradient.chunk(rank.ranks)[rank.number]")),
            "(ranks: 2): rank 0 returns wrong numbers: they are what Adam makes of each rank's own rows only\n",
        ),
        (
            """
def sharded_adam(rank, weights, batches):
    part = weights.double()
    first, second = torch.zeros_like(part), torch.zeros_like(part)
    for step, (x, y) in enumerate(batches, 1):
        adam(part, gradient_of(part.float(), x, y), first, second, step)
    return part.float()
""",
            "(ranks: 2): rank 0 returns wrong numbers: they are what Adam makes of each rank's own rows only\n",
        ),
        # not sharded, with an Adam of its own, in place
        (
            """
def sharded_adam(rank, weights, batches):
    first, second = torch.zeros_like(weights), torch.zeros_like(weights)
    for step, (x, y) in enumerate(batches, 1):
        mean = reduce_scatter(rank, gradient_of(weights, x, y)).div_(rank.ranks)
        mean = all_gather(rank, mean)
        first.mul_(0.9).add_(mean, alpha=0.1)
        second.mul_(0.99).addcmul_(mean, mean, value=0.01)
        mean.copy_(second).div_(1 - 0.99**step).sqrt_().add_(1e-6)
        weights.addcdiv_(first, mean, value=-0.01 / (1 - 0.9**step))
        del mean
    return weights
""",
            "right, but rank 0 gives adam only 0 numbers, and this exercise takes at least 864. Use the given adam.\n",
        ),
        # not sharded, slice by slice
        (
            """
def sharded_adam(rank, weights, batches):
    kept = weights, torch.zeros_like(weights), torch.zeros_like(weights)
    for step, (x, y) in enumerate(batches, 1):
        mean = all_reduce(rank, gradient_of(weights, x, y)).div_(rank.ranks)
        for piece, *slices in zip(mean.chunk(8), *[a.chunk(8) for a in kept]):
            part, first, second = [a.double() for a in slices]
            adam(part, piece, first, second, step)
            for old, new in zip(slices, (part, first, second)):
                old.copy_(new)
    return weights
""",
            "right, but rank 0 gives adam 8 times what is needed: 6,912 numbers, needed 864, allowed 864. "
            "A rank updates its own shard only.\n",
        ),
        (changed(6, (".double()", ".clone()")), "TypeError: part, first and second must be float64"),
        (changed(6, ("return weights", "return weights.double()")), "returns torch.float64, not torch.float32"),
        # both averages for all weights
        (
            changed(
                6,
                (
                    "torch.zeros_like(part), torch.zeros_like(part)",
                    "[torch.zeros(len(weights), dtype=torch.float64) for _ in range(2)]",
                ),
                ("first, second, step)", "*[a.chunk(rank.ranks)[rank.number] for a in (first, second)], step)"),
            ),
            "right, but rank 0 holds, beyond what it was given,",
        ),
        # the gradients of all steps
        (
            changed(
                6,
                ("    for step", "    kept = []\n    for step"),
                ("        mean =", "        kept.append(gradient)\n        mean ="),
            ),
            "right, but rank 0 holds, beyond what it was given,",
        ),
        # never gathers: the other parts stay as they were
        (
            changed(
                6,
                (
                    "        weights = all_gather(rank, part.float())\n",
                    "        weights.chunk(rank.ranks)[rank.number].copy_(part)\n",
                ),
            ),
            "the largest difference is",
        ),
        # gathers in float64
        (
            changed(6, ("all_gather(rank, part.float())", "all_gather(rank, part).float()")),
            "right, but rank 0 sends 1.5 times what is needed",
        ),
        # Adam's numbers for all weights, though only a part of them is used
        (
            changed(
                6,
                (
                    "torch.zeros_like(part), torch.zeros_like(part)",
                    "*[torch.zeros(len(weights), dtype=torch.float64).chunk(rank.ranks)[rank.number] for _ in range(2)],",
                ),
                (
                    "    part = weights.chunk(rank.ranks)[rank.number].double()",
                    "    part = weights.double().chunk(rank.ranks)[rank.number]",
                ),
            ),
            "right, but rank 0 holds, beyond what it was given,",
        ),
        # the whole tensor in float64, of which each rank keeps a view
        (
            changed(
                6,
                ("weights.chunk(rank.ranks)[rank.number].double()", "weights.double().chunk(rank.ranks)[rank.number]"),
                (
                    "mean = reduce_scatter(rank, gradient)",
                    "total = reduce_scatter(rank, gradient)\n        mean = total",
                ),
                (
                    "weights = all_gather(rank, part.float())",
                    "mine = part.float()\n        weights = all_gather(rank, mine)",
                ),
            ),
            "no old gradients. A shard that is a view keeps the whole tensor: cut it, then .double().",
        ),
        # all rows on all ranks, in place of a reduce-scatter
        (
            changed(
                6,
                (
                    "gradient = gradient_of(weights, x, y)",
                    "x, y = [all_gather(rank, a.view(-1)).view(-1, 48) for a in (x, y)]\n        gradient = gradient_of(weights, x, y)",
                ),
                ("reduce_scatter(rank, gradient) / rank.ranks", "gradient.chunk(rank.ranks)[rank.number]"),
            ),
            "right, but it takes 8 times what is needed",
        ),
    ],
    7: [
        # autograd keeps every layer whole
        (
            """
def sharded_step(rank, shards, x, y):
    layers = []
    for shard in shards:
        layers.append(all_gather(rank, shard).requires_grad_())
        x = layer(layers[-1], x)
    loss_of(x, y).backward()
    return [
        reduce_scatter(rank, weights.grad) / rank.ranks for weights in layers
    ]
""",
            "Only a few layers may be gathered at a time, and one whole gradient. See that neither autograd nor a list of "
            "yours keeps the others.",
        ),
        # gathers all at once
        (
            changed(
                7,
                ("    inputs = []\n", "    inputs, whole = [], [all_gather(rank, s) for s in shards]\n"),
                ("for shard in shards:", "for weights in whole:"),
                ("all_gather(rank, shard), x)", "weights, x)"),
                ("all_gather(rank, shard).requires_grad_()", "whole.pop().detach().requires_grad_()"),
            ),
            "right, but rank 0 holds, beyond what it was given,",
        ),
        (
            changed(
                7,
                (
                    "reduce_scatter(rank, of_weights)",
                    "all_reduce(rank, of_weights).chunk(rank.ranks)[rank.number].clone()",
                ),
            ),
            "right, but rank 0 sends 1.33 times what is needed",
        ),
        # all rows on all ranks, in place of a reduce-scatter
        (
            changed(
                7,
                (
                    "    inputs = []\n",
                    "    inputs = []\n    x, y = [all_gather(rank, a.view(-1)).view(-1, 24) for a in (x, y)]\n",
                ),
                ("reduce_scatter(rank, of_weights) / rank.ranks", "of_weights.chunk(rank.ranks)[rank.number].clone()"),
            ),
            "right, but it takes 4 times what is needed: 96 steps",
        ),
        (changed(7, ("results[::-1]", "results")), "for tensor 0: the tensors are right, but in a different order"),
        (
            changed(7, ("reduce_scatter(rank, of_weights) / rank", "of_weights.chunk(rank.ranks)[rank.number] / rank")),
            "the largest difference is",
        ),
        # the gradients of the own rows: cut, or as autograd leaves them
        (
            changed(7, ("reduce_scatter(rank, of_weights) / rank.ranks", "of_weights.chunk(rank.ranks)[rank.number]")),
            "they are the gradients of the rank's own rows only: add those of the other ranks with reduce_scatter",
        ),
        (
            """
def sharded_step(rank, shards, x, y):
    for shard in shards:
        x = layer(all_gather(rank, shard.requires_grad_()), x)
    loss_of(x, y).backward()
    return [shard.grad for shard in shards]
""",
            "(ranks: 2): rank 0 returns wrong numbers for tensor 0: they are the gradients of the rank's own rows only",
        ),
    ],
    8: [
        (
            """
def gpipe(rank, stage, m, inputs, targets):
    for i in range(m):
        backward(rank, *forward(rank, stage, i, m, inputs, targets))
    return [weight.grad for weight in stage.parameters()]
""",
            "right, but it takes 2.91 times what is needed: 64 steps, needed 22, allowed 24. "
            "All forward passes first, once each.",
        ),
        # one backward pass for all losses
        (
            changed(
                8,
                (
                    "    while held:\n",
                    "    if 0 < rank.number == rank.ranks - 1:\n"
                    "        sum(loss for _, loss in held).backward()\n"
                    "        for x, _ in held:\n"
                    "            rank.send(x.grad, rank.number - 1)\n"
                    "        held = []\n"
                    "    while held:\n",
                ),
            ),
            "29 steps, needed 22, allowed 24. All forward passes first, once each. "
            "Send on each output, and each gradient, before you compute the next micro-batch.",
        ),
        # a forward pass beside a backward pass
        (
            changed(
                8,
                (
                    "[forward(rank, stage, i, m, inputs, targets) for i in range(m)]",
                    "[\n        rank.start(forward, rank, stage, i, m, inputs, targets)()\n        for i in range(m)\n    ]",
                ),
            ),
            "rank 0: RankError: layers cannot run inside start, which is for communication only (line ",
        ),
        (
            changed(8, ("backward(rank, *held.pop(0))", "rank.start(backward, rank, *held.pop(0))()")),
            "RankError: layers cannot run inside start, which is for communication only (line ",
        ),
        (changed(8, (" / m\n", "\n")), "they are 2 times the right ones"),
        (changed(8, (".requires_grad_()", "")), "TypeError: send(tensor, to) needs a tensor, not None"),
        # the whole batch in one piece
        (
            """
def gpipe(rank, stage, m, inputs, targets):
    first, last = rank.number == 0, rank.number == rank.ranks - 1
    x = torch.cat(inputs) if first else rank.receive(rank.number - 1)
    output = stage(x.requires_grad_())
    if last:
        loss_of(output, torch.cat(targets)).backward()
    else:
        rank.send(output, rank.number + 1)
        output.backward(rank.receive(rank.number + 1))
    if not first:
        rank.send(x.grad, rank.number - 1)
    return [weight.grad for weight in stage.parameters()]
""",
            "right, but it takes 2.91 times what is needed: 64 steps",
        ),
        (
            DATA_PARALLEL.format(name="gpipe"),
            "right, but it takes only 16 steps, and this exercise takes at least 22. A rank runs its own stage only.",
        ),
        # past the stage, so that no step is counted
        (changed(8, ("stage(x)", "nn.Sequential.forward(stage, x)")), "right, but the layers computed for 0 steps"),
    ],
    9: [
        (changed(8, ("gpipe", "one_f_one_b")), "right, but rank 0 holds 3 times what is needed: 12 micro-batches"),
        # p + 1 on the first stage, or on each but the last: a stage can hold no more than the one before it
        (
            changed(
                9, ("rank.ranks - rank.number, []", "rank.ranks - rank.number + (rank.number < rank.ranks - 1), []")
            ),
            "right, but rank 0 holds 1.25 times what is needed: 5 micro-batches, needed 4, allowed 4.",
        ),
        (
            changed(9, ("rank.ranks - rank.number, []", "rank.ranks + 1 if rank.number < rank.ranks - 1 else 1, []")),
            "right, but rank 0 holds 1.25 times what is needed: 5 micro-batches, needed 4, allowed 4.",
        ),
        # outputs are kept after their backward pass
        (
            changed(
                9,
                ("ahead, held =", "kept, ahead, held = [], "),
                ("        held.append(", "        kept.append(held[-1] if held else None)\n        held.append("),
            ),
            "right, but rank 1 holds, beyond what it was given,",
        ),
        (
            changed(9, ("rank.ranks - rank.number, []", "1, []")),
            "right, but it takes 3.2 times what is needed: 96 steps",
        ),
        # the last stage, too, waits until it has p micro-batches
        (changed(9, ("rank.ranks - rank.number, []", "rank.ranks, []")), "it takes 2.6 times what is needed: 78 steps"),
        # recomputes: little memory, too many steps
        (
            """
def one_f_one_b(rank, stage, m, inputs, targets):
    first, last = rank.number == 0, rank.number == rank.ranks - 1
    held = []
    for i in range(m):
        x = inputs[i] if first else rank.receive(rank.number - 1)
        held.append(x)
        if not last:
            with torch.no_grad():
                rank.send(stage(x), rank.number + 1)
    for i in range(m):
        x = held.pop(0).requires_grad_()
        output = stage(x)
        if last:
            (loss_of(output, targets[i]) / m).backward()
        else:
            output.backward(rank.receive(rank.number + 1))
        if not first:
            rank.send(x.grad, rank.number - 1)
    return [weight.grad for weight in stage.parameters()]
""",
            "Also, it takes",
        ),
        (
            DATA_PARALLEL.format(name="one_f_one_b"),
            "right, but it takes only 8 steps, and this exercise takes at least 10. A rank runs its own stage only.",
        ),
        # fewer micro-batches than stages
        (
            """
def one_f_one_b(rank, stage, m, inputs, targets):
    ahead, each = rank.ranks - rank.number, range(m)
    held = [forward(rank, stage, i, m, inputs, targets) for i in each[:ahead]]
    for i in range(ahead, m):
        backward(rank, *held.pop(0))
        held.append(forward(rank, stage, i, m, inputs, targets))
    for i in range(ahead):
        backward(rank, *held.pop(0))
    return [weight.grad for weight in stage.parameters()]
""",
            "(ranks: 4, micro-batches: 2): rank 1: IndexError: pop from empty list",
        ),
        # gradients of the inputs, too
        (
            changed(8, ("x = inputs[i]\n", "x = inputs[i].requires_grad_()\n")).partition("def gpipe")[0]
            + SOLUTIONS[9],
            "Rank 0 needs no gradients of its inputs.",
        ),
        # backward with the newest, not the oldest
        (changed(9, ("held.pop(0)", "held.pop()")), "the largest difference is"),
        # the last stage wants to be ahead, too: it waits for itself
        (
            changed(
                9,
                (
                    "            backward(rank, *held.pop(0))\n        held.append(forward(rank, stage, i, m, inputs, targets))",
                    "            held.pop(0)\n        held.append(forward(rank, stage, i, m, inputs, targets))",
                ),
            ),
            "waits for rank 1 (which has ended)",
        ),
    ],
}
# right answers by other ways
OTHER_WAYS = {
    1: [
        """
def scatter(rank, batch):  # every rank is told the number of rows, too
    if rank.number == 0:
        chunks = list(batch.split(-(-len(batch) // rank.ranks)))
        chunks += [batch[:0]] * (rank.ranks - len(chunks))
        for other in range(1, rank.ranks):
            rank.send(torch.tensor(len(chunks[other])), other)
            rank.send(chunks[other], other)
        return chunks[0]
    rank.receive(0)
    return rank.receive(0)
"""
    ],
    2: [
        """
def mean_gradient(rank, gradient, rows):  # the rows travel with the gradient
    mine = torch.cat([gradient, torch.tensor([1.0])]) * rows
    if rank.number:
        rank.send(mine, 0)
    else:
        for other in range(1, rank.ranks):
            mine = mine + rank.receive(other)
        return mine[:-1] / mine[-1]
""",
        # what the others return does not matter
        changed(2, ("        return None\n", "        return gradient\n")),
    ],
    3: [
        """
def add_up(rank, tensor):  # all to all
    others = [o for o in range(rank.ranks) if o != rank.number]
    for other in others:
        rank.send(tensor, other)
    return sum([rank.receive(other) for other in others], tensor)
""",
        """
def add_up(rank, tensor):  # along a chain and back
    n, r = rank.ranks, rank.number
    if r > 0:
        tensor = tensor + rank.receive(r - 1)
    if r < n - 1:
        rank.send(tensor, r + 1)
        tensor = rank.receive(r + 1)
    if r > 0:
        rank.send(tensor, r - 1)
    return tensor
""",
    ],
    4: [
        """
def ring(rank, tensor):  # padded, in place
    n, r, size = rank.ranks, rank.number, len(tensor)
    parts = nn.functional.pad(tensor, (0, -size % n)).view(n, -1)
    for step in range(n - 1):
        rank.send(parts[(r - step) % n], (r + 1) % n)
        parts[(r - step - 1) % n] += rank.receive((r - 1) % n)
    for step in range(n - 1):
        rank.send(parts[(r - step + 1) % n], (r + 1) % n)
        parts[(r - step) % n] = rank.receive((r - 1) % n)
    return parts.view(-1)[:size]
""",
        """
def ring(rank, tensor):  # directly, from rank to rank
    n, r = rank.ranks, rank.number
    parts = list(tensor.tensor_split(n))
    others = [o for o in range(n) if o != r]
    for other in others:
        rank.send(parts[other], other)
    for other in others:
        parts[r] = parts[r] + rank.receive(other)
    for other in others:
        rank.send(parts[r], other)
    for other in others:
        parts[other] = rank.receive(other)
    return torch.cat(parts)
""",
    ],
    5: [
        changed(5, ("len(bucket) == 2", "len(bucket) == 4")),
        """
def ddp(rank, layers, x, y):  # all buckets in one buffer
    flat, waits = x.new_zeros(288), []
    for i, gradient in enumerate(gradients_of(layers, x, y)):
        flat[i * 36 : (i + 1) * 36] = gradient / rank.ranks
        if i % 2:
            waits.append(rank.start(all_reduce, rank, flat[(i - 1) * 36 : (i + 1) * 36]))
    return [part for wait in waits for part in wait().split(36)]
""",
        changed(5, ("all_reduce, rank", "ring, rank")),
    ],
    6: [
        """
def sharded_adam(rank, weights, batches):  # nothing is freed early
    n, r = rank.ranks, rank.number
    part = weights.view(n, -1)[r].double()
    first, second = torch.zeros_like(part), torch.zeros_like(part)
    for step, (x, y) in enumerate(batches):
        gradient = gradient_of(weights, x, y) / n
        mean = reduce_scatter(rank, gradient)
        adam(part, mean, first, second, step + 1)
        others = [o for o in range(n) if o != r]
        for other in others:
            rank.send(part.float(), other)
        parts = [part.float() if o == r else rank.receive(o) for o in range(n)]
        weights = torch.cat(parts)
    return weights
""",
        """
def sharded_adam(rank, weights, batches):  # gathers before each step, as FSDP does, and once at the end
    part = weights.chunk(rank.ranks)[rank.number].double()
    first, second = torch.zeros_like(part), torch.zeros_like(part)
    for step, (x, y) in enumerate(batches, 1):
        weights = all_gather(rank, part.float())
        gradient = gradient_of(weights, x, y)
        mean = reduce_scatter(rank, gradient) / rank.ranks
        adam(part, mean, first, second, step)
    return all_gather(rank, part.float())
""",
    ],
    7: [
        """
def sharded_step(rank, shards, x, y):  # fetches the next layer while one computes, as FSDP does
    inputs, coming = [], rank.start(all_gather, rank, shards[0])
    with torch.no_grad():
        for number in range(len(shards)):
            weights = coming()
            if number + 1 < len(shards):
                coming = rank.start(all_gather, rank, shards[number + 1])
            inputs.append(x)
            x = layer(weights, x)
    output = x.requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(output, y), output)
    results, coming = [], rank.start(all_gather, rank, shards[-1])
    for number in reversed(range(len(shards))):
        weights = coming().requires_grad_()
        if number:
            coming = rank.start(all_gather, rank, shards[number - 1])
        x = inputs.pop().detach().requires_grad_()
        mine, gradient = torch.autograd.grad(layer(weights, x), [weights, x], gradient)
        results.append(reduce_scatter(rank, mine) / rank.ranks)
    return results[::-1]
""",
        """
def sharded_step(rank, shards, x, y):  # with torch's checkpoint, more or less
    class Gathered(torch.autograd.Function):
        @staticmethod
        def forward(ctx, shard, x):
            ctx.save_for_backward(shard, x)
            return layer(all_gather(rank, shard), x)

        @staticmethod
        def backward(ctx, gradient):
            shard, x = ctx.saved_tensors
            with torch.enable_grad():
                weights = all_gather(rank, shard).requires_grad_()
                x = x.detach().requires_grad_()
                output = layer(weights, x)
            of_weights, of_x = torch.autograd.grad(
                output, [weights, x], gradient
            )
            return reduce_scatter(rank, of_weights) / rank.ranks, of_x

    for shard in shards:
        x = Gathered.apply(shard.requires_grad_(), x)
    loss_of(x, y).backward()
    return [shard.grad for shard in shards]
""",
        """
def sharded_step(rank, shards, x, y):  # once forward: autograd keeps shards in place of weights
    class Gathered(torch.autograd.Function):
        @staticmethod
        def forward(ctx, shard):
            return all_gather(rank, shard)

        @staticmethod
        def backward(ctx, gradient):
            return reduce_scatter(rank, gradient) / rank.ranks

    for shard in shards:
        weights = Gathered.apply(shard.requires_grad_())
        place = weights.data_ptr()

        def pack(tensor, shard=shard, place=place):
            return (shard.detach(), tensor.shape) if tensor.data_ptr() == place else (tensor, None)

        def unpack(packed):
            tensor, shape = packed
            return all_gather(rank, tensor).view(shape) if shape else tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            x = layer(weights, x)
        del weights
    loss_of(x, y).backward()
    return [shard.grad for shard in shards]
""",
        """
def sharded_step(rank, shards, x, y):  # names of the turn before are still there
    inputs = []
    with torch.no_grad():
        for shard in shards:
            inputs.append(x)
            x = layer(all_gather(rank, shard), x)
    output = x.requires_grad_()
    loss_of(output, y).backward()
    gradient, results = output.grad, []
    for shard in reversed(shards):
        x = inputs.pop().detach().requires_grad_()
        weights = all_gather(rank, shard)
        weights.requires_grad = True
        output = layer(weights, x)
        output.backward(gradient)
        gradient = x.grad
        whole = weights.grad / rank.ranks
        results.insert(0, reduce_scatter(rank, whole))
    return results
""",
    ],
    8: [
        """
def gpipe(rank, stage, m, inputs, targets):  # back in the reverse order
    held = [forward(rank, stage, i, m, inputs, targets) for i in range(m)]
    while held:
        backward(rank, *held.pop())
    return [weight.grad for weight in stage.parameters()]
""",
        changed(9, ("one_f_one_b", "gpipe")),
    ],
    9: [
        """
def one_f_one_b(rank, stage, m, inputs, targets):  # as Megatron has it
    held, done = [], 0
    warm = min(rank.ranks - rank.number - 1, m)
    for i in range(warm):
        held.append(forward(rank, stage, i, m, inputs, targets))
    for i in range(warm, m):
        held.append(forward(rank, stage, i, m, inputs, targets))
        x, output = held.pop(0)
        backward(rank, x, output)
    for x, output in held:
        backward(rank, x, output)
    return [weight.grad for weight in stage.parameters()]
""",
        """
def one_f_one_b(rank, stage, m, inputs, targets):  # p on their way everywhere
    last, held = rank.number == rank.ranks - 1, []
    for i in range(m):
        held.append(forward(rank, stage, i, m, inputs, targets))
        if last or len(held) == rank.ranks - rank.number:
            backward(rank, *held.pop(0))
    for both in held:
        backward(rank, *both)
    return [weight.grad for weight in stage.parameters()]
""",
    ],
}


@pytest.fixture(scope="module", params=EDITIONS)
def edition(request):
    return request.param


@pytest.fixture(scope="module")
def lesson(edition):
    """The variables that the lesson leaves, unanswered."""
    return run_cells(f"{edition}/{NAME}", [cell.id for cell in BOOK.page(f"{edition}/{NAME}").code])


@pytest.fixture(scope="module")
def solved(edition, lesson):
    """The same, with the solutions of this edition: some answers use those of other puzzles."""
    variables = dict(lesson)
    for code in solutions(BOOK.page(f"{edition}/{NAME}")).values():
        exec(code, variables)
    return variables


@pytest.fixture
def judge(edition):
    """What a puzzle's check prints after an answer, or without one."""
    checks = {cell.id: cell.source for cell in BOOK.page(f"{edition}/{NAME}").code}

    def judge(variables, number, answer=""):
        return judged(variables, checks[f"exercise-{number}-check"], answer)

    return judge


@pytest.mark.parametrize("number", NUMBERS)
def test_unanswered(lesson, judge, edition, number):
    words = {
        "en": f"Exercise {number}: no answer yet (all return None)\n",
        "zh": f"练习 {number}：还没有作答（返回的都是 None）\n",
    }
    assert judge(lesson, number) == words[edition]


@pytest.mark.parametrize("number", NUMBERS)
def test_solution(solved, judge, number):
    assert judge(solved, number).startswith("✓")


def cases(answers):
    return [pytest.param(n, one, id=f"{n}-{index}") for n in NUMBERS for index, one in enumerate(answers[n])]


@pytest.fixture
def undrawn(lesson, monkeypatch):
    """Figures take longer than the runs that they show."""
    monkeypatch.setitem(lesson, "draw", lambda *arguments: None)


@pytest.mark.parametrize("number, answer", cases(OTHER_WAYS))
def test_other_ways(solved, judge, undrawn, number, answer):
    assert judge(solved, number, answer).startswith("✓")


@pytest.mark.parametrize("number, wrong", cases(WRONG))
def test_wrong_or_wasteful(solved, judge, undrawn, edition, number, wrong):
    answer, words = wrong
    printed = judge(solved, number, answer)
    assert printed.startswith("✗") and printed.count("\n") == 1
    assert edition != "en" or words in printed


@pytest.fixture(scope="module")
def english():
    return run_cells(f"en/{NAME}", [cell.id for cell in BOOK.page(f"en/{NAME}").code])


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_runs_repeat(english, ranks):
    """The same clock, the same order, the same memory at each moment."""
    variables = dict(english)
    for number in (8, 9):
        exec(SOLUTIONS[number], variables)

    def once():
        arguments = variables["pipeline_case"](ranks, 12).arguments
        run = variables["run"](variables["one_f_one_b"], *arguments, link=math.inf)
        return run.steps, run.transfers, [rank.held_over_time for rank in run.ranks]

    assert once() == once()


def threads():
    """Those that are still there, but for this one; the last of a run may be in its last instructions."""
    for thread in threading.enumerate():
        if thread.name.endswith("(run_function)"):
            thread.join(5)
    return [thread for thread in threading.enumerate() if thread.name.endswith("(run_function)")]


def receive_from_the_next(rank):
    return rank.receive((rank.number + 1) % 3)


def receive_from_the_first(rank):
    return rank.receive(0) if rank.number else None


@pytest.mark.parametrize(
    "function, ranks, words",
    [
        (lambda rank: 1 / (1 - rank.number), 2, "rank 1: ZeroDivisionError: division by zero"),
        (
            lambda rank: rank.send("text", 1 - rank.number),
            2,
            "rank 0: TypeError: send(tensor, to) needs a tensor, not str",
        ),
        (lambda rank: rank.send(torch.ones(1), 2), 2, "rank 0: ValueError: no link to rank 2 of 2"),
        (
            lambda rank: rank.send(1 - rank.number, torch.ones(2)),
            2,
            "rank 0: TypeError: send(tensor, to) needs a tensor, not int",
        ),
        (lambda rank: rank.receive(rank.number), 2, "rank 0: ValueError: no link to rank 0 of 2"),
        (
            receive_from_the_next,
            3,
            "rank 0 waits for rank 1 in line {0}, rank 1 waits for rank 2 in line {0}, "
            "rank 2 waits for rank 0 in line {0}",
        ),
        (
            receive_from_the_first,
            3,
            "rank 1 waits for rank 0 (which has ended) in line {0}, "
            "rank 2 waits for rank 0 (which has ended) in line {0}",
        ),
    ],
)
def test_failures_are_the_same_each_time_and_end_all_threads(english, function, ranks, words):
    for _ in range(3):
        with pytest.raises(english["RankError"]) as failure:
            english["run"](function, *[[]] * ranks)
        assert str(failure.value) == words.format(function.__code__.co_firstlineno + 1)
    assert not threads()


def gather_alone(rank, part, all_gather):
    if rank.number:
        return all_gather(rank, part)


def reduce_alone(rank, whole, all_reduce):
    if rank.number:
        return rank.start(all_reduce, rank, whole)()


@pytest.mark.parametrize(
    "function, helper, inside",
    [(gather_alone, "all_gather", "all_gather"), (reduce_alone, "all_reduce", "reduce_scatter")],
)
def test_a_deadlock_inside_a_helper_names_the_line_that_calls_it(english, function, helper, inside):
    tensor = english["torch"].ones(4)
    line = function.__code__.co_firstlineno + 2
    with pytest.raises(english["RankError"]) as failure:
        english["run"](function, *[[tensor, english[helper]]] * 2)
    words = f"rank 1 waits for rank 0 (which has ended) in line {line} (inside {inside})"
    assert str(failure.value) == words
    # a function without a cell: the line of the helper
    with pytest.raises(english["RankError"], match="rank 1 waits for rank 0 .* in line [0-9]+$"):
        english["run"](functools.partial(function), *[[tensor, english[helper]]] * 2)


def test_a_tensor_of_the_notebook_belongs_to_the_first_rank_that_uses_it(english):
    shared = english["torch"].ones(3)
    with pytest.raises(english["RankError"], match="this tensor is in the memory of rank 0"):
        english["run"](lambda rank: shared + 1, [], [])


def test_a_run_ends_its_threads(english):
    finished = english["run"](english["exchange"], *[[english["torch"].ones(4)]] * 2)
    assert [result.tolist() for result in finished.results] == [[2.0] * 4] * 2
    assert not threads()


def test_a_drawing_says_which_colour_is_which_pass(solved, lesson, edition):
    """Even where the boxes are too small for their labels; a run without layers has no boxes."""
    words = {"en": ["forward", "backward"], "zh": ["前向", "反向"]}
    trial = solved["pipeline_case"](4, 12)
    finished = solved["run"](solved["one_f_one_b"], *trial.arguments, link=trial.link)
    for run, expected in ((finished, words[edition]), (lesson["example"], None)):
        lesson["draw"](run)
        top, below = lesson["plt"].gcf().axes
        legend = top.get_legend()
        assert expected == (legend and [text.get_text() for text in legend.get_texts()])
        assert len(below.get_legend().get_texts()) == run.size
        if expected:
            assert not top.texts
            boxes = {tuple(box.get_facecolor()[0]) for box in top.collections if len(box.get_paths()) == 1}
            assert {tuple(handle.get_facecolor()[0]) for handle in legend.legend_handles} <= boxes
        lesson["plt"].close("all")


def test_numbers_of_the_prose(english):
    """What the hints and solutions say of steps."""
    variables = dict(english)
    for size, expected in ((2, 18), (8, 24), (1, 25)):
        exec(changed(5, ("len(bucket) == 2", f"len(bucket) == {size}")), variables)
        trial = english["ddp_case"](2)
        assert english["run"](variables["ddp"], *trial.arguments, link=trial.link).steps == expected
