"""Array loops over everything in csrc/losszoo/math.h and numeric.h, as a C++ and a CUDA text, and how to call them."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from losszoo import paths
from losszoo.jit import Source, build, find_toolchain

UNARY = (
    *("exp", "exp_fast", "log", "log1p", "log1p_unit", "expm1", "sqrt", "tanh", "sin", "cos", "asin", "acos", "atan"),
    *("abs", "floor"),
)
PREDICATES = ("isnan", "isinf", "isfinite", "signbit")
BINARY = ("atan2", "pow", "maximum", "minimum", "copysign")
STORAGE = {"half": torch.float16, "bfloat16": torch.bfloat16}
C_TYPE = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "lz::half",
    torch.bfloat16: "lz::bfloat16",
}


@dataclass(frozen=True)
class Loop:
    """`into[i] = text` for every i; x and y are the operands."""

    name: str
    operand: torch.dtype
    result: torch.dtype
    text: str
    vector: bool = False  # on CUDA alone: the text copies 16 bytes, from element i


def _loops() -> list[Loop]:
    loops = []
    for real, suffix in (torch.float32, "float"), (torch.float64, "double"):
        loops += [Loop(f"exp_falling_{suffix}", real, real, "lz::exp_falling<false>(x[i])")]
        loops += [Loop(f"{name}_{suffix}", real, real, f"lz::{name}(x[i])") for name in UNARY]
        loops += [Loop(f"{name}_{suffix}", real, real, f"lz::{name}(x[i], y[i])") for name in BINARY]
        loops += [Loop(f"{name}_{suffix}", real, real, f"lz::{name}(x[i]) ? 1 : 0") for name in PREDICATES]
        loops += [
            Loop(f"fma_{suffix}", real, real, "lz::fma(x[i], y[i], x[i])"),
            Loop(f"select_{suffix}", real, real, "lz::select(x[i] < y[i], x[i], y[i])"),
            Loop(f"infinity_{suffix}", real, real, f"x[i] * 0 + lz::infinity<{suffix}>()"),
            Loop(f"nan_{suffix}", real, real, f"lz::nan<{suffix}>()"),
        ]
        for short, storage in STORAGE.items():
            loops += [
                Loop(f"load_{short}_{suffix}", storage, real, f"lz::load<{suffix}>(x + i)"),
                Loop(f"store_{short}_{suffix}", real, storage, f"lz::to<lz::{short}>(x[i])"),
            ]
    for dtype, c in C_TYPE.items():
        real = "double" if dtype == torch.float64 else "float"
        short = c.removeprefix("lz::")
        chunk = f"lz::Chunk<{c}, {16 // dtype.itemsize}>"
        copy = f"{chunk} raw; raw.template fetch<true>(x + i); {real} part[{16 // dtype.itemsize}]; "
        copy += f"for (int j = 0; j < {16 // dtype.itemsize}; ++j) part[j] = lz::to<{real}>(raw.v[j]); lz::put(into + i, part)"
        loops.append(Loop(f"vector_{short}", dtype, dtype, copy, vector=True))
    return loops


LOOPS = {loop.name: loop for loop in _loops()}
INCLUDES = "#include <losszoo/math.h>\n#include <losszoo/numeric.h>\n"


def cpp() -> str:
    """Every loop on a line of its own, so that a compiler's remarks about a line tell which loop they are about."""
    lines = []
    for loop in LOOPS.values():
        if not loop.vector:
            x, y = (f"const {C_TYPE[loop.operand]}* __restrict {operand}" for operand in "xy")
            head = f'extern "C" __attribute__((visibility("default"))) void {loop.name}({x}, {y}, '
            head += f"{C_TYPE[loop.result]}* __restrict into, lz::int64 n)"
            lines.append(f"{head} {{ (void)x, (void)y; for (lz::int64 i = 0; i < n; ++i) into[i] = {loop.text}; }}\n")
    return INCLUDES + "".join(lines)


def cuda() -> str:
    lines = ["struct Args { const void *x, *y; void* into; lz::int64 n; };\n"]
    for loop in LOOPS.values():
        operand, result = C_TYPE[loop.operand], C_TYPE[loop.result]
        step = 16 // loop.result.itemsize if loop.vector else 1
        lines.append(f"""
extern "C" __global__ void {loop.name}(Args a) {{
    const {operand} *x = static_cast<const {operand}*>(a.x), *y = static_cast<const {operand}*>(a.y);
    {result}* into = static_cast<{result}*>(a.into);
    const lz::int64 i = (lz::int64(blockIdx.x) * blockDim.x + threadIdx.x) * {step};
    if (i < a.n) {{ (void)x, (void)y; {loop.text if loop.vector else f"into[i] = {loop.text}"}; }}
}}
""")
    return INCLUDES + "#include <losszoo/device.h>\n" + "".join(lines)


Call = Callable[..., Tensor]


def on_cpu(directory: Path) -> tuple[Call, str]:
    """The loops compiled as CPU kernels are, and what the compiler said."""
    toolchain = find_toolchain("cpp")
    text, library = directory / "loops.cpp", directory / "loops.so"
    text.write_text(cpp())
    remarks = ["-fopt-info-vec-optimized"] if gcc_on_x86(toolchain.compiler) else []
    done = subprocess.run(
        [*toolchain.compiler, *toolchain.flags, "-Wall", "-Wextra", *remarks]
        + ["-I", str(paths.csrc()), "-o", str(library), str(text)],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert done.returncode == 0, done.stderr
    loaded = ctypes.CDLL(str(library))

    def call(name: str, x: Tensor, y: Tensor | None = None) -> Tensor:
        x, y = x.contiguous(), (x if y is None else y).contiguous()
        assert x.dtype == y.dtype == LOOPS[name].operand and x.shape == y.shape
        into = torch.empty_like(x, dtype=LOOPS[name].result)
        pointers = (ctypes.c_void_p(t.data_ptr()) for t in (x, y, into))
        getattr(loaded, name)(*pointers, ctypes.c_int64(x.numel()))
        return into

    return call, done.stderr


def on_cuda() -> Call:
    from losszoo.runtime import cuda_driver

    device = torch.cuda.current_device()
    architecture = cuda_driver.arch(device)
    module = cuda_driver.load(build(Source("loops", "cuda", cuda()), architecture), device)

    def call(name: str, x: Tensor, y: Tensor | None = None) -> Tensor:
        x, y = x.cuda().contiguous(), (x if y is None else y).cuda().contiguous()
        into = torch.zeros_like(x, dtype=LOOPS[name].result)
        args = b"".join(v.to_bytes(8, "little") for v in (x.data_ptr(), y.data_ptr(), into.data_ptr(), x.numel()))
        stream = torch.cuda.current_stream().cuda_stream
        module.function(name).launch(-(-x.numel() // 256), 256, 0, stream, args)
        return into.cpu()

    return call


def gcc_on_x86(compiler: tuple[str, ...]) -> bool:
    macros = subprocess.run([*compiler, "-dM", "-E", "-x", "c++", os.devnull], capture_output=True, text=True).stdout
    return "#define __x86_64__ " in macros and "#define __clang__ " not in macros
