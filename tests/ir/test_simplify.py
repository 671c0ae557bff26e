"""Each rewrite rule keeps the value, nan and infinities included (zeros of either sign are one value)."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from losszoo.ir import simplify
from losszoo.ir.build import apply
from losszoo.ir.expr import ONE, TWO, ZERO, Extent, Node, Type, const, leaf
from losszoo.ir.interpreter import evaluate
from losszoo.ir.primitives import TABLE
from tests.ir.graphs import operand, same, value

X, Y, C, D = operand("x"), operand("y"), operand("c", type=Type.BOOL), operand("d", type=Type.BOOL)
N = operand("n", type=Type.INT)
TRUE, FALSE, LESS = const(True), const(False), const(-1.0)
TORCH = SimpleNamespace(**{name: getattr(torch, name) for name in dir(torch)} | {"real": torch.float64, "inf": math.inf})


def neg(x: Node) -> Node:
    return apply("neg", x)


def mask(c: Node, x: Node) -> Node:
    return apply("where", c, x, ZERO)


def unmask(c: Node, x: Node) -> Node:
    return apply("where", c, ZERO, x)


# What a rule is for -> the primitive and its arguments that it must rewrite.
RULES: dict[str, list[tuple]] = {
    "add": [("add", ZERO, X), ("add", X, ZERO), ("add", X, neg(Y)), ("add", neg(X), Y), ("add", neg(X), neg(Y))],
    "sub": [("sub", X, ZERO), ("sub", ZERO, X), ("sub", X, neg(Y))],
    "mul": [("mul", ONE, X), ("mul", X, ONE), ("mul", LESS, X), ("mul", X, LESS), ("mul", neg(X), Y), ("mul", X, neg(Y)),
            ("mul", neg(X), neg(Y))],
    "share": [("share", ONE, X), ("share", TWO, X), ("share", ZERO, X)],
    "div": [("div", X, ONE), ("div", X, TWO), ("div", X, const(-0.125)), ("div", neg(X), Y)],
    "neg": [("neg", neg(X)), ("neg", apply("sub", X, Y)), ("neg", mask(C, X)), ("neg", unmask(C, X))],
    "where": [("where", TRUE, X, Y), ("where", FALSE, X, Y), ("where", C, X, X), ("where", apply("not", C), X, Y),
              ("where", C, apply("where", C, X, Y), X)],
    "pow": [("pow", X, ZERO), ("pow", X, const(-0.0)), ("pow", X, ONE), ("pow", X, TWO)],
    "abs": [("abs", neg(X)), ("abs", apply("abs", X))],
    "and": [("and", TRUE, C), ("and", C, TRUE), ("and", FALSE, C), ("and", C, FALSE), ("and", C, C)],
    "or": [("or", TRUE, C), ("or", C, TRUE), ("or", FALSE, C), ("or", C, FALSE), ("or", C, C)],
    "not": [("not", apply("not", C)), ("not", TRUE), ("not", FALSE)],
    "eq": [("eq", N, N)],
    "stop_gradient": [("stop_gradient", apply("stop_gradient", X)), ("stop_gradient", ONE),
                      ("stop_gradient", leaf("param", "p", Type.REAL, Extent.UNIFORM))],
    "real": [("real", X)],
}  # fmt: skip
CASES = [case for cases in RULES.values() for case in cases]
MASKED = {  # and where the value is there
    ("mul", mask(C, X), Y): lambda c, d: c,
    ("mul", Y, mask(C, X)): lambda c, d: c,
    ("mul", unmask(C, X), Y): lambda c, d: ~c,
    ("mul", mask(C, X), mask(D, Y)): lambda c, d: c & d,
    ("mul", unmask(C, X), mask(D, Y)): lambda c, d: ~c & d,
    ("div", mask(C, X), Y): lambda c, d: c,
    ("div", unmask(C, X), Y): lambda c, d: ~c,
}

reals = st.floats() | st.sampled_from((0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan))
columns = st.lists(st.tuples(reals, reals, st.booleans(), st.booleans(), st.integers(-9, 9)), min_size=1, max_size=20)


def leaves(rows: list[tuple]) -> dict[Node, Tensor]:
    kinds = {X: torch.float64, Y: torch.float64, C: torch.bool, D: torch.bool, N: torch.int64}
    drawn = (torch.tensor(column, dtype=d).reshape(-1, 1) for column, d in zip(zip(*rows), kinds.values(), strict=True))
    known = dict(zip(kinds, drawn, strict=True))
    known[leaf("param", "p", Type.REAL, Extent.UNIFORM)] = known[X][:1]
    return known


def plain(op: str, args: tuple[Node, ...], known: dict[Node, Tensor]) -> Tensor:
    """The primitive itself of the arguments' values, with no rule between."""
    return TABLE[op].torch(TORCH, *evaluate(torch, args, known))


