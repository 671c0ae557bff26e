"""What a rank does in tests of single things."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import losszoo
from examples.distillation import kl_distillation_loss
from examples.jsd import jsd_distillation_loss
from losszoo.compat.megatron import vocab_parallel_cross_entropy
from losszoo.parallel import sharded
from losszoo.runtime import dispatch
from tests.parallel.cases import where


def data(rows=6, classes=50, dtype=torch.float32):
    """The same on every rank."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(rows, classes, generator=g).to(dtype)
    y = torch.randint(classes, (rows,), generator=g)
    y[1] = -100
    return x.to(where()), y.to(where()), (torch.rand(classes, generator=g) + 0.5).to(where())


def mine(group, x, classes=50):
    """This rank's classes, by torch.chunk's rule."""
    parts = torch.tensor_split(torch.arange(classes), dist.get_world_size(group))
    own = parts[dist.get_rank(group)]
    return x[..., own[0] : own[-1] + 1], own[0]


def stray(group):
    """The error of every rank."""
    x, y, _ = data()
    try:
        sharded(losszoo.cross_entropy, group)(mine(group, x)[0], y.clamp(min=0) + 50)
    except IndexError as error:
        return str(error)


def all_ignored(group):
    x, y, _ = data()
    shard = mine(group, x)[0].clone().requires_grad_()
    shard.data[0, 0] = float("nan")
    loss = sharded(losszoo.cross_entropy, group)(shard, torch.full_like(y, -100))
    loss.backward()
    return loss.detach().cpu(), shard.grad.cpu()


def extreme(group):
    """Masked classes, a row masked on one rank alone, an infinity, a nan: each in its own row."""
    x, y, _ = data(5)
    inf, y = float("inf"), y.clamp(min=0)
    x[0, 1:] = -inf
    x[1, :20] = -inf
    x[2, 3], x[3, 4] = inf, float("nan")
    whole = x.clone().requires_grad_()
    y[0] = 0
    y[1] = 30
    expected = losszoo.cross_entropy(whole, y, reduction="none")
    expected.sum().backward()
    part, first = mine(group, x)
    shard = part.clone().requires_grad_()
    loss = sharded(losszoo.cross_entropy, group)(shard, y, reduction="none")
    loss.sum().backward()
    torch.testing.assert_close(loss, expected, equal_nan=True)
    torch.testing.assert_close(shard.grad, whole.grad[:, first : first + shard.shape[1]], equal_nan=True)


def other_size(group):
    x, y, _ = data()
    loss = sharded(losszoo.cross_entropy, group)
    loss(mine(group, x)[0], y)
    try:
        loss(mine(group, x)[0][:, :-1], y)
    except ValueError as error:
        return str(error)


def twice(group):
    """A second derivative is refused, and not silently wrong."""
    x, y, _ = data()
    shard = mine(group, x)[0].clone().requires_grad_()
    try:
        torch.autograd.grad(sharded(losszoo.cross_entropy, group)(shard, y), shard, create_graph=True)
    except NotImplementedError as error:
        return str(error)


def natively(group):
    """By the native runtime the same bits as by Python, and a plan for each call but those of whole class weights."""
    x, y, w = data()
    own = mine(group, w)[0].clone()
    cases = (
        (losszoo.cross_entropy, torch.float32, (y,), {"label_smoothing": 0.1}, 2),
        (losszoo.cross_entropy, torch.bfloat16, (y.int(), own), {"reduction": "none"}, 2),
        (losszoo.cross_entropy, torch.float32, (y, w), {}, 2 if dist.get_rank(group) == 0 else 0),
        (losszoo.softmax_focal_loss, torch.float64, (y,), {"normalizer": 7.0}, 2),
        (kl_distillation_loss, torch.float32, (mine(group, x.flip(1))[0],), {"temperature": 2.0}, 2),
        (jsd_distillation_loss, torch.float32, (mine(group, x.flip(1))[0],), {}, 2),  # in two passes
    )
    for loss, dtype, others, options, plans in cases:
        results = []
        for by_python in False, True:
            function, turns = sharded(loss, group), [False, True]
            with mock.patch.object(dispatch, "natively", lambda spec, planned, python: (python, True)) if by_python else nullcontext():
                for grad in turns:
                    shard = mine(group, x)[0].to(dtype).clone().requires_grad_(grad)
                    value = function(shard, *others, **options)
                    results += [value, *(torch.autograd.grad(value.sum(), shard) if grad else ())]
            if not by_python:
                assert function.__globals__["_call_"].plans() == (2, plans)
        for native, python in zip(results[:3], results[3:], strict=True):
            assert torch.equal(native.nan_to_num(7.0), python.nan_to_num(7.0)) and native.stride() == python.stride()


