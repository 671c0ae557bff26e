"""How far a right answer may lie from the float64 reference, counted from the arithmetic and from nothing else.

A kernel computes in float32, in float64 for float64 inputs. Each operation errs by at most half an ulp of its own
result, exp, log and pow by about two; a value of `ops` operations whose intermediate results add up to `scale` in size
is off by at most `ops * eps * scale`. A sum of n terms in float32 errs like a random walk, by sqrt(n) half ulps of what
it adds up. A 16-bit gradient is then rounded once. Every scale below is elementwise: a small gradient must be as right
as a large one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.references import boxes as box_reference


def eps(dtype: torch.dtype) -> float:
    """Of the type computed in."""
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps


def one_rounding(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The most that rounding to a type moves a value: half an ulp, or half the smallest subnormal."""
    info = torch.finfo(dtype)
    return value.abs() * info.eps / 2 + info.smallest_normal * info.eps / 2


def assert_close(actual: Tensor, expected: Tensor, error: Tensor | float, what: str = "result") -> None:
    """|actual - expected| <= error, beside one rounding to actual's type; nan and inf must be in the same places."""
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    info = torch.finfo(actual.dtype)
    got, want = actual.detach().double(), expected.detach().double()
    want = torch.where(want.isfinite() & (want.abs() > info.max), want.sign() * torch.inf, want)
    allowed = torch.as_tensor(error, dtype=torch.float64, device=got.device) + one_rounding(want, actual.dtype)
    allowed = allowed + 2 * torch.finfo(torch.float32).tiny
    wrong = torch.where(
        want.isfinite(), ~((got - want).abs() <= allowed), ~((got == want) | (got.isnan() & want.isnan()))
    )
    if wrong.any():
        place = tuple(int(i) for i in wrong.nonzero()[0])
        bound = float(allowed.expand_as(want)[place])
        raise AssertionError(
            f"{what}{list(place)} is {float(got[place])!r}, expected {float(want[place])!r} within {bound:.3g} "
            f"({int(wrong.sum())} of {wrong.numel()} wrong, {actual.dtype})"
        )


class Errors(NamedTuple):
    """Elementwise bounds on the error of the unreduced loss, and of its gradient in both operands before any upstream.

    Where `smooth` is False the loss has a kink or a pole: the gradient is only bounded, by `size` and `target_size`.
    """

    loss: Tensor
    grad: Tensor
    target_grad: Tensor | None = None
    smooth: Tensor | None = None
    size: Tensor | None = None
    target_size: Tensor | None = None


def of_sum(count: int) -> float:
    """What the sum of count terms adds to each: a random walk, and products with the upstream gradient and 1/n."""
    return 4 + math.sqrt(count)


def _class_axis(input: Tensor) -> int:
    return 1 if input.dim() > 1 else 0


def _coefficients(input: Tensor, target: Tensor, weight: Tensor | None, smoothing: float, ignore_index: int) -> Tensor:
    """|w_c q_c| in the shape of the input."""
    axis = _class_axis(input)
    if target.is_floating_point():
        q = target
    else:
        kept = target != ignore_index
        q = F.one_hot(torch.where(kept, target, 0), input.shape[axis]).movedim(-1, axis).double() * kept.unsqueeze(axis)
    q = q * (1 - smoothing) + smoothing / max(input.shape[axis], 1) * (q.sum(axis, keepdim=True) > 0)
    return (q if weight is None else q * weight.view([-1 if i == axis else 1 for i in range(input.dim())])).abs()


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    dtype: torch.dtype,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    ignore_index: int = -100,
) -> Errors:
    """Loss: maximum, exp, sum, log and products (12 operations, the sum's apart) on terms of one sign.

    log p_c is off by eps (1 + log C + |log p_c|), so p_c by p_c times that; a soft cap adds its own size to each logit.
    """
    axis = _class_axis(input)
    cap = 0.0 if softcap is None else softcap
    x = input if softcap is None else softcap * torch.tanh(input / softcap)
    classes = input.shape[axis]
    ops = (12 + math.sqrt(classes)) * eps(dtype)
    coefficient = _coefficients(input, target, weight, label_smoothing, ignore_index)
    logp, lse = torch.log_softmax(x, axis), torch.logsumexp(x, axis, keepdim=True)
    slack = 1 + math.log(max(classes, 1)) + cap
    total = coefficient.sum(axis, keepdim=True)
    terms = torch.where(coefficient > 0, coefficient * -logp, 0.0).sum(axis)
    loss = terms + slack * total.squeeze(axis) + z_loss * (lse.abs() * (lse.abs() + slack)).squeeze(axis)
    p = logp.exp()
    off = p * (slack + torch.where(p > 0, -logp, 0.0))
    grad = off * total + coefficient + 2 * z_loss * (lse.abs() * off + slack * p)
    target_grad = (-logp + slack) * (1 - label_smoothing)
    if weight is not None:
        target_grad = target_grad * weight.abs().view([-1 if i == axis else 1 for i in range(input.dim())])
    return Errors(ops * loss, ops * grad, ops * target_grad)


