"""The one table of primitives: what each means in torch, in C, to autodiff, and at its edges.

`torch` takes the torch module (this package imports none) and the arguments' tensors. `vjp` takes the node and the adjoint g of
its value and gives each argument's adjoint (None: it has no gradient). `c` is a format string over the arguments' C text.
Edges, unless a row says otherwise: nan in, nan out, and the gradient that torch gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from losszoo.ir import build as b
from losszoo.ir.expr import ONE, TWO, ZERO, Node, Type, const


@dataclass(frozen=True)
class Primitive:
    name: str
    torch: Callable
    vjp: Callable[[Node, Node], tuple[Node | None, ...]]
    c: str
    result: Type | None = None  # None: the type of the last argument
    promotes: bool = False  # int arguments become real beside real ones
    edges: str = ""


def _none(node: Node, g: Node) -> tuple[None, ...]:
    return (None,) * len(node.args)


def _extreme_vjp(loses: str) -> Callable[[Node, Node], tuple[Node, Node]]:
    """Of maximum (an argument loses if it is `lt` the other) and minimum (`gt`)."""

    def vjp(node: Node, g: Node) -> tuple[Node, Node]:
        x, y = node.args
        tie, half = b.apply("eq", x, y), b.div(g, TWO)
        return (
            b.where(tie, half, b.where(b.apply(loses, x, y), ZERO, g)),
            b.where(tie, half, b.where(b.apply(loses, y, x), ZERO, g)),
        )

    return vjp


def _clamp_vjp(inside: str) -> Callable[[Node, Node], tuple[Node, Node]]:
    def vjp(node: Node, g: Node) -> tuple[Node, Node]:
        keep = b.apply(inside, *node.args)
        return b.where(keep, g, ZERO), b.where(keep, ZERO, g)

    return vjp


def _atan2_vjp(node: Node, g: Node) -> tuple[Node, Node]:
    y, x = node.args
    square = b.add(b.mul(x, x), b.mul(y, y))
    scale = b.where(b.apply("eq", square, ZERO), ZERO, b.div(g, square))
    return b.mul(scale, x), b.neg(b.mul(scale, y))


def _pow_vjp(node: Node, g: Node) -> tuple[Node, Node]:
    base, power = node.args
    slope = b.mul(power, b.apply("pow", base, b.sub(power, ONE)))
    to_base = b.where(b.apply("eq", power, ZERO), ZERO, b.mul(g, slope))
    to_power = b.where(b.apply("le", base, ZERO), ZERO, b.mul(g, b.mul(node, b.apply("log", base))))
    return to_base, to_power


def _max_vjp(node: Node, g: Node) -> tuple[Node]:
    (e,) = node.args
    at_max = b.apply("eq", e, node)
    share = b.div(g, b.sum(b.where(at_max, ONE, ZERO)))  # of a row with a nan no value is the largest: g / 0
    return (b.where(at_max, share, b.mul(share, ZERO)),)


def _binary(name: str, torch: Callable, vjp: Callable, c: str, edges: str = "") -> Primitive:
    return Primitive(name, torch, vjp, c, promotes=True, edges=edges)


def _compare(name: str, c: str) -> Primitive:
    return Primitive(name, lambda t, x, y: getattr(t, name)(x, y), _none, c, Type.BOOL, promotes=True, edges="nan: false, but for ne")


_ROWS = (
    # arithmetic
    _binary("add", lambda t, x, y: x + y, lambda n, g: (g, g), "{0} + {1}"),
    _binary("sub", lambda t, x, y: x - y, lambda n, g: (g, b.neg(g)), "{0} - {1}"),
    _binary("mul", lambda t, x, y: x * y, lambda n, g: (b.mul(g, n.args[1]), b.mul(g, n.args[0])), "{0} * {1}"),
    Primitive(
        "share",
        lambda t, x, y: t.where(x == 0, t.zeros((), dtype=y.dtype, device=y.device), x * y),
        lambda n, g: (b.where(_absent(n), ZERO, b.mul(g, n.args[1])), b.mul(g, n.args[0])),
        "lz::share({0}, {1})",
        edges="x * y, but 0 where x is 0, also of an infinite or nan y; x has no gradient there where y is infinite",
    ),
    Primitive(
        "div",
        lambda t, x, y: x / y,
        lambda n, g: (b.div(g, n.args[1]), b.neg(b.mul(b.div(g, n.args[1]), n))),
        "lz::divide({0}, {1})",
    ),
    Primitive("reciprocal", lambda t, x: 1 / x, _none, "lz::reciprocal({0})", edges="for 1 <= x <= 2; made by ir.expand"),
    Primitive("neg", lambda t, x: -x, lambda n, g: (b.neg(g),), "-{0}"),
    Primitive(
        "abs",
        lambda t, x: t.abs(x),
        lambda n, g: (_signed(n.args[0], g),),
        "lz::abs({0})",
        edges="gradient 0 at 0",
    ),
    Primitive(
        "pow",
        lambda t, x, y: t.pow(x, y),
        _pow_vjp,
        "lz::pow({0}, {1})",
        edges="pow(x, 0) = 1 with gradient 0; pow(0, g): gradient 0 above 1, 1 at 1, inf below; the exponent's is 0 for a base <= 0",
    ),
    # exponentials
    Primitive("exp", lambda t, x: t.exp(x), lambda n, g: (b.mul(g, n),), "lz::exp({0})"),
    Primitive("exp_falling", lambda t, x: t.exp(x), _none, "lz::exp_falling<ROUGH>({0})", edges="a softmax's exp, made by ir.algebra"),
    Primitive("log", lambda t, x: t.log(x), lambda n, g: (b.div(g, n.args[0]),), "lz::log({0})"),
    Primitive("log1p", lambda t, x: t.log1p(x), lambda n, g: (b.div(g, b.add(ONE, n.args[0])),), "lz::log1p({0})"),
    Primitive("log1p_unit", lambda t, x: t.log1p(x), _none, "lz::log1p_unit({0})", edges="for 0 <= x <= 1; made by ir.expand"),
    Primitive("expm1", lambda t, x: t.expm1(x), lambda n, g: (b.mul(g, b.apply("exp", n.args[0])),), "lz::expm1({0})"),
    Primitive("sqrt", lambda t, x: t.sqrt(x), lambda n, g: (b.div(g, b.mul(TWO, n)),), "lz::sqrt({0})", edges="gradient inf at 0"),
    Primitive("tanh", lambda t, x: t.tanh(x), lambda n, g: (b.mul(g, b.sub(ONE, b.mul(n, n))),), "lz::tanh({0})"),
    Primitive(
        "sigmoid",
        lambda t, x: t.sigmoid(x),
        lambda n, g: (b.mul(g, _both_sides(n)),),
        "",  # expanded before printing: see codegen.expand
        edges="its gradient keeps relative precision at |x| = 100: s(x) s(-x), not s(x) (1 - s(x))",
    ),
    Primitive(
        "softplus",
        lambda t, x: t.clamp_min(x, 0) + t.log1p(t.exp(-t.abs(x))),
        lambda n, g: (b.mul(g, b.apply("sigmoid", n.args[0])),),
        "",  # expanded before printing
        edges="no threshold: exact for every x",
    ),
    # trigonometry
    Primitive("sin", lambda t, x: t.sin(x), lambda n, g: (b.mul(g, b.apply("cos", n.args[0])),), "lz::sin({0})"),
    Primitive("cos", lambda t, x: t.cos(x), lambda n, g: (b.neg(b.mul(g, b.apply("sin", n.args[0]))),), "lz::cos({0})"),
    Primitive("asin", lambda t, x: t.asin(x), lambda n, g: (b.div(g, _arc(n.args[0])),), "lz::asin({0})", edges="gradient inf at 1"),
    Primitive("acos", lambda t, x: t.acos(x), lambda n, g: (b.neg(b.div(g, _arc(n.args[0]))),), "lz::acos({0})", edges="gradient inf at 1"),
    Primitive(
        "atan", lambda t, x: t.atan(x), lambda n, g: (b.div(g, b.add(ONE, b.mul(n.args[0], n.args[0]))),), "lz::atan({0})"
    ),
    Primitive(
        "atan2", lambda t, y, x: t.atan2(y, x), _atan2_vjp, "lz::atan2({0}, {1})", edges="gradient 0 at (0, 0)"
    ),
    # selection
    _binary("maximum", lambda t, x, y: t.maximum(x, y), _extreme_vjp("lt"), "lz::maximum({0}, {1})", "a tie halves the gradient"),
    _binary("minimum", lambda t, x, y: t.minimum(x, y), _extreme_vjp("gt"), "lz::minimum({0}, {1})", "a tie halves the gradient"),
    _binary("clamp_min", lambda t, x, y: t.maximum(x, y), _clamp_vjp("ge"), "lz::maximum({0}, {1})", "gradient passes at the bound"),
    _binary("clamp_max", lambda t, x, y: t.minimum(x, y), _clamp_vjp("le"), "lz::minimum({0}, {1})", "gradient passes at the bound"),
    Primitive(
        "where",
        lambda t, c, x, y: t.where(c, x, y),
        lambda n, g: (None, b.where(n.args[0], g, ZERO), b.where(n.args[0], ZERO, g)),
        "lz::select({0}, {1}, {2})",
        edges="adjoints are selected, never multiplied by 0",
    ),
    _compare("lt", "{0} < {1}"),
    _compare("le", "{0} <= {1}"),
    _compare("gt", "{0} > {1}"),
    _compare("ge", "{0} >= {1}"),
    _compare("eq", "{0} == {1}"),
    _compare("ne", "{0} != {1}"),
    Primitive("and", lambda t, x, y: x & y, _none, "{0} & {1}", Type.BOOL),
    Primitive("or", lambda t, x, y: x | y, _none, "{0} | {1}", Type.BOOL),
    Primitive("not", lambda t, x: ~x, _none, "!{0}", Type.BOOL),
    # conversions
    Primitive("floor", lambda t, x: t.floor(x), _none, "lz::floor({0})", edges="no gradient"),
    Primitive("real", lambda t, x: x.to(t.real), _none, "R({0})", Type.REAL),
    Primitive(
        "integer",
        lambda t, x: t.where(t.abs(x) < 2.0**62, x, -1.0).to(t.int64),
        _none,
        "lz::integer({0})",
        Type.INT,
        edges="rounds toward 0; nan and what is beyond 2**62 become -1, which names no class; no gradient",
    ),
    Primitive("stop_gradient", lambda t, x: x.detach(), _none, "{0}"),
    # reductions over the row; `c` is empty because a monoid of csrc/losszoo/monoid.h computes them, see ir.monoid
    Primitive("sum", lambda t, x: x.sum(-1, keepdim=True), lambda n, g: (g,), ""),
    Primitive("max", lambda t, x: x.amax(-1, keepdim=True), _max_vjp, "", edges="ties share the gradient; nan wins"),
    Primitive("peak", lambda t, x: x.amax(-1, keepdim=True), _none, "", edges="max(x) as a softmax's shift: constant to autodiff"),
    Primitive(
        "logsum",
        lambda t, x: (x - _shift(t, x)).exp().sum(-1, keepdim=True).log(),
        lambda n, g: (b.mul(g, b.softmax(n.args[0])),),
        "",
        edges="log(sum(exp(x - max(x)))), the shift constant to autodiff; a row of -inf alone gives -inf; +inf or nan gives nan",
    ),
    Primitive(
        "expsum",
        lambda t, x, f: (t.softmax(x, -1) * f).sum(-1, keepdim=True),
        _none,
        "",
        edges="sum(softmax(x) * f), made by ir.algebra after autodiff",
    ),
    Primitive(
        "shifted",
        lambda t, x, f: t.where(f == 0, t.zeros((), dtype=x.dtype, device=x.device), f * (x - _shift(t, x))).sum(-1, keepdim=True),
        _none,
        "",
        edges="sum(f * (x - max(x))), made by ir.algebra after autodiff; where f is 0 nothing is added",
    ),
    Primitive(
        "pick",
        lambda t, x, y: _gather(t, x, y),
        lambda n, g: (b.where(b.onehot(n.args[1]), g, ZERO), None),
        "",  # one load, spelled by the printer
        Type.REAL,
        edges="0 where the index names no class",
    ),
    Primitive(
        "found",
        lambda t, x, y: _gather(t, x, y),
        _none,
        "",
        Type.REAL,
        edges="x[y] as a sum over the classes, made by ir.algebra after autodiff where a kernel sees a part of them",
    ),
)  # fmt: skip


def _both_sides(sigmoid: Node) -> Node:
    """sigmoid(x) sigmoid(-x), the same node for x and for -x."""
    other = b.apply("sigmoid", b.neg(sigmoid.args[0]))
    return b.mul(other, sigmoid) if sigmoid.args[0].op == "neg" else b.mul(sigmoid, other)


def _signed(x: Node, g: Node) -> Node:
    """g times the sign of x; 0 at 0, nan at nan."""
    return b.where(b.apply("gt", x, ZERO), g, b.where(b.apply("lt", x, ZERO), b.neg(g), b.mul(g, x)))


def _absent(node: Node) -> Node:
    share, value = node.args
    return b.apply("and", b.apply("eq", share, ZERO), b.apply("eq", b.apply("abs", value), const(float("inf"))))


def _arc(x: Node) -> Node:
    """sqrt(1 - x * x), precise near 1."""
    return b.apply("sqrt", b.mul(b.sub(ONE, x), b.add(ONE, x)))


def _shift(t, x):
    """The maximum, or 0 where it is -inf: a wholly masked row must give exp(-inf), not exp(nan)."""
    m = x.amax(-1, keepdim=True).detach()
    return t.where(m == -t.inf, t.zeros_like(m), m)


def _gather(t, x, y):
    classes, rows = x.shape[-1], y.shape[0] if x.shape[0] == 1 else x.shape[0]
    x, y = x.expand(rows, classes), y.expand(rows, 1)
    inside = (y >= 0) & (y < classes)
    return t.where(inside, x.gather(-1, t.where(inside, y, t.zeros_like(y))), t.zeros((), dtype=x.dtype, device=x.device))


TABLE: dict[str, Primitive] = {row.name: row for row in _ROWS}

__all__ = ["TABLE", "Primitive", "const"]
