"""losszoo: loss functions declared once as maths, compiled to fused CUDA and CPU kernels, called like torch's own."""

__version__ = "0.1.0"

from losszoo import losses, spec
from losszoo.losses import *  # noqa: F403
from losszoo.spec import loss

__all__ = [*losses.__all__, "loss", "losses", "spec"]
