"""Everything that the author of a loss needs: the decorator, the kinds of operands, and the maths.

    from losszoo.spec import Index, Row, log_softmax, loss

    @loss
    def my_loss(x: Row, y: Index):
        return -log_softmax(x)[y]
"""

from losszoo.spec.declare import Choice, Spec, counts, running_mean
from losszoo.spec.geometry import center_distance2, hull, hull_diagonal2, intersection, ratio, union
from losszoo.spec.maths import (
    abs,
    acos,
    asin,
    atan,
    atan2,
    clamp,
    classes,
    cos,
    exp,
    expectation,
    expm1,
    floor,
    is_label,
    log,
    log1p,
    log_softmax,
    logsumexp,
    max,
    maximum,
    minimum,
    onehot,
    pi,
    position,
    share,
    sigmoid,
    sin,
    smallest,
    softmax,
    softplus,
    sqrt,
    stop_gradient,
    sum,
    tanh,
    where,
)  # fmt: skip
from losszoo.spec.operands import Box, ClassWeight, Elem, Index, PerRow, Row, Scalar, Static, Tuple, Usual, Zero
from losszoo.surface import loss

__all__ = [
    "Box", "ClassWeight", "Elem", "Index", "PerRow", "Row", "Scalar", "Spec", "Static", "Tuple", "Usual", "Zero", "Choice",
    "abs", "acos", "asin", "atan", "atan2", "center_distance2", "clamp", "classes", "cos", "counts", "exp", "expectation", "expm1",
    "floor", "hull", "hull_diagonal2", "intersection", "is_label", "log", "log1p", "log_softmax", "logsumexp", "loss", "max",
    "maximum", "minimum", "onehot", "pi", "position", "ratio", "running_mean", "share", "sigmoid", "sin", "smallest", "softmax", "softplus",
    "sqrt", "stop_gradient", "sum", "tanh", "union", "where",
]  # fmt: skip
