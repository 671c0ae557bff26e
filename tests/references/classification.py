"""Losses along a class axis, from the formulas in the documentation of torch.nn.CrossEntropyLoss."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.references.reduction import reduce


def _rows(input: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits with the classes last, the target as probabilities with the classes last, and which rows are kept."""
    axis = 1 if input.dim() > 1 else 0
    logits = input.movedim(axis, -1)
    if target.is_floating_point():
        probabilities = target.movedim(axis, -1)
        return logits, probabilities, torch.ones(logits.shape[:-1], dtype=torch.bool, device=input.device)
    kept = target != ignore_index
    labels = torch.where(kept, target, 0)
    return logits, torch.nn.functional.one_hot(labels, logits.shape[-1]).to(input.dtype), kept


def _smoothed_rows(logits: Tensor, probabilities: Tensor, weight: Tensor | None, label_smoothing: float) -> Tensor:
    """-sum_c w_c q_c log p_c, where 0 log 0 is 0."""
    classes = logits.shape[-1]
    mixed = probabilities * (1 - label_smoothing) + label_smoothing / max(classes, 1)
    coefficient = mixed if weight is None else mixed * weight
    logp = torch.log_softmax(logits, -1)
    absent = (coefficient == 0) & logp.isinf()
    return -(coefficient * logp.masked_fill(absent, 0.0)).sum(-1)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    normalizer: Tensor | float | None = None,
) -> Tensor:
    logits, probabilities, kept = _rows(input, target, ignore_index)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    rows = _smoothed_rows(logits, probabilities, weight, label_smoothing)
    if z_loss:
        peak = logits.detach().amax(-1, keepdim=True)  # logsumexp's own gradient loses the digits of the peak
        rows = rows + z_loss * (peak.squeeze(-1) + torch.logsumexp(logits - peak, -1)) ** 2
    rows = torch.where(kept, rows, 0.0)
    if weight is None or target.is_floating_point():
        denominator = kept.sum().to(input.dtype)
    else:
        denominator = ((probabilities * weight).sum(-1) * kept).sum()
    return reduce(rows, reduction, denominator, normalizer)


def softmax_focal_loss(
    input: Tensor,
    target: Tensor,
    gamma: float = 2.0,
    weight: Tensor | None = None,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    normalizer: Tensor | float | None = None,
) -> Tensor:
    """(1 - p_y) ** gamma times the cross-entropy (Lin et al., 2017); 1 - p_y is summed from the other classes."""
    logits, onehot, kept = _rows(input, target, ignore_index)
    logits = logits - logits.detach().amax(-1, keepdim=True)  # logsumexp's own digits would drown the small differences
    others = logits.masked_fill(onehot.bool(), -torch.inf)
    alone = others.eq(-torch.inf).all(-1) & ~logits.isnan().any(-1)  # p_y is 1 whatever they are; log(0) has no such derivative
    others = torch.logsumexp(others.masked_fill(alone.unsqueeze(-1), 0.0), -1)
    log_miss = others - torch.logsumexp(logits, -1)
    rows = _smoothed_rows(logits, onehot, weight, label_smoothing)
    if gamma != 0:
        rows = torch.where(alone, 0.0, torch.exp(gamma * log_miss) * rows)
    rows = torch.where(kept, rows, 0.0)
    return reduce(rows, reduction, kept.sum().to(input.dtype), normalizer)
