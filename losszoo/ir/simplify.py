"""Rewrite rules. Each keeps the value for every input, nan and infinity included, so `0 * x` is no rule here.

The rule that carries weight is the one for `where(c, a, 0) * b` (and its mirror image): the product moves inside the selection, so
an adjoint that is absent stays absent even where the factor is infinite. Autodiff leans on it (a selection never multiplies by 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from losszoo.ir.expr import ONE, ZERO, Extent, Node, Type, const, is_const


def simplify(op: str, args: tuple[Node, ...], attr: object) -> Node | None:
    """A simpler node of the same value, or None."""
    if op in _FOLD and all(is_const(a) for a in args):
        try:
            return const(_FOLD[op](*(a.attr for a in args)))
        except (ArithmeticError, ValueError):
            return None  # what the machine's arithmetic gives (inf, nan) is the kernel's business
    rule = _RULES.get(op)
    return rule(*args) if rule else None


_FOLD: dict[str, Callable] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "pow": lambda a, b: math.pow(a, b),
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "cos": math.cos,
    "sin": math.sin,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


def _again(op: str, *args: Node) -> Node:
    from losszoo.ir.build import apply

    return apply(op, *args)


def _inside(node: Node, op: Callable[[Node], Node]) -> Node | None:
    """Of `where(c, a, 0)` or `where(c, 0, b)`, a value that is absent on one side: the same with op done on the other side."""
    if node.op != "where" or node.type is not Type.REAL:
        return None
    c, a, b = node.args
    if is_const(b, 0):
        return _again("where", c, op(a), b)
    if is_const(a, 0):
        return _again("where", c, a, op(b))
    return None


def _add(a: Node, b: Node) -> Node | None:
    if is_const(a, 0):
        return b
    if is_const(b, 0):
        return a
    if b.op == "neg":
        return _again("sub", a, b.args[0])
    if a.op == "neg":
        return _again("sub", b, a.args[0])
    return None


def _sub(a: Node, b: Node) -> Node | None:
    if is_const(b, 0):
        return a
    if is_const(a, 0):
        return _again("neg", b)
    if b.op == "neg":
        return _again("add", a, b.args[0])
    return None


def _mul(a: Node, b: Node) -> Node | None:
    for x, y in ((a, b), (b, a)):
        if is_const(x, 1):
            return y
        if is_const(x, -1):
            return _again("neg", y)
        if x.op == "neg":
            return _again("neg", _again("mul", x.args[0], y))
    for x, y in ((a, b), (b, a)):
        if (masked := _inside(x, lambda value, y=y: _again("mul", value, y))) is not None:  # type: ignore[misc]
            return masked
    return None


def _share(a: Node, b: Node) -> Node | None:
    if is_const(a):
        return _again("mul", a, b) if a.attr != 0 else ZERO
    return None


def _div(a: Node, b: Node) -> Node | None:
    if is_const(b, 1):
        return a
    if is_const(b) and _exact_inverse(b.attr):
        return _again("mul", a, const(1 / b.attr))
    if a.op == "neg":
        return _again("neg", _again("div", a.args[0], b))
    return _inside(a, lambda value: _again("div", value, b))


def _exact_inverse(value: float) -> bool:
    """Whether a number's inverse is exact, and so are products with it: a power of two, far from where they could not be held."""
    return 2**-64 <= abs(value) <= 2**64 and math.frexp(value)[0] in (0.5, -0.5)


def _neg(a: Node) -> Node | None:
    if a.op == "neg":
        return a.args[0]
    if a.op == "sub":
        return _again("sub", a.args[1], a.args[0])
    return _inside(a, lambda value: _again("neg", value))


def _where(c: Node, a: Node, b: Node) -> Node | None:
    if is_const(c):
        return a if c.attr else b
    if a is b:
        return a
    if c.op == "not":
        return _again("where", c.args[0], b, a)
    if a.op == "where" and a.args[0] is c:
        return _again("where", c, a.args[1], b)
    return None


def _pow(a: Node, b: Node) -> Node | None:
    if is_const(b, 1):
        return a
    if is_const(b, 2):
        return _again("mul", a, a)
    if is_const(b, 0):
        return ONE  # torch: anything to the power 0 is 1, nan included
    return None


def _abs(a: Node) -> Node | None:
    return _again("abs", a.args[0]) if a.op in ("neg", "abs") else None


def _and(a: Node, b: Node) -> Node | None:
    for x, y in ((a, b), (b, a)):
        if is_const(x):
            return y if x.attr else x
    return a if a is b else None


def _or(a: Node, b: Node) -> Node | None:
    for x, y in ((a, b), (b, a)):
        if is_const(x):
            return x if x.attr else y
    return a if a is b else None


def _not(a: Node) -> Node | None:
    if is_const(a):
        return const(not a.attr)
    return a.args[0] if a.op == "not" else None


def _eq(a: Node, b: Node) -> Node | None:
    return const(True) if a is b and a.type is Type.INT else None


def _stop_gradient(a: Node) -> Node | None:
    return a if a.op in ("const", "stop_gradient") or a.extent is Extent.UNIFORM else None


def _real(a: Node) -> Node | None:
    return a if a.type is Type.REAL else None


_RULES: dict[str, Callable[..., Node | None]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "share": _share,
    "div": _div,
    "neg": _neg,
    "where": _where,
    "pow": _pow,
    "abs": _abs,
    "and": _and,
    "or": _or,
    "not": _not,
    "eq": _eq,
    "stop_gradient": _stop_gradient,
    "real": _real,
}

__all__ = ["ZERO", "simplify"]