def softmax_focal_loss(
    input: Tensor,
    target: Tensor,
    gamma: float = 2.0,
    weight: Tensor | None = None,
    *,
    dtype: torch.dtype,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
) -> Errors:
    """Cross-entropy's errors times (1 - p)^gamma, beside what an error of a few eps in 1 - p does to that power."""
    axis = _class_axis(input)
    plain = cross_entropy(
        input, target, weight, dtype=dtype, label_smoothing=label_smoothing, ignore_index=ignore_index
    )
    ops = (12 + math.sqrt(input.shape[axis])) * eps(dtype)
    labels = torch.where(target == ignore_index, 0, target).unsqueeze(axis)
    logp = torch.log_softmax(input, axis)
    miss = -torch.expm1(logp.gather(axis, labels))
    power = miss**gamma
    blur = (miss + 2 * ops) ** gamma - (miss - 2 * ops).clamp(min=0) ** gamma + ops * gamma * power
    coefficient = _coefficients(input, target, weight, label_smoothing, ignore_index)
    entropy = torch.where(coefficient > 0, coefficient * -logp, 0.0).sum(axis, keepdim=True)
    total = coefficient.sum(axis, keepdim=True)
    loss = power.squeeze(axis) * plain.loss + (blur * entropy).squeeze(axis)
    grad = (power + blur) * plain.grad + blur * (total + (1 + gamma) * entropy)
    return Errors(loss, grad)


def sigmoid_focal_loss(
    inputs: Tensor,
    targets: Tensor,
    alpha: float = 0.25,
    gamma: float = 2.0,
    *,
    dtype: torch.dtype,
) -> Errors:
    """16 operations, and gamma |log(1 - p_t)| more for the power; relative throughout where a target is 0 or 1.

    Between 0 and 1, the cross-entropy may cancel in x - x t, and terms of both signs meet in the gradient. Floats
    below the smallest normal one may be flushed to 0: 1 - p_t itself, and in the targets' gradient the loss before it is
    divided by 1 - p_t.
    """
    p, r = torch.sigmoid(inputs), torch.sigmoid(-inputs)
    soft = (targets > 0) & (targets < 1)
    miss = p * (1 - targets) + r * targets
    entropy = -F.logsigmoid(-inputs) * (1 - targets) - F.logsigmoid(inputs) * targets + soft * inputs.abs()
    balance = torch.ones_like(p) if alpha < 0 else alpha * targets + (1 - alpha) * (1 - targets)
    log_miss = torch.where(soft, miss.log(), torch.where(targets > 0.5, F.logsigmoid(-inputs), F.logsigmoid(inputs)))
    ops = (16 + gamma * log_miss.abs()) * eps(dtype)
    power = torch.ones_like(p) if gamma == 0 else miss**gamma
    slope = torch.zeros_like(p) if gamma == 0 else gamma * torch.where(miss > 0, miss ** (gamma - 1), 0.0)
    tiny = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).tiny
    flushed = torch.where(miss < tiny, power if gamma == 0 else (miss + tiny) ** gamma, 0.0) * balance * inputs.abs()
    loss = balance * power * entropy
    flushed = flushed + torch.where(loss < 1e3 * tiny, balance * slope * entropy, 0.0)
    grad = balance * (power * miss + entropy * slope * p * r)
    target_grad = (abs(2 * alpha - 1) if alpha >= 0 else 0.0) * power * entropy
    target_grad = target_grad + balance * (power * inputs.abs() + entropy * slope)
    return Errors(ops * loss, ops * grad, ops * target_grad + flushed)


