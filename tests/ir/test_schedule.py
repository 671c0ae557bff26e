"""Plans: how many passes over a row, what is kept between forward and backward, and that nothing is read before it is there."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import losszoo
from examples.arcface import arcface_loss
from examples.dfl import distribution_focal_loss
from examples.dice import dice_loss
from examples.distillation import kl_distillation_loss
from examples.jsd import jsd_distillation_loss
from examples.poly1 import poly1_loss
from losszoo.codegen.kernel import scheduled
from losszoo.ir import build as b
from losszoo.ir.expr import ONE, Extent, Type, const
from losszoo.ir.schedule import Program, program
from losszoo.spec.operands import ClassWeight, Row
from tests.ir.graphs import LABEL, WRT, P, X, Z, derived, losses, same, value, values
from tests.ir.plans import execute, hold

FUNCTIONS = [
    losszoo.cross_entropy, losszoo.softmax_focal_loss, losszoo.sigmoid_focal_loss, losszoo.ciou_loss, losszoo.wiou_loss,
    arcface_loss, distribution_focal_loss, dice_loss, kl_distillation_loss, jsd_distillation_loss, poly1_loss,
]  # fmt: skip


def of(function, given: tuple = (), on: tuple[str, ...] = (), wrt: tuple[str, ...] | None = None) -> Program:
    """The program of a call with these kinds of optional operands, and these parameters not at their off value."""
    spec = function.spec
    default = spec.default_choice()
    kinds = tuple(
        next((k for k in o.kinds if k in given), k) for o, k in zip(spec.operands, default.kinds, strict=True)
    )
    present = tuple(p.name in on or not p.fixed for p in spec.parameters)
    choice = type(default)(kinds, default.statics, present)
    return scheduled(spec, choice, wrt or (spec.operands[0].name,))


def passes(p: Program) -> tuple[int, int]:
    return len(p.forward.passes), len(p.backward.passes)


def folded(p: Program) -> Counter:
    """What the forward folds, by the kind of reduction."""
    return Counter(node.op for run in p.forward.passes for acc in run for node, _ in acc.results)


CE = losszoo.cross_entropy


@pytest.mark.parametrize(
    "p, expected",
    [
        (of(CE), (1, 0)),
        (of(CE, (ClassWeight,)), (1, 0)),
        (of(CE, on=("label_smoothing",)), (1, 0)),
        (of(CE, (ClassWeight,), ("label_smoothing",)), (1, 0)),
        (of(CE, (Row,)), (1, 0)),
        (of(CE, (Row, ClassWeight)), (1, 0)),
        (of(CE, (Row,), ("z_loss", "softcap")), (1, 0)),
        # The gradient sums (a + b t) w along the targets: nothing that the forward summed.
        (of(CE, (Row, ClassWeight), ("label_smoothing", "z_loss", "softcap")), (1, 1)),
        (of(losszoo.softmax_focal_loss), (1, 0)),
        (of(losszoo.softmax_focal_loss, (ClassWeight,), ("label_smoothing",)), (1, 0)),
        (of(kl_distillation_loss), (1, 0)),
        (of(kl_distillation_loss, wrt=("student", "teacher")), (1, 0)),
        (of(arcface_loss), (1, 0)),
        (of(distribution_focal_loss), (1, 0)),
        (of(poly1_loss), (1, 0)),
        (of(dice_loss, wrt=("input", "target")), (1, 0)),
        (of(jsd_distillation_loss), (2, 1)),
        (of(losszoo.ciou_loss), (0, 0)),
        (of(losszoo.sigmoid_focal_loss), (0, 0)),
    ],
)
def test_passes_over_the_row(p, expected):
    assert passes(p) == expected


def test_what_is_folded_and_saved():
    """The label's logit is one load, so cross-entropy folds a softmax's state and no more, and saves just that."""
    plain = of(CE)
    assert folded(plain) == {"peak": 1, "logsum": 1} and len(plain.forward.passes[0]) == 1
    assert sorted(n.op for n in plain.forward.state) == ["logsum", "peak"]
    smooth = of(CE, on=("label_smoothing",))
    assert folded(smooth) == {"peak": 1, "logsum": 1, "shifted": 1} and len(smooth.forward.passes[0]) == 1
    assert sorted(n.op for n in smooth.forward.state) == ["logsum", "peak"]


def test_softmax_weighted_sums_are_folded_online():
    """They share the state of the softmax: one accumulator a row of logits."""
    kl = of(kl_distillation_loss)
    assert folded(kl)["expsum"] >= 1 and folded(kl)["sum"] == 0
    assert len(kl.forward.passes[0]) == 2  # the teacher's, with its weighted sums, and the student's


def test_what_lies_behind_a_saved_value_is_not_saved():
    """Of x * sum(tanh(z - max(z))) the slope in x is the sum; the maximum that it was made with is not needed again."""
    spread = b.sum(b.apply("tanh", b.sub(Z, b.max_(Z))))
    found = program({"loss": b.sum(b.mul(X, spread))}, [X])
    assert found.forward.state == (spread,) and len(found.forward.passes) == 2 and not found.backward.passes


def test_items_need_no_state():
    for function in (losszoo.ciou_loss, losszoo.wiou_loss, losszoo.sigmoid_focal_loss):
        assert of(function).forward.state == ()


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.spec.name)
def test_every_way_to_call_every_loss(function, parts):
    """The plans compute what the graph means, forward and backward."""
    for choice in function.spec.choices():
        wrt = tuple(o.name for o, k in zip(function.spec.operands, choice.kinds, strict=True) if k is not None and k.differentiable)
        found = scheduled(function.spec, choice, wrt, parts)
        hold(found)
        assert not (parts and found.backward.passes), "a backward in parts has all that it needs"
        leaves = inputs(found)
        upstream = torch.tensor([[1.0], [-0.5], [2.0]], dtype=torch.float64)
        outputs, gradients = execute(found, leaves, upstream)
        for name, node in found.outputs.items():
            assert same(outputs[name].expand(3, 1), value(node, leaves).expand(3, 1), rtol=1e-9), (choice, name)
        wanted = derived(found.outputs["loss"], leaves, list(found.gradients), upstream)
        for got, want in zip(gradients.values(), wanted, strict=True):
            assert same(got.expand(want.shape), want, rtol=1e-8, atol=1e-12), choice


def inputs(p: Program) -> dict:
    """Values for whatever leaves a program has, in the domain of every loss."""
    g = torch.Generator().manual_seed(0)
    leaves = {n: v for n, v in values(0, classes=6).items() if n.op in ("classes", "position")}
    for node in [*p.forward.nodes(), *p.backward.nodes(), *p.gradients]:
        shape = (1 if node.extent is Extent.UNIFORM else 3, 6 if node.extent is Extent.CLASS else 1)
        if node.op == "smallest":
            leaves[node] = torch.full((1, 1), torch.finfo(torch.float64).tiny, dtype=torch.float64)
        elif node.op in ("operand", "param", "scalar") and node.type is Type.INT:
            leaves[node] = torch.randint(0, 6, shape, generator=g)
        elif node.op in ("operand", "param", "scalar") and node not in leaves:
            leaves[node] = torch.rand(shape, generator=g, dtype=torch.float64) * 0.8 + 0.1 + (node.attr[1] in (2, 3))
    return leaves


@settings(max_examples=200)
@given(loss=losses(), seed=st.integers(0, 99), classes=st.integers(1, 5), parts=st.booleans())
def test_random_losses(loss, seed, classes, parts):
    """Forward and backward of any loss at all, pass by pass, against the graph itself."""
    found = program({"loss": loss, "counts": ONE}, WRT, parts=parts)
    hold(found)
    assert not (parts and found.backward.passes)
    leaves = values(seed, classes=classes)
    upstream = torch.linspace(-0.5, 1.5, 3, dtype=torch.float64).reshape(-1, 1)
    outputs, gradients = execute(found, leaves, upstream)
    want = value(loss, leaves)
    assert same(outputs["loss"], want, rtol=1e-8, atol=1e-9 * (1 + float(want.abs().max())))
    for got, want in zip(gradients.values(), derived(loss, leaves, WRT, upstream), strict=True):
        assert same(got.expand(want.shape), want, rtol=1e-8, atol=1e-9 * (1 + float(want.abs().max())))


def test_passes_are_the_depth_of_the_reductions():
    softmax = b.softmax(X)
    entropy = b.neg(b.sum(b.mul(softmax, b.apply("log", softmax))))  # log of a softmax is not linear in it: a second pass
    peaked = b.sum(b.apply("exp", b.sub(X, b.sum(b.mul(softmax, Z)))))  # the weighted sum is folded with the softmax
    for loss, count in ((b.sum(X), 1), (entropy, 2), (peaked, 2), (b.max_(b.mul(X, b.sum(b.mul(Z, b.max_(Z))))), 2)):
        assert len(program({"loss": loss}, [X]).forward.passes) == count, loss


def test_in_parts_a_label_is_a_sum():
    """Of cross-entropy three numbers a row travel, and every loss of the zoo and the examples folds as often as in whole rows."""
    spec = CE.spec
    found = scheduled(spec, spec.default_choice(), ("input",), True)
    assert [[acc.numbers for acc in run] for run in found.forward.passes] == [[2, 1]]
    for function in FUNCTIONS:
        for choice in function.spec.choices() if function.spec.row else ():
            plans = (scheduled(function.spec, choice, (function.spec.operands[0].name,), parts).forward for parts in (False, True))
            assert len({len(plan.passes) for plan in plans}) == 1, (function.spec.name, choice)


def test_a_reduction_is_computed_once():
    twice = b.add(b.logsumexp(X), b.pick(b.log_softmax(X), LABEL))
    p = program({"loss": twice}, [X])
    assert folded(p) == {"peak": 1, "logsum": 1}


def test_a_plan_depends_on_the_graph_alone():
    loss = b.add(b.mul(P, b.logsumexp(X)), b.sum(b.mul(Z, b.log_softmax(X))))
    first, second = (program({"loss": loss, "counts": const(1.0)}, WRT) for _ in range(2))
    assert first == second
