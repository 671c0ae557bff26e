"""Checks a call's arguments, and finds from their types and shapes which kernel is wanted. No kernel has run when this raises."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from losszoo.ir.expr import Extent, Type
from losszoo.runtime.layout import class_axis
from losszoo.spec.declare import WEIGHT, Choice, Spec
from losszoo.spec.operands import Box, ClassWeight, Elem, Index, Kind, PerRow, Row, Scalar

REDUCTIONS = ("none", "mean", "sum")
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True)
class Call:
    """A checked call: what was chosen, the operands as given (by name, in the spec's order), and the numbers."""

    spec: Spec
    choice: Choice
    operands: Mapping[str, Tensor]
    kinds: Mapping[str, Kind]
    numbers: tuple[float, ...]  # the runtime parameters that are free
    ignore_index: int
    reduction: str
    normalizer: Tensor | None
    real: torch.dtype
    shape: torch.Size  # of the loss with reduction "none"
    classes: int

    @property
    def rows(self) -> int:
        return math.prod(self.shape)

    def with_operands(self, operands: Mapping[str, Tensor], **changes: Any) -> Call:
        """The same call of other tensors; of none, it keeps no memory."""
        return replace(self, operands=operands, normalizer=None, **changes)

    @property
    def differentiable(self) -> list[str]:
        return [name for name, kind in self.kinds.items() if kind.differentiable]


def describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)} on {value.device}"
    return f"{value!r} ({type(value).__name__})"


def check(
    spec: Spec, operands: tuple, parameters: tuple, statics: tuple, ignore_index: Any, reduction: Any, weight: object,
    normalizer: Any, output: str = "loss", whole: int | None = None,
) -> Call:  # fmt: skip
    """Turn the arguments of a public function into a Call, or raise TypeError or ValueError.

    whole: the number of classes in all, where the operands with a class axis have a part of them.
    """
    numbers_, present = check_options(spec, parameters, statics, ignore_index, reduction)
    tensors: dict[str, Tensor] = {}
    kinds: dict[str, Kind] = {}
    chosen: list[Kind | None] = []
    for operand, value in zip(spec.operands, operands, strict=True):
        if value is None and operand.optional and operand.kinds != (Scalar,):
            chosen.append(None)
            continue
        kind = _kind(operand, value)
        chosen.append(kind)
        tensors[operand.name], kinds[operand.name] = value, kind
    if weight is not None:
        if not isinstance(weight, Tensor):
            raise TypeError(f"{WEIGHT}: got {describe(weight)}, expected a tensor with one value an item")
        tensors[WEIGHT], kinds[WEIGHT] = weight, PerRow
    leader = next(name for name, kind in kinds.items() if kind.differentiable)
    wide = any(tensors[n].dtype is torch.float64 for n, k in kinds.items() if k.differentiable)
    real = torch.float64 if wide else torch.float32
    device = tensors[leader].device
    for name, value in tensors.items():
        if kinds[name] is Scalar and not isinstance(value, Tensor):
            tensors[name] = torch.full((), float(value), dtype=real, device=device)
        elif value.device != device:
            raise ValueError(f"{name}: got {describe(value)}, expected it on {device} like {leader}")
    for name, kind in kinds.items():
        tensors[name] = _typed(name, tensors[name], kind)
    shape, classes = _shapes(spec, tensors, kinds, leader, whole)
    if normalizer is not None:
        normalizer = _normalizer(normalizer, reduction, device, real)
    choice = Choice(tuple(chosen), tuple(statics), present, weight is not None, output)
    return Call(
        spec, choice, tensors, kinds, numbers_, ignore_index if spec.labelled else -1, reduction, normalizer, real, shape, classes
    )


