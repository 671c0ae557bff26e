"""Every row of the table of primitives: value and gradient against torch's own function and autograd, in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from losszoo.ir import build as b
from losszoo.ir.autodiff import gradient
from losszoo.ir.expr import REDUCTIONS, ZERO, Extent, Node, Type
from losszoo.ir.primitives import TABLE
from tests.ir.graphs import derived, environment, operand, same, value

INF, NAN = math.inf, math.nan
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, 1e-8, 1e-300, 1e300, 30.0, -30.0, 800.0, -800.0, INF, -INF, NAN)
FLOATS = st.floats(-1e100, 1e100).map(lambda x: x if abs(x) > 1e-100 else 0.0) | st.sampled_from((1.0, INF, -INF, NAN))
REAL, BOOL, INT = Type.REAL, Type.BOOL, Type.INT


@dataclass(frozen=True)
class Case:
    """A row of the table beside torch's own function of the same thing."""

    torch: Callable[..., Tensor]
    types: tuple[Type, ...] = (REAL,)
    # Where losszoo's gradient for each argument is another than torch's on purpose. A test below says what it is there.
    differs: tuple[Callable[..., Tensor], ...] = ()
    gradient: bool = True
    integral: bool = False  # defined for what fits a whole number only


def _pow_base(x: Tensor, y: Tensor) -> Tensor:
    """Of y x**(y - 1) the sign is arbitrary where torch rounds y - 1 to a whole number, and at -0."""
    return (x < 0) & (y.abs() > 2**53) | (x == 0) & x.signbit()


def _not_positive(x: Tensor, y: Tensor) -> Tensor:
    return x <= 0


def _a_nan(*args: Tensor) -> Tensor:
    return torch.stack(args).isnan().any(0)


def _beside_one(x: Tensor) -> Tensor:
    return (x.abs() < 1) & (x.abs() > 0.999)


def _never(*args: Tensor) -> Tensor:
    return torch.zeros_like(args[0], dtype=torch.bool)


