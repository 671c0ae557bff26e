"""Poly-1: cross-entropy with its first polynomial term moved. Leng et al. 2022, PolyLoss."""

from losszoo.spec import Index, Row, expm1, log_softmax, loss


@loss
def poly1_loss(input: Row, target: Index, *, epsilon: float = 1.0):
    """-log p[y] + epsilon (1 - p[y]), with p = softmax(x)."""
    logp = log_softmax(input)[target]
    return -logp - epsilon * expm1(logp)
