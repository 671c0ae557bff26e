import torch
import torch.nn.functional as F

from examples.dfl import distribution_focal_loss
from losszoo.testing import check


def test_against_the_formula(device):
    x = torch.randn(60, 17, dtype=torch.float64, device=device, requires_grad=True)
    t = torch.rand(60, dtype=torch.float64, device=device) * 15.9
    left = t.long()
    near, far = (F.cross_entropy(x, left + i, reduction="none") for i in (0, 1))
    expected = (near * (left + 1 - t) + far * (t - left)).mean()
    loss = distribution_focal_loss(x, t)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, x), torch.autograd.grad(expected, x))


def test_the_last_bin_has_no_neighbour(device):
    x = torch.randn(1, 17, dtype=torch.float64, device=device)
    last = torch.tensor([16.0], dtype=torch.float64, device=device)
    torch.testing.assert_close(distribution_focal_loss(x, last), F.cross_entropy(x, torch.tensor([16], device=device)))


def test_check(device):
    check(distribution_focal_loss, device=device)
