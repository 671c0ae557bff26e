"""Classes in chunks: the logits of some classes at a time, of all rows, by kernels that see a part of a row.

The forward folds each chunk into a few numbers a row, the backward computes its logits again: four products, and one more for each
pass that the loss takes over its rows after the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from losszoo.linear_layer.chunks import chunk_size, matrix, row_stride
from losszoo.linear_layer.problem import INPUT, LINEAR_BIAS, LINEAR_WEIGHT, Problem
from losszoo.linear_layer.products import product, wide
from losszoo.runtime.autograd import built_for
from losszoo.runtime.parts import Part, Parts
from losszoo.spec.operands import Row

if TYPE_CHECKING:
    from losszoo.parallel.shards import Shards


@dataclass(frozen=True)
class Classes:
    """The strategy, for chunks of `size` classes; those that there are, or those of this rank, where `shards` says which they are."""

    size: int
    shards: Shards | None = None

    def forward(self, p: Problem, wanted: frozenset[str], scale: Tensor | None) -> tuple[Tensor, None, list[Tensor]]:
        """The loss of each row, and what the backward wants."""
        work = _Work(p, self, ())
        parts = Parts(work.call, built_for(work.call, p.wrt(wanted)))
        for number in range(parts.passes):
            states = None
            for chunk in work:
                states = parts.fold(chunk.part, number, states)
            assert states is not None  # there is a chunk, if one without classes
            parts.merge(states[None] if self.shards is None else self.shards.gather(states), number)
        losses, kept = parts.finish(keep=bool(wanted))
        return losses, None, [kept]

    def backward(self, p: Problem, wanted: frozenset[str], kept: list[Tensor], upstream: Tensor) -> dict[str, Tensor]:
        """The gradients of `wanted`. `upstream` is one number, or one a row."""
        wrt, tensors = p.wrt(wanted), p.tensors
        types = {INPUT: p.input.dtype if self.size >= p.width and self.shards is None else wide(p.dtype)}
        found = {n: torch.empty(x.shape, dtype=types.get(n, x.dtype), device=p.device) for n, x in tensors.items() if n in wanted}
        work = _Work(p, self, wrt)
        parts = Parts(work.call, wrt)
        for chunk in work:
            at = slice(chunk.begin, chunk.end)
            for name, gradient in zip(wrt, parts.backward(chunk.part, upstream, kept[0]), strict=True):
                if name != p.logits:
                    own = found[f".{name}"]
                    (own[:, at] if p.call.kinds[name] is Row else own).copy_(gradient)
                    continue
                if INPUT in found:
                    product(found[INPUT], gradient, chunk.weight, add=chunk.begin > 0)
                if LINEAR_WEIGHT in found:
                    product(found[LINEAR_WEIGHT][at], gradient.t(), work.input)
                if LINEAR_BIAS in found:
                    found[LINEAR_BIAS][at] = gradient.sum(0, dtype=wide(p.dtype))
        if INPUT in found and self.shards is not None and self.shards.count > 1:
            dist.all_reduce(found[INPUT], group=self.shards.group)
        return {name: x.to(tensors[name].dtype) for name, x in found.items()}


def plan(p: Problem, wanted: frozenset[str], memory: int, shards: Shards | None = None) -> Classes:
    """As few chunks as `memory` bytes for logits and their gradient allow, all about as large."""
    copies = 1 if _in_place(p) or p.logits not in p.wrt(wanted) else 2
    return Classes(chunk_size(p.width, p.rows * p.dtype.itemsize * copies, memory), shards)


def _in_place(p: Problem) -> bool:
    """Whether the gradient of logits is written over them. On the CPU loops that may overlap are not vectorised."""
    return p.device.type == "cuda"


@dataclass(frozen=True)
class _Chunk:
    begin: int
    end: int
    weight: Tensor  # in the logits' type
    part: Part


class _Work:
    """The chunks, one after another in the same memory."""

    def __init__(self, p: Problem, strategy: Classes, wrt: tuple[str, ...]) -> None:
        self.p, self.size = p, min(strategy.size, p.width)
        self.first = 0 if strategy.shards is None else strategy.shards.local.start
        self.input = p.input.to(p.dtype)
        self.call = replace(p.call, reduction="none", normalizer=None)
        self.logits = torch.empty(p.rows * row_stride(self.size, p.dtype), dtype=p.dtype, device=p.device)
        self.gradient = self.logits if p.logits not in wrt or _in_place(p) else torch.empty_like(self.logits)

    def __iter__(self) -> Iterator[_Chunk]:
        p = self.p
        for begin in range(0, max(1, p.width), max(1, self.size)):
            end = min(begin + self.size, p.width)
            weight = p.weight[begin:end].to(p.dtype)
            logits, gradient = (matrix(x, p.rows, end - begin) for x in (self.logits, self.gradient))
            if p.bias is None:
                torch.mm(self.input, weight.t(), out=logits)
            else:
                torch.addmm(p.bias[begin:end].to(p.dtype), self.input, weight.t(), out=logits)
            rows = {n: x[:, begin:end] for n, x in p.call.operands.items() if p.call.kinds[n] is Row and n != p.logits}
            yield _Chunk(begin, end, weight, Part(self.first + begin, {p.logits: logits, **rows}, {p.logits: gradient}))
