"""More than 2**31 numbers in one tensor: every offset must be a 64-bit one."""

from __future__ import annotations

import pytest
import torch

import losszoo
from tests import references

pytestmark = [pytest.mark.cuda_only, pytest.mark.large]
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def give_back():
    yield
    torch.cuda.empty_cache()


def check(loss, grad, expected, expected_grad):
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad.double(), expected_grad, rtol=2**-8, atol=1e-9)


@pytest.mark.parametrize("shape", [(16_390, 131_072), (5, 430_000_001), (2, 19, 7600, 7600), (1_100_000_000, 2)])
def test_rows(shape):
    """Long rows, very long rows, a strided class axis, very short rows: the first, middle and last are right."""
    x = torch.empty(shape, dtype=BF16, device="cuda").normal_().requires_grad_()
    assert x.numel() > 2**31
    y = torch.randint(shape[1], (shape[0], *shape[2:]), device="cuda")
    loss = losszoo.cross_entropy(x, y, reduction="none")
    (grad,) = torch.autograd.grad(loss.sum(), x)
    for at in -1, shape[0] // 2, 0:
        place = (at, slice(None)) + ((-1,) * (len(shape) - 2))
        row = x.detach()[place].double().requires_grad_()
        expected = references.cross_entropy(row, y[(at, *place[2:])])
        (expected_grad,) = torch.autograd.grad(expected, row)
        check(loss.detach()[(at, *place[2:])], grad[place], expected.detach(), expected_grad)


def test_elements():
    count = 2**31 + 4099
    x = torch.empty(count, dtype=BF16, device="cuda").normal_().requires_grad_()
    t = torch.zeros(count, dtype=BF16, device="cuda")
    t[::7] = 1
    loss = losszoo.sigmoid_focal_loss(x, t, reduction="sum")
    (grad,) = torch.autograd.grad(loss, x)
    total = 0.0
    for part in range(0, count, 2**26):
        here = slice(part, min(part + 2**26, count))
        total += losszoo.sigmoid_focal_loss(x.detach()[here], t[here], reduction="sum").double()
    assert abs(loss.double() - total) <= 1e-5 * total
    tail = x.detach()[-5000:].double().requires_grad_()
    expected = references.sigmoid_focal_loss(tail, t[-5000:].double(), reduction="sum")
    torch.testing.assert_close(grad[-5000:].double(), torch.autograd.grad(expected, tail)[0], rtol=2**-8, atol=1e-7)


@pytest.mark.parametrize("name", ["ciou_loss", "wiou_loss"])
def test_boxes(name):
    count = 2**29 + 1027
    low = torch.rand(count, 2, device="cuda", dtype=BF16)
    pred = torch.cat([low, low + 1], -1).requires_grad_()
    target = torch.cat([low + 0.25, low + 1.75], -1)
    del low
    loss = getattr(losszoo, name)(pred, target, reduction="none")
    (grad,) = torch.autograd.grad(loss.sum(), pred)
    tail = pred.detach()[-1000:].double().requires_grad_()
    expected = getattr(references, name)(tail, target[-1000:].double(), reduction="none")
    (expected_grad,) = torch.autograd.grad(expected.sum(), tail)
    torch.testing.assert_close(loss.detach()[-1000:].double(), expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad[-1000:].double(), expected_grad, rtol=2**-7, atol=1e-5)
