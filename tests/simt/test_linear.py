"""Chunks of logits on CUDA: gradients written over the logits where that is safe, by threads that could get in each other's way."""

from __future__ import annotations

import pytest
import torch

from losszoo.linear_layer import classes, function, problem, rows
from tests import simt
from tests.linear.cases import BY_NAME, LAYER, Case, case, close, plain
from tests.losses.oracle import upstream_for

pytestmark = pytest.mark.cpu_only
WANTED = frozenset({*LAYER, ".teacher"})
# Classes and the axes after them: rows that one team holds, that a block steps over, that begin within a vector; a stride between classes.
F32, BF16 = torch.float32, torch.bfloat16
SHAPES = (
    (3, (), F32), (33, (), BF16), (150, (), BF16), (1000, (), F32), (4100, (), BF16), (9001, (), F32), (9001, (), BF16),
    (5, (7,), BF16), (31, (2, 16), F32), (70, (3,), BF16),
)  # fmt: skip


def product(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, add: bool = False) -> None:
    """That of CUDA, which here would be asked of the CPU."""
    total = a.float() @ b.float()
    out.copy_(out + total if add else total)


def run(some: Case, chosen: object, monkeypatch: pytest.MonkeyPatch, rtol: float) -> problem.Problem:
    """Loss and gradients, as a backward with the upstream gradient of the other tests gives them; the problem on the device."""
    expected, wanted = some.in_double().run(plain(some.name), "cpu")
    given, spec = some.tensors, BY_NAME[some.name].spec
    own = {o.name: given.get(o.name) for o in spec.operands[1:]}
    numbers = tuple(p.default for p in spec.parameters)
    for module in rows, classes:
        monkeypatch.setattr(module, "product", product)
    with simt.machine(multiprocessors=1, resident=2, read_only=given.values()) as launches:
        layer, reduction = [given[n] for n in LAYER], some.options["reduction"]
        p, _ = problem.make(spec, spec.operands[0].name, *layer, own, numbers, (), None, reduction, None, None)
        asked = WANTED & {*p.tensors}
        loss, denominator, grads, states = function._forward(p, chosen, asked)
        upstream = upstream_for(loss)
        if grads is None:
            grads = function._backward(p, chosen, asked, states, denominator, upstream)
        else:
            grads = {n: upstream * g.to(upstream.dtype) for n, g in grads.items()}
    assert len(launches) >= 4
    close(loss, expected, rtol, "loss")
    for n, grad in grads.items():
        close(grad.reshape(wanted[n.removeprefix(".")].shape), wanted[n.removeprefix(".")], rtol, n)
    return p


@pytest.mark.parametrize("strategy", ["rows", "classes"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("name", ["cross_entropy", "poly1_loss", "kl_distillation_loss"])
def test_losses(name, reduction, strategy, monkeypatch):
    some = case(name, 7, 6, 150, dtype=torch.float32, reduction=reduction)
    chosen = rows.Rows(3, 1 << 20) if strategy == "rows" else classes.Classes(64)
    p = run(some, chosen, monkeypatch, 2e-6)
    with simt.machine():
        over = [rows.in_place(p, p.wrt(w)) for w in (WANTED, WANTED - {".teacher"})]
    # poly1's backward looks up x[y] in the logits; that of the other's teacher looks up x[0], to be near it.
    assert over == {"cross_entropy": [True, True], "poly1_loss": [False, False], "kl_distillation_loss": [False, True]}[name]


@pytest.mark.parametrize("classes_, inner, dtype", SHAPES)
def test_shapes(classes_, inner, dtype, monkeypatch):
    rtol = 2e-6 if dtype is F32 else 2e-2
    some = case("cross_entropy", 13, 6, classes_, dtype=dtype, inner=inner, reduction="mean")
    run(some, rows.Rows(5, 1 << 20), monkeypatch, rtol)
    if not inner:
        run(some, classes.Classes(max(1, classes_ // 3)), monkeypatch, rtol)
