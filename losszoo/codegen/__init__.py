"""From a loss's plans to source text."""

from __future__ import annotations

from losszoo.codegen.kernel import Form, Kernel
from losszoo.ir.expr import Type
from losszoo.jit import Source
from losszoo.spec.declare import Spec

LOWERINGS = {True: ("rows", "columns"), False: ("items",)}


def sources(spec: Spec, language: str) -> list[Source]:
    """The text of a loss's kernels in float32, one a lowering, as built for a call with its defaults."""
    choice = spec.default_choice()
    traced = spec.trace(choice)
    dtypes = tuple("int64" if leaves[0].type is Type.INT else "float32" for leaves in traced.leaves.values())
    wrt = next(o.name for o, k in zip(spec.operands, choice.kinds, strict=True) if k is not None and k.differentiable)
    return [Kernel(spec, choice, Form(low, dtypes, "float32", (wrt,), low != "columns")).source(language) for low in LOWERINGS[spec.row]]


__all__ = ["Form", "Kernel", "sources"]
