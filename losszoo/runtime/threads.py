"""Runs a kernel's ranges on torch's own threads."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from losszoo import paths
from losszoo.errors import CompileError, ToolchainMissing
from losszoo.jit import Source, build

RANGE_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def parallel_for(function: Any, args: int, count: int, grain: int) -> None:
    """Call the C function `function(args, begin, end)` over [0, count) in ranges of `grain`, in no certain order.

    The ranges do not depend on the number of threads, which is torch's (`torch.set_num_threads`).
    """
    if grain < 1:
        raise ValueError(f"grain: got {grain}, expected at least 1")
    launch = launcher() if count > grain else None  # one range needs no launcher, which may have to be compiled
    if launch is not None:
        torch.get_num_threads()  # a thread takes over torch's setting the first time it asks
        launch(function, args, count, grain)
        return
    call = ctypes.cast(function, RANGE_FUNCTION)
    for begin in range(0, count, grain):
        call(args, begin, min(begin + grain, count))


def source() -> Source:
    """Of the C launcher."""
    return Source("parallel_for", "cpp", (paths.csrc() / "parallel.cpp").read_text(encoding="utf-8"))


@cache
def launcher() -> Any:
    """The C launcher, or None where torch brings no OpenMP to share."""
    try:
        launch = ctypes.CDLL(str(build(source()))).losszoo_parallel_for
    except (ToolchainMissing, CompileError, OSError):
        return None
    launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    launch.restype = None
    return launch
