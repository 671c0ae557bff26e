"""`losszoo prebuild`: kernels built before they are needed, so that no first step waits for a compiler."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from losszoo import jit
from losszoo.cli.show import find, zoo
from losszoo.codegen import Kernel
from losszoo.errors import UsageError
from losszoo.jit import extension
from losszoo.runtime import threads
from losszoo.runtime.arguments import check
from losszoo.runtime.kernels import Prepared
from losszoo.spec.declare import Choice, Spec
from losszoo.spec.operands import ClassWeight, Index, Kind, Row, Scalar

DTYPES = ("float32", "bfloat16", "float16", "float64")
# Shapes of logits, and numbers of elements or boxes: rows short and long, rows that start aligned and not, classes that lie apart. On
# CUDA a kernel is chosen by the shape, so whoever knows his shapes says them.
ROWS = ((256, 16), (256, 1000), (256, 1001), (256, 32000), (16, 32000), (64, 262144), (4, 16, 32, 32))
ITEMS = ((4096,), (4095,))


def prebuild(
    names: Sequence[str], archs: Sequence[str], dtypes: Sequence[str], shapes: Sequence[str], every: bool, jobs: int | None
) -> None:
    """Build the losses named (all, if none is) for "cpu" and for CUDA architectures; no GPU is needed."""
    rows = [_shape(text) for text in shapes] or ROWS
    for arch in archs:
        if arch != "cpu" and not (arch.startswith("sm_") and arch[3:].rstrip("af").isdigit()):
            raise UsageError(f"--arch {arch}: expected cpu, or an architecture such as sm_90")
    functions = [find(name)[0] for name in names] or [function for function, _ in zoo().values()]
    wanted = {}
    for function in dict.fromkeys(functions):
        for arch in archs:
            for kernel in _kernels(function.spec, "cpu" if arch == "cpu" else "cuda", dtypes, rows, every):
                source = kernel.source("cpp" if arch == "cpu" else "cuda")
                wanted[source.identity, arch] = (source, None if arch == "cpu" else arch)
    if "cpu" in archs:
        launcher = threads.source()  # of whatever process, which may have one from another cache
        wanted[launcher.identity, "cpu"] = (launcher, None)
    if not names:
        extension.build()
    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        for number, _ in enumerate(pool.map(lambda build: jit.build(*build), wanted.values()), 1):
            print(f"\r{number} of {len(wanted)} kernels", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(f"{len(wanted)} kernels of {', '.join(f.__name__ for f in dict.fromkeys(functions))} for {', '.join(archs)}")


def _shape(text: str) -> tuple[int, ...]:
    """ "4096x32000" as a shape."""
    sizes = text.split("x")
    if len(sizes) < 2 or not all(size.isdecimal() and int(size) for size in sizes):
        raise UsageError(f"--shape {text}: expected the shape of some logits, such as 4096x32000 or 8x19x512x1024")
    return tuple(map(int, sizes))


class _Ahead(Prepared):
    """A call whose operands are on the CPU, prepared as for another device."""

    device_type = "cpu"

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self.device_type == "cpu" else torch.device(self.device_type, 0)

    @device.setter
    def device(self, _: torch.device) -> None:
        """Stays what it is."""

    @property
    def multiprocessors(self) -> int:
        """Of no GPU in particular: how many there are changes the launch and not the kernel."""
        return 128


def _kernels(spec: Spec, device_type: str, dtypes: Sequence[str], rows: Sequence[tuple[int, ...]], every: bool) -> Iterator[Kernel]:
    """The kernels of a spec's calls with their defaults, or with every combination of options."""
    prepared = type("_Ahead", (_Ahead,), {"device_type": device_type})
    for choice in spec.choices() if every else [c for c in spec.choices() if _usual(spec, c)]:
        for dtype in (getattr(torch, name) for name in dtypes):
            for shape in rows if spec.row else ITEMS:
                operands = [None if kind is None else _operand(kind, spec.row, shape, dtype) for kind in choice.kinds]
                values = [0.3 if free else p.fixed[0] for p, free in zip(spec.parameters, choice.present, strict=True)]
                call = check(spec, tuple(operands), tuple(values), choice.statics, -100, "mean", None, None)
                ahead = prepared(call, dict(call.operands), tuple(call.differentiable[:1]))
                yield from dict.fromkeys(map(ahead.directed, ahead.kernel.entries))


def _usual(spec: Spec, choice: Choice) -> bool:
    """Whether optional operands are left out, and numbers with kernels of their own are where the defaults have them."""
    default = spec.default_choice()
    return choice.present == default.present and choice.kinds == default.kinds


def _operand(kind: Kind, row: bool, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory of the right shape, never written."""
    items = (shape[0], *shape[2:]) if row else shape
    if kind is Row:
        return torch.empty(shape, dtype=dtype)
    if kind is Index:
        return torch.empty(items, dtype=torch.int64)
    if kind is ClassWeight:
        return torch.empty(shape[1], dtype=dtype)
    if kind is Scalar:
        return torch.empty((), dtype=torch.float32)
    return torch.empty((*items, kind.components) if kind.components else items, dtype=dtype)
