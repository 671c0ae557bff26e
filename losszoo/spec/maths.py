"""Symbolic values and the maths that a spec is written in."""

from __future__ import annotations

import math
from collections.abc import Callable

from losszoo.errors import SpecError
from losszoo.ir import build as b
from losszoo.ir.expr import CLASSES, POSITION, SMALLEST, Extent, Node, Type, const

pi = math.pi


def _node(value: object) -> Node:
    if isinstance(value, Expr):
        return value.node
    if isinstance(value, (bool, int, float)):  # numpy's numbers too: their text is not C's
        return const(bool(value) if isinstance(value, bool) else int(value) if isinstance(value, int) else float(value))
    raise SpecError(f"expected a symbolic value or a number, got {type(value).__name__}: {value!r}")


def _number(value: object) -> Node:
    node = _node(value)
    return b.real(node) if node.type is Type.BOOL else node


def _operator(op: str, convert: Callable[[object], Node] = _number) -> tuple[Callable, Callable]:
    def forward(self: Expr, other: object) -> Expr:
        return Expr(b.apply(op, convert(self), convert(other)))

    def backward(self: Expr, other: object) -> Expr:
        return Expr(b.apply(op, convert(other), convert(self)))

    return forward, backward


def _real(value: object) -> Node:
    return b.real(_node(value))


def _truth(value: object) -> Node:
    node = _node(value)
    if node.type is not Type.BOOL:
        raise SpecError("&, | and ~ join conditions, such as (x > 0) & (y > 0)")
    return node


