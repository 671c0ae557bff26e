"""Losses of a row of logits against a class label or a distribution over classes."""

from losszoo.losses.focal import power
from losszoo.spec import (
    ClassWeight,
    Index,
    Row,
    Usual,
    Zero,
    classes,
    counts,
    expectation,
    expm1,
    is_label,
    log_softmax,
    logsumexp,
    loss,
    share,
    sum,
    tanh,
    where,
)  # fmt: skip


def _smoothed(logp, target, weight, label_smoothing):
    """(1 - s) * CE + s * (mean over the classes of -w * logp); a part whose coefficient is 0 is absent, also where it is infinite."""
    weighted = share(weight, logp)
    hard = where(label_smoothing < 1, -expectation(weighted, target), 0)
    smooth = where(label_smoothing > 0, -sum(weighted) / classes(logp), 0)
    return (1 - label_smoothing) * hard + label_smoothing * smooth


@loss
def cross_entropy(
    input: Row, target: Index | Row, weight: ClassWeight = 1,
    *, label_smoothing: float | Zero = 0.0, z_loss: float | Zero = 0.0, softcap: float | None = None,
):  # fmt: skip
    """-w[y] log softmax(x)[y], or -sum(w t log softmax(x)) for probabilities t.

    With smoothing s it is (1 - s) times that plus s / C times the sum of -w log softmax(x) over the C classes. `z_loss` adds
    z_loss * logsumexp(x)**2; `softcap` first replaces the logits by softcap * tanh(x / softcap). The mean divides by the sum of
    w[y] over the kept rows (by their number, for probabilities).

    Source: torch.nn.functional.cross_entropy; Szegedy et al. 2016 (smoothing); PaLM, Chowdhery et al. 2022 (z-loss); Gemma 2 (soft-cap).
    """
    logits = input if softcap is None else softcap * tanh(input / softcap)
    value = _smoothed(log_softmax(logits), target, weight, label_smoothing)
    value = value + where(z_loss > 0, z_loss * logsumexp(logits) ** 2, 0)
    return value, counts(weight[target] if is_label(target) else 1)


@loss
def softmax_focal_loss(
    input: Row, target: Index, gamma: float | Usual[2.0] = 2.0, weight: ClassWeight = 1, *, label_smoothing: float | Zero = 0.0
):
    """(1 - p[y])**gamma * CE(x, y), with p = softmax(x) and CE the cross-entropy with class weights and smoothing.

    The mean divides by the number of kept rows.

    Source: Lin et al. 2017, Focal Loss for Dense Object Detection, for exclusive classes.
    """
    logp = log_softmax(input)
    return power(-expm1(logp[target]), gamma) * _smoothed(logp, target, weight, label_smoothing)


CrossEntropyLoss = cross_entropy.module("CrossEntropyLoss")
LabelSmoothingCrossEntropy = cross_entropy.module("LabelSmoothingCrossEntropy", label_smoothing=0.1)
SoftmaxFocalLoss = softmax_focal_loss.module("SoftmaxFocalLoss")

__all__ = ["CrossEntropyLoss", "LabelSmoothingCrossEntropy", "SoftmaxFocalLoss", "cross_entropy", "softmax_focal_loss"]
