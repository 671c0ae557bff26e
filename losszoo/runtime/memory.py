"""Memory for large outputs on the CPU that has been written before.

Linux makes the pages of fresh memory when they are first written and fills each with zeros, which for a gradient takes longer than
computing it. So the memory of a large output stays here when its last tensor is gone, and the next output of that size gets it. It
is asked to be in pages of 2 MiB, which are made faster than 512 small ones. While it lies here the system may take its pages back
at any time, so that what is kept is never what another allocation lacks.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
LARGE = 4 * HUGE_PAGE  # the C library hands smaller blocks out again, with their pages
KEPT = 2  # blocks: a training step frees one gradient and asks for it again, or an unreduced loss beside it
SLACK = 1.25  # a block serves whatever fills it but for a fifth
MADV_FREE, MADV_HUGEPAGE = 8, 14  # from asm-generic/mman-common.h

# By address, the latest last. Every step on it is one dict operation, so that it needs no lock: a collection of garbage may
# give memory back in the middle of any function here.
_free: dict[int, Tensor] = {}


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """torch.empty, in memory that was used before where the tensor is large and there is some. Its storage cannot grow."""
    size = prod(shape) * dtype.itemsize
    if sys.platform != "linux" or device.type != "cpu" or size < LARGE:
        return torch.empty(shape, dtype=dtype, device=device)
    block = _take(size)
    owner = (ctypes.c_char * size).from_address(block.data_ptr())
    # The tensor's storage keeps `owner`, and that the memory, also when Python ends before the tensor does.
    owner.block = block  # type: ignore[attr-defined]
    weakref.finalize(owner, _give_back, block).atexit = False
    return torch.frombuffer(owner, dtype=dtype).resize_(shape)  # which view() would make a view, with a view's rules for autograd


def source(count: int, dtype: torch.dtype, device: torch.device) -> Callable[[], Tensor] | None:
    """What gives the memory of such an output, in one dimension, if that is not torch's own allocator."""
    if device.type != "cpu" or count * dtype.itemsize < LARGE:
        return None
    return partial(empty, (count,), dtype, device)


def _take(size: int) -> Tensor:
    for address, block in list(_free.items()):
        if size <= block.numel() <= size * SLACK and _free.pop(address, None) is not None:  # or another thread was faster
            return block
    block = torch.empty(size, dtype=torch.uint8, device="cpu")
    _advise(block, MADV_HUGEPAGE)
    return block


def _give_back(block: Tensor) -> None:
    _advise(block, MADV_FREE)
    _free[block.data_ptr()] = block
    for address in list(_free)[:-KEPT]:
        _free.pop(address, None)


def _advise(block: Tensor, advice: int) -> None:
    """Tell the system about the large pages that lie inside the block; it is a hint, and refusal changes nothing."""
    begin = -(-block.data_ptr() // HUGE_PAGE) * HUGE_PAGE
    end = (block.data_ptr() + block.numel()) // HUGE_PAGE * HUGE_PAGE
    _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)


_libc = ctypes.CDLL(None)
