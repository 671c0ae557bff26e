"""A call of a loss through the machine: forward, and backward with the upstream gradient that the other tests use."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from losszoo.runtime import dispatch, kernels
from losszoo.runtime.arguments import Call as Checked
from losszoo.surface import expose
from tests import simt
from tests.losses import oracle
from tests.strategies import Call


def checked(function: Callable[..., Tensor], *args: object, **kwargs: object) -> Checked:
    """What the public function makes of its arguments, instead of its result."""
    function = expose(function.spec)
    function.__globals__["_call_"] = dispatch.checker(function.spec, "loss")
    return function(*args, **kwargs)


def differentiate(call: Checked, wrt: tuple[str, ...], upstream: Callable[[Tensor], Tensor], **setting: object) -> oracle.Result:
    """Loss and gradients of a checked call; `upstream` gives the upstream gradient for a loss. The machine's settings may follow."""
    operands = {name: value.detach() for name, value in call.operands.items()}
    inputs = [*operands.values(), *([call.normalizer] if call.normalizer is not None else [])]
    with simt.machine(read_only=inputs, **setting):
        loss, kept = kernels.forward(kernels.Prepared(call, operands, wrt), keep=True)
        grads = kernels.backward(kernels.Prepared(call, operands, wrt), upstream(loss), kept)
    return oracle.Result(loss, tuple(grads))


def run(function: Callable[..., Tensor], call: Call, **setting: object) -> oracle.Result:
    return differentiate(checked(function, **call.place("cpu"), **call.options), call.differentiable, oracle.upstream_for, **setting)
