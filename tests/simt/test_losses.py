"""The CUDA text of every loss, through every lowering and dtype, at sizes around those where loops, warps and vectors end.

Each form (what specialises a kernel) meets all sizes once; rows, layouts, reductions and values go round beside them at other
speeds, so that over the forms every two of them meet.
"""

from __future__ import annotations

import pytest
import torch

import losszoo
from losszoo.testing import interpreted
from tests.losses import oracle
from tests.simt.run import run
from tests.strategies import (
    BOX_FORMS,
    BOX_KINDS,
    ELEMENT_FORMS,
    F32,
    FOCAL_FORMS,
    REDUCTIONS,
    ROW_FORMS,
    Call,
    box_pairs,
    from_corners,
    generator,
    labels_for,
    logits,
)  # fmt: skip

pytestmark = pytest.mark.cpu_only
ROWS = (1, 2, 31, 32, 33)
CLASSES = (1, 2, 3, 31, 32, 33, 127, 128, 129, 1000, 1023, 1024, 1025, 4097)
STRIDED = ((1, 1, 1), (31, 2, 1), (1, 3, 33), (2, 31, 16), (3, 33, 11), (1, 129, 257), (2, 1025, 3))  # outer, classes, inner
ITEMS = (0, 1, 2, 3, 31, 32, 33, 127, 255, 257, 1023, 1025, 4099)
ROW_KINDS = ("normal", "tile", "offset", "masked", "saturated", "below", "tile", "equal")
# Aligned rows; rows that begin anywhere; rows a stride apart; the first row in the place of each.
ROW_LAYOUTS = ("contiguous", "offset", "contiguous", "transposed", "expanded")
ITEM_LAYOUTS = ("contiguous", "offset", "sliced", "contiguous", "expanded", "transposed")


# Half of the forms each, with every dtype in both.
ONE_A_DTYPE = tuple(FOCAL_FORMS[i] for i in (0, 3, 4, 7)), tuple(FOCAL_FORMS[i] for i in (1, 2, 5, 6))
ITEM_FORMS = {"sigmoid_focal_loss": ELEMENT_FORMS[::2], "ciou_loss": BOX_FORMS[::2], "wiou_loss": BOX_FORMS[1::2]}


def turn(choices, i: int):
    return choices[i % len(choices)]


def check(name: str, call: Call, number: int, mode: str) -> None:
    function = getattr(losszoo, name)
    expected = oracle.run(interpreted(function), oracle.in_double(call))
    actual = run(function, call, mode=mode, resident=1 + number % 3, seed=number)
    oracle.compare(name, call, actual, expected)


