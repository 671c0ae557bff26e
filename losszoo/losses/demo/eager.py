"""The losses written out in plain torch, as torchvision and the papers have them: what the fused kernels are timed against."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def softmax_focal_loss(input: Tensor, target: Tensor, gamma: float = 2.0) -> Tensor:
    ce = F.cross_entropy(input, target, reduction="none")
    return ((1 - torch.exp(-ce)) ** gamma * ce).mean()


def sigmoid_focal_loss(inputs: Tensor, targets: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    p = torch.sigmoid(inputs)
    ce = F.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    alpha_t = alpha * targets + (1 - alpha) * (1 - targets)
    return (alpha_t * ce * (1 - p_t) ** gamma).mean()


def box_iou(a: Tensor, b: Tensor, eps: float = 1e-7) -> tuple[Tensor, Tensor, Tensor]:
    """Of paired xyxy boxes: IoU, squared diagonal of the hull, squared distance of the centres."""
    ax1, ay1, ax2, ay2 = a.unbind(-1)
    bx1, by1, bx2, by2 = b.unbind(-1)
    width = (torch.min(ax2, bx2) - torch.max(ax1, bx1)).clamp(min=0)
    height = (torch.min(ay2, by2) - torch.max(ay1, by1)).clamp(min=0)
    shared = width * height
    union = (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - shared
    hull = (torch.max(ax2, bx2) - torch.min(ax1, bx1)) ** 2 + (torch.max(ay2, by2) - torch.min(ay1, by1)) ** 2
    centres = ((ax1 + ax2 - bx1 - bx2) / 2) ** 2 + ((ay1 + ay2 - by1 - by2) / 2) ** 2
    return shared / (union + eps), hull, centres


def ciou_loss(pred: Tensor, target: Tensor, eps: float = 1e-7) -> Tensor:
    iou, hull, centres = box_iou(pred, target, eps)
    wide, high = pred[:, 2] - pred[:, 0], pred[:, 3] - pred[:, 1]
    target_wide, target_high = target[:, 2] - target[:, 0], target[:, 3] - target[:, 1]
    v = 4 / math.pi**2 * (torch.atan(target_wide / target_high) - torch.atan(wide / high)) ** 2
    with torch.no_grad():
        alpha = v / (1 - iou + v + eps)
    return (1 - iou + centres / (hull + eps) + alpha * v).mean()


def wiou_loss(pred: Tensor, target: Tensor, iou_mean: float = 1.0, alpha: float = 1.9, delta: float = 3.0) -> Tensor:
    iou, hull, centres = box_iou(pred, target)
    beta = (1 - iou.detach()) / iou_mean
    return (beta / (delta * alpha ** (beta - delta)) * torch.exp(centres / hull.detach()) * (1 - iou)).mean()
