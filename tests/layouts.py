"""The same values in other strides."""

from __future__ import annotations

import torch
from torch import Tensor

LAYOUTS = ("contiguous", "transposed", "sliced", "offset", "padded", "expanded", "channels_last")


def arrange(tensor: Tensor, layout: str) -> Tensor:
    """The tensor with the strides of `layout`; `expanded` repeats the first entry of dim 0: other values."""
    if layout == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "sliced" and tensor.dim() > 0:
        wide = tensor.new_empty([*tensor.shape[:-1], 2 * tensor.shape[-1] + 1])
        wide[..., 1::2] = tensor
        return wide[..., 1::2]
    if layout == "offset" and tensor.dim() > 0:  # contiguous, but a start that no vector load is aligned to
        flat = tensor.new_empty(tensor.numel() + 1)
        flat[1:] = tensor.reshape(-1)
        return flat[1:].view(tensor.shape)
    if layout == "padded" and tensor.dim() > 1:  # rows that begin anywhere
        wide = tensor.new_full([*tensor.shape[:-1], tensor.shape[-1] + 3], 77)
        wide[..., : tensor.shape[-1]] = tensor
        return wide[..., : tensor.shape[-1]]
    if layout == "expanded" and tensor.dim() > 1 and tensor.shape[0] > 0:
        return tensor[:1].expand_as(tensor)
    if layout == "channels_last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor.contiguous()
