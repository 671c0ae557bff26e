"""torch's own samples for nn.functional.cross_entropy: loss and gradient, every sample, none skipped."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import losszoo
from tests.losses import oracle
from tests.opinfo import infos
from tests.strategies import Call


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_samples(dtype, device):
    (info,) = infos("cross_entropy")
    samples = list(info.sample_inputs(device, dtype, requires_grad=True))
    assert len(samples) >= 20
    for sample in samples:
        (target,) = sample.args
        call = Call(
            {k: v.detach().cpu() for k, v in {"input": sample.input, "target": target}.items()},
            {"reduction": "mean"},
            ("input",),
        )
        call.options |= {k: v for k, v in sample.kwargs.items() if not isinstance(v, Tensor)}
        call.tensors |= {k: v.detach().cpu() for k, v in sample.kwargs.items() if isinstance(v, Tensor)}
        double = oracle.in_double(call)
        torchs = oracle.run(F.cross_entropy, double)

        loss = losszoo.cross_entropy(sample.input, target, **sample.kwargs)
        grads = torch.autograd.grad(loss, sample.input, oracle.upstream_for(loss))
        actual = oracle.Result(loss.detach().cpu(), tuple(g.cpu() for g in grads))
        oracle.compare("cross_entropy", call, actual, torchs)
        assert actual.grads[0].dtype == dtype


def test_both_kinds_of_target_are_among_the_samples():
    (info,) = infos("cross_entropy")
    kinds = {sample.args[0].is_floating_point() for sample in info.sample_inputs("cpu", torch.float32)}
    assert kinds == {True, False}
