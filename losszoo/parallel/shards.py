"""Where the classes are, and what ranks tell each other of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from losszoo.runtime import autograd, interpret
from losszoo.runtime.arguments import Call
from losszoo.runtime.layout import class_axis
from losszoo.runtime.parts import Part, Parts
from losszoo.spec.operands import ClassWeight, Row


def _all_gather() -> Callable:
    """The collective, by the name that this torch has for it."""
    return getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


class Shards:
    """The ranks of a group, each with neighbouring classes of every row, in the order of the ranks."""

    def __init__(self, group: dist.ProcessGroup | None, sizes: Sequence[int] | None = None) -> None:
        self.group, self.sizes = group, None if sizes is None else tuple(map(int, sizes))
        if self.sizes is not None and (len(self.sizes) != self.count or min(self.sizes) < 0):
            raise ValueError(f"sizes: got {self.sizes}, expected a number of classes for each of {self.count} ranks")

    @property
    def count(self) -> int:
        return dist.get_world_size(self.group) if _distributed() else 1

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group) if _distributed() else 0

    @property
    def whole(self) -> int:
        """The number of all classes."""
        assert self.sizes is not None  # settle was called
        return sum(self.sizes)

    @property
    def local(self) -> slice:
        """This rank's classes."""
        assert self.sizes is not None
        offset = sum(self.sizes[: self.rank])
        return slice(offset, offset + self.sizes[self.rank])

    def settle(self, shard: object) -> None:
        """Learn from the first shard how many classes there are: all ranks meet here once."""
        if not isinstance(shard, Tensor) or shard.ndim == 0:
            return  # for the check of the arguments to say
        size = shard.shape[class_axis(shard.ndim)]
        if self.sizes is None:
            self.sizes = tuple(self.gather(torch.tensor([size], device=shard.device)).flatten().tolist())
        if size != self.sizes[self.rank]:
            raise ValueError(
                f"rank {self.rank} has {size} classes, and {self.sizes[self.rank]} were agreed on (the ranks have {self.sizes}); "
                f"make a sharded loss for each number of classes"
            )

    def gather(self, x: Tensor) -> Tensor:
        """x of every rank, in their order, along a new first axis."""
        if self.count == 1 or x.numel() == 0:
            return x.expand(self.count, *x.shape)
        every = x.new_empty(self.count, *x.shape)
        _all_gather()(every.flatten(0, 1), x.contiguous(), group=self.group)
        return every

    def part(self, call: Call) -> Part:
        operands = {n: x for n, x in call.operands.items() if call.kinds[n] is Row or self._is_shard(call, n)}
        return Part(self.local.start, operands)

    def parts(self, call: Call, wrt: tuple[str, ...]) -> Parts:
        """The call, with this rank's part in its place."""
        parts = Parts(call, wrt)
        parts.bind(self.part(call))
        parts.values["parts"] = self.count
        return parts

    @staticmethod
    def refuse(call: Call, *_: object) -> NoReturn:
        """What a second derivative gets."""
        raise NotImplementedError(f"{call.spec.name}: a sharded loss has no second derivative (create_graph=True)")

    def _is_shard(self, call: Call, name: str) -> bool:
        return call.kinds[name] is ClassWeight and call.operands[name].numel() != call.classes

    def forward(self, call: Call, wrt: tuple[str, ...], keep: bool) -> tuple[Tensor, Tensor]:
        """The loss, and what a backward wants of it."""
        if not autograd.compiled(autograd.device_of(call).type):
            whole = self._gathered(call)
            loss, denominator = interpret.forward(whole, dict(whole.operands))
            return loss, loss.new_empty(0) if denominator is None else denominator.reshape(1)
        parts, part = Parts(call, wrt), self.part(call)
        for number in range(parts.passes):
            parts.merge(self.gather(parts.fold(part, number)), number)
        return parts.finish(keep)

    def backward(self, call: Call, wrt: tuple[str, ...], grad: Tensor, kept: Tensor) -> list[Tensor]:
        """The gradients of this rank's operands."""
        if not autograd.compiled(autograd.device_of(call).type):
            whole = self._gathered(call)
            grads = interpret.backward(whole, dict(whole.operands), wrt, grad, kept[-1] if call.reduction == "mean" else None)
            return [self._own(g) if call.kinds[n] is Row else g for n, g in zip(wrt, grads, strict=True)]
        return Parts(call, wrt).backward(self.part(call), grad, kept)

    def _gathered(self, call: Call) -> Call:
        """The call of whole rows, for want of kernels that can do with a part."""
        operands = dict(call.operands)
        for name, x in operands.items():
            if call.kinds[name] is Row or self._is_shard(call, name):
                operands[name] = self._all(x)
        return replace(call, operands=operands)

    def _all(self, x: Tensor) -> Tensor:
        assert self.sizes is not None
        axis = class_axis(x.ndim)
        padded = x.new_zeros([max(self.sizes) if i == axis else s for i, s in enumerate(x.shape)])
        padded.narrow(axis, 0, x.shape[axis]).copy_(x.detach())
        every = self.gather(padded)
        return torch.cat([shard.narrow(axis, 0, size) for shard, size in zip(every, self.sizes, strict=True)], axis)

    def _own(self, x: Tensor) -> Tensor:
        axis = class_axis(x.ndim)
        return x.narrow(axis, self.local.start, self.local.stop - self.local.start).contiguous()
