"""Calls as differentiable torch functions: through kernels where they can be built, else through the interpreter."""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor

from losszoo import jit
from losszoo.errors import FallbackWarning, ToolchainMissing
from losszoo.runtime import interpret, kernels
from losszoo.runtime.arguments import Call


def compute(call: Call, interpreted: bool = False) -> Tensor:
    """The loss of a checked call."""
    interpreted = interpreted or not _compiled(call.operands[call.differentiable[0]].device.type)
    wrt = tuple(n for n in call.differentiable if call.operands[n].requires_grad) if torch.is_grad_enabled() else ()
    if wrt:
        return _Function.apply(call, interpreted, wrt, *call.operands.values())
    if interpreted:
        return interpret.forward(call, dict(call.operands))[0]
    # Without a gradient any backward will do: the one that training builds is most likely there.
    wrt = tuple(call.differentiable[:1])
    return kernels.forward(kernels.Prepared(call, dict(call.operands), wrt), keep=False)[0]


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call: Call, interpreted: bool, wrt: tuple[str, ...], *tensors: Tensor) -> Tensor:
        operands = dict(zip(call.operands, tensors, strict=True))
        if interpreted:
            (loss, denominator), state = interpret.forward(call, operands), None
        else:
            loss, denominator, state = kernels.forward(kernels.Prepared(call, operands, wrt), keep=True)
        ctx.call, ctx.interpreted, ctx.wrt = call, interpreted, wrt
        ctx.save_for_backward(denominator, state, *tensors)
        return loss

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        denominator, state, *tensors = ctx.saved_tensors
        operands = dict(zip(ctx.call.operands, tensors, strict=True))
        if ctx.interpreted or torch.is_grad_enabled():
            # Gradient mode is on here only if the gradient is to be differentiated again: the interpreter's can be.
            grads = interpret.backward(ctx.call, operands, ctx.wrt, grad, denominator)
        else:
            grads = kernels.backward(kernels.Prepared(ctx.call, operands, ctx.wrt), grad, denominator, state)
        found = dict(zip(ctx.wrt, grads, strict=True))
        return None, None, None, *(found.get(name) for name in operands)


@cache
def _compiled(device_type: str) -> bool:
    """Whether kernels can be built for a device; says so once where they cannot."""
    language = {"cpu": "cpp", "cuda": "cuda"}.get(device_type)
    if language is None:
        warnings.warn(f"losszoo has no kernels for {device_type} devices; its losses run in the interpreter", FallbackWarning, stacklevel=4)
        return False
    try:
        jit.find_toolchain(language)
    except ToolchainMissing as missing:
        warnings.warn(f"{missing}; until then losszoo's losses run in the interpreter: right, but slower", FallbackWarning, stacklevel=4)
        return False
    return True
