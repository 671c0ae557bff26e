"""A loss behind a linear layer as a differentiable torch function."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from losszoo.linear_layer import classes, rows
from losszoo.linear_layer.problem import LINEAR_BIAS, LINEAR_WEIGHT, Problem
from losszoo.linear_layer.scale import scale
from losszoo.runtime import autograd
from losszoo.runtime.labels import check_labels

if TYPE_CHECKING:
    from losszoo.parallel.shards import Shards


class Strategy(Protocol):
    """How the logits are gone through in chunks."""

    def forward(
        self, p: Problem, wanted: frozenset[str], scale: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor] | None, list[Tensor]]: ...

    def backward(self, p: Problem, wanted: frozenset[str], kept: list[Tensor], upstream: Tensor) -> dict[str, Tensor]: ...


def compute(problem: Problem, strategy: str | None, memory: int | None, shards: Shards | None = None) -> Tensor:
    """The loss of a checked call, of which this rank has the classes that `shards` says, or all."""
    if problem.device.type == "cpu" or os.environ.get("LOSSZOO_CHECK") == "1":
        check_labels(problem.call)
    able = {*problem.layer, *(f".{name}" for name in problem.call.differentiable)}
    tensors = problem.tensors
    wanted = frozenset(n for n, x in tensors.items() if n in able and x.requires_grad) if torch.is_grad_enabled() else frozenset()
    if shards is None:
        chosen = choose(problem, wanted, strategy, memory)
    else:
        chosen = classes.plan(problem, wanted, memory or CLASSES_BYTES, shards)
    if wanted:
        return _Function.apply(problem, chosen, wanted, tuple(tensors), *tensors.values())
    with torch.no_grad():
        return _forward(problem, chosen, wanted)[0]


ROWS_BYTES, CLASSES_BYTES = 512 << 20, 128 << 20  # of a chunk
FEW = 256  # rows: below so many in a chunk its products wait for memory


def choose(p: Problem, wanted: frozenset[str], strategy: str | None, memory: int | None) -> Strategy:
    """The strategy asked for, or the one for the size of a call.

    Classes take up to a product more than rows, and some time for the input's sum, unless rows take that product too. They are chosen
    where rows would be in short chunks, or would want more memory for sums than all logits take.
    """
    if len(p.call.shape) > 1 or p.interpreted:
        if strategy == "classes" and not p.interpreted:
            raise ValueError("strategy: 'classes' takes a linear_weight of two axes (classes, in_features)")
        return rows.plan(p, wanted, memory or ROWS_BYTES)
    by_rows = rows.plan(p, wanted, memory or ROWS_BYTES)
    if strategy is None:
        many, short = by_rows.chunks(p) > 1, by_rows.size < min(FEW, p.rows)
        again = bool(wanted) and not formed_early(p)
        heavy = LINEAR_WEIGHT in wanted and by_rows.bytes_of_sums(p) > p.rows * p.width * p.dtype.itemsize
        strategy = "classes" if many and (short or again or heavy) else "rows"
    return by_rows if strategy == "rows" else classes.plan(p, wanted, memory or CLASSES_BYTES)


def _forward(
    p: Problem, strategy: Strategy, wanted: frozenset[str]
) -> tuple[Tensor, Tensor | None, dict[str, Tensor] | None, list[Tensor]]:
    """The loss, what it was divided by, and the gradients if they could be formed, or else what the backward wants."""
    denominator, kept = p.denominator(), p.kept()
    early = _scale(p, denominator) if wanted and formed_early(p) else None
    part = p if kept is None else p.select(kept)
    losses, grads, states = strategy.forward(part, wanted, early)
    if kept is not None:
        losses = _spread(losses, kept, p.rows)
        grads = grads and _spread_gradients(grads, kept, p)
    if p.call.reduction == "none":
        return losses, None, grads, states
    total = losses.sum(dtype=torch.float64)
    loss = total if denominator is None else total / denominator
    return loss.to(p.call.real), denominator, grads, states


def formed_early(p: Problem) -> bool:
    """Whether gradients can be formed in the forward.

    They cannot for a loss a row, nor in float16, where a loss scale that only the backward brings keeps them from vanishing.
    """
    return p.call.reduction != "none" and p.dtype is not torch.float16


def _scale(p: Problem, denominator: Tensor | None) -> Tensor:
    """What each row's gradient is multiplied by before the upstream one is known."""
    one = torch.ones((), dtype=p.call.real, device=p.device)
    return one if denominator is None else (one / denominator).to(p.call.real)


