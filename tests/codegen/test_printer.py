"""The printer of scalar maths: literals, each value once and where it belongs, names that depend on the graph alone."""

from __future__ import annotations

import math

import numpy
import pytest

from losszoo.codegen import sources
from losszoo.codegen.printer import Scope, literal, needed
from losszoo.ir import build as b
from losszoo.ir.expr import CLASSES, ONE, POSITION, TWO, UPSTREAM, Extent, Node, const
from losszoo.spec import Elem, loss
from tests.ir.graphs import LABEL, P, U, X, Z

NAMES = {X: "x", Z: "z", P: "p", LABEL: "y", U: "u", CLASSES: "classes", POSITION: "(base + k)", UPSTREAM: "g"}
LITERALS = [
    (0.0, "R(0.0)"), (-0.0, "R(-0.0)"), (1.5, "R(1.5)"), (-2.0, "R(-2.0)"), (0.1, "R(0.1)"), (1e300, "R(1e+300)"), (5e-324, "R(5e-324)"),
    (math.pi, "R(3.141592653589793)"), (math.inf, "lz::infinity<R>()"), (-math.inf, "-lz::infinity<R>()"), (math.nan, "lz::nan<R>()"),
    (True, "true"), (False, "false"), (7, "lz::int64(7)"), (-7, "lz::int64(-7)"), (2**40, "lz::int64(1099511627776)"),
]  # fmt: skip


@pytest.mark.parametrize("value, text", LITERALS, ids=[text for _, text in LITERALS])
def test_literals(value, text):
    assert literal(const(value)) == text


def emit(*roots: Node, extent: Extent = Extent.CLASS) -> list[str]:
    return Scope(NAMES, extent).emit(roots)


def test_statements():
    assert emit(b.add(b.mul(X, P), ONE)) == ["const R t0 = x * p;", "const R t1 = t0 + R(1.0);"]
    assert emit(b.where(b.apply("lt", X, Z), X, b.real(LABEL))) == [
        "const bool t0 = x < z;", "const R t1 = R(y);", "const R t2 = lz::select(t0, x, t1);",
    ]  # fmt: skip
    assert emit(b.neg(b.apply("exp", X))) == ["const R t0 = lz::exp(x);", "const R t1 = -t0;"]
    assert emit(X) == [] and emit(const(2.0)) == []


def test_a_value_is_printed_once():
    """However often it is used, and by however many roots."""
    e = b.apply("exp", b.mul(X, Z))
    lines = emit(b.add(e, b.div(ONE, e)), b.mul(e, e), b.apply("exp", b.mul(X, Z)))
    assert len(lines) == 5 and sum("exp" in line for line in lines) == 1
    scope = Scope(NAMES, Extent.CLASS)
    assert scope.emit([e]) and scope.emit([e]) == [] and scope.text(e) == "t1"


def test_constants_are_folded():
    assert emit(b.mul(b.add(ONE, TWO), X)) == ["const R t0 = R(3.0) * x;"]
    assert emit(b.div(X, b.apply("exp", const(0.0)))) == []
    assert emit(b.apply("pow", X, TWO)) == ["const R t0 = x * x;"]


def test_each_extent_prints_its_own():
    """What is the same for all is printed outside the loops, and numbered on within them."""
    root = b.mul(b.apply("exp", U), b.add(b.mul(P, U), b.apply("tanh", X)))
    uniform = Scope(NAMES, Extent.UNIFORM)
    assert uniform.emit([root]) == ["const R t0 = lz::exp(u);"]
    item = uniform.inner(Extent.ITEM)
    assert item.emit([root]) == ["const R t1 = p * u;"]
    body = item.inner(Extent.CLASS)
    assert body.emit([root]) == ["const R t2 = lz::tanh(x);", "const R t3 = t1 + t2;", "const R t4 = t0 * t3;"]
    assert item.inner(Extent.CLASS).emit([root])[0] == "const R t2 = lz::tanh(x);"


def test_what_waits_for_a_reduction():
    """It is printed once the reduction has a name; the rest before."""
    total = b.sum(X)
    root = b.add(b.div(P, total), b.apply("exp", P))
    scope = Scope(NAMES, Extent.ITEM)
    assert scope.emit([root]) == ["const R t0 = lz::exp(p);"]
    scope.names[total] = "r0"
    assert scope.emit([root]) == ["const R t1 = lz::divide(p, r0);", "const R t2 = t1 + t0;"]


def test_what_lies_behind_a_known_value_is_not_needed():
    total = b.sum(b.apply("exp", X))
    assert needed([b.mul(P, total)], {**NAMES, total: "s0"}) == [b.mul(P, total)]
    assert b.apply("exp", X) in needed([b.mul(P, total)], NAMES)


def test_one_class_is_one_load():
    """By the name of its operand; of an expression, the operands' values at the class are loaded."""
    assert emit(b.pick(X, LABEL), extent=Extent.ITEM) == ["const R t0 = lz::pick<R>(at_x, step_x, y, classes);"]
    loads = ["const R t0 = lz::pick<R>(at_x, step_x, y, classes);", "const R t1 = lz::pick<R>(at_z, step_z, y, classes);"]
    assert emit(b.pick(b.mul(X, Z), LABEL), extent=Extent.ITEM) == [*loads, "const R t2 = t0 * t1;"]


def test_a_onehot_compares_narrow_numbers():
    """Inside a block of classes, so that the loop is not one over 64-bit positions."""
    assert emit(b.where(b.onehot(LABEL), X, P))[0] == "const bool t0 = k == lz::within<NEAR>(y, base);"


def test_names_depend_on_the_graph_alone():
    """Not on what else was built, nor in which order."""

    def text() -> list[str]:
        return emit(b.add(b.apply("sin", X), b.mul(b.apply("cos", X), b.apply("tanh", Z))))

    first = text()
    others = [b.apply("tanh", Z), b.apply("cos", X), b.mul(X, X)]
    assert text() == first and len(others) == 3


@pytest.mark.parametrize("number", [numpy.log(2.0), numpy.float64(0.3), True, 10**30])
def test_python_numbers_of_any_kind(number):
    """numpy's numbers print themselves as np.float64(...) when they are not made plain."""

    @loss
    def f(x: Elem):
        return x * number

    (text,) = [s.text for s in sources(f.spec, "cpp")]
    assert "np." not in text
    assert number is True or f"R({float(number)!r})" in text
