"""The words of the language mean what they say: maths against torch's own, boxes in three formats against plain arithmetic."""

from __future__ import annotations

import math
import operator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import losszoo.spec as spec
from losszoo.ir.expr import SMALLEST, Extent, Node, Type, leaf
from losszoo.spec import Box, Row
from losszoo.spec.geometry import FORMATS, BoxExpr
from losszoo.spec.maths import Expr
from tests.ir.graphs import LABEL, P, X, Z, same, value, values

x, z, p, y = Expr(X), Expr(Z), Expr(P), Expr(LABEL)
LEAVES = values(0, rows=5, classes=4)
x_, z_, p_, y_ = LEAVES[X], LEAVES[Z], LEAVES[P], LEAVES[LABEL]
one_ = F.one_hot(y_[:, 0], 4).bool()
q_ = torch.softmax(z_, -1)

MEANINGS = {
    **{name: (getattr(spec, name)(x), getattr(torch, name)(x_)) for name in
       ("exp", "expm1", "tanh", "sigmoid", "sin", "cos", "atan", "abs", "floor")},
    **{name: (getattr(spec, name)(spec.sigmoid(x)), getattr(torch, name)(x_.sigmoid())) for name in
       ("log", "log1p", "sqrt", "asin", "acos")},
    "softplus": (spec.softplus(x), F.softplus(x_, threshold=50)),
    "atan2": (spec.atan2(x, z), torch.atan2(x_, z_)),
    "maximum": (spec.maximum(x, 0.5), x_.clamp(min=0.5)),
    "minimum": (spec.minimum(x, p), torch.minimum(x_, p_)),
    "clamp": (spec.clamp(x, min=-0.5, max=p), torch.minimum(x_.clamp(min=-0.5), p_)),
    "clamp min": (spec.clamp(x, min=0), x_.relu()),
    "clamp max": (spec.clamp(x, max=0), -(-x_).relu()),
    "where": (spec.where(x > z, x, 1), torch.where(x_ > z_, x_, 1.0)),
    "sum": (spec.sum(x), x_.sum(-1, keepdim=True)),
    "sum of one value": (spec.sum(p), 4 * p_),
    "max": (spec.max(x), x_.amax(-1, keepdim=True)),
    "max of one value": (spec.max(p), p_),
    "logsumexp": (spec.logsumexp(x), torch.logsumexp(x_, -1, keepdim=True)),
    "logsumexp of one value": (spec.logsumexp(p), p_ + math.log(4)),
    "log_softmax": (spec.log_softmax(x), torch.log_softmax(x_, -1)),
    "softmax": (spec.softmax(x), torch.softmax(x_, -1)),
    "onehot": (spec.where(spec.onehot(y), x, 0), torch.where(one_, x_, 0.0)),
    "classes": (spec.classes(x) * p, 4 * p_),
    "position": (spec.position(x) * p, torch.arange(4) * p_),
    "x[y]": (x[y], x_.gather(-1, y_)),
    "an expression at y": ((x * p + spec.position(x))[y], x_.gather(-1, y_) * p_ + y_),
    "a softmax at y": (spec.softmax(x)[y], torch.softmax(x_, -1).gather(-1, y_)),
    "x[a number]": (x[2], x_[:, 2:3]),
    "expectation": (spec.expectation(x, y), x_.gather(-1, y_)),
    "expectation of probabilities": (spec.expectation(x, spec.softmax(z)), (q_ * x_).sum(-1, keepdim=True)),
    "share": (spec.share(spec.where(x > 0, x, 0), spec.log(spec.where(x > 0, 1, 0)) + z), torch.where(x_ > 0, x_ * z_, 0.0)),
    "expectation of one value": (spec.expectation(p, y), p_),
    "smallest": (spec.smallest + 0 * p, torch.full_like(p_, torch.finfo(torch.float64).tiny)),
    "pi": (spec.pi * p, math.pi * p_),
    "powers": (x**2 + 2**x, x_**2 + 2**x_),
    "stop_gradient": (spec.stop_gradient(x), x_),
    "not, and, or": (spec.where(~(x > 0) & (z > 0) | (p > 0), x, z), torch.where(~(x_ > 0) & (z_ > 0) | (p_ > 0), x_, z_)),
    **{f"{op.__name__} at a tie": (spec.where(op(spec.floor(x), spec.floor(z)), x, 0), torch.where(op(x_.floor(), z_.floor()), x_, 0.0))
       for op in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)},
    "conditions as numbers": ((x >= p) * 1 + (x != x) + (y == 2) * 4, (x_ >= p_).double() + (y_ == 2) * 4),
    "whole numbers": ((y + 1) * 2 - 3, (y_ + 1) * 2 - 3),
}  # fmt: skip


