"""Primitives with no C spelling, spelled in others: sigmoid and softplus share one exp(-|x|) between them and all their signs."""

from __future__ import annotations

from losszoo.ir import build as b
from losszoo.ir.expr import ONE, ZERO, Node, is_const


def _decay(x: Node) -> Node:
    return b.apply("exp", b.neg(b.apply("abs", x)))


def _sigmoid(x: Node) -> Node:
    e = _decay(x)
    choice: Node
    if x.op == "abs":
        choice = ONE
    elif _never_positive(x):
        choice = e
    elif x.op == "neg":  # one comparison does for x and -x: at 0 both sides are 1
        choice = b.where(b.apply("ge", x.args[0], ZERO), e, ONE)
    else:
        choice = b.where(b.apply("ge", x, ZERO), ONE, e)
    return b.mul(choice, b.apply("reciprocal", b.add(ONE, e)))  # sigmoid(-x) shares the division


def _softplus(x: Node) -> Node:
    rest = b.apply("log1p_unit", _decay(x))
    return rest if _never_positive(x) else b.add(b.apply("clamp_min", x, ZERO), rest)


def _never_positive(x: Node) -> bool:
    return x.op == "neg" and x.args[0].op == "abs"


def is_magnitude(condition: Node, x: Node, y: Node) -> bool:
    """Whether where(condition, x, y) is where(y < 0, -y, y), which is |y|, but for a derivative of its own at 0."""
    return condition.op == "lt" and condition.args[0] is y and is_const(condition.args[1], 0) and x.op == "neg" and x.args[0] is y


SPELLED = {"sigmoid": _sigmoid, "softplus": _softplus}
