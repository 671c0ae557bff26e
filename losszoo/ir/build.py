"""Constructors of nodes: they promote types, work out the extent and simplify, so every graph is in normal form."""

from __future__ import annotations

from losszoo.ir import primitives, simplify
from losszoo.ir.expr import CLASSES, ONE, POSITION, REDUCTIONS, TWO, ZERO, Extent, Node, Type, const, intern, is_const


def apply(op: str, *args: Node, attr: object = None) -> Node:
    """The node `op(*args)`, simplified."""
    row = primitives.TABLE[op]
    if row.promotes and len({a.type for a in args}) > 1:
        args = tuple(real(a) for a in args)
    elif op in REAL_ONLY:
        args = tuple(real(a) for a in args)
    elif op == "where":
        args = (args[0], *_same_type(args[1], args[2]))
    simpler = simplify.simplify(op, args, attr)
    if simpler is not None:
        return simpler
    type = row.result or args[-1].type
    extent = Extent.ITEM if op in REDUCTIONS or op == "pick" else max(a.extent for a in args)
    return intern(op, args, attr, type, extent)


REAL_ONLY = frozenset(
    (
        "div reciprocal share sqrt exp exp_falling log log1p log1p_unit expm1 tanh sin cos asin acos atan atan2 pow floor sigmoid "
        "softplus sum max peak logsum expsum shifted "
    ).split()
)


def _same_type(a: Node, b: Node) -> tuple[Node, Node]:
    return (a, b) if a.type == b.type else (real(a), real(b))


def real(a: Node) -> Node:
    if a.type is Type.REAL:
        return a
    if is_const(a):
        return const(float(a.attr))
    return apply("real", a)


def integer(a: Node) -> Node:
    if a.type is Type.INT:
        return a
    return const(int(a.attr)) if is_const(a) else apply("integer", a)


def add(a: Node, b: Node) -> Node:
    return apply("add", a, b)


def sub(a: Node, b: Node) -> Node:
    return apply("sub", a, b)


def mul(a: Node, b: Node) -> Node:
    return apply("mul", a, b)


def div(a: Node, b: Node) -> Node:
    return apply("div", a, b)


def neg(a: Node) -> Node:
    return apply("neg", a)


def where(c: Node, a: Node, b: Node) -> Node:
    return apply("where", c, a, b)


def stop_gradient(a: Node) -> Node:
    return apply("stop_gradient", a)


def onehot(index: Node) -> Node:
    """True at the class that `index` names."""
    return apply("eq", POSITION, integer(index))


def sum(e: Node) -> Node:
    return apply("sum", e) if e.extent is Extent.CLASS else mul(real(CLASSES), real(e))


def max_(e: Node) -> Node:
    return apply("max", e) if e.extent is Extent.CLASS else real(e)


def peak(x: Node) -> Node:
    """The row's maximum as the shift of its softmax: exact, and constant to autodiff, as the shift cancels."""
    return stop_gradient(apply("peak", x))


def log_softmax(x: Node) -> Node:
    return sub(sub(x, peak(x)), apply("logsum", x))


def softmax(x: Node) -> Node:
    return apply("exp", log_softmax(x))


def logsumexp(x: Node) -> Node:
    if x.extent is not Extent.CLASS:
        return add(real(x), apply("log", real(CLASSES)))
    return add(peak(x), apply("logsum", x))


def pick(e: Node, index: Node) -> Node:
    """The value of `e` at one class. It moves through pointwise maths down to the operands, where it is one load."""
    return _pick(e, integer(index), {})


def _pick(e: Node, index: Node, done: dict[Node, Node]) -> Node:
    if e.extent is not Extent.CLASS:
        return e
    if e is POSITION:
        return index
    if e not in done:
        if e.op == "operand":
            done[e] = apply("pick", e, index)
        else:
            done[e] = apply(e.op, *(_pick(a, index, done) for a in e.args), attr=e.attr)
    return done[e]


__all__ = [
    "ONE", "TWO", "ZERO", "add", "apply", "div", "integer", "log_softmax", "logsumexp", "max_", "mul", "neg", "onehot",
    "peak", "pick", "real", "softmax", "stop_gradient", "sub", "sum", "where",
]  # fmt: skip
