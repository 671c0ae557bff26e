"""The CUDA text of losses in parts, run on the CPU: parts that begin anywhere, long and short, none, and joined one after another."""

from __future__ import annotations

import pytest
import torch

from losszoo import testing
from losszoo.spec.operands import Row
from tests import simt
from tests.parallel.splitting import differentiate, split
from tests.parallel.test_sharded import BF16, CE, F32, F64, FORMS, RANGES, choice_of, found

pytestmark = pytest.mark.cpu_only
SPLITS = ((8, 8), (33, 0, 7), (264, 512), (1000,), (1, 2, 1), (1032, 520, 8))


def hold(where, form, sizes, number, mode="races", rows=None, views=False):
    dtype, kinds, free = form
    spec, shape = found(where).spec, (rows or (2, 3, 9)[number % 3], sum(sizes))
    reduction = ("mean", "none", "sum")[number % 3]
    call = testing._draw(spec, choice_of(where, kinds, free), dtype, "contiguous", shape, reduction, number, RANGES, "cpu")
    wrt = tuple(call.differentiable)
    in_place = wrt if number % 4 > 1 and not views else ()
    parts = split(call, sizes, in_place, views)
    inputs = [x for n, x in call.operands.items() if call.kinds[n] is not Row]
    inputs += [x for part in parts for n, x in part.operands.items() if n not in in_place]
    shape = call.shape if reduction == "none" else torch.Size()
    upstream = torch.linspace(-1, 1.5, shape.numel(), dtype=call.real).view(shape)
    with simt.machine(mode, seed=number, read_only=inputs):
        loss, grads = differentiate(call, wrt, lambda _: upstream, parts, one_by_one=number % 2 == 1)
    exact = testing._reference(call, F64, upstream, wrt)
    eager = exact if call.real is F64 else testing._reference(call, F32, upstream, wrt)
    unit = 32 * torch.finfo(call.real).eps
    forward, gradient = (unit * size for size in testing._sizes(call, upstream, wrt))
    for name, x, want, plain in zip(("the loss", *wrt), [loss, *grads], exact, eager, strict=True):
        testing._assert_close(name, x, want, plain, forward if name == "the loss" else gradient)


@pytest.mark.parametrize("i", [0, 2, 4, 6, 9, 11], ids=lambda i: f"{FORMS[i][0].split(':')[1]}-{str(FORMS[i][1])[6:]}")
def test_parts(i):
    where, *rest = FORMS[i]
    hold(where, rest, SPLITS[i % len(SPLITS)], i)


@pytest.mark.parametrize("sizes", [SPLITS[1], SPLITS[5]])
def test_addresses(sizes):
    hold(CE, FORMS[0][1:], sizes, len(sizes), "address")


def test_many_rows():
    """A warp a row, in several steps."""
    for i in (1, 11):
        where, *form = FORMS[i]
        hold(where, form, (264, 1401), i, rows=17)


def test_rows_that_begin_anywhere():
    """Within a vector, in blocks that step over them; and where the gradient begins elsewhere in a vector than the logits."""
    where, *form = FORMS[0]
    hold(where, form, (9001, 4113, 17), 1)
    hold(where, form, (9000, 8200), 2)
    where, *form = FORMS[1]
    hold(where, form, (5001, 4113), 2)
    hold(where, form, (33, 700, 291), 4, views=True)


def test_rows_read_by_lines(monkeypatch):
    """Of memory: rows that begin behind one's beginning, and within a vector."""
    from losszoo.runtime import tiling

    monkeypatch.setattr(tiling, "LONGEST", 1)
    where, *form = FORMS[0]
    hold(where, form, (9000, 8200), 2)
    hold(where, form, (9001, 4113, 17), 1, "address")
    hold(where, FORMS[1][1:], (5000, 2204), 2)
    where, *form = FORMS[11]
    hold(where, form, (264, 1400), 11)


def test_more_classes_than_an_int_can_count(monkeypatch):
    from losszoo.runtime import tiling

    monkeypatch.setattr(tiling, "WIDE", 1)
    hold(CE, (BF16, {}, ()), (1032, 520), 1)
    hold(CE, (F64, {}, ()), (33, 7), 2)
