"""What a user does to the loss afterwards does not reach the gradient."""

import pytest
import torch

import losszoo


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_loss_may_be_written_before_the_backward(reduction, device):
    x = torch.randn(6, 11, device=device, requires_grad=True)
    y = torch.randint(0, 11, (6,), device=device)
    loss = losszoo.cross_entropy(x, y, reduction=reduction)
    (expected,) = torch.autograd.grad(loss.sum(), x, retain_graph=True)
    loss *= 3
    loss.sum().backward()
    torch.testing.assert_close(x.grad, 3 * expected)
