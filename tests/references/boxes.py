"""Box losses: complete IoU (Zheng et al., 2020, as torchvision writes it) and Wise-IoU (Tong et al., 2023)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tests.references.reduction import reduce


class Overlap(NamedTuple):
    iou: Tensor
    distance2: Tensor  # between the centres
    diagonal2: Tensor  # of the smallest box around both


def corners(boxes: Tensor, box_format: str) -> Tensor:
    if box_format == "xyxy":
        return boxes
    place, size = boxes[..., :2], boxes[..., 2:]
    low = place if box_format == "xywh" else place - size / 2
    return torch.cat([low, low + size], -1)


def ratio(a: Tensor, b: Tensor, eps: float) -> Tensor:
    return a / torch.where(b > 0, b, eps)


def overlap(pred: Tensor, target: Tensor, eps: float) -> Overlap:
    """Of boxes given by their corners."""
    low, high = torch.maximum(pred[..., :2], target[..., :2]), torch.minimum(pred[..., 2:], target[..., 2:])
    intersection = (high - low).clamp(min=0).prod(-1)
    areas = [(box[..., 2:] - box[..., :2]).prod(-1) for box in (pred, target)]
    centres = [(box[..., 2:] + box[..., :2]) / 2 for box in (pred, target)]
    hull = torch.maximum(pred[..., 2:], target[..., 2:]) - torch.minimum(pred[..., :2], target[..., :2])
    return Overlap(
        iou=ratio(intersection, areas[0] + areas[1] - intersection, eps),
        distance2=((centres[0] - centres[1]) ** 2).sum(-1),
        diagonal2=(hull**2).sum(-1),
    )


def _mean_like(rows: Tensor, weight: Tensor | None, reduction: str, normalizer: Tensor | float | None) -> Tensor:
    rows = rows if weight is None else rows * weight
    return reduce(rows, reduction, rows.numel(), normalizer)


def ciou_loss(
    pred: Tensor,
    target: Tensor,
    *,
    eps: float = 1e-7,
    box_format: str = "xyxy",
    reduction: str = "mean",
    weight: Tensor | None = None,
    normalizer: Tensor | float | None = None,
) -> Tensor:
    pred, target = corners(pred, box_format), corners(target, box_format)
    both = overlap(pred, target, eps)
    (pw, ph), (tw, th) = ((box[..., 2:] - box[..., :2]).unbind(-1) for box in (pred, target))
    v = 4 / math.pi**2 * (torch.atan2(tw, th) - torch.atan2(pw, ph)) ** 2
    alpha = ratio(v, 1 - both.iou + v, eps).detach()
    rows = 1 - both.iou + ratio(both.distance2, both.diagonal2, eps) + alpha * v
    return _mean_like(rows, weight, reduction, normalizer)


def wiou_loss(
    pred: Tensor,
    target: Tensor,
    iou_mean: Tensor | float = 1.0,
    *,
    version: int = 3,
    alpha: float = 1.9,
    delta: float = 3.0,
    gamma: float = 0.5,
    eps: float = 1e-7,
    box_format: str = "xyxy",
    reduction: str = "mean",
    weight: Tensor | None = None,
    normalizer: Tensor | float | None = None,
) -> Tensor:
    both = overlap(corners(pred, box_format), corners(target, box_format), eps)
    loss = 1 - both.iou
    rows = torch.exp(ratio(both.distance2, both.diagonal2.detach(), eps)) * loss
    beta = loss.detach() / iou_mean
    if version == 2:
        rows = beta**gamma * rows
    if version == 3:
        rows = beta / (delta * alpha ** (beta - delta)) * rows
    return _mean_like(rows, weight, reduction, normalizer)
