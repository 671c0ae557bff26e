import torch

from examples.jsd import jsd_distillation_loss
from losszoo.codegen.kernel import scheduled
from losszoo.testing import check


def test_against_the_formula(device):
    student, teacher = (torch.randn(7, 40, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    p, q = torch.softmax(teacher / 2, 1), torch.softmax(student / 2, 1)
    m = (p + q) / 2
    expected = 2 * (p * (p / m).log() + q * (q / m).log()).sum(1).mean()
    loss = jsd_distillation_loss(student, teacher, temperature=2.0)
    torch.testing.assert_close(loss, expected)
    wanted = torch.autograd.grad(expected, (student, teacher))
    torch.testing.assert_close(torch.autograd.grad(loss, (student, teacher)), wanted)


def test_two_passes_forward():
    spec = jsd_distillation_loss.spec
    assert len(scheduled(spec, spec.default_choice(), ("student",)).forward.passes) == 2


def test_check(device):
    check(jsd_distillation_loss, device=device, ranges={"temperature": (0.5, 4.0)})
