"""Every error that losszoo raises by a name of its own; mistakes in a call are plain TypeError, ValueError, IndexError."""

from __future__ import annotations


class LosszooError(Exception):
    """Base of losszoo's own errors."""


class SpecError(LosszooError, ValueError):
    """A loss spec says something that the language cannot express."""


class CompileError(LosszooError, RuntimeError):
    """A compiler refused a rendered kernel."""


class ToolchainMissing(LosszooError, RuntimeError):
    """No compiler was found for a language."""


class CacheError(LosszooError, RuntimeError):
    """The kernel cache cannot be used, or must not be trusted."""


class DriverError(LosszooError, RuntimeError):
    """The CUDA driver refused to load or launch a kernel."""


class CaptureError(LosszooError, RuntimeError):
    """A kernel would have to be built or loaded while a CUDA graph is captured."""


class FallbackWarning(UserWarning):
    """A loss runs in the interpreter because no kernel could be built."""


class UsageError(LosszooError, ValueError):
    """A command line asks for what there is not."""
