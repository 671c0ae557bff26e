"""Losses of single logits against targets in [0, 1], as dense detectors use them."""

from losszoo.spec import Elem, Usual, exp, log, loss, share, sigmoid, smallest, softplus, where


def power(q, gamma):
    """q**gamma for q in [0, 1], with a finite slope also where q is 0: there the loss that it scales is 0 as well."""
    if isinstance(gamma, float):  # the usual power, in a kernel of its own: no logarithm
        return q**gamma
    return where(q < smallest, 0**gamma, exp(gamma * log(q)))


@loss(reduction="none")
def sigmoid_focal_loss(inputs: Elem, targets: Elem, alpha: float = 0.25, gamma: float | Usual[2.0] = 2.0):
    """a_t (1 - p_t)**gamma * BCE(x, t), with p = sigmoid(x), p_t = p t + (1 - p)(1 - t), a_t = alpha t + (1 - alpha)(1 - t).

    Targets may lie between 0 and 1. A negative alpha switches a_t off.

    Source: Lin et al. 2017, Focal Loss for Dense Object Detection; torchvision.ops.sigmoid_focal_loss.
    """
    # In |x| and the weight of the label that x speaks against; not abs(x), whose gradient would be 0 where x is.
    distance, wrong = where(inputs < 0, -inputs, inputs), where(inputs < 0, targets, 1 - targets)
    bce = share(wrong, distance) + softplus(-distance)
    missed = wrong * sigmoid(distance) + (1 - wrong) * sigmoid(-distance)
    ones, zeros = where(alpha < 0, 1, alpha), where(alpha < 0, 1, 1 - alpha)
    # From the smaller one up: no small result of large ones, and a gradient of targets in which equal ones cancel before they are rounded.
    balance = where(zeros < ones, zeros + (ones - zeros) * targets, ones + (zeros - ones) * (1 - targets))
    return balance * power(missed, gamma) * bce


SigmoidFocalLoss = sigmoid_focal_loss.module("SigmoidFocalLoss")

__all__ = ["SigmoidFocalLoss", "sigmoid_focal_loss"]