def module(group):
    x, y, w = data()
    part, first = mine(group, x)
    made = sharded(losszoo.cross_entropy, group).module("VocabLoss")(weight=w, label_smoothing=0.1)
    torch.testing.assert_close(made(part, y), F.cross_entropy(x, y, w, label_smoothing=0.1))
    half = sharded(losszoo.cross_entropy, group)(part, y, normalizer=torch.tensor(7.0, device=where()))
    torch.testing.assert_close(half, F.cross_entropy(x, y, reduction="sum") / 7)


def compiled(group):
    x, y, _ = data()
    part = mine(group, x)[0]
    loss = sharded(losszoo.cross_entropy, group, sizes=[len(c) for c in torch.tensor_split(torch.arange(50), dist.get_world_size(group))])

    def step(x, y, s):
        return 2 * loss(3 * x, y, label_smoothing=s)

    results = []
    for function in step, torch.compile(step, fullgraph=True, backend="aot_eager"):
        shard = part.clone().requires_grad_()
        value = function(shard, y, 0.1)
        value.backward()
        results.append((value.detach(), shard.grad))
    for eager, traced in zip(*results, strict=True):
        assert torch.equal(eager, traced)


def captured(group):
    """In a CUDA graph, collective and all, replayed on other values."""
    x, y, _ = data(64, 5000, torch.bfloat16)
    shard = mine(group, x, 5000)[0].clone().requires_grad_()
    loss = sharded(losszoo.cross_entropy, group)
    one = torch.ones((), device="cuda")

    def step():
        value = loss(shard, y, label_smoothing=0.1)
        return value.detach(), torch.autograd.grad(value, shard, one)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static = step()
    shard.data.mul_(1.5)
    graph.replay()
    for got, expected in zip(static, step(), strict=True):
        assert torch.equal(got, expected)


def without_kernels(group):
    """No compiler: the shards are gathered, and the interpreter takes them."""
    from unittest import mock

    from losszoo.runtime import autograd

    x, y, w = data()
    whole = x.clone().requires_grad_()
    expected = F.cross_entropy(whole, y, w)
    expected.backward()
    part, first = mine(group, x)
    shard = part.clone().requires_grad_()
    with mock.patch.object(autograd, "compiled", lambda device: False):
        loss = sharded(losszoo.cross_entropy, group)(shard, y, mine(group, w)[0])
        loss.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(shard.grad, whole.grad[:, first : first + shard.shape[1]])


def distributed_tensor(group):
    """A DTensor split along its classes, whatever else is a DTensor; and one that is split in no way."""
    mesh = DeviceMesh.from_group(group, where())
    x, y, w = data(classes=10)  # by DTensor's rule four ranks have 3, 3, 3 and 1 of them
    whole = x.clone().requires_grad_()
    expected = F.cross_entropy(whole, y, w, label_smoothing=0.1)
    expected.backward()
    for placement in Shard(1), Replicate():
        for weight in w, distribute_tensor(w, mesh, [Shard(0)]), distribute_tensor(w, mesh, [Replicate()]):
            for labels in y, distribute_tensor(y, mesh, [Replicate()]):
                logits = distribute_tensor(x, mesh, [placement]).requires_grad_()
                loss = losszoo.cross_entropy(logits, labels, weight, label_smoothing=0.1)
                loss.backward()
                assert isinstance(loss, DTensor) and tuple(logits.grad.placements) == (placement,)
                torch.testing.assert_close(loss.to_local(), expected)
                torch.testing.assert_close(logits.grad.full_tensor(), whole.grad)
    teacher = copy.deepcopy(x).flip(0)
    found = kl_distillation_loss(distribute_tensor(x, mesh, [Shard(1)]), distribute_tensor(teacher, mesh, [Replicate()]))
    torch.testing.assert_close(found.to_local(), kl_distillation_loss(x, teacher))
    said = []
    for call in (
        lambda: losszoo.cross_entropy(distribute_tensor(x, mesh, [Shard(0)]), y),
        lambda: losszoo.cross_entropy(x, distribute_tensor(y, mesh, [Replicate()])),
        lambda: kl_distillation_loss(distribute_tensor(x, mesh, [Shard(1)]), teacher),
        lambda: losszoo.sigmoid_focal_loss(distribute_tensor(x, mesh, [Shard(1)]), x),
        lambda: sharded(losszoo.cross_entropy, group)(distribute_tensor(x, mesh, [Shard(1)]), y),
    ):
        try:
            call()
        except (TypeError, ValueError) as error:
            said.append(str(error))
    return said


