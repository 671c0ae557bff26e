"""Distillation by the Jensen-Shannon divergence: two passes over the rows, since the mixture needs both softmaxes first."""

from losszoo.spec import Row, log, log_softmax, loss, maximum, softmax, sum


@loss
def jsd_distillation_loss(student: Row, teacher: Row, *, temperature: float = 1.0):
    """T**2 (KL(p || m) + KL(q || m)) / 2, with p, q = softmax(teacher / T), softmax(student / T) and m = (p + q) / 2."""
    student, teacher = student / temperature, teacher / temperature
    p, q = softmax(teacher), softmax(student)
    log_m = log(maximum((p + q) / 2, 1e-37))
    return temperature**2 / 2 * sum(p * (log_softmax(teacher) - log_m) + q * (log_softmax(student) - log_m))
