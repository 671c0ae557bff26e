import torch
import torch.nn.functional as F

from examples.distillation import kl_distillation_loss
from losszoo.codegen.kernel import scheduled
from losszoo.testing import check


def test_against_torch(device):
    student, teacher = (torch.randn(7, 40, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    expected = 9 * F.kl_div(F.log_softmax(student / 3, 1), F.log_softmax(teacher / 3, 1), log_target=True, reduction="batchmean")
    loss = kl_distillation_loss(student, teacher, temperature=3.0)
    torch.testing.assert_close(loss, expected)
    wanted = torch.autograd.grad(expected, (student, teacher))
    torch.testing.assert_close(torch.autograd.grad(loss, (student, teacher)), wanted)


def test_one_pass_forward_and_none_more_backward():
    spec = kl_distillation_loss.spec
    program = scheduled(spec, spec.default_choice(), ("student", "teacher"))
    assert len(program.forward.passes) == 1 and len(program.backward.passes) == 0


def test_check(device):
    check(kl_distillation_loss, device=device, ranges={"temperature": (0.5, 4.0)})
