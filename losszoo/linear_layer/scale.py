"""A gradient times a number that is on its device, in place."""

from __future__ import annotations

import struct
from functools import cache

import torch
from torch import Tensor

from losszoo import jit, paths
from losszoo.codegen.storage import STORAGE
from losszoo.runtime import autograd, cuda_driver
from losszoo.runtime.kernels import VECTOR, dtype_name

BLOCK = 1 << 22  # numbers at a time: their copies stay in a cache
THREADS, BLOCKS_A_MULTIPROCESSOR = 256, 8


def scale(x: Tensor, factor: Tensor) -> None:
    """Multiply x by a number, which is not rounded to x's type for it. Where it is 1 that takes no time."""
    if x.device.type == "cpu" and float(factor) == 1 or x.numel() == 0:
        return
    if x.device.type == "cuda" and x.is_contiguous() and x.data_ptr() % VECTOR == 0 and autograd.compiled("cuda"):
        index = x.device.index
        function = _function(dtype_name(x.dtype), dtype_name(factor.dtype), index)
        grid = min(-(-x.numel() // (THREADS * VECTOR // x.element_size())), BLOCKS_A_MULTIPROCESSOR * cuda_driver.multiprocessors(index))
        args = struct.pack("@PPq", x.data_ptr(), factor.data_ptr(), x.numel())
        function.launch(max(1, grid), THREADS, 0, torch.cuda.current_stream(x.device).cuda_stream, args)
        return
    for block in x.view(-1).split(BLOCK) if x.is_contiguous() else (x,):
        block.copy_(block.to(factor.dtype) * factor)


def source(dtype: str, real: str) -> jit.Source:
    types = f"#include <losszoo/numeric.h>\nusing T = {STORAGE[dtype]};\nusing R = {STORAGE[real]};\n"
    return jit.Source("scale", "cuda", types + (paths.csrc() / "scale.cu").read_text(encoding="utf-8"))


@cache
def _function(dtype: str, real: str, device: int) -> cuda_driver.Function:
    return cuda_driver.load(jit.build(source(dtype, real), cuda_driver.arch(device)), device).function("scale")
