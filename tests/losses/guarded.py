"""Small calls on the CPU whose operands and gradients end where the memory of the process does: `python -m tests.losses.guarded`.

Whoever reads or writes beyond the last value dies of it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

os.environ["LOSSZOO_RUNTIME"] = "python"  # which asks for the memory of gradients where this can be seen

import losszoo  # noqa: E402
from losszoo.runtime import memory  # noqa: E402

NOBODYS = 0  # PROT_NONE of sys/mman.h
_libc = ctypes.CDLL(None, use_errno=True)


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """A tensor that ends with a page, before one that nobody may touch."""
    size = prod(shape) * dtype.itemsize
    usable = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, usable + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    assert _libc.mprotect(ctypes.c_void_p(address + usable), ctypes.c_size_t(mmap.PAGESIZE), NOBODYS) == 0
    return torch.frombuffer(pages, dtype=dtype, offset=usable - size, count=prod(shape)).view(tuple(shape))


def guarded(values: Tensor) -> Tensor:
    return empty(values.shape, values.dtype).copy_(values)


def main() -> None:
    memory.empty = empty
    for dtype in (torch.float32, torch.float16):
        for shape in ((3, 1000), (3, 1001), (2, 7), (2, 19, 5, 9)):
            logits = guarded(torch.randn(shape).to(dtype)).requires_grad_()
            target = guarded(torch.randint(shape[1], (shape[0], *shape[2:])))
            losszoo.cross_entropy(logits, target).backward()
        for count in (1, 31, 33, 257, 300):
            logits, targets = (guarded(torch.rand(count).to(dtype)).requires_grad_(wanted) for wanted in (True, False))
            losszoo.sigmoid_focal_loss(logits, targets, reduction="none").backward(guarded(torch.rand(count)))
            pred, target = (guarded(torch.rand(count, 4).cumsum(-1).to(dtype)).requires_grad_(wanted) for wanted in (True, False))
            losszoo.ciou_loss(pred, target).backward()
    print("stayed within")


if __name__ == "__main__":
    main()
