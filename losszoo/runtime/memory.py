"""Large pages for large outputs on the CPU.

The pages of fresh memory are made when it is first written, 4 KiB at a time, and for a gradient that takes longer than computing
it. Linux makes them 2 MiB at a time where it is asked to.
"""

from __future__ import annotations

import ctypes
import sys

from torch import Tensor

HUGE_PAGE = 2 << 20
WORTH_ASKING = 4 * HUGE_PAGE  # the C library hands smaller blocks out again, with their pages
MADV_HUGEPAGE = 14  # from asm-generic/mman-common.h


def in_large_pages(fresh: Tensor) -> Tensor:
    """The tensor, just allocated and not yet written, with its memory marked for large pages where the system has them."""
    size = fresh.numel() * fresh.element_size()
    if sys.platform == "linux" and fresh.device.type == "cpu" and size >= WORTH_ASKING:
        begin = -(-fresh.data_ptr() // HUGE_PAGE) * HUGE_PAGE
        end = (fresh.data_ptr() + size) // HUGE_PAGE * HUGE_PAGE
        _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_HUGEPAGE)  # a hint: refusal changes nothing
    return fresh


_libc = ctypes.CDLL(None)
