"""A gradient larger than the caches, which a CPU kernel writes past them, is that of its parts, which it does not."""

from __future__ import annotations

import pytest
import torch

import losszoo
from tests.csrc.kernels import C_TYPE
from tests.strategies import generator

LARGE = (8 << 20) + 4096  # bytes: a little more than lz::CACHED


def check(loss, input, *others):
    """Row by row, as the loss is a sum."""
    input.requires_grad_()
    (grad,) = torch.autograd.grad(loss(input, *others), input)
    size = -(-input.shape[0] // 3)
    for part in range(0, input.shape[0], size):
        here = slice(part, part + size)
        piece = input.detach()[here].requires_grad_()
        (expected,) = torch.autograd.grad(loss(piece, *(o[here] for o in others)), piece)
        assert expected.numel() * expected.element_size() < LARGE / 2
        torch.testing.assert_close(grad[here], expected, rtol=2e-6 if grad.dtype.itemsize > 2 else 2**-7, atol=1e-30)


@pytest.mark.parametrize("classes", [1000, 1001, 131, 5])
@pytest.mark.parametrize("dtype", C_TYPE, ids=str)
def test_rows(classes, dtype):
    rng = generator(classes)
    rows = LARGE // (classes * dtype.itemsize) + 1
    x = torch.randn(rows, classes, generator=rng).to(dtype)
    y = torch.randint(classes, (rows,), generator=rng)
    y[::7] = -100
    check(lambda x, y: losszoo.cross_entropy(x, y, reduction="sum"), x, y)


@pytest.mark.parametrize("dtype", C_TYPE, ids=str)
def test_elements(dtype):
    rng = generator(0)
    count = LARGE // dtype.itemsize + 13
    x = torch.randn(count, generator=rng).to(dtype)
    t = (torch.rand(count, generator=rng) < 0.1).to(dtype)
    check(lambda x, t: losszoo.sigmoid_focal_loss(x, t, reduction="sum"), x, t)


def test_boxes():
    rng = generator(0)
    low = torch.rand(LARGE // 16 + 7, 2, generator=rng)
    boxes = torch.cat([low, low + 1], 1)
    check(lambda p, t: losszoo.ciou_loss(p, t, reduction="sum"), boxes + 0.1, boxes)
