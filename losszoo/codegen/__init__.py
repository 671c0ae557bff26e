"""From a loss's plans to source text."""

from __future__ import annotations

from losszoo.codegen.kernel import Form, Kernel, Tiling
from losszoo.ir.expr import Type
from losszoo.jit import Buildable, Language
from losszoo.spec.declare import Spec

# A loss's kernels as a reader would meet them: rows of a thousand classes, a few dozen columns, packed items.
LOWERINGS = {
    True: {"rows": Tiling(4, 8, group=32, held=True, full=7, threads=128), "columns": Tiling(4, 5)},
    False: {"items": Tiling(1, 2)},
}


def sources(spec: Spec, language: Language) -> list[Buildable]:
    """The text of a loss's kernels in float32, one a lowering, as built for a call with its defaults."""
    choice = spec.default_choice()
    traced = spec.trace(choice)
    dtypes = tuple("int64" if leaves[0].type is Type.INT else "float32" for leaves in traced.leaves.values())
    wrt = next(o.name for o, k in zip(spec.operands, choice.kinds, strict=True) if k is not None and k.differentiable)
    forms = (Form(lowering, dtypes, "float32", (wrt,), lowering == "items", tiling) for lowering, tiling in LOWERINGS[spec.row].items())
    return [Kernel(spec, choice, form).source(language) for form in forms]


__all__ = ["Form", "Kernel", "Tiling", "sources"]
