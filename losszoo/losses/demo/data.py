"""The UCI handwritten digits, as they are and pasted on a larger canvas."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

CANVAS = 48  # pixels a side
INK = 0.25  # a pixel at least this dark belongs to the digit


@dataclass(frozen=True)
class Split:
    """Images (n, 1, 8, 8) in [0, 1] and their labels (n)."""

    images: Tensor
    labels: Tensor


def digits(held_out: int = 360) -> tuple[Split, Split]:
    """The 1,797 digits that scikit-learn ships, shuffled once and for all: (training, held out)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(bunch.images, dtype=torch.float32)[order, None] / 16
    labels = torch.tensor(bunch.target, dtype=torch.int64)[order]
    return Split(images[held_out:], labels[held_out:]), Split(images[:held_out], labels[:held_out])


def scenes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Each digit at a random place, size and stretch on a noisy canvas, and the box (xyxy, pixels) around its ink."""
    count = len(images)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(count, *shape) * (high - low) + low

    side = uniform(12, 28, 1) * uniform(0.8, 1.25, 1) ** torch.tensor([1.0, -1.0])  # width and height of the 8 x 8 tile
    corner = uniform(0, 1, 2) * (CANVAS - side)
    # affine_grid wants the map from canvas to tile, both in [-1, 1]
    scale = CANVAS / side
    shift = -scale * (2 * (corner + side / 2) / CANVAS - 1)
    theta = torch.zeros(count, 2, 3)
    theta[:, 0, 0], theta[:, 1, 1], theta[:, :, 2] = scale[:, 0], scale[:, 1], shift
    grid = F.affine_grid(theta, [count, 1, CANVAS, CANVAS], align_corners=False)
    canvas = F.grid_sample(images, grid, align_corners=False)
    canvas += 0.15 * torch.randn(canvas.shape)
    return canvas, torch.cat([corner, corner], 1) + _ink_boxes(images) / 8 * torch.cat([side, side], 1)


def _ink_boxes(images: Tensor) -> Tensor:
    """(left, top, right, bottom) of the dark pixels of each 8 x 8 image, in pixels."""
    ink = images[:, 0] >= INK

    def extent(dark: Tensor) -> tuple[Tensor, Tensor]:
        dark = dark.to(torch.uint8)
        return dark.argmax(1), 8 - dark.flip(1).argmax(1)

    left, right = extent(ink.any(1))
    top, bottom = extent(ink.any(2))
    return torch.stack([left, top, right, bottom], 1).float()
