"""Chunks of logits on CUDA: gradients written over the logits where that is safe, by threads that could get in each other's way."""

from __future__ import annotations

import pytest
import torch

from losszoo.linear_layer import classes, function, problem, rows
from tests import simt
from tests.linear.cases import BY_NAME, LAYER, case, close, plain
from tests.losses.oracle import upstream_for

pytestmark = pytest.mark.cpu_only
WANTED = frozenset({*LAYER, ".teacher"})
ROWS, CLASSES = 7, 150


@pytest.mark.parametrize("strategy", ["rows", "classes"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("name", ["cross_entropy", "poly1_loss", "kl_distillation_loss"])
def test_linear(name, reduction, strategy):
    some = case(name, ROWS, 6, CLASSES, dtype=torch.float32, reduction=reduction)
    expected, wanted = some.in_double().run(plain(name), "cpu")
    given, spec = some.tensors, BY_NAME[name].spec
    own = {o.name: given.get(o.name) for o in spec.operands[1:]}
    numbers = tuple(p.default for p in spec.parameters)
    with simt.machine(multiprocessors=1, resident=2, read_only=given.values()) as launches:
        p, _ = problem.make(
            spec, spec.operands[0].name, *(given[n] for n in LAYER), own, numbers, (), None, reduction, None, None,
        )  # fmt: skip
        chosen = rows.Rows(3, 1 << 20) if strategy == "rows" else classes.Classes(64)
        asked = WANTED & {*p.tensors}
        loss, denominator, grads, states = function._forward(p, chosen, asked)
        if grads is None:
            grads = function._backward(p, chosen, asked, states, denominator, upstream_for(loss))
        else:
            grads = {n: 1.5 * g for n, g in grads.items()}
        over = [rows.in_place(p, p.wrt(w)) for w in (asked, asked - {".teacher"})]
    # poly1's backward looks up x[y] in the logits; that of the other's teacher looks up x[0], to be near it.
    assert over == {"cross_entropy": [True, True], "poly1_loss": [False, False], "kl_distillation_loss": [False, True]}[name]
    assert len(launches) >= 6
    close(loss, expected, 1e-6, "loss")
    for n, grad in grads.items():
        close(grad, wanted[n.removeprefix(".")], 2e-6, n)
