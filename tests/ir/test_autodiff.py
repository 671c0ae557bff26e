"""Derived gradients against torch's autograd of the interpreter's forward, over random graphs and over what once went wrong."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from losszoo.ir import build as b
from losszoo.ir.autodiff import gradient
from losszoo.ir.expr import TWO, UPSTREAM, ZERO, Extent, Node, const, topological
from tests.ir.graphs import LABEL, WRT, P, U, X, Z, derived, losses, same, value, values


def autograd(loss: Node, leaves: dict[Node, Tensor], upstream: Tensor) -> list[Tensor]:
    tracked = {**leaves, **{n: leaves[n].clone().requires_grad_() for n in WRT}}
    result = value(loss, tracked).expand(upstream.shape)
    if not result.requires_grad:
        return [torch.zeros_like(leaves[n]) for n in WRT]
    found = torch.autograd.grad(result, [tracked[n] for n in WRT], upstream, allow_unused=True)
    return [torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(WRT, found, strict=True)]


def agree(loss: Node, leaves: dict[Node, Tensor]) -> None:
    upstream = torch.linspace(-0.5, 1.5, len(leaves[P]), dtype=torch.float64).reshape(-1, 1)
    for node, got, want in zip(WRT, derived(loss, leaves, WRT, upstream), autograd(loss, leaves, upstream), strict=True):
        assert same(got, want, rtol=1e-9, atol=1e-11 * (1 + float(want.abs().max()))), f"gradient of {node}"


@settings(max_examples=300)
@given(loss=losses(), seed=st.integers(0, 99), classes=st.integers(1, 5))
def test_random_losses(loss, seed, classes):
    agree(loss, values(seed, classes=classes))


tanh = b.apply("tanh", X)
BROADCAST = {
    "a value an item, times a row": b.sum(b.mul(P, tanh)),
    "its adjoint does not vary along the row": b.sum(b.add(P, tanh)),
    "nor through a chain": b.sum(b.neg(b.sub(b.apply("real", b.add(P, X)), TWO))),
    "twice": b.add(b.sum(b.add(P, X)), b.sum(b.mul(P, P))),
    "a reduction broadcast back": b.sum(b.mul(b.sum(X), Z)),
    "a reduction added back": b.sum(b.add(b.sum(X), Z)),
    "into a selection": b.sum(b.where(b.apply("lt", X, Z), P, X)),
    "into a maximum over the row": b.max_(b.add(P, X)),
    "into a softmax": b.logsumexp(b.mul(P, X)),
    "the sum of what does not vary": b.sum(P),
    "the logsumexp of what does not vary": b.logsumexp(P),
    "at one class": b.pick(b.add(P, X), LABEL),
}


@pytest.mark.parametrize("what", BROADCAST)
def test_an_item_value_broadcast_along_classes_sums_its_adjoint(what):
    """Once, an adjoint that did not vary along the row either was counted once and not once a class."""
    agree(BROADCAST[what], values(3, rows=2, classes=5))


def test_the_count_of_classes_is_in_the_gradient():
    assert gradient(b.sum(b.add(P, X)), [P])[P] is b.sum(UPSTREAM) is not UPSTREAM


def test_what_the_loss_does_not_depend_on():
    loss = b.sum(b.mul(X, b.stop_gradient(b.apply("exp", Z))))
    assert gradient(loss, [Z, P, X])[Z] is ZERO and gradient(loss, [P])[P] is ZERO


def test_a_leaf_may_be_the_loss():
    assert gradient(P, [P, X]) == {P: UPSTREAM, X: ZERO}


def test_nothing_is_derived_for_what_is_not_asked():
    """Of x * expensive(z) only the slope in x, without the derivative of the other factor."""
    adjoint = gradient(b.sum(b.mul(X, b.apply("sin", Z))), [X])[X]
    assert all(n.op != "cos" for n in topological([adjoint]))


def test_conditions_and_labels_have_no_gradient():
    agree(b.pick(b.where(b.apply("lt", X, Z), X, Z), LABEL), values(5))


def test_softmax_is_stable():
    """exp(x - lse), whatever state a kernel computes it from: logits of 1e4 apart and masked ones are no trouble."""
    leaves = values(0, rows=1, classes=4)
    leaves[X] = torch.tensor([[1e4, 1e4 - 1, -1e4, -math.inf]], dtype=torch.float64)
    grad = derived(b.logsumexp(X), leaves, [X], torch.ones(1, 1, dtype=torch.float64))[0]
    assert same(grad, torch.softmax(leaves[X], -1), rtol=1e-12)


def test_an_infinite_slope_behind_a_mask_is_absent():
    """Of where(x > 0, x**u, 0) * z at x = 0, with u < 1: the slope of the power is infinite, and selected away."""
    loss = b.sum(b.mul(b.where(b.apply("gt", X, ZERO), b.apply("pow", X, U), ZERO), Z))
    leaves = values(1)
    leaves[X] = leaves[X].clamp(min=0)
    grads = derived(loss, leaves, WRT, torch.ones(3, 1, dtype=torch.float64))
    assert all(g.isfinite().all() for g in grads) and (grads[0][leaves[X] == 0] == 0).all()


def test_the_gradient_grows_no_faster_than_the_loss():
    """A shared part is differentiated once: sixty squarings give some hundred nodes, not 2**60 paths."""

    def size(depth: int) -> int:
        e = P
        for _ in range(depth):
            e = b.apply("sin", b.mul(e, b.add(e, const(0.5))))
        return sum(1 for _ in topological([gradient(e, [P])[P]]))

    assert size(60) < 2.2 * size(30)


def test_extents():
    """A gradient varies along what its leaf does, or along less."""
    loss = b.sum(b.mul(b.softmax(b.mul(P, X)), b.apply("tanh", Z)))
    adjoints = gradient(loss, WRT)
    assert adjoints[P].extent is Extent.ITEM and adjoints[X].extent is adjoints[Z].extent is Extent.CLASS
