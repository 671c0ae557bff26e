"""Losses of predicted boxes against target boxes. Coordinates may have any unit: the losses do not depend on scale."""

from losszoo.spec import (
    Box,
    Scalar,
    Static,
    atan2,
    center_distance2,
    clamp,
    exp,
    hull_diagonal2,
    intersection,
    loss,
    pi,
    ratio,
    running_mean,
    stop_gradient,
    union,
)  # fmt: skip


@loss
def ciou_loss(pred: Box, target: Box, *, eps: float = 1e-7):
    """1 - IoU + d**2 / c**2 + a v, with d the distance of the centres, c the diagonal of the hull,
    v = 4 / pi**2 (atan(w'/h') - atan(w/h))**2 and a = v / (1 - IoU + v), constant to the gradient.

    A denominator that is 0 (boxes of no area) is replaced by eps; others are left alone.

    Source: Zheng et al. 2020, Distance-IoU Loss / Enhancing Geometric Factors; torchvision.ops.complete_box_iou_loss.
    """
    iou = ratio(intersection(pred, target), union(pred, target), eps)
    v = 4 / pi**2 * (atan2(target.w, target.h) - atan2(pred.w, pred.h)) ** 2
    alpha = stop_gradient(ratio(v, 1 - iou + v, eps))
    return 1 - iou + ratio(center_distance2(pred, target), hull_diagonal2(pred, target), eps) + alpha * v


@loss
def wiou_loss(
    pred: Box, target: Box, iou_mean: Scalar = 1.0,
    *, version: Static[3, 2, 1] = 3, alpha: float = 1.9, delta: float = 3.0, gamma: float = 0.5, eps: float = 1e-7,
):  # fmt: skip
    """L = 1 - IoU times exp(d**2 / c**2), c constant to the gradient (version 1), times a focus on the quality b = L / iou_mean:
    b**gamma (version 2) or b / (delta alpha**(b - delta)) (version 3), constant to the gradient too.

    `iou_mean` is the running mean of L; the module keeps and updates it.

    Source: Tong et al. 2023, Wise-IoU: Bounding Box Regression Loss with Dynamic Focusing Mechanism.
    """
    iou_loss = 1 - ratio(intersection(pred, target), union(pred, target), eps)
    attention = exp(ratio(center_distance2(pred, target), stop_gradient(hull_diagonal2(pred, target)), eps))
    outlier = clamp(stop_gradient(iou_loss), min=0) / iou_mean  # rounding may leave IoU a little above 1
    if version == 1:
        focus = 1
    elif version == 2:
        focus = outlier**gamma
    else:
        focus = outlier / (delta * alpha ** (outlier - delta))
    return focus * attention * iou_loss, running_mean(iou_mean, iou_loss)


CIoULoss = ciou_loss.module("CIoULoss")
WIoULoss = wiou_loss.module("WIoULoss")

__all__ = ["CIoULoss", "WIoULoss", "ciou_loss", "wiou_loss"]