def megatron(group, smoothing):
    classes, a = 12 * dist.get_world_size(group), 0.2
    x, y, _ = data(6, classes)
    whole = x.clone().requires_grad_()
    logp = whole.log_softmax(-1)
    target = y.clamp(min=0)
    hard = -logp.gather(1, target[:, None])[:, 0]
    if smoothing == "all":
        expected = (1 - a) * hard - a * logp.mean(-1)
    else:
        expected = (1 - a) * hard + a * (-logp.sum(-1) - hard) / (classes - 1)
    expected = torch.where(y == -100, 0, expected)
    expected.sum().backward()
    rank = dist.get_rank(group)
    shard = x[:, 12 * rank : 12 * rank + 12].reshape(3, 2, 12).clone().requires_grad_()
    loss = vocab_parallel_cross_entropy(shard, y.view(3, 2), a, group, smoothing=smoothing)
    loss.sum().backward()
    torch.testing.assert_close(loss, expected.view(3, 2))
    torch.testing.assert_close(shard.grad, whole.grad[:, 12 * rank : 12 * rank + 12].reshape(3, 2, 12))


def over_batches(group, wrapped, grad_of):
    """A model on each rank with its part of the batch: the gradient is that of the mean over the items of all ranks."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    torch.manual_seed(0)
    inputs, y = torch.randn(4 * world, 5).to(where()), torch.randint(14, (4 * world,)).to(where())
    layer = torch.nn.Linear(5, 14).to(where())
    y[:3] = -100
    F.cross_entropy(layer(inputs), y).backward()
    own, mine = copy.deepcopy(layer), slice(4 * rank, 4 * rank + 4)
    own.zero_grad()
    model = wrapped(own, group)
    count = losszoo.parallel.global_count((y[mine] != -100).sum(), group)
    losszoo.cross_entropy(model(inputs[mine]), y[mine], normalizer=count).backward()
    for expected, got in zip(layer.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(grad_of(got), expected.grad)


def ddp(group):
    from torch.nn.parallel import DistributedDataParallel

    over_batches(group, lambda model, group: DistributedDataParallel(model, process_group=group), lambda p: p.grad)


def fsdp2(group):
    from torch.distributed.fsdp import fully_shard

    over_batches(group, lambda model, group: fully_shard(model, mesh=DeviceMesh.from_group(group, where())), lambda p: p.grad.full_tensor())


def example(group):
    from examples.sharded import train

    return train(group)


def data_parallel(group):
    """DistributedDataParallel around a model whose logits are split: two by two, the mean over the items of all."""
    from torch.nn.parallel import DistributedDataParallel

    world, rank = 2, dist.get_rank(group)
    row = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // world]  # shares a batch
    column = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % world]  # shares classes
    torch.manual_seed(0)
    inputs, layer = torch.randn(8, 5), torch.nn.Linear(5, 14)
    y = torch.randint(14, (8,))
    y[:3] = -100
    F.cross_entropy(layer(inputs), y).backward()
    half, part = slice(4 * (rank // world), 4 * (rank // world) + 4), slice(7 * (rank % world), 7 * (rank % world) + 7)
    own = torch.nn.Linear(5, 7)
    own.load_state_dict({"weight": layer.weight[part].detach(), "bias": layer.bias[part].detach()})
    model = DistributedDataParallel(own, process_group=column)
    count = losszoo.parallel.global_count((y[half] != -100).sum(), column)
    sharded(losszoo.cross_entropy, row)(model(inputs[half]), y[half], normalizer=count).backward()
    torch.testing.assert_close(own.weight.grad, layer.weight.grad[part])
    torch.testing.assert_close(own.bias.grad, layer.bias.grad[part])