def _backward(
    p: Problem, strategy: Strategy, wanted: frozenset[str], states: list[Tensor], denominator: Tensor | None, upstream: Tensor
) -> dict[str, Tensor]:
    upstream = (upstream if denominator is None else upstream / denominator).to(p.call.real)
    kept = p.kept()
    if kept is None:
        return strategy.backward(p, wanted, states, upstream)
    some = upstream[kept] if upstream.ndim else upstream
    return _spread_gradients(strategy.backward(p.select(kept), wanted, states, some), kept, p)


def _spread(x: Tensor, rows: Tensor, count: int) -> Tensor:
    """x at its rows among `count`, 0 at the others."""
    return x.new_zeros(count, *x.shape[1:]).index_copy_(0, rows, x)


def _spread_gradients(grads: dict[str, Tensor], rows: Tensor, p: Problem) -> dict[str, Tensor]:
    layer = (LINEAR_WEIGHT, LINEAR_BIAS)
    return {name: x if name in layer else _spread(x, rows, p.rows) for name, x in grads.items()}


def _differentiable(p: Problem, wanted: frozenset[str], upstream: Tensor) -> dict[str, Tensor]:
    """The gradients, to be differentiated again: with all logits in memory, as torch's own functions have them."""
    tensors, names = p.tensors, sorted(wanted)
    # Autocast may differ from that of the forward, which has left the type of the logits.
    with torch.enable_grad(), torch.autocast(p.device.type, enabled=False):
        bias = None if p.bias is None else p.bias.to(p.dtype)
        logits = functional.linear(p.input.to(p.dtype), p.weight.to(p.dtype), bias)
        logits = logits.view(p.call.operands[p.logits].shape)
        call = replace(p.call, operands={**p.call.operands, p.logits: logits})
        loss = autograd.compute(call, p.interpreted)
        grads = torch.autograd.grad(loss, [tensors[n] for n in names], upstream, create_graph=True)
    return dict(zip(names, grads, strict=True))


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: Problem, strategy: Strategy, wanted: frozenset[str], names: tuple[str, ...], *tensors: Tensor) -> Tensor:
        loss, denominator, grads, states = _forward(p, strategy, wanted)
        ctx.p, ctx.strategy, ctx.wanted, ctx.names = p.without_tensors(), strategy, wanted, names
        ctx.early = None if grads is None else tuple(grads)
        ctx.divided = denominator is not None
        own = [] if denominator is None else [denominator]
        ctx.save_for_backward(*tensors, *own, *(states if grads is None else grads.values()))
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        p = ctx.p.with_tensors({name: next(saved) for name in ctx.names})
        denominator = next(saved) if ctx.divided else None
        kept = list(saved)
        if torch.is_grad_enabled():  # only if the gradient is to be differentiated again
            if isinstance(ctx.strategy, classes.Classes) and ctx.strategy.shards is not None:
                ctx.strategy.shards.refuse(p.call)
            found = _differentiable(p.divided_by(denominator), ctx.wanted, upstream)
        elif ctx.early is None:
            found = _backward(p, ctx.strategy, ctx.wanted, kept, denominator, upstream)
        else:
            again = torch._C._autograd._get_current_graph_task_keep_graph()
            found = dict(zip(ctx.early, (x.clone() for x in kept) if again else kept, strict=True))
            for x in found.values():
                scale(x, upstream)
        return None, None, None, None, *(found.get(name) for name in ctx.names)
