import torch
import torch.nn.functional as F

from examples.arcface import arcface_loss
from losszoo.testing import check


def test_against_the_formula(device):
    cosine = (torch.rand(9, 50, dtype=torch.float64, device=device) * 1.8 - 0.9).requires_grad_()
    target = torch.randint(0, 50, (9,), device=device)
    expected = cosine.clone()
    rows = torch.arange(9, device=device)
    expected[rows, target] = torch.cos(torch.acos(cosine[rows, target]) + 0.5)
    expected = F.cross_entropy(64 * expected, target)
    loss = arcface_loss(cosine, target)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, cosine), torch.autograd.grad(expected, cosine))


def test_the_slope_at_another_class_of_cosine_one_is_finite(device):
    cosine = torch.tensor([[1.0, 0.3, -1.0]], device=device, requires_grad=True)
    arcface_loss(cosine, torch.tensor([1], device=device)).backward()
    assert torch.isfinite(cosine.grad).all()


def test_check(device):
    check(arcface_loss, device=device, ranges={"cosine": (-0.95, 0.95), "margin": (0.1, 0.5), "scale": (1.0, 16.0)})