def _share(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.where((x == 0) & ~y.isfinite(), 0.0, y)


TWO = (REAL, REAL)
POINTWISE = {
    "add": Case(torch.add, TWO),
    "sub": Case(torch.sub, TWO),
    "mul": Case(torch.mul, TWO),
    "share": Case(_share, TWO, (_a_nan, _never)),
    "div": Case(torch.div, TWO),
    "reciprocal": Case(torch.reciprocal, gradient=False),
    "neg": Case(torch.neg),
    "abs": Case(torch.abs, differs=(_a_nan,)),
    "pow": Case(torch.pow, TWO, (_pow_base, _not_positive)),
    "exp": Case(torch.exp),
    "exp_falling": Case(torch.exp, gradient=False),
    "log": Case(torch.log),
    "log1p": Case(torch.log1p),
    "log1p_unit": Case(torch.log1p, gradient=False),
    "expm1": Case(torch.expm1),
    "sqrt": Case(torch.sqrt),
    "tanh": Case(torch.tanh),
    "sigmoid": Case(torch.sigmoid),
    "softplus": Case(lambda x: torch.logaddexp(x, torch.zeros_like(x))),
    "sin": Case(torch.sin),
    "cos": Case(torch.cos),
    "asin": Case(torch.asin, differs=(_beside_one,)),
    "acos": Case(torch.acos, differs=(_beside_one,)),
    "atan": Case(torch.atan),
    "atan2": Case(torch.atan2, TWO),
    "maximum": Case(torch.maximum, TWO),
    "minimum": Case(torch.minimum, TWO),
    "clamp_min": Case(lambda x, low: torch.clamp(x, min=low), TWO, (_never, _a_nan)),
    "clamp_max": Case(lambda x, high: torch.clamp(x, max=high), TWO, (_never, _a_nan)),
    "where": Case(torch.where, (BOOL, REAL, REAL)),
    **{name: Case(getattr(torch, name), TWO, gradient=False) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    "and": Case(torch.logical_and, (BOOL, BOOL), gradient=False),
    "or": Case(torch.logical_or, (BOOL, BOOL), gradient=False),
    "not": Case(torch.logical_not, (BOOL,), gradient=False),
    "floor": Case(torch.floor, gradient=False),
    "real": Case(Tensor.double, (INT,), gradient=False, integral=True),
    "integer": Case(lambda x: torch.where(x.abs() < 2**62, x, -1.0).long(), gradient=False),
    "stop_gradient": Case(Tensor.detach, gradient=False),
}


def _logsum(x: Tensor) -> Tensor:
    return torch.logsumexp(x - x.amax(-1, keepdim=True).detach(), -1, keepdim=True)


def _pick(x: Tensor, y: Tensor) -> Tensor:
    inside = (y >= 0) & (y < x.shape[-1])
    return torch.where(inside, x.gather(-1, y.clamp(0, x.shape[-1] - 1)), 0.0)


def _shifted(x: Tensor, f: Tensor) -> Tensor:
    peak = x.amax(-1, keepdim=True)
    return torch.where(f == 0, 0.0, f * (x - peak.masked_fill(peak == -INF, 0.0))).sum(-1, keepdim=True)


REDUCING = {
    "sum": Case(lambda x: x.sum(-1, keepdim=True)),
    "max": Case(lambda x: x.amax(-1, keepdim=True)),
    "peak": Case(lambda x: x.amax(-1, keepdim=True), gradient=False),
    "logsum": Case(_logsum, differs=(lambda x: (x == -INF).all(-1, keepdim=True),)),
    "expsum": Case(lambda x, f: (torch.softmax(x, -1) * f).sum(-1, keepdim=True), TWO, gradient=False),
    "shifted": Case(_shifted, TWO, gradient=False),
    "pick": Case(_pick, (REAL, INT)),
    "found": Case(_pick, (REAL, INT), gradient=False),
}


def test_every_row_of_the_table_is_here():
    assert {*POINTWISE, *REDUCING} == set(TABLE)
    assert {name for name, row in TABLE.items() if row.name != name} == set()
    assert set(REDUCING) == REDUCTIONS | {"pick"}


def _columns(case: Case, rows: Sequence[Sequence[float]]) -> list[Tensor]:
    """The drawn numbers, an argument a column, as each argument's type."""
    if case.integral:
        rows = [row for row in rows if all(abs(x) < 2**62 for x in row)]
    columns = torch.tensor(rows, dtype=torch.float64).reshape(-1, len(case.types)).split(1, 1)
    to = {REAL: lambda x: x, BOOL: lambda x: x > 0, INT: lambda x: x.long()}
    return [to[t](x) for t, x in zip(case.types, columns, strict=True)]


def _hold(name: str, case: Case, leaves: dict[Node, Tensor], extra: dict[Node, Tensor] | None = None) -> None:
    """Hold losszoo's value and gradient to torch's, where no difference is meant."""
    nodes, args = list(leaves), list(leaves.values())
    known = {**(extra or {}), **leaves}
    node = b.apply(name, *nodes)
    assert node.op == name and node.args == tuple(nodes)
    tracked = [x.clone().requires_grad_(x.is_floating_point()) for x in args]
    want, got = case.torch(*tracked), value(node, known)
    upstream = torch.linspace(-0.75, 1.25, max(1, len(want)), dtype=torch.float64)[: len(want)].reshape(-1, 1)
    meant = case.differs[0](*args) if name == "logsum" else torch.zeros_like(want, dtype=torch.bool)
    assert got.dtype == want.dtype
    if want.dtype is torch.float64:
        assert same(got[~meant], want.detach()[~meant], rtol=1e-12, atol=1e-15 if extra else 0.0)
    else:
        assert torch.equal(got, want)
    real = [i for i, x in enumerate(args) if x.is_floating_point()]
    if not case.gradient:
        assert node.type is not REAL or gradient(node, [nodes[i] for i in real]) == {nodes[i]: ZERO for i in real}
        return
    wants = torch.autograd.grad(want, [tracked[i] for i in real], upstream)
    gots = derived(node, known, [nodes[i] for i in real], upstream)
    for i, found, torchs in zip(real, gots, wants, strict=True):
        meant = case.differs[i](*args) if case.differs else torch.zeros_like(args[i], dtype=torch.bool)
        keep = ~meant.expand(torchs.shape)
        assert same(found[keep], torchs[keep], rtol=1e-9, atol=1e-15), f"gradient of argument {i}"


@pytest.mark.parametrize("name", POINTWISE)
def test_special_values(name):
    """All pairs of zeros, ties, bounds, huge and tiny numbers, infinities and nan."""
    case = POINTWISE[name]
    columns = _columns(case, list(itertools.product(SPECIAL, repeat=len(case.types))))
    _hold(name, case, {operand(f"x{i}", type=t): x for i, (t, x) in enumerate(zip(case.types, columns, strict=True))})


@pytest.mark.parametrize("name", POINTWISE)
@given(data=st.data())
def test_random_values(name, data):
    case = POINTWISE[name]
    rows = data.draw(st.lists(st.tuples(*(FLOATS for _ in case.types)), min_size=1, max_size=20))
    columns = _columns(case, rows)
    _hold(name, case, {operand(f"x{i}", type=t): x for i, (t, x) in enumerate(zip(case.types, columns, strict=True))})


def _rows(name: str, x: Tensor, second: Tensor) -> None:
    case = REDUCING[name]
    leaves = {operand("x", Extent.CLASS): x}
    if case.types == (REAL, INT):
        leaves[operand("y", type=INT)] = torch.arange(len(x)).reshape(-1, 1) % (x.shape[1] + 2) - 1
    elif len(case.types) == 2:
        leaves[operand("f", Extent.CLASS)] = second
    _hold(name, case, leaves, environment(x.shape[1]))


@pytest.mark.parametrize("name", REDUCING)
def test_special_rows(name):
    """All rows of three from ties, masked classes, huge values, infinities and nan; labels that name no class too."""
    x = torch.tensor(list(itertools.product((0.0, -0.0, 1.0, -2.0, 1e300, 800.0, INF, -INF, NAN), repeat=3)))
    x = x.double()
    _rows(name, x, torch.randn_like(x))


@pytest.mark.parametrize("name", REDUCING)
@given(data=st.data())
def test_random_rows(name, data):
    rows, classes = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 9)))
    numbers = st.lists(st.floats(-50, 50), min_size=rows * classes, max_size=rows * classes)
    x, f = (torch.tensor(data.draw(numbers), dtype=torch.float64).reshape(rows, classes) for _ in range(2))
    _rows(name, x, f)


