"""Rows in chunks: the logits of some rows at a time, whole rows, so that the loss's own kernels take them as they are.

Of a loss that is one number the gradient is formed while a chunk's logits are there: three products. Of a loss a row, or where
16 bits could not hold a gradient before its scale is known, the backward computes the logits again: four.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

import torch
from torch import Tensor

from losszoo.codegen.kernel import scheduled
from losszoo.linear_layer.chunks import chunk_size, matrix, row_stride
from losszoo.linear_layer.problem import INPUT, LINEAR_BIAS, LINEAR_WEIGHT, Problem
from losszoo.linear_layer.products import product, wide
from losszoo.runtime import interpret, kernels
from losszoo.runtime.arguments import Call
from losszoo.runtime.autograd import built_for
from losszoo.spec.operands import Row

ROUNDINGS = 4  # so many sums may be rounded to a 16-bit gradient's own type, where one is rounded anyway


@dataclass(frozen=True)
class Rows:
    """The strategy, for chunks of `size` rows. `memory` is what a chunk was allowed, in bytes."""

    size: int
    memory: int

    def forward(
        self, p: Problem, wanted: frozenset[str], scale: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor] | None, list[Tensor]]:
        """The loss of each row; the gradients of `wanted`, times `scale`, if that is given; else what the backward wants."""
        losses = torch.empty(p.call.shape, dtype=p.call.real, device=p.device)
        grads = None if scale is None else _Gradients(p, wanted, self)
        kept = []
        for begin, end, part in self._parts(p, wanted):
            losses[begin:end], state = part.losses(keep=bool(wanted))
            if grads and scale is not None:
                grads.add(begin, end, part, part.gradients(scale, state))
            elif wanted:
                kept.append(state)
        return losses, None if grads is None else grads.results(), kept

    def backward(self, p: Problem, wanted: frozenset[str], kept: list[Tensor], upstream: Tensor) -> dict[str, Tensor]:
        """The gradients of `wanted`. `upstream` is one number, or one a row."""
        grads = _Gradients(p, wanted, self)
        for (begin, end, part), state in zip(self._parts(p, wanted), kept, strict=True):
            grads.add(begin, end, part, part.gradients(upstream[begin:end] if upstream.ndim else upstream, state))
        return grads.results()

    def chunks(self, p: Problem) -> int:
        return ceil(p.rows / self.size)

    def sum_type(self, p: Problem) -> torch.dtype:
        """What the weight's gradient is summed in: float32 for 16 bits, if that much memory is allowed or many would be rounded.

        Up to four sums may be rounded to 16 bits where float32 would take more memory than a chunk: the last is rounded anyway.
        """
        chunks, sums = self.chunks(p), wide(p.dtype)
        if chunks <= 1:
            return p.weight.dtype
        if p.weight.dtype is p.dtype and chunks <= ROUNDINGS and p.weight.numel() * sums.itemsize > self.memory:
            return p.dtype
        return sums

    def bytes_of_sums(self, p: Problem) -> int:
        """The memory of the weight's gradient while it is summed, if it takes any of its own."""
        sums = self.sum_type(p)
        return 0 if sums is p.weight.dtype else p.weight.numel() * sums.itemsize

    def _parts(self, p: Problem, wanted: frozenset[str]) -> Iterator[tuple[int, int, _Part]]:
        work = _Work(p, min(self.size, p.rows), p.wrt(wanted))
        for begin in range(0, p.rows, self.size):
            end = min(begin + self.size, p.rows)
            yield begin, end, _Part(work, p.select(slice(begin, end)))


def plan(p: Problem, wanted: frozenset[str], memory: int) -> Rows:
    """As few chunks as `memory` bytes for logits and their gradient allow, all about as large."""
    wrt = p.wrt(wanted)
    copies = 1 if p.logits not in wrt or in_place(p, wrt) else 2
    return Rows(chunk_size(p.rows, p.width * p.dtype.itemsize * copies, memory), memory)


def in_place(p: Problem, wrt: tuple[str, ...]) -> bool:
    """Whether the gradient of logits may be written over them.

    A thread that looks up x[y] must not find another's gradient there. On the CPU loops that may overlap are not vectorised.
    """
    if p.interpreted or p.device.type != "cuda":
        return False
    backward = scheduled(p.call.spec, p.call.choice, wrt).backward
    return all(node.op != "pick" for node in backward.nodes())


