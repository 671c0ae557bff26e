"""Classes in chunks: the logits of some classes at a time, of all rows, by kernels that see a part of a row.

Every chunk is folded into a few numbers a row, and when these are there each gives its part of the gradients. Of a loss that is one
number both are done in the forward: as many logits as the weight's gradient has room for wait in its memory until they are used.
The others are computed again, as are all of them in the backward of a loss a row. So there are three to four products, and for each
pass that the loss takes over its rows after the first as much of one more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from losszoo.linear_layer.chunks import ALIGNED, chunk_size, matrix, row_stride
from losszoo.linear_layer.problem import INPUT, LINEAR_BIAS, LINEAR_WEIGHT, Problem
from losszoo.linear_layer.products import product, wide
from losszoo.runtime.autograd import built_for
from losszoo.runtime.parts import Part, Parts
from losszoo.spec.operands import Row

if TYPE_CHECKING:
    from losszoo.parallel.shards import Shards


BUFFERS = 2  # that share the memory of a chunk: for logits that wait, or for their gradient


@dataclass(frozen=True)
class Classes:
    """The strategy, for chunks of `size` classes; those that there are, or those of this rank, where `shards` says which they are."""

    size: int
    shards: Shards | None = None

    def forward(
        self, p: Problem, wanted: frozenset[str], scale: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor] | None, list[Tensor]]:
        """The loss of each row; the gradients of `wanted`, times `scale`, if that is given; else what the backward wants."""
        found = {} if scale is None else self._empty(p, wanted)
        work = _Work(p, self, p.wrt(wanted), found.get(LINEAR_WEIGHT))
        parts = Parts(work.call, built_for(work.call, work.wrt))
        for number in range(parts.passes):
            states = None
            for chunk in work.backwards():
                states = parts.fold(chunk.part, number, states)
            assert states is not None  # there is a chunk, if one without classes
            parts.merge(states[None] if self.shards is None else self.shards.gather(states), number)
        losses, kept = parts.finish(keep=bool(wanted))
        if scale is None:
            return losses, None, [kept]
        return losses, self._gradients(p, work, found, kept, scale), []

    def backward(self, p: Problem, wanted: frozenset[str], kept: list[Tensor], upstream: Tensor) -> dict[str, Tensor]:
        """The gradients of `wanted`. `upstream` is one number, or one a row."""
        return self._gradients(p, _Work(p, self, p.wrt(wanted)), self._empty(p, wanted), kept[0], upstream)

    def waiting(self, p: Problem) -> int:
        """How many chunks' logits can wait at the end of the weight's gradient, in the order in which they are used.

        When the first of them is read the buffers' chunks have been written to its beginning, and with each one more.
        """
        read = p.rows * row_stride(self.size, p.dtype) * p.dtype.itemsize
        written = self.size * p.weight.shape[1] * p.weight.dtype.itemsize
        if min(read, written) == 0:
            return 0
        before = _buffered(p)
        first, last = (_end(p) - before * written) // read, (_end(p) - read) // written + 1 - before
        return max(0, min(first, last, ceil(p.width / self.size) - before))

    def _empty(self, p: Problem, wanted: frozenset[str]) -> dict[str, Tensor]:
        """Memory for the gradients of `wanted`."""
        types = {INPUT: p.input.dtype if self.size >= p.width and self.shards is None else wide(p.dtype)}
        return {n: torch.empty(x.shape, dtype=types.get(n, x.dtype), device=p.device) for n, x in p.tensors.items() if n in wanted}

    def _gradients(self, p: Problem, work: _Work, found: dict[str, Tensor], kept: Tensor, upstream: Tensor) -> dict[str, Tensor]:
        parts = Parts(work.call, work.wrt)
        for chunk in work:
            at = slice(chunk.begin, chunk.end)
            for name, gradient in zip(work.wrt, parts.backward(chunk.part, upstream, kept), strict=True):
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
        return {name: x.to(p.tensors[name].dtype) for name, x in found.items()}


def plan(p: Problem, wanted: frozenset[str], memory: int, shards: Shards | None = None) -> Classes:
    """As few chunks as `memory` bytes for the buffers allow, all about as large."""
    buffers = BUFFERS if p.logits in p.wrt(wanted) else 1
    return Classes(min(chunk_size(p.width, p.rows * p.dtype.itemsize * buffers, memory), max(1, p.width)), shards)


def _end(p: Problem) -> int:
    """Where the last place in the weight's gradient ends, in bytes."""
    return p.weight.nbytes // ALIGNED * ALIGNED


def _buffered(p: Problem) -> int:
    """How many buffers hold logits. Where gradients are not written over them, one is for those."""
    return BUFFERS if _in_place(p) else BUFFERS - 1


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
    """The chunks, each in its place: one of the buffers, or the end of `room`, the memory of the weight's gradient.

    That is written from its beginning, chunk after chunk, so what waits there is used in that order before it is overwritten.
    Where a place has room for one chunk of many, a chunk that is not there is computed again.
    """

    def __init__(self, p: Problem, strategy: Classes, wrt: tuple[str, ...], room: Tensor | None = None) -> None:
        self.p, self.wrt, self.size = p, wrt, strategy.size
        self.first = 0 if strategy.shards is None else strategy.shards.local.start
        self.input = p.input.to(p.dtype)
        self.call = replace(p.call, reduction="none", normalizer=None)
        self.count = max(1, ceil(p.width / self.size))
        numbers = p.rows * row_stride(self.size, p.dtype)
        buffers = [torch.empty(numbers, dtype=p.dtype, device=p.device) for _ in range(BUFFERS if p.logits in wrt else 1)]
        self.gradient = buffers[-1]
        self.places = buffers[: _buffered(p)]
        self.buffered = len(self.places)
        if room is not None:
            memory, length = room.view(-1).view(torch.uint8), numbers * p.dtype.itemsize
            ends = [_end(p) - length * i for i in range(strategy.waiting(p))]
            self.places += [memory[end - length : end].view(p.dtype) for end in reversed(ends)]
        self.there: dict[int, int] = {}  # the chunk in each place

    def __iter__(self) -> Iterator[_Chunk]:
        return map(self._chunk, range(self.count))

    def backwards(self) -> Iterator[_Chunk]:
        """The last one first, so that the first ones are there in the end."""
        return map(self._chunk, reversed(range(self.count)))

    def _chunk(self, number: int) -> _Chunk:
        p, place = self.p, number if number < len(self.places) else 0
        begin = number * self.size
        end = min(begin + self.size, p.width)
        weight = p.weight[begin:end].to(p.dtype)
        logits = matrix(self.places[place], p.rows, end - begin)
        gradient = logits if _in_place(p) and place < self.buffered else matrix(self.gradient, p.rows, end - begin)
        if self.there.get(place) != number:
            self.there[place] = number
            if p.bias is None:
                torch.mm(self.input, weight.t(), out=logits)
            else:
                torch.addmm(p.bias[begin:end].to(p.dtype), self.input, weight.t(), out=logits)
        rows = {n: x[:, begin:end] for n, x in p.call.operands.items() if p.call.kinds[n] is Row and n != p.logits}
        return _Chunk(begin, end, weight, Part(self.first + begin, {p.logits: logits, **rows}, {p.logits: gradient}))
