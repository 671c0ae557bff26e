"""Sigmoid focal loss against its reference and the interpreter, and where the sigmoid saturates."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import losszoo
from losszoo.testing import interpreted
from tests.losses import oracle
from tests.strategies import DTYPES, Call, elementwise_calls, generator

NAME = "sigmoid_focal_loss"


@given(data=st.data())
def test_reference(data, device):
    oracle.check(NAME, losszoo.sigmoid_focal_loss, data.draw(elementwise_calls()), device)


@given(data=st.data())
def test_interpreter(data, device):
    call = data.draw(elementwise_calls(double=True))
    fn = losszoo.sigmoid_focal_loss
    oracle.compare(NAME, call, oracle.run(fn, call, device), oracle.run(interpreted(fn), call, device))


@pytest.mark.parametrize("alpha", [0.25, -1.0])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_gradients(reduction, gamma, alpha, device):
    rng = generator(0)
    x = torch.randn(3, 4, generator=rng, dtype=torch.float64).to(device).requires_grad_()
    t = (0.1 + 0.8 * torch.rand(3, 4, generator=rng, dtype=torch.float64)).to(device).requires_grad_()

    def fn(x, t):
        return losszoo.sigmoid_focal_loss(x, t, alpha, gamma, reduction)

    assert gradcheck(fn, (x, t))
    assert gradgradcheck(fn, (x, t))


@pytest.mark.parametrize("alpha", [0.25, 0.5, -1.0])
@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_small_logits(gamma, alpha, device):
    """The gradient of targets is as small as they are where both labels weigh the same: nothing large was taken from what is as large."""
    rng = generator(0)
    x, targets = 1e-3 * torch.randn(60, generator=rng), torch.rand(60, generator=rng).round()
    call = Call({"inputs": x, "targets": targets}, {"alpha": alpha, "gamma": gamma, "reduction": "none"}, ("inputs", "targets"))
    oracle.check(NAME, losszoo.sigmoid_focal_loss, call, device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_saturated_logits(gamma, dtype, device):
    """At +-100, 1 - p has underflowed or is a hair from it; loss and gradient keep their relative precision."""
    x = torch.tensor([-100.0, -100.0, 100.0, 100.0, -17.0, 17.0, 88.0, -88.0, 0.0, -0.0])
    t = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    for reduction in "none", "sum":
        options = {"gamma": gamma, "alpha": 0.25, "reduction": reduction}
        call = Call({"inputs": x.to(dtype), "targets": t.to(dtype)}, options, ("inputs", "targets"))
        oracle.check(NAME, losszoo.sigmoid_focal_loss, call, device)


@pytest.mark.parametrize("value", [1e4, -1e4, 3e38, -3e38, torch.inf, -torch.inf])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_a_logit_beyond_all_bounds_costs_nothing_where_it_is_right(value, gamma, device):
    x = torch.tensor([value], device=device, requires_grad=True)
    loss = losszoo.sigmoid_focal_loss(x, (x > 0).float(), gamma=gamma, reduction="sum")
    (grad,) = torch.autograd.grad(loss, x)
    assert loss == 0 and grad == 0


def test_nan_poisons_its_element_only(device):
    x = torch.randn(100, generator=generator(0))
    x[41] = torch.nan
    call = Call({"inputs": x, "targets": (x > 0).float()}, {"reduction": "none"}, ("inputs",))
    result = oracle.run(losszoo.sigmoid_focal_loss, call, device)
    assert result.loss.isnan().nonzero().tolist() == [[41]]
    assert result.grads[0].isnan().nonzero().tolist() == [[41]]


@pytest.mark.parametrize("count", [0, 1, 3, 1023, 4097, 100_003])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_every_size(count, dtype, reduction, device):
    rng = generator(count)
    x, t = 4 * torch.randn(count, generator=rng), torch.rand(count, generator=rng).round()
    call = Call({"inputs": x.to(dtype), "targets": t.to(dtype)}, {"reduction": reduction}, ("inputs",))
    oracle.check(NAME, losszoo.sigmoid_focal_loss, call, device)
