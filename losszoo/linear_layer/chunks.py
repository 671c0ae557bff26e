"""How large a chunk is, and how it lies in memory."""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor

ALIGNED = 16  # bytes
TILE = 128  # products are fastest where their sizes are multiples of it


def chunk_size(count: int, bytes_each: int, memory: int) -> int:
    """How many of `count` rows or classes a chunk has: as few chunks as `memory` bytes allow, all about as large, and at least one."""
    fit = max(1, memory // max(1, bytes_each))
    fit = fit // TILE * TILE or fit
    even = ceil(count / max(1, ceil(count / fit)))
    return max(1, min(fit, ceil(even / TILE) * TILE))


def matrix(memory: Tensor, rows: int, columns: int) -> Tensor:
    """A matrix in the front of `memory`, whose rows begin at multiples of 16 bytes.

    Products are faster so; and threads that read 16 bytes at a time never meet what others write to the row after.
    """
    stride = row_stride(columns, memory.dtype)
    return memory[: rows * stride].view(rows, stride)[:, :columns]


def row_stride(columns: int, dtype: torch.dtype) -> int:
    return ceil(columns * dtype.itemsize / ALIGNED) * ALIGNED // dtype.itemsize
