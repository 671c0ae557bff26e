"""Pointwise losses."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from tests.references.reduction import reduce


def sigmoid_focal_loss(
    inputs: Tensor,
    targets: Tensor,
    alpha: float = 0.25,
    gamma: float = 2.0,
    reduction: str = "none",
    weight: Tensor | None = None,
    normalizer: Tensor | float | None = None,
) -> Tensor:
    """torchvision.ops.sigmoid_focal_loss; 1 - p_t is a sum of products, never a difference: good for |inputs| < 700."""
    miss = F.logsigmoid(inputs).exp() * (1 - targets) + F.logsigmoid(-inputs).exp() * targets  # exact slopes too
    entropy = -F.logsigmoid(-inputs) * (1 - targets) - F.logsigmoid(inputs) * targets  # softplus is linear from 20
    loss = entropy if gamma == 0 else miss**gamma * entropy
    if alpha >= 0:
        loss = (alpha * targets + (1 - alpha) * (1 - targets)) * loss
    if weight is not None:
        loss = loss * weight
    return reduce(loss, reduction, loss.numel(), normalizer)
