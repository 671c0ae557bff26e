"""What is built and loaded on first use, made ready before: for the capture of a CUDA graph, or for the first step's time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def warmup(function: Callable[..., Tensor], *args: object, **kwargs: object) -> None:
    """Make a loss ready for calls like `function(*args, **kwargs)`, forward and backward, so that a CUDA graph can capture them.

        losszoo.warmup(my_loss, logits, labels, gamma=1.5)

    `function` is a loss, a loss module, or a function of yours that calls some. The tensors must have the types, shapes, strides and
    devices of those in the capture, and require a gradient where those do. They are not written, nor are gradients and a module's buffers.
    """
    leaves: list[Tensor] = []

    def alias(value: object) -> object:
        if not isinstance(value, Tensor) or not value.requires_grad:
            return value
        leaves.append(value.detach().requires_grad_())
        return leaves[-1]

    buffers = [(buffer, buffer.clone()) for buffer in function.buffers()] if isinstance(function, nn.Module) else []
    with torch.enable_grad():
        loss = function(*map(alias, args), **{name: alias(value) for name, value in kwargs.items()})
        if loss.requires_grad and leaves:
            torch.autograd.grad(loss, leaves, torch.ones_like(loss), allow_unused=True)
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
