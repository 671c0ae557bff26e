import torch

from examples.dice import dice_loss
from losszoo.testing import check


def test_against_the_formula(device):
    x = torch.randn(5, 300, dtype=torch.float64, device=device, requires_grad=True)
    t = torch.randint(0, 2, (5, 300), device=device).double()
    p = torch.sigmoid(x)
    expected = (1 - (2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)).mean()
    loss = dice_loss(x, t)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, x), torch.autograd.grad(expected, x))


def test_check(device):
    check(dice_loss, device=device, ranges={"target": (0.0, 1.0), "smooth": (0.5, 2.0)})
