"""Build a rendered kernel, or find it in the cache."""

from __future__ import annotations

import ctypes
import hashlib
from functools import cache
from pathlib import Path

from losszoo import paths
from losszoo.errors import CacheError
from losszoo.jit.cache import SCHEMA, fetch
from losszoo.jit.toolchains import Buildable, Language, Toolchain, find_toolchain


def build(source: Buildable, arch: str | None = None, toolchain: Toolchain | None = None) -> Path:
    """The compiled artefact of `source`: a shared library for cpp, a cubin for cuda (`arch` such as "sm_90").

    It is compiled at most once a cache. Raises ToolchainMissing, CompileError or CacheError.
    """
    toolchain = toolchain or find_toolchain(source.language)
    if (arch is None) != (source.language == "cpp"):
        raise ValueError(
            f"arch: a {source.language} source was given {arch!r}, expected {_EXPECTED_ARCH[source.language]}"
        )

    def make(workspace: Path) -> None:
        (workspace / f"kernel.{toolchain.source_suffix}").write_text(source.text, encoding="utf-8")
        toolchain.compile(source.name, workspace, arch)

    artefact = f"kernel.{toolchain.suffix}"
    return fetch(source.name, _digest(source, arch, toolchain), artefact, make)


def load(library: Path) -> ctypes.CDLL:
    """A shared library that was built. Raises CacheError where this machine does not load it."""
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise CacheError(
            f"a compiled kernel does not load: {error}; if its file system is mounted noexec, set LOSSZOO_CACHE_DIR to a directory "
            "on another; if the compiler (CXX) is for another kind of machine, set CXX to one for this"
        ) from error


_EXPECTED_ARCH: dict[Language, str] = {"cpp": "None (this machine)", "cuda": 'an architecture such as "sm_90"'}


def _digest(source: Buildable, arch: str | None, toolchain: Toolchain) -> str:
    """Everything that decides the artefact's bytes; length-prefixed, so that no two lists of parts read the same."""
    digest = hashlib.sha256()
    for part in (str(SCHEMA), source.identity, _headers_digest(), *toolchain.flags, toolchain.identity, arch or ""):
        data = part.encode(errors="surrogateescape")  # paths may hold any bytes
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


@cache
def _headers_digest() -> str:
    digest = hashlib.sha256()
    for name, text in paths.headers().items():
        digest.update(f"{name}\0{len(text)}\0".encode() + text)
    return digest.hexdigest()
