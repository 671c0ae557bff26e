"""Any loss of rows, with the classes split over the ranks of a process group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from losszoo.parallel.shards import Shards
from losszoo.runtime import autograd, dispatch
from losszoo.runtime.arguments import Call
from losszoo.runtime.plans import plan
from losszoo.spec.operands import Row
from losszoo.surface import LossFunction, expose


def sharded(loss: LossFunction, group: dist.ProcessGroup | None = None, *, sizes: Sequence[int] | None = None) -> LossFunction:
    """The same loss, of rows whose classes are split over the ranks of a process group. Every rank calls it, each with its shard.

        vocab_loss = losszoo.parallel.sharded(losszoo.my_loss, group)
        loss = vocab_loss(logits_shard, labels)                       # the loss of the whole rows, the same bits on every rank
        loss.backward()                                               # the gradient of logits_shard

    Ranks hold neighbouring classes in the order of their ranks; how many may differ, and be none. What the function takes:
        every Row: this rank's classes, (local), (N, local) or (N, local, d1, ...), at best with the classes innermost.
        class weights: those of this rank's classes, or of all.
        labels and all else: the same on every rank. Labels count the classes of all ranks, and so does smoothing.
        options, reduction, weight, normalizer: as the loss itself, and the same on every rank.

    Each rank reads its shard once, one collective gathers a few numbers a row from each (one for each pass over the row, of which
    nearly every loss has one), and the backward needs none. Nothing of the size of the shard is kept but what was passed in.

    sizes: how many classes each rank has. Without them they are gathered in the first call, and hold for all later ones.

    Raises TypeError where the loss has no rows; ValueError where a shard is not of the size that it was; IndexError on every rank for
    a label out of range (on CUDA, loss and gradient of that row are nan). It has no second derivative.
    """
    spec = loss.spec
    if not spec.row:
        raise TypeError(f"sharded: {spec.name} has no class axis, so there is nothing to split")
    shards, checked = Shards(group, sizes), dispatch.checker(spec)
    leader = next(i for i, o in enumerate(spec.operands) if Row in o.kinds)

    @cache
    def operator() -> Callable[..., Tensor]:
        from losszoo.parallel.operator import Engine  # as late as this, since torch.library takes its time
        from losszoo.runtime import ops

        return ops.operator(spec, engine=Engine(shards))

    def by_python(*arguments: Any) -> Tensor:
        if dispatch.watched():
            return operator()(*arguments)
        if any(map(dispatch.is_distributed, arguments)):
            raise TypeError(f"sharded: got a DTensor, expected this rank's shard: pass .to_local(), or the DTensor to {spec.name} itself")
        shards.settle(arguments[leader])
        return compute(checked(*arguments, whole=shards.whole), shards)

    def planned(*arguments: Any) -> dict | None:
        shards.settle(arguments[leader])
        given = [x for x in (*arguments[: len(spec.operands)], arguments[-2]) if x is not None]
        return plan(checked(*arguments, whole=shards.whole), given, shards)

    return expose(spec, engine=(lambda: dispatch.natively(spec, planned, by_python), operator))


def compute(call: Call, shards: Shards) -> Tensor:
    """The loss of a checked call, of which the operands with a class axis are this rank's."""
    wrt = autograd.wanted(call)
    if wrt:
        return _Function.apply(call, shards, wrt, *call.operands.values())
    return shards.forward(call, autograd.built_for(call, wrt), keep=False)[0]


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call: Call, shards: Shards, wrt: tuple[str, ...], *tensors: Tensor) -> Tensor:
        loss, kept = shards.forward(call, wrt, keep=True)
        ctx.call, ctx.shards, ctx.wrt = call.with_operands({}), shards, wrt
        ctx.save_for_backward(kept, *tensors)
        return loss

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # only if the gradient is to be differentiated again
            ctx.shards.refuse(ctx.call)
        kept, *tensors = ctx.saved_tensors
        call = ctx.call.with_operands(dict(zip(ctx.call.kinds, tensors, strict=True)))
        found = dict(zip(ctx.wrt, ctx.shards.backward(call, ctx.wrt, grad, kept), strict=True))
        return None, None, None, *(found.get(name) for name in call.kinds)
