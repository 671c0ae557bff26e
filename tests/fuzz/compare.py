"""One call of a random spec: how it is drawn, and kernels held against the interpreter."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from losszoo import testing
from losszoo.runtime import interpret, kernels
from losszoo.runtime.arguments import Call, check
from losszoo.runtime.layout import class_axis
from losszoo.spec.operands import Box, ClassWeight, Index, PerRow, Row, Scalar
from tests.layouts import arrange
from tests.parallel.splitting import differentiate as in_pieces
from tests.parallel.splitting import split
from tests.simt.run import differentiate

DTYPES = {"float32": 9, "float64": 7, "bfloat16": 2, "float16": 2}
RANGES = {Row: (-5.0, 5.0), PerRow: (0.0, 1.0), ClassWeight: (0.1, 2.0), Scalar: (0.5, 2.0)}
ROWS = (
    *((7,), (1, 1), (1, 3), (2, 33), (5, 40), (33, 17), (3, 257), (3, 1000), (2, 1025), (31, 64), (0, 4)),
    *((3, 5, 7), (2, 19, 33), (1, 3, 300)),
)
ITEMS = ((1,), (3,), (33,), (257,), (1030,), (5, 7), (0,))


@dataclass(frozen=True)
class Setting:
    """What a call of a spec is drawn from, beside the spec."""

    choice: int = 0
    dtype: str = "float64"
    shape: tuple[int, ...] = ()
    layout: str = "contiguous"
    reduction: str = "none"
    weighted: bool = False
    quantised: bool = False  # values are multiples of 0.5: many are equal, and small ones exact
    special: bool = False  # some values are nan or infinite
    seed: int = 0


def random_setting(seed: int, row: bool) -> Setting:
    rng = random.Random(seed)
    (dtype,) = rng.choices(list(DTYPES), DTYPES.values())
    layout = rng.choice(("contiguous", "contiguous", "offset", "padded", "transposed", "sliced"))
    reduction = rng.choice(("none", "mean", "sum"))
    shape = rng.choice(ROWS if row else ITEMS)
    return Setting(rng.randrange(1000), dtype, shape, layout, reduction, rng.random() < 0.15, rng.random() < 0.25, rng.random() < 0.2, seed)


def draw(function, setting: Setting) -> Call:
    spec, shape = function.spec, setting.shape
    generator = torch.Generator().manual_seed(setting.seed)
    choice = spec.choices()[setting.choice % len(spec.choices())]
    axis = class_axis(len(shape)) if spec.row else None
    items = [n for i, n in enumerate(shape) if i != axis]
    classes = shape[axis] if spec.row else 0
    dtype = getattr(torch, setting.dtype)

    def values(size, low: float, high: float, storage: torch.dtype) -> Tensor:
        x = low + (high - low) * torch.rand(tuple(size), generator=generator, dtype=torch.float64)
        if setting.special:
            for value in (torch.nan, torch.inf, -torch.inf):
                x = x.masked_fill(torch.rand(x.shape, generator=generator) < 0.02, value)
        return ((2 * x).round() / 2 if setting.quantised else x).to(storage)

    wide = torch.float64 if dtype is torch.float64 else torch.float32
    operands = []
    for kind in choice.kinds:
        if kind is None:
            operands.append(None)
        elif kind is Index:
            labels = torch.randint(0, max(classes, 1), items, generator=generator)
            operands.append(torch.where(torch.rand(items, generator=generator) < 0.2, -100, labels))
        elif kind is Box:
            operands.append(arrange(values((*items, 4), 0, 1, torch.float64).cumsum(-1).to(dtype), setting.layout))
        else:
            size = {Row: shape, ClassWeight: (classes,), Scalar: ()}.get(kind, (*items, kind.components) if kind.components else items)
            x = values(size, *RANGES.get(kind, (-5.0, 5.0)), dtype if kind.differentiable else wide)
            operands.append(arrange(x, setting.layout) if kind.differentiable else x)
    free = [0.3 + 1.4 * float(torch.rand((), generator=generator)) for _ in spec.parameters]
    parameters = [value if present else p.fixed[0] for value, present, p in zip(free, choice.present, spec.parameters)]
    weight = None
    if setting.weighted and not spec.own_weight:
        weight = values(items, 0, 1, wide)
    ignored = -100 if spec.labelled else None
    return check(spec, tuple(operands), tuple(parameters), choice.statics, ignored, setting.reduction, weight, None)


def on_cpu(call: Call, wrt: tuple[str, ...], upstream) -> tuple[Tensor, list[Tensor]]:
    operands = dict(call.operands)
    loss, kept = kernels.forward(kernels.Prepared(call, operands, wrt), keep=True)
    return loss, kernels.backward(kernels.Prepared(call, operands, wrt), upstream(loss), kept)


def on_simt(call: Call, wrt: tuple[str, ...], upstream) -> tuple[Tensor, list[Tensor]]:
    loss, grads = differentiate(call, wrt, upstream, resident=1 + call.rows % 3, seed=call.rows)
    return loss, list(grads)


def in_parts(call: Call, wrt: tuple[str, ...], upstream) -> tuple[Tensor, list[Tensor]]:
    """The classes of rows in three parts, anywhere; what has no rows stays whole."""
    if not call.spec.row:
        return on_cpu(call, wrt, upstream)
    first, second = sorted(random.Random(call.classes).choices(range(call.classes + 1), k=2))
    sizes = (first, second - first, call.classes - second)
    return in_pieces(call, wrt, upstream, split(call, sizes), one_by_one=call.rows % 2 == 1)


def mismatch(call: Call, setting: Setting, backend) -> str | None:
    """What is wrong, or None. A result may be off by what the interpreter in the same precision is off, several times, by what
    rounding the inputs anew changes, and by some ulps of the largest value met on the way."""
    wrt = tuple(call.differentiable)
    weights = torch.Generator().manual_seed(1)

    def upstream_for(loss: Tensor) -> Tensor:
        return torch.randn(loss.shape, generator=weights, dtype=torch.float64).to(loss.dtype)

    given = []
    loss, grads = backend(call, wrt, lambda x: given.append(upstream_for(x)) or given[0])
    upstream = given[0]
    exact = testing._reference(call, torch.float64, upstream, wrt)
    others = [testing._reference(call, call.real, upstream, wrt)]
    if not setting.quantised:
        others += [testing._reference(shaken(call, i), torch.float64, upstream, wrt) for i in range(3)]
    if not setting.quantised and not setting.special:
        said = against_autograd(call, upstream, wrt, exact[1:])
        if said:
            return said
    forward, gradient = (32 * torch.finfo(call.real).eps * size for size in testing._sizes(call, upstream, wrt))
    names = ["the loss", *(f"the gradient of {n}" for n in wrt)]
    for i, (name, got, want) in enumerate(zip(names, [loss, *grads], exact)):
        said = _difference(got.detach().double(), want, [o[i].double() for o in others], forward if i == 0 else gradient, got.dtype)
        if said:
            return f"{name}{said}"
    return None


def against_autograd(call: Call, upstream: Tensor, wrt: tuple[str, ...], derived: list[Tensor]) -> str | None:
    """The derived gradient against the one that torch finds for itself. (Not at ties, nor at nan: there the table has its own rules.)"""
    operands = {n: v.detach().double().requires_grad_(n in wrt) if v.is_floating_point() else v for n, v in call.operands.items()}
    loss, _ = interpret.forward(Call(**{**vars(call), "operands": operands, "real": torch.float64}), operands)
    leaves = [operands[n] for n in wrt]
    if not loss.requires_grad:
        return None
    found = torch.autograd.grad(loss, leaves, upstream.double(), allow_unused=True)
    for name, got, want in zip(wrt, derived, found):
        want = torch.zeros_like(got) if want is None else want
        size = float(want.abs().nan_to_num(0.0, 0.0, 0.0).max()) if want.numel() else 0.0
        if said := _difference(got, want, [], 1e-9 * (1 + size), torch.float64):
            return f"the derived gradient of {name}{said}"
    return None


def shaken(call: Call, seed: int) -> Call:
    """The call with its numbers off by a few roundings."""
    generator = torch.Generator().manual_seed(seed)
    unit = 4 * torch.finfo(call.real).eps
    operands = {
        name: x.double() * (1 + unit * (torch.randint(0, 3, x.shape, generator=generator).double() - 1)) if x.is_floating_point() else x
        for name, x in call.operands.items()
    }
    return Call(**{**vars(call), "operands": operands})


def _difference(got: Tensor, want: Tensor, others: list[Tensor], floor: float, dtype: torch.dtype) -> str | None:
    if got.shape != want.shape:
        return f" has the shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    settled = torch.ones_like(want, dtype=torch.bool)
    slack = torch.zeros_like(want)
    for other in others:
        settled &= other.isfinite() == want.isfinite()
        slack = slack.maximum((other - want).abs().nan_to_num(0.0, 0.0, 0.0))
    rounding, smallest = {torch.bfloat16: (2.0**-8, 0.0), torch.float16: (2.0**-11, 2.0**-25)}.get(dtype, (0.0, 0.0))
    bound = floor + 16 * slack + rounding * want.abs() + smallest
    # A factor that is taken out of a sum may be infinite: inf * (a + b) is inf where inf * a + inf * b is nan.
    right = (got == want) | (~got.isfinite() & want.isnan()) | ((got - want).abs() <= bound)
    wrong = ~right & settled
    if not wrong.any():
        return None
    place = tuple(int(i) for i in wrong.nonzero()[0])
    said = f"{list(place)} is {float(got[place])!r}, expected {float(want[place])!r} within {float(bound[place]):.3g}"
    return f"{said} ({int(wrong.sum())} of {wrong.numel()} wrong)"
