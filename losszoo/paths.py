"""Where the shipped C++ headers and the Jinja2 templates lie: inside an installed wheel, or beside it in a checkout."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def csrc() -> Path:
    """The folder that holds `losszoo/*.h`, which rendered kernels include, and the C++ sources built on demand."""
    return _shipped("csrc")


def templates() -> Path:
    """The folder of the kernel templates."""
    return _shipped("templates")


@cache
def headers() -> dict[str, bytes]:
    """Every shipped header by the name that kernels include it under, such as `losszoo/math.h`; read once a process."""
    folder = csrc() / "losszoo"
    names = sorted(name for name in os.listdir(folder) if name.endswith(".h"))
    return {f"losszoo/{name}": (folder / name).read_bytes() for name in names}


@cache
def _shipped(name: str) -> Path:
    installed = PACKAGE / f"_{name}"
    return installed if installed.is_dir() else PACKAGE.parent / name