# Where losszoo means to differ from torch.


def _slope(name: str, *numbers: float, wrt: int = 0) -> float:
    nodes = [operand(f"x{i}") for i in range(len(numbers))]
    leaves = {node: torch.tensor([[x]], dtype=torch.float64) for node, x in zip(nodes, numbers, strict=True)}
    return float(derived(b.apply(name, *nodes), leaves, [nodes[wrt]], torch.ones(1, 1, dtype=torch.float64))[0])


def test_atan2_has_gradient_0_at_the_origin():
    """Said in so many words, since it holds for boxes of no size; torch versions do not agree on it."""
    assert [_slope("atan2", y, x, wrt=wrt) for y in (0.0, -0.0) for x in (0.0, -0.0) for wrt in (0, 1)] == [0.0] * 8


def test_where_selects_adjoints_of_what_is_not_selected():
    """torch multiplies the infinite slope by 0 and gets nan; here what is not selected has no influence."""
    x = operand("x")
    loss = b.where(b.apply("gt", x, ZERO), b.apply("sqrt", x), ZERO)
    at = torch.zeros(1, 1, dtype=torch.float64)
    tracked = at.clone().requires_grad_()
    torch.where(tracked > 0, tracked.sqrt(), 0.0).backward()
    assert tracked.grad.isnan()
    assert derived(loss, {x: at}, [x], torch.ones_like(at))[0] == 0


def test_sigmoid_and_expm1_keep_relative_precision():
    """torch's s (1 - s) and y + 1 lose it: s rounds to 1 at 40, expm1(x) to -1 at -40."""
    for x in (40.0, 100.0, 700.0):
        assert _slope("sigmoid", x) == pytest.approx(math.exp(-x), rel=1e-13)
        assert _slope("sigmoid", -x) == pytest.approx(math.exp(-x), rel=1e-13)
        assert _slope("expm1", -x) == pytest.approx(math.exp(-x), rel=1e-13)
        assert _slope("softplus", -x) == pytest.approx(math.exp(-x), rel=1e-13)


def test_arc_functions_are_precise_beside_1():
    """torch squares first: 1 - x * x has half its digits."""
    for h in (2.0**-40, 2.0**-52):
        want = 1 / math.sqrt(h * (2 - h))
        assert _slope("asin", 1 - h) == pytest.approx(want, rel=1e-14)
        assert _slope("acos", h - 1) == pytest.approx(-want, rel=1e-14)


def test_a_share_of_0_of_a_nan_has_a_gradient_that_is_nan():
    """It adds nothing, but how the share would change the value is not known. (Of an infinite value: 0, so that 0 stays 0.)"""
    assert math.isnan(_slope("share", 0.0, NAN)) and _slope("share", 0.0, INF) == _slope("share", 0.0, NAN, wrt=1) == 0


def test_abs_of_nan_has_gradient_nan():
    """torch says 0, and hides the nan from whoever looks at the gradient."""
    assert math.isnan(_slope("abs", NAN))


def test_clamping_a_nan_leaves_the_gradient_with_the_bound():
    """torch gives it to neither; the value is nan either way."""
    assert _slope("clamp_min", NAN, 1.0) == _slope("clamp_max", 1.0, NAN) == 0
    assert _slope("clamp_min", NAN, 1.0, wrt=1) == _slope("clamp_max", 1.0, NAN, wrt=1) == 1


def test_a_power_has_a_slope_in_its_exponent_for_positive_bases_only():
    """torch says nan for a negative base, -inf for pow(0, negative); here 0, as a kernel must not poison what it cannot know."""
    assert _slope("pow", -2.0, 3.0, wrt=1) == _slope("pow", 0.0, -1.0, wrt=1) == 0
    assert _slope("pow", 2.0, 3.0, wrt=1) == pytest.approx(8 * math.log(2))


def test_a_wholly_masked_row():
    """logsum(-inf, -inf) is log(0) = -inf, where the shift by -inf would give nan; its softmax has no meaning."""
    x = operand("x", Extent.CLASS)
    at = {x: torch.full((1, 2), -INF, dtype=torch.float64), **environment(2)}
    assert value(b.apply("logsum", x), at) == -INF