def equal(a: Tensor, b: Tensor, rtol: float = 0.0) -> bool:
    a, b = torch.broadcast_tensors(a, b)
    return a.dtype == b.dtype and (torch.equal(a, b) if not a.is_floating_point() else same(a, b, rtol=rtol))


def name(case: tuple) -> str:
    return f"{case[0]}{case[1:]}"


def test_every_rule_is_tested():
    assert set(RULES) == set(simplify._RULES)


@pytest.mark.parametrize("case", [*CASES, *MASKED], ids=name)
def test_the_rule_applies(case):
    op, *args = case
    node = apply(op, *args)
    assert (node.op, node.args) != (op, tuple(args))


@pytest.mark.parametrize("case", CASES, ids=name)
@given(rows=columns)
def test_the_rule_keeps_the_value(case, rows):
    op, *args = case
    known = leaves(rows)
    rtol = 2**-52 if op == "pow" else 0.0  # torch's vectorised pow is an ulp from x * x
    assert equal(value(apply(op, *args), known), plain(op, tuple(args), known), rtol)


@pytest.mark.parametrize("case", MASKED, ids=name)
@given(rows=columns)
def test_a_masked_factor(case, rows):
    """The documented exception: where the mask is off the product is 0, also where the other factor is infinite or nan."""
    op, *args = case
    known = leaves(rows)
    there = MASKED[case](known[C], known[D])
    want = torch.where(there, plain(op, tuple(args), known), 0.0)
    assert equal(value(apply(op, *args), known), want)


@pytest.mark.parametrize("op", simplify._FOLD)
@given(data=st.data())
def test_constants_fold(op, data):
    """To what torch gives, or not at all."""
    arity = 1 if op in ("neg", "sqrt", "exp", "log", "cos", "sin") else 2
    drawn = [data.draw(reals | st.sampled_from((0.5, 2.0, 3.0, 1e308))) for _ in range(arity)]
    args = tuple(const(x) for x in drawn)
    known = {X: torch.zeros(1, 1, dtype=torch.float64)}
    got, want = value(apply(op, *args), known), plain(op, args, known)
    assert got.dtype == want.dtype and (torch.equal(got, want) or same(got.double(), want.double(), rtol=1e-15))
    if all(math.isfinite(x) for x in drawn) and want.double().isfinite():
        assert apply(op, *args).op == "const"


EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, -2.0, math.inf, -math.inf, math.nan)
BINARY = (
    *("add", "sub", "mul", "share", "div", "pow", "atan2", "maximum", "minimum", "clamp_min", "clamp_max"),
    *("lt", "le", "gt", "ge", "eq", "ne"),
)


@pytest.mark.parametrize("op", BINARY)
def test_a_constant_on_either_side(op):
    """0, 1, -1, 2 and the rest beside a variable that may be anything, to the last bit."""
    known = {X: torch.tensor((*EDGES, 5.0, 0.3, 1e-300, 1e200), dtype=torch.float64).reshape(-1, 1)}
    for number in (*EDGES, 2.0, 3.0, 0.1, 2.0**-70, 1e300):
        for args in ((X, const(number)), (const(number), X), (X, X)):
            assert equal(value(apply(op, *args), known), plain(op, args, known)), args


LEAVES = st.sampled_from((X, Y, ZERO, ONE, LESS, TWO, const(math.inf), const(-0.0)))


def _grown(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    unary = st.builds(apply, st.sampled_from(("neg", "abs", "stop_gradient", "real")), inner)
    binary = st.builds(apply, st.sampled_from(("add", "sub")), inner, inner)
    comparison = st.builds(apply, st.sampled_from(("lt", "eq", "ne")), inner, inner)
    return unary | binary | st.builds(apply, st.just("where"), comparison | st.sampled_from((C, D)), inner, inner)


@given(args=st.tuples(*[st.recursive(LEAVES, _grown, max_leaves=6)] * 2), rows=columns)
@pytest.mark.parametrize("op", ["add", "sub", "pow", "lt", "eq", "maximum"])
def test_rules_on_rules_keep_the_value(op, args, rows):
    """Whatever the arguments were simplified to, one more primitive of them is what it says."""
    known = leaves(rows)
    assert equal(value(apply(op, *args), known), plain(op, args, known))


@pytest.mark.parametrize("make", [lambda x: apply("mul", ZERO, x), lambda x: apply("sub", x, x), lambda x: apply("div", x, x)])
def test_what_is_no_rule(make: Callable[[Node], Node]):
    """0 x, x - x and x / x are nan where x is infinite."""
    infinite = {X: torch.full((1, 1), math.inf, dtype=torch.float64)}
    assert value(make(X), infinite).isnan()
