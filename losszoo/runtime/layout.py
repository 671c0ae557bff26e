"""Where an operand's values lie in memory: the strides that kernels walk by, found without copying wherever that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

from losszoo.runtime import memory


def joint_stride(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """The one stride that walks all these axes in order, or None. Axes of length 1 do not matter."""
    stride, span = None, 0
    for size, step in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if stride is None:
            stride, span = step, step * size
        elif step == span:
            span *= size
        else:
            return None
    return 0 if stride is None else stride


@dataclass(frozen=True)
class Rows:
    """The layout of operands with a class axis: item i is at (i // inner) * outer + i % inner, class j another j * step away."""

    lowering: str
    rows: int
    classes: int
    inner: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.rows, self.classes, self.inner


def class_axis(ndim: int) -> int:
    return 0 if ndim == 1 else 1


def row_layout(x: Tensor) -> tuple[Rows, int, int] | None:
    """How the rows of x lie, with their outer and class strides, or None where only a copy can be walked."""
    axis = class_axis(x.ndim)
    shape, strides = list(x.shape), list(x.stride())
    classes, step = shape.pop(axis), strides.pop(axis)
    rows = prod(shape)
    if x.numel() == 0:
        return Rows("rows", rows, classes, 1), classes, 1
    if step == 1 or classes == 1:
        outer = joint_stride(shape, strides)
        if outer is not None:
            return Rows("rows", rows, classes, 1), outer, 1
    if x.ndim == 2 and (strides[0] == 1 or rows == 1):
        return Rows("columns", rows, classes, rows), 0, step
    if x.ndim > 2 and joint_stride(shape[1:], strides[1:]) in (0, 1) and _packed(shape[1:], strides[1:]):
        return Rows("columns", rows, classes, prod(shape[1:])), strides[0], step
    return None


def _packed(shape: Sequence[int], strides: Sequence[int]) -> bool:
    return joint_stride(shape, strides) == 1 or prod(shape) == 1


def walkable(x: Tensor, like: Rows | None = None) -> tuple[Tensor, Rows, int, int]:
    """x, or a copy of it, that kernels can walk: in the layout `like` where one is given, so that all operands share it."""
    found = row_layout(x)
    if found is None or (like is not None and found[0] != like):
        x = copied(x, like.lowering if like else "columns" if x.ndim > 2 else "rows")
        found = row_layout(x)
        assert found is not None  # for a copy
        if like is not None and found[0] != like:  # one row or one class: both layouts are the same memory
            step = x.stride(class_axis(x.ndim))
            found = (like, found[1], step)
    return x, *found


def copied(x: Tensor, lowering: str) -> Tensor:
    empty = empty_rows(x, lowering)
    return empty.copy_(x)


def empty_rows(x: Tensor, lowering: str) -> Tensor:
    """Memory of the shape and type of x: classes side by side, or a stride apart."""
    if lowering == "columns":
        return memory.empty(x.shape[::-1], x.dtype, x.device).t() if x.ndim == 2 else memory.empty(x.shape, x.dtype, x.device)
    axis = class_axis(x.ndim)
    shape = [*x.shape[:axis], *x.shape[axis + 1 :], x.shape[axis]]
    return memory.empty(shape, x.dtype, x.device).movedim(-1, axis)


def item_strides(x: Tensor, components: int | None) -> tuple[Tensor, int, int]:
    """x, or a packed copy, with the stride from item to item and from component to component."""
    shape, strides = x.shape, x.stride()
    if components is not None:
        shape, strides = shape[:-1], strides[:-1]
    stride = joint_stride(shape, strides)
    if stride is None:
        x = x.contiguous()
        stride = components or 1
    if prod(shape) == 1:
        stride = components or 1
    return x, stride, 1 if components in (None, 1) else x.stride(-1)
