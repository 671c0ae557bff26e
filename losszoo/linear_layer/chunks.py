"""How large a chunk is."""

from __future__ import annotations

from math import ceil

TILE = 128  # products are fastest where their sizes are multiples of it


def chunk_size(count: int, bytes_each: int, memory: int) -> int:
    """How many of `count` rows or classes a chunk has: as few chunks as `memory` bytes allow, all about as large, and at least one."""
    fit = max(1, memory // max(1, bytes_each))
    fit = fit // TILE * TILE or fit
    even = ceil(count / max(1, ceil(count / fit)))
    return max(1, min(fit, ceil(even / TILE) * TILE))
