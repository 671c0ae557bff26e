"""A drawn call of a loss, split over ranks and put together again."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

import losszoo
from losszoo.runtime.arguments import Call
from losszoo.runtime.layout import class_axis
from losszoo.spec.operands import ClassWeight, Row
from losszoo.surface import LossFunction

COLLECTIVES = [n for n in dir(dist) if n.startswith(("all_", "reduce", "broadcast", "gather", "scatter", "send", "recv", "barrier"))]


def found(where: str) -> LossFunction:
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


@dataclass
class Case:
    """What each rank gets to do its part."""

    where: str
    tensors: dict[str, Tensor]
    options: dict[str, Any]
    rows: tuple[str, ...]  # the operands with a class axis to be split, class weights among them
    differentiable: tuple[str, ...]
    sizes: tuple[int, ...]
    upstream: Tensor | None  # None: forward without gradients
    told: bool = True  # sizes are given


@dataclass
class Result:
    loss: Tensor
    grads: dict[str, Tensor]
    collectives: list[str]


def case_of(where: str, call: Call, sizes: tuple[int, ...], split_weights: bool, told: bool, upstream: Tensor | None) -> Case:
    spec = call.spec
    numbers = iter(call.numbers)
    options: dict[str, Any] = {
        p.name: next(numbers) if present else p.fixed[0] for p, present in zip(spec.parameters, call.choice.present, strict=True)
    }
    options |= {s.name: value for s, value in zip(spec.statics, call.choice.statics, strict=True)}
    options |= {"reduction": call.reduction} | ({"ignore_index": call.ignore_index} if spec.labelled else {})
    if call.normalizer is not None:
        options["normalizer"] = call.normalizer
    rows = tuple(n for n, kind in call.kinds.items() if kind is Row or kind is ClassWeight and split_weights)
    tensors = {n: x.detach() for n, x in call.operands.items()}
    return Case(where, tensors, options, rows, tuple(call.differentiable), sizes, upstream, told)


def where() -> str:
    """The device of this rank's tensors."""
    return "cuda" if dist.is_initialized() and dist.get_backend() == "nccl" else "cpu"


def shard(x: Tensor, sizes: tuple[int, ...], rank: int) -> Tensor:
    return x.narrow(class_axis(x.ndim), sum(sizes[:rank]), sizes[rank])


def job(group: dist.ProcessGroup, case: Case) -> Result:
    rank = dist.get_rank(group)
    tensors = {n: (shard(x, case.sizes, rank) if n in case.rows else x).to(where()) for n, x in case.tensors.items()}
    if case.upstream is not None:
        tensors = {n: x.detach().requires_grad_(n in case.differentiable) for n, x in tensors.items()}
    before = {n: x.detach().clone() for n, x in tensors.items()}
    function = losszoo.parallel.sharded(found(case.where), group, sizes=case.sizes if case.told else None)
    made: list[str] = []

    def counted(name: str, collective):
        def call(*args, **kwargs):
            made.append(name)
            return collective(*args, **kwargs)

        return call

    with mock.patch.multiple(dist, **{n: counted(n, getattr(dist, n)) for n in COLLECTIVES if callable(getattr(dist, n))}):
        loss = function(**tensors, **case.options)
        grads = {}
        if case.upstream is not None:
            leaves = [tensors[n] for n in case.differentiable]
            upstream = case.upstream.to(where())
            found_grads = torch.autograd.grad(loss, leaves, upstream, retain_graph=True)
            again = torch.autograd.grad(loss, leaves, upstream)
            assert all(same_bits(a, b) for a, b in zip(found_grads, again, strict=True)), "two backward passes differ"
            grads = {n: g.cpu() for n, g in zip(case.differentiable, found_grads, strict=True)}
    for name, x in tensors.items():
        assert same_bits(before[name], x.detach()), f"{name} was written"
    return Result(loss.detach().cpu(), grads, made)


def together(case: Case, results: list[Result], name: str) -> Tensor:
    """A gradient of all ranks as one."""
    grads = [r.grads[name] for r in results]
    if name not in case.rows:
        assert all(same_bits(g, grads[0]) for g in grads)
        return grads[0]
    return torch.cat(grads, class_axis(grads[0].ndim))


def same_bits(a: Tensor, b: Tensor) -> bool:
    a, b = (x.cpu().contiguous().view(-1) for x in (a, b))
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
