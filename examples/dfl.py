"""Distribution focal loss: a real coordinate as the mean of a distribution over bins. Li et al. 2020, Generalized Focal Loss."""

from losszoo.spec import PerRow, Row, floor, log_softmax, loss


@loss
def distribution_focal_loss(input: Row, target: PerRow):
    """Cross-entropy with the two bins around the target t, weighted by nearness: -(l + 1 - t) log p[l] - (t - l) log p[l + 1].

    The target lies in [0, C - 1]; l is its floor.
    """
    logp, left = log_softmax(input), floor(target)
    return -(left + 1 - target) * logp[left] - (target - left) * logp[left + 1]
