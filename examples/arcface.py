"""ArcFace: an angular margin on the cosine of the right class, before the softmax. Deng et al. 2019."""

from losszoo.spec import Index, Row, acos, cos, log_softmax, loss, onehot, where


@loss
def arcface_loss(cosine: Row, target: Index, *, margin: float = 0.5, scale: float = 64.0):
    """-log softmax(s z)[y], with z = cos(acos(x) + m) at the class y and z = x elsewhere. The cosines x lie in [-1, 1]."""
    logits = scale * where(onehot(target), cos(acos(cosine) + margin), cosine)
    return -log_softmax(logits)[target]
