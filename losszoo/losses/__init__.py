"""The zoo: every loss, as a function and as a module."""

from losszoo.losses import boxes, classification, focal
from losszoo.losses.boxes import *  # noqa: F403
from losszoo.losses.classification import *  # noqa: F403
from losszoo.losses.focal import *  # noqa: F403

__all__ = classification.__all__ + focal.__all__ + boxes.__all__
