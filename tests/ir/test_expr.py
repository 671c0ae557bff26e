"""Nodes: one value is one object; constants are told apart by type and sign; what nobody holds is freed."""

from __future__ import annotations

import gc
import math
import weakref

import pytest

from losszoo.ir import expr
from losszoo.ir.build import apply
from losszoo.ir.expr import Extent, Type, const, leaf, topological
from tests.ir.graphs import operand


def test_equal_expressions_are_one_object():
    def build():
        x, y = operand("x"), operand("y", Extent.CLASS)
        return apply("add", apply("exp", apply("mul", x, y)), const(0.5))

    assert build() is build()


def test_what_differs_is_not():
    x = operand("x")
    assert operand("x", Extent.CLASS) is not x and operand("x", type=Type.INT) is not x
    assert leaf("operand", ("x", 0), Type.REAL, Extent.ITEM) is not leaf("operand", ("x", 1), Type.REAL, Extent.ITEM)
    assert apply("sub", x, const(1.0)) is not apply("sub", const(1.0), x)


def test_constants():
    assert const(-0.0) is not const(0.0) and math.copysign(1, const(-0.0).attr) == -1
    assert len({const(1), const(1.0), const(True)}) == 3
    assert [const(x).type for x in (1, 1.0, True)] == [Type.INT, Type.REAL, Type.BOOL]
    assert const(math.nan) is const(math.nan) and const(float("inf")) is const(math.inf)
    assert const(0.1 + 0.2) is not const(0.3)


def test_nodes_are_freed():
    gc.collect()
    before = len(expr._nodes)
    node = apply("exp", apply("tanh", operand("a name of this test")))
    seen = weakref.ref(node)
    assert len(expr._nodes) == before + 3
    del node
    gc.collect()
    assert seen() is None and len(expr._nodes) == before


def test_nodes_are_values():
    node = apply("exp", operand("x"))
    with pytest.raises(AttributeError):
        node.op = "log"
    assert repr(node) == "exp(('x', None))"


def test_topological_order():
    """Arguments before users, each node once, and no recursion: a chain may be longer than Python's stack."""
    x = operand("x")
    node = x
    for _ in range(5000):
        node = apply("add", apply("sin", node), node)
    order = list(topological([node, x]))
    place = {n: i for i, n in enumerate(order)}
    assert len(order) == len(place) == 10001 and order[-1] is node
    assert all(place[a] < place[n] for n in order for a in n.args)
    assert list(topological([node, x])) == order