class BoxScale(NamedTuple):
    error: Tensor  # of iou, and of the centres' distance against the hull
    slope: Tensor  # size of d iou / d pred, and of the other parts' gradients
    target_slope: Tensor
    smooth: Tensor

    def errors(self, value: Tensor, slope: Tensor, size: Tensor | float) -> Errors:
        return Errors(
            loss=value,
            grad=(slope * self.slope).unsqueeze(-1),
            target_grad=(slope * self.target_slope).unsqueeze(-1),
            smooth=self.smooth.unsqueeze(-1),
            size=(32 * size * self.slope).unsqueeze(-1),
            target_size=(32 * size * self.target_slope).unsqueeze(-1),
        )


def _shortest(boxes: Tensor) -> Tensor:
    """The shortest side that is longer than 0, else 1."""
    sides = boxes[..., 2:] - boxes[..., :2]
    shortest = torch.where(sides > 0, sides, torch.inf).min(-1).values
    return torch.where(shortest.isfinite(), shortest, 1.0)


def boxes(pred: Tensor, target: Tensor, box_format: str, dtype: torch.dtype) -> BoxScale:
    """16 operations (8 eps). Corners made of a centre or size are off by an ulp of the coordinate."""
    p, t = (box_reference.corners(box, box_format) for box in (pred, target))
    sides = _shortest(p), _shortest(t)
    far = torch.maximum(p.abs().max(-1).values, t.abs().max(-1).values)
    low, high = torch.maximum(p[..., :2], t[..., :2]), torch.minimum(p[..., 2:], t[..., 2:])
    hull = torch.maximum(p[..., 2:], t[..., 2:]) - torch.minimum(p[..., :2], t[..., :2])
    length = _shortest(torch.cat([torch.zeros_like(hull), hull], -1)) if box_format == "xyxy" else torch.minimum(*sides)
    gaps = torch.cat([p - t, high - low], -1).abs().min(-1).values
    flat = (torch.cat([p[..., 2:] - p[..., :2], t[..., 2:] - t[..., :2]], -1) <= 0).any(-1)
    return BoxScale(
        error=8 * eps(dtype) * (1 + far / length),
        slope=2 / sides[0],
        target_slope=2 / sides[1],
        smooth=(gaps > (0.0 if box_format == "xyxy" else 8 * eps(dtype)) * far) & ~flat,
    )


def ciou_loss(pred: Tensor, target: Tensor, *, dtype: torch.dtype, box_format: str = "xyxy") -> Errors:
    scale = boxes(pred, target, box_format, dtype)
    return scale.errors(value=scale.error * 2, slope=scale.error, size=1.0)


def wiou_loss(
    pred: Tensor,
    target: Tensor,
    iou_mean: Tensor | float = 1.0,
    *,
    dtype: torch.dtype,
    version: int = 3,
    alpha: float = 1.9,
    delta: float = 3.0,
    gamma: float = 0.5,
    box_format: str = "xyxy",
) -> Errors:
    """The IoU loss's error through the focusing factor f(beta), beside that of the exponential of at most 1."""
    scale = boxes(pred, target, box_format, dtype)
    loss = 1 - box_reference.overlap(*(box_reference.corners(box, box_format) for box in (pred, target)), 1e-7).iou

    def focus(x: Tensor) -> Tensor:
        beta = x.clamp(min=0) / iou_mean
        return {1: torch.ones_like(x), 2: beta**gamma, 3: beta / (delta * alpha ** (beta - delta))}[version]

    here = focus(loss)
    blur = torch.maximum((focus(loss + scale.error) - here).abs(), (focus(loss - scale.error) - here).abs())
    blur = blur + here * eps(dtype) * 8 * (1 + loss / iou_mean)  # the power's own error
    return scale.errors(
        value=math.e * (blur * (loss + scale.error) + here * scale.error * 2),
        slope=math.e * (blur * 2 + here * scale.error * 2),
        size=math.e * (here + blur),
    )