class Expr:
    """A value that the kernel will compute. Python can calculate with it, but not look at it."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node

    def __repr__(self) -> str:
        return f"Expr({self.node!r})"

    def __bool__(self) -> bool:
        raise SpecError("a symbolic value has no truth value while the spec is traced: use where(condition, a, b), & , | and ~")

    def __float__(self) -> float:
        raise SpecError("a symbolic value is no Python number: use the functions of losszoo.spec, not those of math or numpy")

    __int__ = __index__ = __float__
    __iter__ = None

    def __getitem__(self, index: object) -> Expr:
        label = _node(index)
        if label.op == "const" and (label.attr < 0 or label.attr != int(label.attr)):
            raise SpecError(f"x[{label.attr}]: a class is a whole number from 0 on")
        if label.extent is Extent.CLASS:
            raise SpecError("x[y] takes one class a row: the index varies along the class axis")
        return Expr(b.pick(self.node, label))

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("sub")
    __mul__, __rmul__ = _operator("mul")
    __truediv__, __rtruediv__ = _operator("div", _real)
    __pow__, __rpow__ = _operator("pow", _real)
    __lt__, __gt__ = _operator("lt")[0], _operator("gt")[0]
    __le__, __ge__ = _operator("le")[0], _operator("ge")[0]
    __eq__, __ne__ = _operator("eq")[0], _operator("ne")[0]
    __hash__ = object.__hash__
    __and__, __rand__ = _operator("and", _truth)
    __or__, __ror__ = _operator("or", _truth)

    def __neg__(self) -> Expr:
        return Expr(b.neg(_number(self)))

    def __invert__(self) -> Expr:
        return Expr(b.apply("not", _truth(self)))

    def __abs__(self) -> Expr:
        return abs(self)


def _function(op: str, formula: str) -> Callable[..., Expr]:
    def function(*args: object) -> Expr:
        return Expr(b.apply(op, *(_real(a) for a in args)))

    function.__name__ = function.__qualname__ = op
    function.__doc__ = formula
    return function


exp = _function("exp", "e to the power x.")
log = _function("log", "The natural logarithm.")
log1p = _function("log1p", "log(1 + x), precise near 0.")
expm1 = _function("expm1", "exp(x) - 1, precise near 0.")
sqrt = _function("sqrt", "The square root.")
tanh = _function("tanh", "The hyperbolic tangent.")
sigmoid = _function("sigmoid", "1 / (1 + exp(-x)). Write 1 - sigmoid(x) as sigmoid(-x) to keep its precision.")
softplus = _function("softplus", "log(1 + exp(x)), exact for every x.")
sin = _function("sin", "The sine.")
cos = _function("cos", "The cosine.")
asin = _function("asin", "The inverse sine.")
acos = _function("acos", "The inverse cosine.")
atan = _function("atan", "The inverse tangent.")
atan2 = _function("atan2", "The angle of the point (x, y) as atan2(y, x); 0 at the origin.")
floor = _function("floor", "The largest whole number not above x; it has no gradient.")
abs = _function("abs", "The absolute value; its gradient at 0 is 0.")
maximum = _function("maximum", "The larger; a tie gives each half of the gradient.")
minimum = _function("minimum", "The smaller; a tie gives each half of the gradient.")


def clamp(x: object, min: object = None, max: object = None) -> Expr:
    """x held between min and max (either may be left out); the gradient passes at the bounds."""
    node = _real(x)
    if min is None and max is None:
        raise SpecError("clamp needs min, max or both")
    if min is not None:
        node = b.apply("clamp_min", node, _real(min))
    if max is not None:
        node = b.apply("clamp_max", node, _real(max))
    return Expr(node)


def where(condition: object, a: object, b_: object) -> Expr:
    """a where the condition holds, else b. What is not selected has no influence, not even as nan or infinity."""
    c = _node(condition)
    if c.type is not Type.BOOL:
        raise SpecError("where(condition, a, b) takes a condition first, such as x > 0")
    return Expr(b.where(c, _number(a), _number(b_)))


def stop_gradient(x: object) -> Expr:
    """x, constant to the gradient."""
    return Expr(b.stop_gradient(_real(x)))


def sum(e: object) -> Expr:
    """The sum over the classes of a row."""
    return Expr(b.sum(_real(e)))


def max(e: object) -> Expr:
    """The largest over the classes of a row; ties share the gradient."""
    return Expr(b.max_(_real(e)))


def logsumexp(x: object) -> Expr:
    """log(sum(exp(x))) over the classes of a row."""
    return Expr(b.logsumexp(_real(x)))


def log_softmax(x: object) -> Expr:
    """x - logsumexp(x), a value a class."""
    return Expr(b.log_softmax(_row(x, "log_softmax")))


def softmax(x: object) -> Expr:
    """exp(log_softmax(x)), a value a class."""
    return Expr(b.softmax(_row(x, "softmax")))


def onehot(y: object) -> Expr:
    """A condition that holds at class y of each row."""
    node = _node(y)
    if node.extent is Extent.CLASS:
        raise SpecError("onehot(y) takes one class a row, and this varies along the class axis")
    return Expr(b.onehot(node))


def classes(x: object) -> Expr:
    """The number of classes of a row x."""
    _row(x, "classes")
    return Expr(CLASSES)


def position(x: object) -> Expr:
    """The number of each class of a row x: 0, 1, 2 ..."""
    _row(x, "position")
    return Expr(POSITION)


def expectation(e: object, target: Expr) -> Expr:
    """The mean of e under a target: e[target] for class labels, sum(target * e) for probabilities. Probability 0 adds nothing."""
    t = _node(target)
    if t.type is Type.INT:
        return Expr(b.pick(_real(e), t))
    return Expr(b.sum(b.apply("share", t, _real(e))))


def share(part: object, whole: object) -> Expr:
    """part * whole, where a share of 0 is nothing, even of an infinite whole."""
    return Expr(b.apply("share", _real(part), _real(whole)))


def is_label(target: Expr) -> bool:
    """Whether a target operand came as class labels (and not as a row of numbers)."""
    return _node(target).type is Type.INT


def _row(x: object, function: str) -> Node:
    node = _real(x)
    if node.extent is not Extent.CLASS:
        raise SpecError(f"{function} takes a row of values along the class axis, and this has one value only")
    return node


smallest = Expr(SMALLEST)
"""The smallest normal number of the precision that the kernel computes in."""
