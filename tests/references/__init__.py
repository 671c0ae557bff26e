"""Plain PyTorch formulas from the papers and torch's documentation, never from losszoo's specs; run in float64."""

from tests.references.boxes import ciou_loss, wiou_loss
from tests.references.classification import cross_entropy, softmax_focal_loss
from tests.references.elementwise import sigmoid_focal_loss

__all__ = ["ciou_loss", "cross_entropy", "sigmoid_focal_loss", "softmax_focal_loss", "wiou_loss"]