@pytest.mark.parametrize("what", MEANINGS)
def test_meaning(what):
    expression, want = MEANINGS[what]
    got = value(expression.node, {**LEAVES, SMALLEST: torch.full((1, 1), torch.finfo(torch.float64).tiny, dtype=torch.float64)})
    assert same(got.double().expand(want.shape), want.double(), rtol=1e-13, atol=1e-14)


def test_the_words_are_here():
    """Every word of the maths has a meaning above, or below with the boxes, or among the tests of declarations."""
    kinds = {"Box", "ClassWeight", "Elem", "Index", "PerRow", "Row", "Scalar", "Static", "Tuple", "Usual", "Zero", "Choice", "Spec", "loss"}
    elsewhere = {"counts", "running_mean", "is_label", "center_distance2", "hull", "hull_diagonal2", "intersection", "ratio", "union"}
    assert set(spec.__all__) - kinds - elsewhere <= set(MEANINGS)


def test_a_probability_of_0_adds_nothing():
    """Not even of an infinite value."""
    t = leaf("operand", ("t", None), Type.REAL, Extent.CLASS)
    node = spec.expectation(x, Expr(t)).node
    at = {**values(0, rows=1, classes=3), t: torch.tensor([[0.0, 0.25, 0.75]]).double()}
    at[X] = torch.tensor([[-math.inf, 1.0, 2.0]]).double()
    assert value(node, at) == 1.75


def test_labels_are_told_from_probabilities():
    assert spec.is_label(y) and not spec.is_label(Expr(Row.leaves("y")[0]))


def boxes(seed: int) -> dict[str, Tensor]:
    """The same boxes in each format."""
    g = torch.Generator().manual_seed(seed)
    x1, y1, w, h = torch.rand(4, 20, 1, generator=g, dtype=torch.float64)
    return {
        "xyxy": torch.cat([x1, y1, x1 + w, y1 + h], 1),
        "xywh": torch.cat([x1, y1, w, h], 1),
        "cxcywh": torch.cat([x1 + w / 2, y1 + h / 2, w, h], 1),
    }


def symbols(name: str, format: str, numbers: Tensor) -> tuple[BoxExpr, dict[Node, Tensor]]:
    nodes = Box.leaves(name)
    return BoxExpr(nodes, format), {n: numbers[:, i : i + 1] for i, n in enumerate(nodes)}


@pytest.mark.parametrize("format", FORMATS)
def test_boxes(format):
    """Sides, corners and centre, and the measures of two boxes, whatever the format."""
    numbers, others = boxes(1), boxes(2)
    a, known_a = symbols("a", format, numbers[format])
    b, known_b = symbols("b", format, others[format])
    known = {**known_a, **known_b}
    x1, y1, x2, y2 = numbers["xyxy"].split(1, 1)
    u1, v1, u2, v2 = others["xyxy"].split(1, 1)
    w, h = (torch.minimum(x2, u2) - torch.maximum(x1, u1)).relu(), (torch.minimum(y2, v2) - torch.maximum(y1, v1)).relu()
    hull_w, hull_h = torch.maximum(x2, u2) - torch.minimum(x1, u1), torch.maximum(y2, v2) - torch.minimum(y1, v1)
    assert (w * h > 0).any() and (w * h == 0).any()
    expected = [
        (a.x1, x1), (a.y1, y1), (a.x2, x2), (a.y2, y2), (a.w, x2 - x1), (a.h, y2 - y1), (a.cx, (x1 + x2) / 2),
        (a.cy, (y1 + y2) / 2), (a.area, (x2 - x1) * (y2 - y1)), (spec.intersection(a, b), w * h),
        (spec.union(a, b), (x2 - x1) * (y2 - y1) + (u2 - u1) * (v2 - v1) - w * h),
        (spec.hull(a, b)[0], hull_w), (spec.hull(a, b)[1], hull_h), (spec.hull_diagonal2(a, b), hull_w**2 + hull_h**2),
        (spec.center_distance2(a, b), ((x1 + x2 - u1 - u2) / 2) ** 2 + ((y1 + y2 - v1 - v2) / 2) ** 2),
    ]  # fmt: skip
    for number, (expression, want) in enumerate(expected):
        assert same(value(expression.node, known), want, rtol=1e-12, atol=1e-14), number


def test_a_ratio_is_safe():
    """eps in the place of a denominator that is not positive, and nowhere else."""
    known = {X: torch.tensor([[1e-30, 2.0, 1.0, 0.0, 1.0]]).double().T, Z: torch.tensor([[1e-30, 4.0, 0.0, 0.0, -1.0]]).double().T}
    assert value(spec.ratio(x, z, 0.5).node, known).flatten().tolist() == [1.0, 0.5, 2.0, 0.0, 2.0]