def check_options(
    spec: Spec, parameters: tuple, statics: tuple, ignore_index: object, reduction: object
) -> tuple[tuple[float, ...], tuple[bool, ...]]:
    """Check what is no tensor; give the runtime parameters as numbers, and which of them are free."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction: got {reduction!r}, expected 'none', 'mean' or 'sum'")
    for static, value in zip(spec.statics, statics, strict=True):
        if value not in static.choices:
            raise ValueError(f"{static.name}: got {value!r}, expected one of {', '.join(map(repr, static.choices))}")
    if spec.labelled and (not isinstance(ignore_index, int) or isinstance(ignore_index, bool)):
        raise TypeError(f"ignore_index: got {describe(ignore_index)}, expected a whole number")
    return _parameters(spec, parameters)


def _parameters(spec: Spec, values: tuple) -> tuple[tuple[float, ...], tuple[bool, ...]]:
    given = []
    for parameter, value in zip(spec.parameters, values, strict=True):
        if not isinstance(value, Tensor) and not parameter.free(value):
            continue
        if not isinstance(value, numbers.Real) or isinstance(value, bool):
            hint = "; a tensor would have to be read back from the device" if isinstance(value, Tensor) else ""
            raise TypeError(f"{parameter.name}: got {describe(value)}, expected a number{' or None' * (None in parameter.fixed)}{hint}")
        given.append(float(value))
    return tuple(given), tuple(p.free(v) for p, v in zip(spec.parameters, values, strict=True))


def _kind(operand, value: object) -> Kind:
    """Which of its kinds an operand was given as: numbers for real kinds, whole numbers for labels."""
    if Scalar in operand.kinds and isinstance(value, numbers.Real) and not isinstance(value, bool):
        return Scalar
    wanted = " or ".join(f"{k} ({k.meaning})" for k in operand.kinds)
    if not isinstance(value, Tensor):
        raise TypeError(f"{operand.name}: got {describe(value)}, expected a tensor: {wanted}")
    for kind in operand.kinds:
        if value.dtype in (INTEGERS if kind.type is Type.INT else FLOATS):
            return kind
    dtypes = " or ".join("whole numbers" if k.type is Type.INT else "floating-point numbers" for k in operand.kinds)
    raise TypeError(f"{operand.name}: got {describe(value)}, expected {dtypes}: {wanted}")


def _typed(name: str, value: Tensor, kind: Kind) -> Tensor:
    if value.layout is not torch.strided:
        raise TypeError(f"{name}: got a {value.layout} tensor, expected a dense one")
    if kind is not Index and value.dtype not in FLOATS:
        raise TypeError(f"{name}: got {describe(value)}, expected floating-point numbers")
    if value.requires_grad and not kind.differentiable:
        raise ValueError(f"{name}: requires grad, and the loss has no gradient with respect to it; pass {name}.detach()")
    return value.to(torch.int64) if kind is Index else value


def _shapes(
    spec: Spec, tensors: dict[str, Tensor], kinds: dict[str, Kind], leader: str, whole: int | None
) -> tuple[torch.Size, int]:
    """The shape of the unreduced loss and the number of classes; broadcast operands are expanded in place."""
    if spec.row:
        leader = next(name for name, kind in kinds.items() if kind is Row)
        x = tensors[leader]
        if x.ndim == 0:
            raise ValueError(f"{leader}: got {describe(x)}, expected (C), (N, C) or (N, C, d1, ...)")
        axis = class_axis(x.ndim)
        classes = x.shape[axis]
        shape = torch.Size(s for i, s in enumerate(x.shape) if i != axis)
        if (whole or classes) == 0 and shape.numel() > 0:
            raise ValueError(f"{leader}: got {describe(x)}, expected at least one class")
    else:
        shape, classes = _item_shape(tensors, kinds), 0
    for name, kind in kinds.items():
        value = tensors[name]
        if kind is Row and value.shape != x.shape:
            labels = any(o.name == name and Index in o.kinds for o in spec.operands)
            hint = f", or whole numbers of shape {tuple(shape)} as class labels" if labels else ""
            raise ValueError(f"{name}: got {describe(value)}, expected shape {tuple(x.shape)} like {leader}{hint}")
        if kind is ClassWeight and value.shape not in ((classes,), (whole,)):
            sizes = f"({classes},)" + (f" or ({whole},)" if whole else "")
            raise ValueError(f"{name}: got shape {tuple(value.shape)}, expected {sizes}: one value a class")
        if kind is Scalar and value.numel() != 1:
            raise ValueError(f"{name}: got shape {tuple(value.shape)}, expected one number")
        if kind in (Elem, PerRow) and not spec.row or name == WEIGHT and kind is PerRow:
            tensors[name] = expanded(name, value, shape)
        elif kind.extent is Extent.ITEM:
            expected = (*shape, kind.components) if kind.components else tuple(shape)
            if tuple(value.shape) != expected:
                raise ValueError(f"{name}: got shape {tuple(value.shape)}, expected {expected}")
    return shape, classes if whole is None else whole


def _item_shape(tensors: dict[str, Tensor], kinds: dict[str, Kind]) -> torch.Size:
    shape = None
    for name, kind in kinds.items():
        if not kind.components:
            continue
        value = tensors[name]
        if value.ndim < 1 or value.shape[-1] != kind.components:
            what = "boxes of four numbers" if kind is Box else f"{kind.components} numbers an item"
            raise ValueError(f"{name}: got shape {tuple(value.shape)}, expected (..., {kind.components}): {what}")
        if shape is not None and value.shape[:-1] != shape:
            raise ValueError(f"{name}: got shape {tuple(value.shape)}, expected {(*shape, kind.components)}")
        shape = value.shape[:-1]
    if shape is not None:
        return shape
    elements = {name: tensors[name] for name, kind in kinds.items() if kind is Elem}
    try:
        return torch.broadcast_tensors(*elements.values())[0].shape  # broadcast_shapes would import sympy
    except RuntimeError:
        got = ", ".join(f"{name} {tuple(value.shape)}" for name, value in elements.items())
        raise ValueError(f"the shapes do not match: {got}; expected shapes that broadcast together") from None


def expanded(name: str, value: Tensor, shape: torch.Size) -> Tensor:
    if value.shape == shape:
        return value
    try:
        return value.expand(shape)
    except RuntimeError:
        raise ValueError(f"{name}: got shape {tuple(value.shape)}, expected {tuple(shape)} or one that broadcasts to it") from None


def _normalizer(value: object, reduction: str, device: torch.device, real: torch.dtype) -> Tensor:
    if reduction != "mean":
        raise ValueError(f"normalizer: replaces the mean's denominator, so it needs reduction='mean', got {reduction!r}")
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.device != device:
            raise ValueError(f"normalizer: got {describe(value)}, expected a number or a tensor of one number on {device}")
        if value.requires_grad:
            raise ValueError("normalizer: requires grad, and the loss has no gradient with respect to it; pass normalizer.detach()")
        return value.reshape(()).to(real)
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"normalizer: got {describe(value)}, expected a number or a tensor of one number")
    return torch.full((), float(value), dtype=real, device=device)
