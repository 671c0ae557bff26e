"""A call in parts within one process: what ranks, or a device that has one part at a time, would do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from losszoo.runtime.arguments import Call
from losszoo.runtime.layout import class_axis
from losszoo.runtime.parts import Part, Parts
from losszoo.spec.operands import Row


def split(call: Call, sizes: tuple[int, ...], in_place: tuple[str, ...] = (), views: bool = False) -> list[Part]:
    """The call's rows as parts of so many classes; gradients of the operands `in_place` are to be written over them.

    views: the parts are where they were, in memory of whole rows.
    """
    parts = []
    for i, size in enumerate(sizes):
        offset = sum(sizes[:i])
        rows = {n: x.detach() for n, x in call.operands.items() if call.kinds[n] is Row}
        own = {n: x.narrow(class_axis(x.ndim), offset, size) for n, x in rows.items()}
        if not views:
            own = {n: x.clone(memory_format=torch.contiguous_format) for n, x in own.items()}
        parts.append(Part(offset, own, {n: own[n] for n in in_place}))
    return parts


def differentiate(
    call: Call, wrt: tuple[str, ...], upstream: Callable[[Tensor], Tensor], parts: list[Part], one_by_one: bool
) -> tuple[Tensor, list[Tensor]]:
    """Loss and gradients: all parts folded and then merged, or joined as they come."""
    forward = Parts(call, wrt)
    for number in range(forward.passes):
        if one_by_one:
            states = None
            for part in parts:
                states = forward.fold(part, number, states)
            assert states is not None
            forward.merge(states[None], number)
        else:
            forward.merge(torch.stack([forward.fold(part, number) for part in parts]), number)
    loss, kept = forward.finish(keep=True)
    grad = upstream(loss)
    found = [Parts(call, wrt).backward(part, grad, kept) for part in parts]
    return loss, [
        torch.cat(grads, class_axis(grads[0].ndim)) if call.kinds[n] is Row else grads[0]
        for n, grads in zip(wrt, zip(*found, strict=True), strict=True)
    ]
