"""Calls as differentiable torch functions: through kernels where they can be built, else through the interpreter."""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor

from losszoo import jit
from losszoo.errors import FallbackWarning, ToolchainMissing
from losszoo.jit import Language
from losszoo.runtime import interpret, kernels
from losszoo.runtime.arguments import Call


def compute(call: Call, interpreted: bool = False) -> Tensor:
    """The loss of a checked call."""
    interpreted = interpreted or not compiled(device_of(call).type)
    wrt = wanted(call)
    if wrt:
        return _Function.apply(call, interpreted, wrt, *call.operands.values())
    return forward(call, dict(call.operands), wrt, interpreted)[0]


def device_of(call: Call) -> torch.device:
    return call.operands[call.differentiable[0]].device


def wanted(call: Call) -> tuple[str, ...]:
    """The operands that a backward will be asked the gradients of; none where there will be no backward."""
    return tuple(n for n in call.differentiable if call.operands[n].requires_grad) if torch.is_grad_enabled() else ()


def built_for(call: Call, wrt: tuple[str, ...]) -> tuple[str, ...]:
    """Without a gradient any backward will do: the one that training builds is most likely there."""
    return wrt or tuple(call.differentiable[:1])


def forward(call: Call, operands: dict[str, Tensor], wrt: tuple[str, ...], interpreted: bool) -> tuple[Tensor, Tensor]:
    """The loss, and what a backward wants of it: the states of rows, where kernels keep some, then the denominator if there is one."""
    if not interpreted:
        return kernels.forward(kernels.Prepared(call, operands, built_for(call, wrt)), keep=bool(wrt))
    loss, denominator = interpret.forward(call, operands)
    return loss, loss.new_empty(0) if denominator is None else denominator.reshape(1)


def backward(
    call: Call, operands: dict[str, Tensor], wrt: tuple[str, ...], grad: Tensor, kept: Tensor, interpreted: bool
) -> list[Tensor]:
    if interpreted:
        return interpret.backward(call, operands, wrt, grad, kept[-1] if call.reduction == "mean" else None)
    return kernels.backward(kernels.Prepared(call, operands, wrt), grad, kept)


def _has_memory(x: Tensor) -> bool:
    """What a transform such as vmap makes of a tensor has none."""
    try:
        x.data_ptr()
    except RuntimeError:
        return False
    return True


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call: Call, interpreted: bool, wrt: tuple[str, ...], *tensors: Tensor) -> Tensor:
        loss, kept = forward(call, dict(zip(call.operands, tensors, strict=True)), wrt, interpreted)
        ctx.call, ctx.interpreted, ctx.wrt = call.with_operands({}), interpreted, wrt
        ctx.save_for_backward(kept, *tensors)
        return loss

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        kept, *tensors = ctx.saved_tensors
        operands = dict(zip(ctx.call.kinds, tensors, strict=True))
        # Gradient mode is on here only if the gradient is to be differentiated again: the interpreter's can be.
        interpreted = ctx.interpreted or torch.is_grad_enabled() or not _has_memory(grad)
        grads = backward(ctx.call.with_operands(operands), operands, ctx.wrt, grad, kept, interpreted)
        found = dict(zip(ctx.wrt, grads, strict=True))
        return None, None, None, *(found.get(name) for name in operands)


@cache
def compiled(device_type: str) -> bool:
    """Whether kernels can be built for a device; says so once where they cannot."""
    languages: dict[str, Language] = {"cpu": "cpp", "cuda": "cuda"}
    language = languages.get(device_type)
    if language is None:
        warnings.warn(f"losszoo has no kernels for {device_type} devices; its losses run in the interpreter", FallbackWarning, stacklevel=4)
        return False
    try:
        jit.find_toolchain(language)
    except ToolchainMissing as missing:
        warnings.warn(f"{missing}; until then losszoo's losses run in the interpreter: right, but slower", FallbackWarning, stacklevel=4)
        return False
    return True
