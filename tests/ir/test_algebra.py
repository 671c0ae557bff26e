"""Algebra on row sums keeps the value: of any expression, with masked classes, and to float32's precision at large logits."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from losszoo.ir import build as b
from losszoo.ir.algebra import canonical, row_softmax
from losszoo.ir.expr import REDUCTIONS, ZERO, Extent, Node, const, topological
from tests.ir.graphs import LABEL, P, U, X, Z, losses, same, value, values


def depth(root: Node) -> int:
    """How many passes over the row the value needs."""
    found: dict[Node, int] = {}
    for node in topological([root]):
        found[node] = max((found[a] for a in node.args), default=0) + (node.op in REDUCTIONS)
    return found[root]


def rewritten(root: Node) -> Node:
    return canonical([root])[root]


@settings(max_examples=200)
@given(loss=losses(), seed=st.integers(0, 99), classes=st.integers(1, 5))
def test_any_loss_keeps_its_value(loss, seed, classes):
    leaves = values(seed, classes=classes)
    want = value(loss, leaves)
    assert same(value(rewritten(loss), leaves), want, rtol=1e-9, atol=1e-10 * (1 + float(want.abs().max())))
    assert depth(rewritten(loss)) <= depth(loss)


FREE = st.sampled_from((X, Z, b.apply("tanh", Z), b.where(b.onehot(LABEL), Z, X)))
PER_ROW = st.sampled_from((P, U, const(0.3), b.logsumexp(X), b.sum(Z), b.max_(X), b.peak(X), b.neg(P)))
ROWS = st.sampled_from((b.log_softmax(X), b.log_softmax(Z), b.softmax(X), b.softmax(Z), b.sub(X, b.peak(X)))) | FREE


def _linear(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    """Larger expressions that are linear in whatever waits for a reduction."""
    return (
        st.builds(b.add, inner, inner)
        | st.builds(b.sub, inner, inner)
        | st.builds(b.neg, inner)
        | st.builds(b.mul, FREE | PER_ROW, inner)
        | st.builds(b.mul, inner, FREE | PER_ROW)
        | st.builds(partial(b.apply, "share"), FREE | PER_ROW, inner)
        | st.builds(lambda e, k: b.div(e, b.add(const(2.0), b.mul(k, k))), inner, PER_ROW | FREE)
        | st.builds(lambda x, y, e, f: b.where(b.apply("lt", x, y), e, f), FREE, FREE, inner, inner)
        | st.builds(lambda x, y, e: b.where(b.apply("lt", x, y), e, ZERO), PER_ROW, PER_ROW, inner)
        | st.builds(lambda x, y, e: b.where(b.apply("lt", x, y), ZERO, e), FREE, FREE, inner)
    )


@settings(max_examples=200)
@given(e=st.recursive(ROWS, _linear, max_leaves=6), seed=st.integers(0, 99), classes=st.integers(1, 5))
def test_linear_sums_need_one_pass(e, seed, classes):
    leaves, loss = values(seed, classes=classes), b.sum(e)
    want, scale = value(loss, leaves), float(value(b.sum(b.apply("abs", e)), leaves).max())
    assert same(value(rewritten(loss), leaves), want, rtol=1e-9, atol=1e-10 * (1 + scale))
    assert depth(rewritten(loss)) <= 1


def test_sums_split():
    """sum(z (x - lse)) = sum(z x) - lse sum(z), and a softmax-weighted sum is one reduction."""
    lse = b.apply("logsum", X)
    shift = b.sub(X, b.peak(X))
    assert rewritten(b.sum(b.mul(Z, b.sub(X, lse)))) is b.sub(b.sum(b.mul(Z, X)), b.mul(lse, b.sum(Z)))
    assert rewritten(b.sum(b.mul(Z, shift))) is b.apply("shifted", X, Z)
    assert rewritten(b.sum(b.mul(b.softmax(X), Z))) is b.apply("expsum", X, Z)
    assert rewritten(b.sum(b.mul(P, b.apply("tanh", X)))) is b.mul(P, b.sum(b.apply("tanh", X)))


def test_what_does_not_split():
    """Neither a sum that waits for nothing, where splitting would only cancel, nor one that is not linear."""
    difference = b.sum(b.sub(X, Z))
    assert rewritten(difference) is difference
    for e in (b.apply("abs", b.sub(X, b.max_(X))), b.mul(b.softmax(X), b.softmax(Z))):
        assert depth(rewritten(b.sum(e))) == 2


def test_stops_are_dropped_and_functions_spelled():
    loss = b.sum(b.add(b.stop_gradient(b.apply("sigmoid", X)), b.apply("softplus", Z)))
    assert not {"stop_gradient", "sigmoid", "softplus"} & {n.op for n in topological([rewritten(loss)])}


def test_a_distance_from_zero_is_known_for_one():
    """Of where(x < 0, -x, x) sigmoid and softplus need no comparison; its derivative at 0 stays that of x."""
    distance = b.where(b.apply("lt", U, ZERO), b.neg(U), U)
    functions = (distance, *(b.apply(op, x) for op in ("sigmoid", "softplus") for x in (distance, b.neg(distance))))
    for node in functions:
        for x in (0.0, -0.0, 1e-30, 0.7, -0.7, 90.0, -90.0, math.inf, -math.inf, math.nan):
            leaves = values(0)
            leaves[U] = torch.full_like(leaves[U], x)
            assert same(value(rewritten(node), leaves), value(node, leaves), rtol=1e-14)
        assert not {"lt", "ge", "where"} & {n.op for n in topological([rewritten(node)])}
    other = b.where(b.apply("lt", U, ZERO), b.neg(P), P)
    assert rewritten(other) is other


def test_only_a_softmax_is_one():
    assert row_softmax(rewritten(b.softmax(X))) is X
    others = b.apply("exp", b.sub(b.sub(X, b.peak(Z)), b.apply("logsum", X)))
    for e in (b.apply("exp", X), b.apply("exp", b.sub(X, b.peak(X))), b.log_softmax(X), others):
        assert row_softmax(rewritten(e)) is None


# float32: the sums that a kernel computes, against the meaning in float64.

SUMS = {
    "of log-probabilities": b.sum(b.log_softmax(X)),
    "under another softmax": b.sum(b.mul(b.softmax(Z), b.log_softmax(X))),
    "of probabilities": b.sum(b.mul(Z, b.log_softmax(X))),
    "of shares": b.sum(b.apply("share", Z, b.log_softmax(X))),
    "selected": b.sum(b.where(b.apply("eq", Z, ZERO), ZERO, b.mul(Z, b.log_softmax(X)))),
    "of a divergence": b.sum(b.mul(b.softmax(Z), b.sub(b.log_softmax(Z), b.log_softmax(X)))),
}


def weighted(what: str) -> bool:
    """Whether z are the weights themselves, not their logits."""
    return what in ("of probabilities", "of shares", "selected")


def error(what: str, leaves: dict[Node, Tensor]) -> float:
    """Of the rewritten sum in float32, relative to the meaning of the same float32 numbers, in units of its precision."""
    loss = SUMS[what]
    wide = {n: v.double() if v.is_floating_point() else v for n, v in leaves.items()}
    want = value(loss, wide)
    assert want.isfinite().all()
    got = value(canonical([loss])[loss], leaves)
    return float(((got - want).abs() / (want.abs() + 1)).max()) / torch.finfo(torch.float32).eps


def shifted(what: str, offset: float) -> dict[Node, Tensor]:
    leaves = values(1, classes=1000, dtype=torch.float32)
    leaves[X] = leaves[X] + offset
    leaves[Z] = torch.softmax(leaves[Z], -1) if weighted(what) else leaves[Z] + offset
    return leaves


def masked(what: str, at: int | slice, mask: float) -> dict[Node, Tensor]:
    leaves = values(2, classes=1000, dtype=torch.float32)
    weights = torch.softmax(leaves[Z], -1)
    weights[:, at] = 0
    leaves[X][:, at] = mask
    leaves[Z][:, at] = mask
    if weighted(what):
        leaves[Z] = weights
    return leaves


UNDER_A_SOFTMAX = ("under another softmax", "of a divergence")


@pytest.mark.parametrize("what", SUMS)
def test_a_large_common_offset_costs_no_precision(what):
    for offset in (0.0, 500.0, -500.0) if what in UNDER_A_SOFTMAX else (0.0, 1e4, -1e4, 1e6):
        assert error(what, shifted(what, offset)) < 30


NUMBERS = (-1e4, -1e9, torch.finfo(torch.float32).min)
MASKS = [(what, number) for what in sorted(set(SUMS) - {"of log-probabilities"}) for number in NUMBERS]


@pytest.mark.parametrize("at", [0, 3, slice(0, 300)], ids=str)
@pytest.mark.parametrize("what, mask", [*MASKS, ("selected", -math.inf), ("of shares", -math.inf)])
def test_a_class_masked_by_a_large_number(what, mask, at):
    """Masked logits have no weight in the sum, so neither has the number that masks them; -inf needs a selection.

    (A shift by the first logit once turned the row to garbage where that was the masked one.)
    """
    assert error(what, masked(what, at, mask)) < 30


@pytest.mark.parametrize("what", UNDER_A_SOFTMAX)
def test_a_sum_under_a_softmax_is_as_precise_as_its_logits(what):
    """It is folded beside another row's state, and shifted by the first logit, which may be a mask or far off with all others."""
    for number in (-100.0, -900.0):
        assert error(what, masked(what, 0, number)) < abs(number) / 2
    for number in (2e3, 1e4):
        assert error(what, shifted(what, number)) < number / 2


def test_a_masked_row():
    """Where every class is masked, and where one logit is infinite or nan, the value is what the graph says."""
    for special in ([-math.inf] * 3, [0.0, math.inf, 1.0], [math.nan, 0.0, 1.0], [1.0, -math.inf, 2.0]):
        leaves = values(0, rows=1, classes=3)
        leaves[X] = torch.tensor([special], dtype=torch.float64)
        for loss in SUMS.values():
            assert same(value(rewritten(loss), leaves), value(loss, leaves), rtol=1e-12), (special, loss)


def test_extents():
    """What loses its class axis in the rewriting is still summed over the classes."""
    loss = b.sum(b.where(b.apply("lt", X, Z), P, b.stop_gradient(P)))
    leaves = values(0, classes=4)
    assert loss.args[0].extent is Extent.CLASS
    assert same(value(rewritten(loss), leaves), 4 * leaves[P])
