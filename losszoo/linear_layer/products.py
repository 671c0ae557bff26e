"""Matrix products, torch's own, and their sums over chunks."""

from __future__ import annotations

import torch
from torch import Tensor


def product(out: Tensor, a: Tensor, b: Tensor, *, add: bool = False) -> None:
    """Write a @ b to `out`, or add it there. Where `out` is float32 and they are not, nothing is rounded to their type."""
    if out.dtype is a.dtype:
        torch.addmm(out, a, b, beta=int(add), out=out)
    elif out.dtype is not wide(a.dtype):
        assert not add, f"a sum of products of {a.dtype} in {out.dtype}"
        out.copy_(a @ b)
    elif out.device.type == "cuda":
        whole = out.unsqueeze(0)  # to which torch 2.9's addmm adds no product of another type
        torch.baddbmm(whole, a.unsqueeze(0), b.unsqueeze(0), out.dtype, beta=int(add), out=whole)
    else:
        torch.addmm(out, a.to(out.dtype), b.to(out.dtype), beta=int(add), out=out)


def wide(dtype: torch.dtype) -> torch.dtype:
    """What a long sum is kept in: 16 bits would lose what is added last."""
    return torch.float32 if dtype.itemsize < 4 else dtype