class _Work:
    """What all chunks share: the memory of logits and of their gradient, the weight in the logits' type."""

    def __init__(self, p: Problem, size: int, wrt: tuple[str, ...]) -> None:
        self.wrt = wrt
        self.weight, self.bias = p.weight.to(p.dtype), None if p.bias is None else p.bias.to(p.dtype)
        self.logits = torch.empty(size * row_stride(p.width, p.dtype), dtype=p.dtype, device=p.device)
        written = p.logits in wrt and not p.interpreted
        self.gradient = self.logits if not written or in_place(p, wrt) else torch.empty_like(self.logits)


class _Part:
    """A chunk: its logits, in memory that the next one takes over, and the kernels that take them."""

    def __init__(self, work: _Work, p: Problem) -> None:
        self.input, self.weight, self.wrt = p.input.to(p.dtype), work.weight, work.wrt
        logits, gradient = (matrix(x, p.rows, p.width) for x in (work.logits, work.gradient))
        if work.bias is None:
            torch.mm(self.input, self.weight.t(), out=logits)
        else:
            torch.addmm(work.bias, self.input, self.weight.t(), out=logits)
        shape = p.call.operands[p.logits].shape
        operands = {**p.call.operands, p.logits: logits.view(shape)}
        self.call = replace(p.call, operands=operands, reduction="none", normalizer=None)
        self.prepared = None if p.interpreted else _Prepared(self.call, work.wrt, p.logits, gradient.view(shape))

    def losses(self, keep: bool) -> tuple[Tensor, Tensor]:
        if self.prepared:
            return kernels.forward(self.prepared, keep)
        losses, _ = interpret.forward(self.call, dict(self.call.operands))
        return losses, losses.new_empty(0)

    def gradients(self, upstream: Tensor, kept: Tensor) -> dict[str, Tensor]:
        """By operand."""
        if self.prepared:
            found = kernels.backward(self.prepared, upstream, kept)
        else:
            found = interpret.backward(self.call, dict(self.call.operands), self.wrt, upstream.expand(self.call.shape), None)
        return dict(zip(self.wrt, found, strict=True))


class _Prepared(kernels.Prepared):
    """A call whose gradient of the logits goes where it is told."""

    def __init__(self, call: Call, wrt: tuple[str, ...], logits: str, gradient: Tensor) -> None:
        self._into = {logits: gradient}
        super().__init__(call, dict(call.operands), built_for(call, wrt))

    def packed_gradients(self) -> bool:
        return any(self.call.kinds[name] is Row and name not in self._into for name in self.wrt)

    def gradient(self, name: str) -> Tensor:
        if name not in self._into:
            return super().gradient(name)
        gradient = self._into[name]  # laid out as the logits are
        self.values |= {f"sg_{name}_{axis}": self.values[f"s_{name}_{axis}"] for axis in ("outer", "class")}
        self.values[f"g_{name}"] = gradient.data_ptr()
        return gradient


class _Gradients:
    """The gradients of `wanted`, as far as chunks have given them."""

    def __init__(self, p: Problem, wanted: frozenset[str], strategy: Rows) -> None:
        self.p, self.begun = p, False
        types = {LINEAR_WEIGHT: strategy.sum_type(p), LINEAR_BIAS: wide(p.dtype)}
        self.tensors = p.tensors
        asked = {name: x for name, x in self.tensors.items() if name in wanted}
        self.found = {n: torch.empty(x.shape, dtype=types.get(n, x.dtype), device=x.device) for n, x in asked.items()}

    def add(self, begin: int, end: int, part: _Part, gradients: dict[str, Tensor]) -> None:
        """Take what a chunk gives: the gradients of its logits and of the loss's other operands."""
        for name, gradient in gradients.items():
            if name != self.p.logits:
                self.found[f".{name}"][begin:end] = gradient
                continue
            gradient = gradient.reshape(end - begin, self.p.width)
            if INPUT in self.found:
                product(self.found[INPUT][begin:end], gradient, part.weight)
            if LINEAR_WEIGHT in self.found:
                product(self.found[LINEAR_WEIGHT], gradient.t(), part.input, add=self.begun)
            if LINEAR_BIAS in self.found:
                total = gradient.sum(0, dtype=self.found[LINEAR_BIAS].dtype)
                self.found[LINEAR_BIAS] = self.found[LINEAR_BIAS] + total if self.begun else total
        self.begun = True

    def results(self) -> dict[str, Tensor]:
        if not self.begun:  # there are no rows
            for x in self.found.values():
                x.zero_()
        return {name: x.to(self.tensors[name].dtype) for name, x in self.found.items()}