def row_call(name: str, form: tuple, shape: tuple[int, ...], number: int) -> Call:
    dtype, soft, weighted, capped, smoothed, z = form
    rng, axis = generator(number), 1
    kind = turn(ROW_KINDS, number)
    if kind in ("tile", "masked") and (soft or smoothed):
        kind = "normal"  # there a masked class makes the loss infinite
    x = logits("normal" if kind == "tile" else kind, shape, rng)
    if kind == "tile":  # whole blocks of masked classes, up to all but the last
        x[:, : max(0, shape[1] - 1 - number % 3 * 40)] = -torch.inf
    classes, count = shape[axis], x.numel() // shape[axis]
    options = {"label_smoothing": 0.1 if smoothed else 0.0, "reduction": turn(REDUCTIONS, number + number // 3)}
    if name == "softmax_focal_loss":
        options["gamma"] = (2.0, 0.5, 0.0)[number % 3]
    else:
        options |= {"z_loss": 1e-3 if z else 0.0, "softcap": 20.0 if capped else None}
    if soft is None:
        ignored = (0.0, 0.3, 1.0)[number % 3] if count < 3 or number % 5 == 2 else 0.3
        target = labels_for(x.to(dtype), -100, ignored, rng)
    else:
        target = torch.rand(shape, generator=rng, dtype=torch.float64)
        target = (target / target.sum(axis, keepdim=True)).masked_fill(torch.rand(shape, generator=rng) < 0.2, 0).to(dtype)
    tensors = {"input": x.to(dtype), "target": target}
    if weighted:
        weight = torch.rand(classes, generator=rng, dtype=torch.float64) + 0.1
        tensors["weight"] = weight.to(torch.float32 if dtype.itemsize == 2 and number % 2 else dtype)
    if options["reduction"] == "mean" and number % 4 == 1:
        options["normalizer"] = torch.tensor(7.5)
    layout = turn(ROW_LAYOUTS, number)
    layouts = {"input": layout} if layout != "expanded" else {"input": layout, "target": layout}
    return Call(tensors, options, ("input", "target") if soft else ("input",), layouts)


def cases(**forms):
    """Every form under the race check, and of each loss one under the address sanitizer, which takes three times as long to compile."""
    for name, chosen in forms.items():
        for i, form in enumerate(chosen):
            yield pytest.param(name, i, form, "races", id=f"{name}-{i}-races")
        yield pytest.param(name, 0, next(f for f in chosen if f[0] == F32), "address", id=f"{name}-address")


@pytest.mark.parametrize("name, i, form, mode", list(cases(cross_entropy=ROW_FORMS, softmax_focal_loss=ONE_A_DTYPE[0])))
def test_rows(name, i, form, mode):
    for j, classes in enumerate(CLASSES):
        check(name, row_call(name, form, (turn(ROWS, i + j), classes), 5 * i + j), 5 * i + j, mode)


@pytest.mark.parametrize("name, i, form, mode", list(cases(cross_entropy=ROW_FORMS[::2], softmax_focal_loss=ONE_A_DTYPE[1])))
def test_strided_rows(name, i, form, mode):
    for j, shape in enumerate(STRIDED):
        call = row_call(name, form, shape, 3 * i + j)
        call.layouts.clear()
        check(name, call, 3 * i + j, mode)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", oracle.LABELLED)
def test_all_rows_ignored(name, reduction):
    for shape in ((2, 33), (33, 128), (2, 3, 33)):
        call = row_call(name, (F32, None, False, False, False, False), shape, 0)
        call.tensors["target"].fill_(-100)
        call.options["reduction"] = reduction
        call.options.pop("normalizer", None)
        function = getattr(losszoo, name)
        actual = run(function, call)
        assert (actual.loss.isnan() if reduction == "mean" else actual.loss == 0).all()
        assert (actual.grads[0] == 0).all()


def element_call(form: tuple, count: int, number: int) -> Call:
    dtype, weighted, both = form
    rng = generator(number)
    shape = (count // 3, 3) if number % 4 == 3 else (count,)
    x = 4 * torch.randn(shape, generator=rng, dtype=torch.float64)
    if number % 3 == 1:
        x = 50 * x.clamp(-12, 12)
    t = torch.rand(shape, generator=rng, dtype=torch.float64)
    t = t.clamp(0.01, 0.99) if number % 2 else t.round()
    tensors = {"inputs": x.to(dtype), "targets": t.to(dtype)}
    if weighted:
        tensors["weight"] = torch.rand(shape, generator=rng, dtype=torch.float64).to(dtype)
    options = {"alpha": turn((0.25, -1.0, 0.9), number), "gamma": turn((2.0, 0.5, 0.0, 3.5), number), "reduction": turn(REDUCTIONS, number)}
    layouts = {name: turn(ITEM_LAYOUTS, number + k) for k, name in enumerate(tensors)}
    return Call(tensors, options, ("inputs", "targets") if both else ("inputs",), layouts)


def box_call(name: str, form: tuple, count: int, number: int) -> Call:
    dtype, box_format, version, weighted, both = form
    rng = generator(number)
    shape = (count // 3, 3) if number % 4 == 3 else (count,)
    pair = box_pairs(turn(BOX_KINDS, number), torch.Size(shape).numel(), rng)
    if dtype == torch.float16:  # no overflow of a gradient of 1 / side
        pair = tuple(b * 100 if b.numel() and b.abs().max() < 0.01 else b for b in pair)
    tensors = {k: from_corners(b, box_format).view(*shape, 4).to(dtype) for k, b in zip(("pred", "target"), pair)}
    if weighted:
        tensors["weight"] = torch.rand(shape, generator=rng, dtype=torch.float64).to(dtype)
    options = {"box_format": box_format, "reduction": turn(REDUCTIONS, number)}
    if name == "wiou_loss":
        options |= {"version": version, "iou_mean": torch.tensor(0.3) if number % 2 else 1.0}
    layouts = {name: turn(ITEM_LAYOUTS, number + k) for k, name in enumerate(tensors)}
    return Call(tensors, options, ("pred", "target") if both else ("pred",), layouts)


@pytest.mark.parametrize("name, i, form, mode", list(cases(**ITEM_FORMS)))
def test_items(name, i, form, mode):
    for j, count in enumerate(ITEMS):
        number = 5 * i + j
        call = element_call(form, count, number) if name == "sigmoid_focal_loss" else box_call(name, form, count, number)
        check(name, call, number, mode)
