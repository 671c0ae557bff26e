import torch
import torch.nn.functional as F

from examples.poly1 import poly1_loss
from losszoo.testing import check


def test_against_the_formula(device):
    x = torch.randn(20, 30, dtype=torch.float64, device=device, requires_grad=True)
    y = torch.randint(0, 30, (20,), device=device)
    expected = F.cross_entropy(x, y, reduction="none")
    expected = (expected + 2 * (1 - torch.exp(-expected))).mean()
    loss = poly1_loss(x, y, epsilon=2.0)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, x), torch.autograd.grad(expected, x))


def test_check(device):
    check(poly1_loss, device=device, ranges={"epsilon": (0.5, 2.0)})
