"""Every loss of rows, behind a linear layer: what it is called with, and what torch's product and the loss itself give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import losszoo
from examples.arcface import arcface_loss
from examples.dfl import distribution_focal_loss
from examples.dice import dice_loss
from examples.distillation import kl_distillation_loss
from examples.jsd import jsd_distillation_loss
from examples.poly1 import poly1_loss
from losszoo.spec.operands import ClassWeight, Index, PerRow, Row
from losszoo.surface import LossFunction
from tests.losses.oracle import upstream_for

LOSSES = (
    losszoo.cross_entropy, losszoo.softmax_focal_loss, arcface_loss, distribution_focal_loss, dice_loss, kl_distillation_loss,
    jsd_distillation_loss, poly1_loss,
)  # fmt: skip
BY_NAME = {loss.__name__: loss for loss in LOSSES}
FUSED = {name: losszoo.linear(loss) for name, loss in BY_NAME.items()}
LAYER = ("input", "linear_weight", "linear_bias")
STRATEGIES = ("rows", "classes")


@dataclass
class Case:
    """One call: CPU tensors by the fused function's argument names, options, what gets a gradient."""

    name: str
    tensors: dict[str, Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()

    @property
    def wanted(self) -> list[str]:
        rows = [o.name for o in BY_NAME[self.name].spec.operands if o.kinds == (Row,)]
        return [n for n in self.tensors if n in (*LAYER, *rows) and n not in self.frozen]

    def in_double(self) -> Case:
        return Case(self.name, {n: t.double() if t.is_floating_point() else t for n, t in self.tensors.items()}, self.options, self.frozen)

    def run(self, function: Callable[..., Tensor], device: str, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and the gradients, for a fixed upstream gradient."""
        tensors = {n: t.to(device, copy=True) for n, t in self.tensors.items()}
        for name in self.wanted:
            tensors[name].requires_grad_()
        own = {n: o.to(device) if isinstance(o, Tensor) else o for n, o in self.options.items()}
        loss = function(**tensors, **own, **options)
        grads = torch.autograd.grad(loss, [tensors[n] for n in self.wanted], upstream_for(loss))
        return loss.detach().cpu(), {n: g.cpu() for n, g in zip(self.wanted, grads, strict=True)}


def fused(name: str, **options: Any) -> Callable[..., Tensor]:
    return lambda **given: FUSED[name](**given, **options)


def plain(name: str) -> Callable[..., Tensor]:
    """torch's product, and then the loss of all its rows."""
    loss: LossFunction = BY_NAME[name]
    first = loss.spec.operands[0].name

    def function(*, input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None = None, **given: Any) -> Tensor:
        inner = linear_weight.shape[1:-1]
        bias = None if linear_bias is None else linear_bias.reshape(-1)
        logits = F.linear(input, linear_weight.reshape(-1, linear_weight.shape[-1]), bias)
        return loss(**{first: logits.reshape(*input.shape[:-1], linear_weight.shape[0], *inner)}, **given)

    return function


def case(
    name: str, rows: int = 11, features: int = 6, classes: int = 9, *, dtype: torch.dtype = torch.float64, bias: bool = True,
    weighted: bool = False, ignored: float = 0.3, inner: tuple[int, ...] = (), seed: int = 0, **options: Any,
) -> Case:  # fmt: skip
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    size = 0.1 if name == "arcface_loss" else 1.0  # cosines
    tensors = {"input": normal(rows, features), "linear_weight": size * normal(classes, *inner, features) / features**0.5}
    if bias:
        tensors["linear_bias"] = size * normal(classes, *inner)
    for operand in BY_NAME[name].spec.operands[1:]:
        kind = operand.kinds[0]
        if kind is Row:
            tensors[operand.name] = normal(rows, classes, *inner)
        elif kind is Index:
            labels = torch.randint(0, classes, (rows, *inner), generator=rng)
            tensors[operand.name] = labels.masked_fill(torch.rand(labels.shape, generator=rng) < ignored, -100)
        elif kind is PerRow:
            tensors[operand.name] = (classes - 1) * torch.rand(rows, *inner, generator=rng, dtype=torch.float64)
        elif kind is ClassWeight and weighted:
            tensors[operand.name] = 0.5 + torch.rand(classes, generator=rng, dtype=torch.float64)
    tensors = {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}
    return Case(name, tensors, options)


def compare(case: Case, device: str, *, rtol: float = 1e-10, **options: Any) -> None:
    """The fused call against product and loss in float64."""
    loss, grads = case.run(FUSED[case.name], device, **options)
    expected, wanted = case.in_double().run(plain(case.name), "cpu")
    assert loss.dtype is (torch.float64 if case.tensors["input"].dtype is torch.float64 else torch.float32)
    close(loss, expected, rtol, "loss")
    for name, grad in grads.items():
        assert grad.dtype is case.tensors[name].dtype
        close(grad, wanted[name], rtol, f"gradient of {name}")


def close(actual: Tensor, expected: Tensor, rtol: float, what: str) -> None:
    """Within rtol of the largest value, or of the 0.1 that numbers here are made of; nan in the same places."""
    assert actual.shape == expected.shape, what
    assert torch.equal(actual.isnan(), expected.isnan()), what
    actual, expected = actual.double().nan_to_num(), expected.nan_to_num()
    size = float(expected.abs().max()) if expected.numel() else 0.0
    worst = float((actual - expected).abs().max()) if expected.numel() else 0.0
    assert worst <= rtol * max(size, 0.1), f"{what}: off by {worst:.3g} where the largest is {size:.3g}"
