"""Distillation from a teacher's logits. Hinton et al. 2015."""

from losszoo.spec import Row, log_softmax, loss, softmax, sum


@loss
def kl_distillation_loss(student: Row, teacher: Row, *, temperature: float = 1.0):
    """T**2 sum(p (log p - log q)), with p = softmax(teacher / T) and q = softmax(student / T)."""
    student, teacher = student / temperature, teacher / temperature
    return temperature**2 * sum(softmax(teacher) * (log_softmax(teacher) - log_softmax(student)))
