"""The CUDA text of every loss, through every lowering and dtype, at sizes around those where loops, warps and vectors end.

What specialises a kernel (dtype, options, tiling) is paired with the sizes so that each meets many of the others: all combinations
would compile for an hour. Reductions, values and the order of blocks go round beside them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import losszoo
from losszoo.runtime import kernels, tiling
from losszoo.testing import interpreted
from tests import simt
from tests.losses import oracle
from tests.simt import driver
from tests.simt.run import checked, run
from tests.strategies import (
    BF16,
    BOX_FORMS,
    BOX_KINDS,
    ELEMENT_FORMS,
    F32,
    F64,
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
CLASSES = (1, 2, 3, 31, 32, 33, 127, 128, 129, 1000, 1023, 1024, 1025, 4097, 8193, 8196)
STRIDED = ((1, 1, 1), (31, 2, 1), (1, 3, 33), (2, 31, 16), (3, 33, 11), (1, 129, 257), (2, 1025, 3))  # outer, classes, inner
ITEMS = (0, 1, 2, 3, 31, 32, 33, 127, 255, 257, 1023, 1025, 4099)
ROW_KINDS = ("normal", "tile", "offset", "masked", "saturated", "below", "tile", "equal")
ITEM_LAYOUTS = ("contiguous", "offset", "sliced", "contiguous", "expanded", "transposed")


FORMS = (*(("cross_entropy", form) for form in ROW_FORMS), *(("softmax_focal_loss", FOCAL_FORMS[i]) for i in (0, 3, 4, 7)))
ITEM_FORMS = {"sigmoid_focal_loss": ELEMENT_FORMS[::2], "ciou_loss": BOX_FORMS[::2], "wiou_loss": BOX_FORMS[1::2]}


@pytest.fixture(autouse=True)
def few_rows_are_many(monkeypatch):
    """So that the tilings for many rows are met too."""
    monkeypatch.setattr(tiling, "FEW", 16)


def turn(choices, i: int):
    return choices[i % len(choices)]


def check(name: str, call: Call, number: int, mode: str) -> None:
    function = getattr(losszoo, name)
    expected = oracle.run(interpreted(function), oracle.in_double(call))
    actual = run(function, call, mode=mode, resident=1 + number % 3, seed=number)
    oracle.compare(name, call, actual, expected)


def row_call(
    name: str, form: tuple, shape: tuple[int, ...], number: int, layout: str = "contiguous", reductions: tuple[str, ...] = REDUCTIONS
) -> Call:
    dtype, soft, weighted, capped, smoothed, z = form
    rng, axis = generator(number), 1
    kind = turn(ROW_KINDS, number)
    if kind in ("tile", "masked") and (soft or smoothed):
        kind = "normal"  # there a masked class makes the loss infinite
    x = logits("normal" if kind == "tile" else kind, shape, rng)
    if kind == "tile":  # whole blocks of masked classes, up to all but the last
        x[:, : max(0, shape[1] - 1 - number % 3 * 40)] = -torch.inf
    classes, count = shape[axis], x.numel() // shape[axis]
    options = {"label_smoothing": 0.1 if smoothed else 0.0, "reduction": turn(reductions, number + number // 3)}
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
    layouts = {"input": layout, "target": layout} if layout == "expanded" or soft is not None else {"input": layout}
    return Call(tensors, options, ("input", "target") if soft else ("input",), layouts)


def row_cases() -> list:
    """Classes, form and mode; two forms for each number of classes, and some under the address sanitizer, which compiles slowly."""
    cases = []
    for j, classes in enumerate(CLASSES):
        for i in (j, j + 5):
            name, form = turn(FORMS, i)
            cases.append(pytest.param(name, form, classes, i, "races", id=f"{name}-{i % len(FORMS)}-{classes}-races"))
        if j % 5 == 2:
            cases.append(pytest.param(*turn(FORMS, j), classes, j, "address", id=f"{turn(FORMS, j)[0]}-{classes}-address"))
    return cases


def rows_of(name: str, form: tuple, classes: int, i: int):
    """The calls of a case: every number of rows; rows that begin between two vectors; one row in the place of all."""
    reductions = ("none",) if (i + CLASSES.index(classes)) % 3 == 0 else ("mean", "sum")  # which have kernels of their own
    for k, rows in enumerate(ROWS if classes < 4000 else (1, 5)):
        yield row_call(name, form, (rows, classes), 5 * i + k, reductions=reductions)
    yield row_call(name, form, (turn((2, 33), i), classes), i, turn(("offset", "padded"), i // 2), reductions)
    yield row_call(name, form, (3, classes), i, "expanded", reductions)


@pytest.mark.parametrize("name, form, classes, i, mode", row_cases())
def test_rows(name, form, classes, i, mode):
    for number, call in enumerate(rows_of(name, form, classes, i), 7 * i):
        check(name, call, number, mode)


def signatures(calls) -> set[tuple]:
    """What makes kernels of rows take other ways through their template."""
    checked_calls = [(checked(getattr(losszoo, name), **c.place("cpu"), **c.options), c.differentiable) for name, c in calls]
    with simt.machine():
        prepared = [kernels.Prepared(c, dict(c.operands), wrt) for c, wrt in checked_calls]
        tilings = {p.directed(direction).form.tiling for p in prepared for direction in ("forward", "backward")}
    fullness = {t: "all" if t.full == t.vectors else "some" if t.full else "none" for t in tilings}
    return {(min(t.group, 2), t.held, t.skewed, t.skipping, fullness[t], t.width > 1) for t in tilings}


def test_every_tiling_of_rows_is_met():
    met = signatures((case.values[0], call) for case in row_cases() for call in rows_of(*case.values[:4]))
    possible = signatures(("cross_entropy", call) for call in plain_calls())
    assert possible <= met, f"add sizes, or forms, for {sorted(possible - met)}"


def plain_calls():
    """Cross-entropy at every size where a tiling could change."""
    for dtype, soft in (F32, False), (F32, True), (BF16, False), (F64, False):
        for classes in (1, 2, 3, 4, 5, 7, 8, 12, 16, 31, 32, 48, 65, 128, 256, 257, 512, 1000, 1024, 2048, 5000, 8192, 9001):
            for rows in (1, 33):
                for layout in ("contiguous", "offset", "padded"):
                    x, labels = torch.empty(rows, classes, dtype=dtype), torch.zeros(rows, dtype=torch.int64)
                    yield Call({"input": x, "target": x if soft else labels}, {}, ("input",), {"input": layout})


def test_a_kernel_is_built_anew_for_the_other_mode():
    call = row_call("cross_entropy", (F32, None, False, False, False, False), (2, 3), 0)
    for mode in ("races", "address", "races"):
        run(losszoo.cross_entropy, call, mode=mode)
        program = next(reversed(driver._programs))
        assert (b"__asan_init" in program.read_bytes()) == (mode == "address")


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_more_classes_than_an_int_can_count(dtype, monkeypatch):
    """The kernel for them, at a size that fits here."""
    chosen = tiling.rows

    def wide(*args):
        launches = (chosen(*args).forward, chosen(*args).backward)
        return tiling.Shape(*(replace(launch, tiling=replace(launch.tiling, wide=True)) for launch in launches))

    monkeypatch.setattr(tiling, "rows", wide)
    for number, (rows, classes) in enumerate(((2, 20001), (5, 8193), (3, 33000))):
        check("cross_entropy", row_call("cross_entropy", (dtype, None, True, False, True, True), (rows, classes), number), number, "races")


def strided_cases() -> list:
    return [pytest.param(*turn(FORMS, 3 * i), i, mode, id=f"{i}-{mode}") for i, mode in [*((i, "races") for i in range(7)), (2, "address")]]


@pytest.mark.parametrize("name, form, i, mode", strided_cases())
def test_strided_rows(name, form, i, mode):
    """Every other shape, so that each meets half of the forms."""
    reductions = ("none",) if i % 3 == 0 else ("mean", "sum")
    for j in range(i % 2, len(STRIDED), 2):
        check(name, row_call(name, form, STRIDED[j], 3 * i + j, reductions=reductions), 3 * i + j, mode)


@pytest.mark.parametrize("classes", [5, 43])  # held by a thread, and not
def test_neighbouring_columns_far_from_zero(classes):
    """Several positions a thread, whose states share their reads and nothing else: also where the neighbour is infinite."""
    for kind in ("offset", "below", "saturated"):
        rng = generator(classes)
        x = logits(kind, (2, classes, 24), rng)
        x[0, 1, ::5] = torch.inf
        target = labels_for(x.float(), -100, 0.0, rng)
        check("cross_entropy", Call({"input": x.float(), "target": target}, {"reduction": "none"}, ("input",)), classes, "races")


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


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", oracle.LABELLED)
def test_no_rows(name, reduction):
    for shape in ((0, 33), (0, 5, 3), (2, 5, 0)):
        call = row_call(name, (F32, None, False, False, False, False), shape, 0)
        call.options["reduction"] = reduction
        actual = run(getattr(losszoo, name), call)
        assert actual.grads[0].shape == shape
        assert actual.loss.numel() == 0 if reduction == "none" else actual.loss.isnan() if reduction == "mean" else actual.loss == 0


def element_call(form: tuple, count: int, number: int, reductions: tuple[str, ...]) -> Call:
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
    options = {"alpha": turn((0.25, -1.0, 0.9), number), "gamma": turn((2.0, 0.5, 0.0, 3.5), number), "reduction": turn(reductions, number)}
    layouts = {name: turn(ITEM_LAYOUTS, number + k) for k, name in enumerate(tensors)}
    return Call(tensors, options, ("inputs", "targets") if both else ("inputs",), layouts)


def box_call(name: str, form: tuple, count: int, number: int, reductions: tuple[str, ...]) -> Call:
    dtype, box_format, version, weighted, both = form
    rng = generator(number)
    shape = (count // 3, 3) if number % 4 == 3 else (count,)
    pair = box_pairs(turn(BOX_KINDS, number), torch.Size(shape).numel(), rng)
    if dtype == torch.float16:  # no overflow of a gradient of 1 / side
        pair = tuple(b * 100 if b.numel() and b.abs().max() < 0.01 else b for b in pair)
    tensors = {k: from_corners(b, box_format).view(*shape, 4).to(dtype) for k, b in zip(("pred", "target"), pair)}
    if weighted:
        tensors["weight"] = torch.rand(shape, generator=rng, dtype=torch.float64).to(dtype)
    options = {"box_format": box_format, "reduction": turn(reductions, number)}
    if name == "wiou_loss":
        options |= {"version": version, "iou_mean": torch.tensor(0.3) if number % 2 else 1.0}
    layouts = {name: turn(ITEM_LAYOUTS, number + k) for k, name in enumerate(tensors)}
    return Call(tensors, options, ("pred", "target") if both else ("pred",), layouts)


def item_cases() -> list:
    cases = []
    for name, forms in ITEM_FORMS.items():
        cases += [pytest.param(name, i, form, "races", id=f"{name}-{i}-races") for i, form in enumerate(forms)]
        cases.append(pytest.param(name, 0, next(f for f in forms if f[0] == F32), "address", id=f"{name}-address"))
    return cases


@pytest.mark.parametrize("name, i, form, mode", item_cases())
def test_items(name, i, form, mode):
    for j, count in enumerate(ITEMS):
        number = 5 * i + j
        place = (form, count, number, ("none",) if i % 2 else ("mean", "sum"))
        call = element_call(*place) if name == "sigmoid_focal_loss" else box_call(name, *place)
        check(name, call, number, mode)
