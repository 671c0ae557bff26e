"""Any name that Python allows is a name for an operand: C's keywords and the kernels' own words among them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from losszoo.spec import (
    ClassWeight,
    Elem,
    Index,
    PerRow,
    Row,
    Scalar,
    Tuple,
    Zero,
    expectation,
    log_softmax,
    loss,
    softmax,
    sum,
    where,
)
from losszoo.testing import interpreted


@loss
def double(float: Row, int: Index, template: ClassWeight = 1, *, default: float | Zero = 0.0, signed: float = 2.0):
    return -signed * expectation(template * log_softmax(float), int) + where(default > 0, default * sum(float), 0)


@loss
def forward(row: Row, k: PerRow, classes: PerRow, a: Scalar = 1.5, *, base: float = 0.5):
    return k * sum(softmax(row * classes) * (row - base)) / a


@loss
def backward(R: Elem, n: Elem, first: PerRow = 1.0, *, loss: float = 0.5, static: float | None = None):
    return loss * (R - n) ** 2 * first + (0 if static is None else static * R)


@loss
def Args(args: Tuple[2], lz: Tuple[3], upstream: PerRow, *, t0: float = 0.5, s0: float = 2.0):
    return upstream * (args[0] * t0 - lz[2]) ** 2 + s0 * args[1] * lz[0]


@loss
def γ(ŷ: Elem, y: Elem, *, α: float = 0.25):
    return α * (ŷ - y) ** 2


@loss
def apart(p: Tuple[2], p_0: Elem, grad_p: Elem):
    """An operand named as another's component, another's gradient."""
    return p[0] * p_0 + p[1] ** 2 * grad_p


@loss
def beside(x: Row, grad_x: Row, x_item: PerRow, _call: PerRow = 1.0):
    return x_item * sum(x * grad_x) + _call


def real(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape)))


LABELS = torch.tensor([0, 4, -100])
CALLS = {
    "rows": (double, (real(3, 5), LABELS, real(5).abs()), {"default": 0.5, "signed": 1.5}),
    "columns": (double, (real(3, 5, 2), LABELS.reshape(3, 1).expand(3, 2)), {}),
    "rows and values a row": (forward, (real(3, 5), real(3), real(3, seed=1)), {"base": 0.25}),
    "columns and values a row": (forward, (real(3, 5, 2), real(3, 2), real(3, 2, seed=1), 2.5), {}),
    "elements": (backward, (real(7), real(7, seed=1), real(7, seed=2)), {"loss": 0.25, "static": 1.5}),
    "tuples": (Args, (real(4, 2), real(4, 3), real(4)), {"t0": 0.75}),
    "other alphabets": (γ, (real(7), real(7, seed=1)), {"α": 0.5}),
    "components": (apart, (real(4, 2), real(4), real(4, seed=1)), {}),
    "gradients": (beside, (real(3, 5), real(3, 5, seed=1), real(3)), {}),
}


@pytest.mark.parametrize("what", CALLS)
def test_the_kernel_compiles_and_is_right(what, device):
    function, operands, options = CALLS[what]
    kinds = [k for k in function.spec.operands]
    results = []
    for f in (function, interpreted(function)):
        given = [v.detach().clone().to(device) if isinstance(v, Tensor) else v for v in operands]
        tracked = [v.requires_grad_() for v, o in zip(given, kinds) if o.kinds[0].differentiable]
        result = f(*given, **options, reduction="sum")
        results.append([result, *torch.autograd.grad(result, tracked)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
