"""Dice: the overlap of a predicted and a true mask, a row each. Milletari et al. 2016."""

from losszoo.spec import Row, loss, sigmoid, sum


@loss
def dice_loss(input: Row, target: Row, *, smooth: float = 1.0):
    """1 - (2 sum(p t) + s) / (sum(p) + sum(t) + s), with p = sigmoid(x)."""
    p = sigmoid(input)
    return 1 - (2 * sum(p * target) + smooth) / (sum(p) + sum(target) + smooth)
