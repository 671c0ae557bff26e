"""Checks of a loss: `check(my_loss)` holds a user's own loss to what the zoo itself is held to. Needs hypothesis."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from losszoo.codegen.kernel import scheduled
from losszoo.ir.expr import UPSTREAM, Type, topological
from losszoo.ir.interpreter import Frozen, evaluate
from losszoo.runtime import interpret
from losszoo.runtime.arguments import Call
from losszoo.runtime.arguments import check as check_arguments
from losszoo.runtime.autograd import compute
from losszoo.runtime.layout import class_axis
from losszoo.spec.declare import Choice, Spec
from losszoo.spec.operands import Box, ClassWeight, Elem, Index, Kind, PerRow, Row, Scalar
from losszoo.surface import LossFunction, expose

RANGES = {Row: (-5.0, 5.0), Elem: (-5.0, 5.0), PerRow: (0.0, 1.0), ClassWeight: (0.1, 2.0), Scalar: (0.5, 2.0)}
LAYOUTS = ("contiguous", "transposed", "sliced", "expanded")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def interpreted(function: LossFunction) -> LossFunction:
    """The same loss, computed by the interpreter instead of kernels."""
    return expose(function.spec, interpreted=True)


def check(
    function: LossFunction, *, device: str = "cpu", examples: int = 25, ranges: Mapping[str, tuple[float, float]] | None = None
) -> None:
    """Check a loss declared with `@loss`; raises AssertionError with a minimal example where something is wrong.

    Hypothesis draws shapes (empty ones too), dtypes, memory layouts, ignored labels, reductions and every way to specialise the
    loss. For each it holds the kernels to the interpreter in float64, loss and gradient; the gradient to a numerical derivative;
    the second derivative to a numerical one; and asks that a second run and a second backward give the same bits, and that no
    input is written. Values that `stop_gradient` stops stay as they are in the numerical derivatives.

    ranges: the values to draw for an operand or parameter, such as {"t": (0.0, 1.0)}; else Row, Elem and Tuple lie in (-5, 5),
        PerRow in (0, 1), boxes are proper boxes, and a parameter takes its default (0.1 to 0.4 where it
        has none, or is off by default).
    """
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    spec: Spec = function.spec
    choices = spec.choices()
    ranges = dict(ranges or {})

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None, print_blob=False)
    @given(st.data())
    def kernels_match(data):
        choice = data.draw(st.sampled_from(choices), "choice")
        dtype = data.draw(st.sampled_from(DTYPES), "dtype")
        layout = data.draw(st.sampled_from(LAYOUTS), "layout")
        shape = data.draw(_shapes(st, spec), "shape")
        reduction = data.draw(st.sampled_from(("none", "mean", "sum")), "reduction")
        seed = data.draw(st.integers(0, 2**31), "seed")
        call = _draw(spec, choice, dtype, layout, shape, reduction, seed, ranges, device)
        _same_as_interpreter(call)

    @settings(max_examples=max(1, examples // 3), deadline=None, suppress_health_check=list(HealthCheck), database=None, print_blob=False)
    @given(st.data())
    def derivatives_match(data):
        choice = data.draw(st.sampled_from(choices), "choice")
        shape = data.draw(_small_shapes(st, spec), "shape")
        reduction = data.draw(st.sampled_from(("none", "mean", "sum")), "reduction")
        seed = data.draw(st.integers(0, 2**31), "seed")
        call = _draw(spec, choice, torch.float64, "contiguous", shape, reduction, seed, ranges, device)
        _same_as_numerical(call)

    kernels_match()
    derivatives_match()


def _shapes(st, spec: Spec):
    if not spec.row:
        return st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple)
    classes = st.sampled_from((1, 2, 3, 5, 16, 31, 33, 257, 1000))
    rows = st.integers(0, 9)
    return st.one_of(
        st.tuples(classes), st.tuples(rows, classes), st.tuples(rows, classes, st.integers(1, 9)),
        st.tuples(st.integers(0, 3), st.integers(1, 33), st.integers(1, 5), st.integers(1, 70)),
    )  # fmt: skip


def _small_shapes(st, spec: Spec):
    if not spec.row:
        return st.tuples(st.integers(1, 4))
    return st.one_of(st.tuples(st.integers(1, 4), st.integers(1, 5)), st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 2)))


def _draw(spec: Spec, choice: Choice, dtype, layout: str, shape, reduction: str, seed: int, ranges, device: str) -> Call:
    """A call of random operands. `shape` is that of a Row, or of the items where there is none."""
    generator = torch.Generator().manual_seed(seed)
    items = [s for i, s in enumerate(shape) if i != class_axis(len(shape))] if spec.row else list(shape)
    classes = shape[class_axis(len(shape))] if spec.row else 0
    operands: list[Tensor | None] = []
    for operand, kind in zip(spec.operands, choice.kinds, strict=True):
        low_high = ranges.get(operand.name)
        if kind is None:
            operands.append(None)
        elif kind is Index:
            labels = torch.randint(0, classes, items, generator=generator)
            operands.append(torch.where(torch.rand(items, generator=generator) < 0.2, -100, labels).to(device))
        else:
            value = _values(kind, low_high, items, shape, classes, generator)
            storage = dtype if kind.differentiable else torch.float64 if dtype is torch.float64 else torch.float32
            value = value.to(storage).to(device)
            operands.append(_laid_out(value, layout).requires_grad_() if kind.differentiable else value)
    parameters = []
    for parameter, present in zip(spec.parameters, choice.present, strict=True):
        usual = (0.1, 0.4) if parameter.fixed or parameter.required else (parameter.default,) * 2
        low, high = ranges.get(parameter.name, usual)
        parameters.append(low + (high - low) * float(torch.rand((), generator=generator)) if present else parameter.fixed[0])
    ignore = -100 if spec.labelled else None
    return check_arguments(spec, tuple(operands), tuple(parameters), choice.statics, ignore, reduction, None, None)


def _values(kind: Kind, low_high, items, shape, classes: int, generator) -> Tensor:
    if kind is Box:
        return torch.rand(*items, 4, generator=generator, dtype=torch.float64).cumsum(-1)  # a box in every format
    size = {Row: shape, ClassWeight: (classes,), Scalar: ()}.get(kind, (*items, kind.components) if kind.components else items)
    low, high = low_high or RANGES.get(kind, (-5.0, 5.0))
    return low + (high - low) * torch.rand(tuple(size), generator=generator, dtype=torch.float64)


def _laid_out(x: Tensor, layout: str) -> Tensor:
    """The same values in other memory (for `expanded`: the first item's in every place)."""
    if layout == "transposed":
        return x.movedim(0, -1).contiguous().movedim(-1, 0)
    if layout == "sliced":
        wide = x.new_full([s + 3 for s in x.shape], float("nan"))
        inner = wide[tuple(slice(1, s + 1) for s in x.shape)]
        return inner.copy_(x).detach()
    if layout == "expanded" and x.ndim > 1 and x.shape[0] > 0:
        return x[:1].expand(x.shape)
    return x.clone()


def _same_as_interpreter(call: Call) -> None:
    wrt = tuple(call.differentiable)
    leaves = [call.operands[n] for n in wrt]
    before = [v.detach().clone() for v in call.operands.values()]
    loss = compute(call)
    assert loss.dtype == call.real, f"the loss is {loss.dtype}, expected {call.real}"
    upstream = torch.randn(loss.shape, dtype=loss.dtype, device=loss.device)
    grads = torch.autograd.grad(loss, leaves, upstream, retain_graph=True)
    again = torch.autograd.grad(loss, leaves, upstream)
    for name, g, h, x in zip(wrt, grads, again, leaves, strict=True):
        assert g.dtype == x.dtype and g.shape == x.shape, f"the gradient of {name} is {g.dtype} {tuple(g.shape)}"
        assert torch.equal(g, h) or _bits(g, h), f"two backward passes give different gradients of {name}"
    assert _bits(compute(call), loss), "two runs give different bits"
    for name, old, new in zip(call.operands, before, call.operands.values(), strict=True):
        assert _bits(old, new.detach()), f"{name} was written"
    exact = _reference(call, torch.float64, upstream, wrt)
    eager = exact if call.real is torch.float64 else _reference(call, torch.float32, upstream, wrt)
    unit = 32 * torch.finfo(call.real).eps
    forward, gradient = (unit * size for size in _sizes(call, upstream, wrt))
    names, units = ["the loss", *(f"the gradient of {n}" for n in wrt)], [forward, *[gradient] * len(wrt)]
    for name, got, want, plain, floor in zip(names, [loss, *grads], exact, eager, units, strict=True):
        _assert_close(name, got, want, plain, floor)


def _sizes(call: Call, upstream: Tensor, wrt: tuple[str, ...]) -> tuple[float, float]:
    """The largest value met on the way to the loss, and to the gradients: what rounding errors are measured against."""
    operands = {n: v.detach().double() if v.is_floating_point() else v for n, v in call.operands.items()}
    wide = Call(**{**vars(call), "operands": operands, "real": torch.float64})
    leaves = interpret.leaf_values(wide, operands)
    leaves[UPSTREAM] = torch.cat([upstream.detach().double().abs().reshape(-1), upstream.new_zeros(1).double()]).max().reshape(1, 1)
    sizes = []
    for roots in (call.spec.trace(call.choice).outputs, scheduled(call.spec, call.choice, wrt).gradients):
        nodes = [n for n in topological(roots.values()) if n.type is Type.REAL]
        values = [v.abs().nan_to_num(0.0, 0.0, 0.0).max() for v in evaluate(torch, nodes, leaves) if v.numel()]
        sizes.append(float(max(values, default=0.0)))
    return sizes[0] * (call.rows if call.reduction == "sum" else 1), sizes[1]


def _reference(call: Call, dtype: torch.dtype, upstream: Tensor, wrt: tuple[str, ...]) -> list[Tensor]:
    """Loss and gradients by the interpreter, computed in `dtype` from the same values, unrounded."""
    operands = {n: v.detach().to(dtype) if v.is_floating_point() else v for n, v in call.operands.items()}
    wide = Call(**{**vars(call), "operands": operands, "real": dtype})
    loss, denominator = interpret.forward(wide, operands)
    return [loss, *interpret.backward(wide, operands, wrt, upstream.to(dtype), denominator)]


def _assert_close(name: str, got: Tensor, want: Tensor, plain: Tensor, floor: float) -> None:
    """Within `floor`, or as near as torch itself comes in that precision (8 times), plus one rounding to the operand's type."""
    rounding, smallest = {torch.bfloat16: (2.0**-8, 0.0), torch.float16: (2.0**-11, 2.0**-25)}.get(got.dtype, (0.0, 0.0))
    got = got.detach().double()
    finite = torch.isfinite(want)
    assert torch.equal(torch.isnan(got), torch.isnan(want)), f"{name}: nan in other places than the interpreter's"
    scale = float(want[finite].abs().max()) if finite.any() else 0.0
    slack = 8 * (plain.double() - want).abs().nan_to_num(0.0, 0.0, 0.0)
    bound = floor + slack + rounding * want.abs().nan_to_num(0.0, 0.0, 0.0) + smallest
    worst = ((got - want).abs() - bound)[finite]
    assert worst.numel() == 0 or float(worst.max()) <= 0, (
        f"{name}: off by {float((got - want).abs()[finite].max()):.3g} from the interpreter in float64, whose largest value is {scale:.3g}"
    )


def _same_as_numerical(call: Call) -> None:
    """The kernels' gradient against a numerical derivative, and the second derivative against a numerical one."""
    wrt = tuple(n for n in call.differentiable if call.operands[n].numel())
    leaves = [call.operands[n] for n in wrt]
    frozen, stopped = Frozen(), Frozen()

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            return interpret.forward(call, {**call.operands, **dict(zip(wrt, tensors, strict=True))}, frozen)[0]

        @staticmethod
        def backward(ctx, grad):
            with torch.enable_grad():
                return torch.autograd.grad(compute(call), leaves, grad)

    def gradients(*tensors):
        operands = {**call.operands, **dict(zip(wrt, tensors[:-1], strict=True))}
        denominator = interpret.forward(call, dict(call.operands))[1]
        return tuple(interpret.backward(call, operands, wrt, tensors[-1], denominator, stopped))

    loss = Loss.apply(*leaves)
    if not torch.isfinite(loss).all():
        return  # every row ignored, or out of the loss's domain: there is no slope
    torch.autograd.gradcheck(Loss.apply, leaves, nondet_tol=0.0, atol=1e-6, rtol=1e-4)
    upstream = torch.linspace(0.5, 1.5, max(1, loss.numel()), dtype=loss.dtype, device=loss.device).reshape(loss.shape).requires_grad_()
    torch.autograd.gradcheck(gradients, (*leaves, upstream), atol=1e-5, rtol=1e-4)


def _bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same, nan where nan."""
    plain = [v.nan_to_num(7.0, 8.0, 9.0) for v in (a, b)]
    return a.dtype == b.dtype and torch.equal(*plain) and torch.equal(a.isnan(), b.isnan())


__all__ = ["check", "interpreted"]
