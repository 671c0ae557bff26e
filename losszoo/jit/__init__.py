"""From rendered source to a compiled artefact in the on-disk cache: `build(Source(name, language, text))`."""

from __future__ import annotations

from losszoo.jit.build import build, load
from losszoo.jit.toolchains import Buildable, Cpp, Language, Nvcc, Nvrtc, Source, Toolchain, find_toolchain

__all__ = ["Buildable", "Cpp", "Language", "Nvcc", "Nvrtc", "Source", "Toolchain", "build", "find_toolchain", "load"]
