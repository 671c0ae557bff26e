"""Runs a loss and its reference on one call and compares loss and gradients, within what the arithmetic allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests import references, tolerance
from tests.strategies import Call

LABELLED = ("cross_entropy", "softmax_focal_loss")
NAMES = (*LABELLED, "sigmoid_focal_loss", "ciou_loss", "wiou_loss")


class Result(NamedTuple):
    loss: Tensor
    grads: tuple[Tensor, ...]


def upstream_for(loss: Tensor) -> Tensor:
    """What backward is fed: a fixed number for each entry of the loss, some of them 0 or negative."""
    values = torch.tensor([1.5, -0.75, 0.0, 2.0, 1.0], dtype=torch.float64)
    return values.repeat(loss.numel() // 5 + 1)[: loss.numel()].view(loss.shape).to(loss)


def run(fn: Callable[..., Tensor], call: Call, device: str = "cpu", **overrides: Any) -> Result:
    tensors = call.place(device)
    for name in call.differentiable:
        tensors[name].requires_grad_()
    loss = fn(**tensors, **{**call.place_options(device), **overrides})
    grads = torch.autograd.grad(loss, [tensors[name] for name in call.differentiable], upstream_for(loss))
    return Result(loss.detach().cpu(), tuple(grad.cpu() for grad in grads))


def in_double(call: Call) -> Call:
    tensors = {name: t.double() if t.is_floating_point() else t for name, t in call.tensors.items()}
    return Call(tensors, call.options, call.differentiable)


def denominator(name: str, call: Call) -> Tensor:
    """What the reduction divides by: cross-entropy's kept class weights, else the number of kept rows."""
    one = torch.ones((), dtype=torch.float64)
    if call.options["reduction"] != "mean":
        return one
    if call.options.get("normalizer") is not None:
        return one * call.options["normalizer"]
    target, weight = call.tensors.get("target"), call.tensors.get("weight")
    if name in LABELLED and target is not None and not target.is_floating_point():
        labels = target[target != call.options.get("ignore_index", -100)]
        return weight[labels].double().sum() if name == "cross_entropy" and weight is not None else one * labels.numel()
    return one * rows_of(name, call).numel()


def rows_of(name: str, call: Call) -> Tensor:
    options = {k: v for k, v in call.options.items() if k not in ("reduction", "normalizer")}
    with torch.no_grad():
        return getattr(references, name)(**in_double(call).tensors, **options, reduction="none")


def errors_for(name: str, call: Call) -> tolerance.Errors:
    """Of the unreduced loss, `weight=` of boxes and elements included."""
    tensors = in_double(call).tensors
    weight = None if name in LABELLED else tensors.pop("weight", None)
    options = {k: v for k, v in call.options.items() if k not in ("reduction", "normalizer")}
    errors = getattr(tolerance, name)(**tensors, **options, dtype=call.dtype)
    if weight is None:
        return errors
    wide = weight if name == "sigmoid_focal_loss" else weight.unsqueeze(-1)

    def scaled(error: Tensor | None) -> Tensor | None:
        return None if error is None else error * wide

    loss, grad, target_grad, smooth, size, target_size = errors
    return tolerance.Errors(loss * weight, grad * wide, scaled(target_grad), smooth, scaled(size), scaled(target_size))


def compare(name: str, call: Call, actual: Result, expected: Result, *, kinks: bool = False) -> None:
    """Asserts that actual is expected within the errors of float arithmetic; `kinks` compares gradients there too."""
    errors, rows, divisor = errors_for(name, call), rows_of(name, call), denominator(name, call)
    unit = tolerance.eps(call.dtype)
    finite = rows.where(rows.isfinite(), 0.0).abs()
    adding = 0.0
    if call.options["reduction"] == "none":
        loss_error, share = errors.loss, upstream_for(rows).abs()
    else:
        adding = tolerance.of_sum(rows.numel()) * unit
        share = upstream_for(expected.loss).abs() / divisor.abs().where(divisor != 0, 1.0)
        loss_error = (errors.loss.nan_to_num(0.0, 0.0).sum() + adding * finite.sum()) / divisor.abs()
    tolerance.assert_close(actual.loss, expected.loss, loss_error, "loss")
    if divisor == 0 and rows.any():
        return  # kept rows whose weights are all 0: torch's gradient is nan, and no better answer is promised
    if share.dim():
        share = share.unsqueeze(int(call.tensors["input"].dim() > 1)) if name in LABELLED else share
        share = share.unsqueeze(-1) if name in ("ciou_loss", "wiou_loss") else share
    bounds = [(errors.grad, errors.size), (errors.target_grad, errors.target_size)]
    for operand, got, want, (error, size) in zip(call.differentiable, actual.grads, expected.grads, bounds):
        error = share * error + (adding + unit) * want.abs().nan_to_num()
        if errors.smooth is not None and not kinks:
            want = want.where(errors.smooth, 0.0)
            error = error.where(errors.smooth, share * size)
        tolerance.assert_close(got, want, error, f"gradient of {operand}")


def check(name: str, fn: Callable[..., Tensor], call: Call, device: str) -> None:
    """The loss against its reference in float64."""
    actual = run(fn, call, device)
    assert actual.loss.dtype == (torch.float64 if call.dtype == torch.float64 else torch.float32)
    for operand, grad in zip(call.differentiable, actual.grads):
        assert grad.dtype == call.tensors[operand].dtype
    compare(name, call, actual, run(getattr(references, name), in_double(call)))
