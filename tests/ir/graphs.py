"""Graphs to test with: named leaves and their values, the interpreter at hand, and random losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from hypothesis import strategies as st
from torch import Tensor

from losszoo.ir import build as b
from losszoo.ir.autodiff import gradient
from losszoo.ir.expr import CLASSES, ONE, POSITION, UPSTREAM, Extent, Node, Type, leaf
from losszoo.ir.interpreter import evaluate


def operand(name: str, extent: Extent = Extent.ITEM, type: Type = Type.REAL) -> Node:
    return leaf("operand", (name, None), type, extent)


def value(root: Node, leaves: Mapping[Node, Tensor]) -> Tensor:
    return evaluate(torch, [root], leaves)[0]


def environment(classes: int) -> dict[Node, Tensor]:
    """The leaves that every row has."""
    return {CLASSES: torch.full((1, 1), classes), POSITION: torch.arange(classes).reshape(1, -1)}


def derived(loss: Node, leaves: Mapping[Node, Tensor], wrt: Sequence[Node], upstream: Tensor) -> list[Tensor]:
    """The gradient that losszoo derives, evaluated."""
    adjoints = gradient(loss, wrt)
    found = evaluate(torch, [adjoints[node] for node in wrt], {**leaves, UPSTREAM: upstream})
    return [g.expand(leaves[node].shape) for g, node in zip(found, wrt, strict=True)]


def same(a: Tensor, b: Tensor, rtol: float = 0.0, atol: float = 0.0) -> bool:
    """Equal within the tolerance; nan only where the other is nan, infinities the same, zeros of either sign alike."""
    return torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)


X, Z = operand("x", Extent.CLASS), operand("z", Extent.CLASS)
P, LABEL = operand("p"), operand("label", type=Type.INT)
U = leaf("param", "u", Type.REAL, Extent.UNIFORM)
WRT = (X, Z, P)


def values(seed: int, rows: int = 3, classes: int = 4, dtype: torch.dtype = torch.float64) -> dict[Node, Tensor]:
    """Random values of the leaves that random graphs are made of."""
    g = torch.Generator().manual_seed(seed)
    x, z, p = (torch.randn(rows, n, generator=g, dtype=torch.float64).to(dtype) for n in (classes, classes, 1))
    label = torch.randint(0, classes, (rows, 1), generator=g)
    return {X: x, Z: z, P: p, LABEL: label, U: torch.full((1, 1), 0.7, dtype=dtype), **environment(classes)}


def _square1(x: Node) -> Node:
    return b.add(ONE, b.mul(x, x))


# Of one value, and of two. Each stays of moderate size and smooth (but for ties), however often it is applied.
UNARY = {
    **{op: partial(b.apply, op) for op in ("tanh", "sigmoid", "softplus", "sin", "cos", "atan", "neg", "abs")},
    "stop": b.stop_gradient,
    "exp": lambda x: b.apply("exp", b.apply("tanh", x)),
    "log": lambda x: b.apply("log", _square1(x)),
    "sqrt": lambda x: b.apply("sqrt", _square1(x)),
    "pow": lambda x: b.apply("pow", _square1(b.apply("tanh", x)), U),
    "scaled": lambda x: b.mul(U, x),
    "sum": b.sum,
    "max": b.max_,
    "logsumexp": b.logsumexp,
    "softmax": lambda x: b.softmax(x) if x.extent is Extent.CLASS else x,
    "log_softmax": lambda x: b.log_softmax(x) if x.extent is Extent.CLASS else x,
    "pick": lambda x: b.pick(x, LABEL),
}
BINARY = {
    "add": b.add,
    "sub": b.sub,
    "mul": lambda x, y: b.mul(x, b.apply("tanh", y)),
    "share": lambda x, y: b.apply("share", x, b.apply("tanh", y)),
    "div": lambda x, y: b.div(x, _square1(y)),
    "maximum": partial(b.apply, "maximum"),
    "atan2": lambda x, y: b.apply("atan2", x, _square1(y)),
    "where": lambda x, y: b.where(b.apply("lt", x, y), x, b.apply("sin", y)),
    "onehot": lambda x, y: b.where(b.onehot(LABEL), x, y),
}


@st.composite
def losses(draw: st.DrawFn) -> Node:
    """A random loss: one value an item, made of the leaves by any mix of maths and reductions, with shared parts."""
    pool = [X, Z, P]
    for _ in range(draw(st.integers(1, 8))):
        if draw(st.booleans()):
            pool.append(UNARY[draw(st.sampled_from(sorted(UNARY)))](draw(st.sampled_from(pool))))
        else:
            pool.append(BINARY[draw(st.sampled_from(sorted(BINARY)))](*(draw(st.sampled_from(pool)) for _ in range(2))))
    root = pool[-1]
    return b.sum(root) if root.extent is Extent.CLASS else root
