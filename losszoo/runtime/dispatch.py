"""From a public function's arguments to its loss: by the native runtime where it is ready and knows how, else by Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from losszoo.runtime import native
from losszoo.runtime.arguments import REDUCTIONS, Call, check
from losszoo.runtime.autograd import compute
from losszoo.runtime.plans import plan
from losszoo.spec.declare import Spec

DTENSORS = "torch.distributed.tensor"
compiling = torch.compiler.is_compiling


def while_tracing(function: Callable) -> Callable:
    """torch.compiler.assume_constant_result: torch.compile calls the function and does not look into it.

    Without the import of all of torch.compile, which takes as long as that of torch.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def traced(spec: Spec, output: str) -> Callable[..., Tensor]:
    """The function of all arguments in a row that torch.compile looks into."""
    from losszoo.runtime import ops

    return ops.operator(spec, output)


def watched() -> bool:
    """Whether a mode is about that wants to see operators: fake tensors, make_fx and the like."""
    return torch._C._len_torch_dispatch_stack() > 0


def is_distributed(x: object) -> bool:
    """Whether it is a DTensor. If torch's module was not imported, there are none, and its import takes long."""
    return type(x) is not Tensor and isinstance(x, Tensor) and isinstance(x, getattr(sys.modules.get(DTENSORS), "DTensor", ()))


def checker(spec: Spec, output: str = "loss") -> Callable[..., Call]:
    """What makes a checked call of all arguments in a row: operands, parameters, statics, the engine's own."""
    operands = len(spec.operands)
    numbers = operands + len(spec.parameters)
    statics = numbers + len(spec.statics)

    def checked(*arguments: Any, whole: int | None = None) -> Call:
        groups = arguments[:operands], arguments[operands:numbers], arguments[numbers:statics]
        ignore_index, reduction, weight, normalizer = arguments[statics:]
        return check(spec, *groups, ignore_index, reduction, weight, normalizer, output, whole)

    return checked


def caller(spec: Spec, output: str, interpreted: bool) -> tuple[Callable[..., Tensor], bool]:
    """The function of all arguments in a row, and whether no better will come."""
    operands, checked = len(spec.operands), checker(spec, output)

    @cache
    def operator() -> Callable[..., Tensor]:
        return traced(spec, output)

    def by_python(*arguments: object) -> Tensor:
        if any(map(is_distributed, arguments)):
            from losszoo.parallel.dtensor import compute_distributed

            return compute_distributed(spec, output, arguments)
        if not interpreted and watched():
            return operator()(*arguments)
        return compute(checked(*arguments), interpreted)

    def planned(*arguments: object) -> dict | None:
        return plan(checked(*arguments), [x for x in (*arguments[:operands], arguments[-2]) if x is not None])

    return (by_python, True) if interpreted else natively(spec, planned, by_python)


def natively(spec: Spec, planned: Callable[..., dict | None], by_python: Callable[..., Tensor]) -> tuple[Callable[..., Tensor], bool]:
    """`by_python`, or the native runtime's function where that is ready; and whether no better will come."""
    runtime = native.runtime()
    if runtime is None:
        return by_python, native.settled()
    fixed = tuple(p.fixed for p in spec.parameters)
    return runtime.Entry(planned, by_python, len(spec.operands), fixed, tuple(s.choices for s in spec.statics), REDUCTIONS), True
