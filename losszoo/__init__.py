"""losszoo: loss functions declared once as maths, compiled to fused CUDA and CPU kernels, called like torch's own."""

__version__ = "0.1.0"

from losszoo import losses, parallel, spec
from losszoo.linear_layer import linear
from losszoo.losses import *  # noqa: F403
from losszoo.losses import linear as _behind_linear
from losszoo.losses.linear import *  # noqa: F403
from losszoo.runtime import autograd as _autograd  # noqa: F401  (at import, so that the first call does not pay for it)
from losszoo.runtime.warm import warmup
from losszoo.spec import loss

__all__ = [*losses.__all__, *_behind_linear.__all__, "linear", "loss", "losses", "parallel", "spec", "warmup"]
