"""Losses fused with the linear layer before them."""

from losszoo.linear_layer import linear
from losszoo.losses.classification import cross_entropy

linear_cross_entropy = linear(cross_entropy)

__all__ = ["linear_cross_entropy"]
