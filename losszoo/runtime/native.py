"""The native runtime: found, or built in the background while Python does its work."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from losszoo.errors import CacheError, CompileError, ToolchainMissing
from losszoo.jit import extension
from losszoo.runtime import counters, cuda_driver

CANNOT = (ToolchainMissing, CompileError, CacheError, ImportError, OSError)  # for each of these Python goes on doing the work

_settled = False  # whether _runtime is what it will be
_runtime: ModuleType | None = None
_building: subprocess.Popen | None = None


def runtime() -> ModuleType | None:
    """The runtime once it is there. The first to ask for it starts its build, if it must be built; later ones see whether it ended.

    A process builds it and no thread, so nothing is left to go wrong when this one forks or ends.
    """
    global _building
    if _settled:
        return _runtime
    if os.environ.get("LOSSZOO_RUNTIME") == "python":
        return _settle(lambda: None)
    if _building is None:
        try:
            found = extension.find()
            if found is None:
                _building = extension.start_building()
                return None
        except CANNOT:
            return _settle(lambda: None)
        return _settle(lambda: found)
    if _building.poll() is None:
        return None
    return _settle(extension.find)


def settled() -> bool:
    """Whether `runtime()` will always answer as it does now."""
    return _settled


def wait() -> ModuleType:
    """The runtime, built here and now if it must be. Raises what keeps it from being built."""
    found = _runtime or _settle(extension.build, give_up=False)
    assert found is not None  # or it has raised
    return found


def _settle(find: Callable[[], Path | None], give_up: bool = True) -> ModuleType | None:
    global _settled, _runtime
    try:
        path = find()
        if path is not None:
            _runtime = _load(path)
    except CANNOT:
        if not give_up:
            raise
    _settled = True
    return _runtime


def _load(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(extension.NAME, str(path))
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(extension.NAME, loader, origin=str(path)))
    loader.exec_module(module)
    module.use(counters.slot, cuda_driver.stream_handle)
    return module
