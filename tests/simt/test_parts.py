"""The CUDA text of losses in parts, run on the CPU: parts that begin anywhere, long and short, none, and joined one after another."""

from __future__ import annotations

import pytest
import torch

from losszoo import testing
from losszoo.runtime.layout import class_axis
from losszoo.runtime.parts import Part, Parts
from losszoo.spec.operands import Row
from tests import simt
from tests.parallel.test_sharded import BF16, CE, F32, F64, FOCAL, FORMS, RANGES, choice_of, found

pytestmark = pytest.mark.cpu_only
SPLITS = ((8, 8), (33, 0, 7), (264, 512), (1000,), (1, 2, 1), (1032, 520, 8))


def run(call, sizes, one_by_one: bool, in_place: bool, seed: int, mode: str):
    """Loss and gradients in parts: all folded and then merged, or joined as they come; into new memory, or over the operand."""
    wrt = tuple(call.differentiable)
    rows = {n: x.detach() for n, x in call.operands.items() if call.kinds[n] is Row}
    parts = []
    for i, size in enumerate(sizes):
        offset = sum(sizes[:i])
        own = {n: x.narrow(class_axis(x.ndim), offset, size).clone(memory_format=torch.contiguous_format) for n, x in rows.items()}
        parts.append(Part(offset, own, {n: own[n] for n in wrt} if in_place else {}))
    kept_inputs = [x for n, x in call.operands.items() if n not in rows]
    if not in_place:
        kept_inputs += [x for part in parts for x in part.operands.values()]
    with simt.machine(mode, seed=seed, read_only=kept_inputs):
        forward = Parts(call, wrt)
        for number in range(forward.passes):
            if one_by_one:
                states = None
                for part in parts:
                    states = forward.fold(part, number, states)
                forward.merge(states[None], number)
            else:
                forward.merge(torch.stack([forward.fold(part, number) for part in parts]), number)
        loss, kept = forward.finish(keep=True)
        upstream = torch.linspace(-1, 1.5, loss.numel(), dtype=loss.dtype).view(loss.shape) if loss.ndim else torch.tensor(0.7).to(loss)
        grads = [Parts(call, wrt).backward(part, upstream, kept) for part in parts]
    axes = [class_axis(call.operands[n].ndim) for n in wrt]
    return loss, upstream, [torch.cat(g, axis) for g, axis in zip(zip(*grads), axes)]


def hold(where, form, sizes, number, mode="races", rows=None):
    dtype, kinds, free = form
    spec, shape = found(where).spec, (rows or (2, 3, 9)[number % 3], sum(sizes))
    reduction = ("mean", "none", "sum")[number % 3]
    call = testing._draw(spec, choice_of(where, kinds, free), dtype, "contiguous", shape, reduction, number, RANGES, "cpu")
    loss, upstream, grads = run(call, sizes, number % 2 == 1, number % 4 > 1, number, mode)
    wrt = tuple(call.differentiable)
    exact = testing._reference(call, F64, upstream, wrt)
    eager = exact if call.real is F64 else testing._reference(call, F32, upstream, wrt)
    unit = 32 * torch.finfo(call.real).eps
    forward, gradient = (unit * size for size in testing._sizes(call, upstream, wrt))
    for name, x, want, plain in zip(("the loss", *wrt), [loss, *grads], exact, eager, strict=True):
        testing._assert_close(name, x, want, plain, forward if name == "the loss" else gradient)


@pytest.mark.parametrize("i, form", list(enumerate(FORMS)), ids=[f"{w.split(':')[1]}-{str(d)[6:]}" for w, d, *_ in FORMS])
def test_parts(i, form):
    where, *rest = form
    hold(where, rest, SPLITS[i % len(SPLITS)], i)


@pytest.mark.parametrize("where, form", [(CE, FORMS[1][1:]), (FOCAL, FORMS[4][1:])])
@pytest.mark.parametrize("sizes", SPLITS[1:5:3] + SPLITS[5:])
def test_addresses(where, form, sizes):
    hold(where, form, sizes, len(sizes), "address")


def test_many_rows():
    """A warp a row, in several steps."""
    for i in (1, 5, 11):
        where, *form = FORMS[i]
        hold(where, form, (264, 520), i, rows=40)


def test_more_classes_than_an_int_can_count(monkeypatch):
    from losszoo.runtime import tiling

    monkeypatch.setattr(tiling, "WIDE", 1)
    hold(CE, (BF16, {}, ()), (1032, 520), 1)
    hold(CE, (F64, {}, ()), (33, 7), 2)
