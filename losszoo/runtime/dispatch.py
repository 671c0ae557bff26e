"""From a public function's arguments to its loss: by the native runtime where it is ready and knows how, else by Python."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from losszoo.runtime import native
from losszoo.runtime.arguments import REDUCTIONS, Call, check
from losszoo.runtime.autograd import compute
from losszoo.runtime.plans import plan
from losszoo.spec.declare import Spec


def caller(spec: Spec, output: str, interpreted: bool) -> tuple[Callable[..., Tensor], bool]:
    """The function of all arguments in a row (operands, parameters, statics, the engine's own), and whether no better will come."""
    operands = len(spec.operands)
    numbers = operands + len(spec.parameters)
    statics = numbers + len(spec.statics)

    def checked(*arguments: object) -> Call:
        groups = arguments[:operands], arguments[operands:numbers], arguments[numbers:statics]
        return check(spec, *groups, *arguments[statics:], output)

    def by_python(*arguments: object) -> Tensor:
        return compute(checked(*arguments), interpreted)

    def planned(*arguments: object) -> dict | None:
        return plan(checked(*arguments), [x for x in (*arguments[:operands], arguments[-2]) if x is not None])

    runtime = None if interpreted else native.runtime()
    if runtime is None:
        return by_python, interpreted or native.settled()
    fixed = tuple(p.fixed for p in spec.parameters)
    return runtime.Entry(planned, by_python, operands, fixed, tuple(s.choices for s in spec.statics), REDUCTIONS), True
