"""Primitives with no C spelling, spelled in others: sigmoid and softplus share one exp(-|x|) between them and all their signs."""

from __future__ import annotations

from losszoo.ir import build as b
from losszoo.ir.expr import ONE, ZERO, Node


def _decay(x: Node) -> Node:
    return b.apply("exp", b.neg(b.apply("abs", x)))


def _sigmoid(x: Node) -> Node:
    e = _decay(x)
    # One comparison does for x and -x: at 0 both sides are 1.
    if x.op == "neg":
        choice = b.where(b.apply("ge", x.args[0], ZERO), e, ONE)
    else:
        choice = b.where(b.apply("ge", x, ZERO), ONE, e)
    return b.mul(choice, b.apply("reciprocal", b.add(ONE, e)))  # sigmoid(-x) shares the division


def _softplus(x: Node) -> Node:
    return b.add(b.apply("clamp_min", x, ZERO), b.apply("log1p_unit", _decay(x)))


SPELLED = {"sigmoid": _sigmoid, "softplus": _softplus}
