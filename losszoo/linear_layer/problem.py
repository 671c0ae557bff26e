"""A call of a loss behind a linear layer, checked: what is multiplied, and the call of the loss as if all its logits were there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from losszoo.ir.expr import topological
from losszoo.ir.interpreter import evaluate
from losszoo.runtime import interpret
from losszoo.runtime.arguments import FLOATS, Call, check, describe, expanded
from losszoo.runtime.autograd import compiled
from losszoo.spec.declare import WEIGHT, Spec
from losszoo.spec.operands import ClassWeight, Index, Operand, Row, Scalar

INPUT, LINEAR_WEIGHT, LINEAR_BIAS = NAMES = ("input", "linear_weight", "linear_bias")


@dataclass(frozen=True)
class Problem:
    """Logits (N, C, d1, ...) = input (N, F) @ weight (C d1 ..., F).T + bias, and the loss of them.

    In `call`, whose first Row operand they are, the logits are a number in memory that stands for all of them.
    """

    call: Call
    logits: str
    input: Tensor
    weight: Tensor
    bias: Tensor | None
    dtype: torch.dtype  # of the logits
    interpreted: bool

    @property
    def rows(self) -> int:
        """Rows of the input, each of which gives d1 * ... rows of logits."""
        return self.input.shape[0]

    @property
    def width(self) -> int:
        """Logits of a row of the input."""
        return self.weight.shape[0]

    @property
    def device(self) -> torch.device:
        return self.input.device

    @property
    def layer(self) -> dict[str, Tensor]:
        return {INPUT: self.input, LINEAR_WEIGHT: self.weight, **({} if self.bias is None else {LINEAR_BIAS: self.bias})}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What the loss depends on, by name; the loss's own operands have a `.` before theirs."""
        return self.layer | {f".{name}": value for name, value in self.call.operands.items() if name != self.logits}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Problem:
        """The same call of other tensors."""
        logits = self.call.operands[self.logits]
        operands = {name: logits if name == self.logits else tensors[f".{name}"] for name in self.call.kinds}
        call = replace(self.call, operands=operands)
        return replace(self, call=call, input=tensors[INPUT], weight=tensors[LINEAR_WEIGHT], bias=tensors.get(LINEAR_BIAS))

    def without_tensors(self) -> Problem:
        """The same call, keeping no memory."""
        nothing = self.input.new_empty(0)
        call = self.call.with_operands({self.logits: self.call.operands[self.logits]})
        return replace(self, call=call, input=nothing, weight=nothing, bias=None)

    def divided_by(self, denominator: Tensor | None) -> Problem:
        """The same call with the mean's denominator, if it divides."""
        normalizer = None if denominator is None else denominator.to(self.call.real)
        return replace(self, call=replace(self.call, normalizer=normalizer))

    def wrt(self, wanted: frozenset[str]) -> tuple[str, ...]:
        """The loss's operands whose gradients those of `wanted` need."""
        logits = not wanted.isdisjoint(NAMES)
        return tuple(n for n in self.call.differentiable if (logits if n == self.logits else f".{n}" in wanted))

    def _along_rows(self, name: str) -> bool:
        """Whether an operand of the loss has something for each row."""
        return self.call.kinds[name] not in (ClassWeight, Scalar)

    def select(self, rows: slice | Tensor) -> Problem:
        """The same of some rows of the input."""
        input = self.input[rows]
        operands = {n: v[rows] if self._along_rows(n) else v for n, v in self.call.operands.items() if n != self.logits}
        logits = self.call.operands[self.logits]
        operands[self.logits] = logits.new_zeros(()).expand(input.shape[0], *logits.shape[1:])
        shape = torch.Size([input.shape[0], *self.call.shape[1:]])
        operands = {n: operands[n] for n in self.call.kinds}
        return replace(self, call=replace(self.call, operands=operands, shape=shape), input=input)

    def kept(self) -> Tensor | None:
        """The rows of the input that are not ignored, where it costs no waiting for the device to see which, and no large copy.

        None for all.
        """
        labels = [self.call.operands[n] for n, kind in self.call.kinds.items() if kind is Index]
        others = [n for n, kind in self.call.kinds.items() if kind is Row and n != self.logits]
        if self.device.type != "cpu" or not labels or others or self.rows == 0:
            return None
        keep = torch.stack([x != self.call.ignore_index for x in labels]).all(0).reshape(self.rows, -1).any(1)
        return None if bool(keep.all()) else keep.nonzero().squeeze(1)

    def denominator(self) -> Tensor | None:
        """What the mean divides by, in float64 on the device; None where nothing is divided."""
        if self.call.reduction != "mean":
            return None
        if self.call.normalizer is not None:
            return self.call.normalizer.double()
        if not self.counts_logits():
            return _counts(self, self.call.operands[self.logits])
        weight, bias = self.weight.to(self.dtype), self.bias if self.bias is None else self.bias.to(self.dtype)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        step = max(1, (1 << 24) // self.width)
        for begin in range(0, self.rows, step):
            part = self.select(slice(begin, begin + step))
            logits = torch.nn.functional.linear(part.input.to(self.dtype), weight, bias)
            total += _counts(part, logits.reshape(part.call.operands[self.logits].shape))
        return total

    def counts_logits(self) -> bool:
        """Whether what a row adds to the mean's denominator depends on a vector along the classes, such as the logits."""
        traced = self.call.spec.trace(self.call.choice)
        rows = {leaf for name, leaves in traced.leaves.items() if self.call.kinds[name] is Row for leaf in leaves}
        return not rows.isdisjoint(topological([traced.outputs["counts"]]))


def _counts(problem: Problem, logits: Tensor) -> Tensor:
    """What the rows add to the denominator: by torch's operations, since without the logits it is a few numbers a row."""
    call = problem.call
    operands = {**call.operands, problem.logits: logits}
    if not problem.counts_logits():
        nothing = torch.zeros((), dtype=call.real, device=problem.device).expand(call.rows, call.classes)
        operands = {n: nothing if call.kinds[n] is Row else v for n, v in operands.items()}
    counts = evaluate(torch, [call.spec.trace(call.choice).outputs["counts"]], interpret.leaf_values(call, operands))[0]
    ignored, _ = interpret.label_masks(call, operands)
    counts = counts.expand(call.rows, 1)
    return (counts if ignored is None else torch.where(ignored, 0, counts)).sum(dtype=torch.float64)


def make(
    spec: Spec, logits: str, input: Tensor, weight: Tensor, bias: Tensor | None, operands: Mapping[str, object], parameters: tuple,
    statics: tuple, ignore_index: int | None, reduction: str, item_weight: object, normalizer: object, whole: int | None = None,
) -> tuple[Problem, torch.Size]:  # fmt: skip
    """The problem of a public function's arguments, and the shape of the unreduced loss; or TypeError, ValueError.

    whole: the number of all classes, where this rank's are some of them.
    """
    dtype = _check_layer(input, weight, bias)
    if weight.shape[0] == 0 and whole is None:
        raise ValueError(f"{LINEAR_WEIGHT}: got {describe(weight)}, expected at least one class")
    if weight.ndim > 2 and whole is not None:
        raise ValueError(f"{LINEAR_WEIGHT}: got {describe(weight)}, expected the two axes (classes of this rank, in_features)")
    rows, inner = input.shape[:-1], weight.shape[1:-1]
    shape = torch.Size([*rows, *inner])
    count = math.prod(rows)
    leader = torch.zeros((), dtype=dtype, device=input.device).expand(count, weight.shape[0], *inner)
    given = tuple(leader if o.name == logits else _flattened(o, operands[o.name], rows, count) for o in spec.operands)
    if isinstance(item_weight, Tensor):
        item_weight = expanded(WEIGHT, item_weight, shape).reshape(count, *inner)
    labels = any(isinstance(x, Tensor) and not x.is_floating_point() for x in given)
    if ignore_index is not None and spec.labelled and not labels:
        raise ValueError(f"ignore_index: got {ignore_index!r}, but there are no class labels that could be ignored")
    ignore_index = -100 if ignore_index is None else ignore_index
    call = check(spec, given, parameters, statics, ignore_index, reduction, item_weight, normalizer, whole=whole)
    uniform = {n: v.to(call.real) if call.kinds[n] in (ClassWeight, Scalar) else v for n, v in call.operands.items()}
    flat_input, flat_weight = input.reshape(count, input.shape[-1]), weight.flatten(0, -2)
    flat_bias = None if bias is None else bias.flatten()
    call = replace(call, operands=uniform)
    problem = Problem(call, logits, flat_input, flat_weight, flat_bias, dtype, not compiled(input.device.type))
    if whole is not None:
        _check_sharded(problem)
    return problem, shape


def _check_sharded(p: Problem) -> None:
    """Refuse what takes more than one collective a pass."""
    for name, value in p.call.operands.items():
        if p.call.kinds[name] is ClassWeight and value.numel() != p.call.classes:
            raise ValueError(f"{name}: got shape {tuple(value.shape)}, expected ({p.call.classes},): one value for each class of all ranks")
    if p.call.reduction == "mean" and p.call.normalizer is None and p.counts_logits():
        raise ValueError(f"reduction: the mean of {p.call.spec.name} divides by what depends on all logits of a row; give a normalizer")
    if p.interpreted:
        raise NotImplementedError(f"{p.call.spec.name}: its linear layer's classes can be split over ranks only where there is a compiler")


def _check_layer(input: Tensor, weight: Tensor, bias: Tensor | None) -> torch.dtype:
    """Check what is multiplied; the type of the logits."""
    given = {INPUT: input, LINEAR_WEIGHT: weight, **({} if bias is None else {LINEAR_BIAS: bias})}
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}: got {describe(value)}, expected a tensor")
        if value.dtype not in FLOATS:
            raise TypeError(f"{name}: got {describe(value)}, expected floating-point numbers")
        if value.layout is not torch.strided:
            raise TypeError(f"{name}: got a {value.layout} tensor, expected a dense one")
        if value.device != input.device:
            raise ValueError(f"{name}: got {describe(value)}, expected it on {input.device} like {INPUT}")
    if input.ndim < 1:
        raise ValueError(f"{INPUT}: got {describe(input)}, expected (in_features) or (..., in_features)")
    features = input.shape[-1]
    if weight.ndim < 2 or weight.shape[-1] != features:
        raise ValueError(f"{LINEAR_WEIGHT}: got {describe(weight)}, expected (classes, {features}): the last axis is that of {INPUT}")
    if weight.ndim > 2 and input.ndim != 2:
        raise ValueError(f"{INPUT}: got {describe(input)}, expected (N, {features}) where {LINEAR_WEIGHT} has more than two axes")
    if bias is not None and bias.shape != weight.shape[:-1]:
        raise ValueError(f"{LINEAR_BIAS}: got {describe(bias)}, expected shape {tuple(weight.shape[:-1])} like {LINEAR_WEIGHT}")
    dtypes = {value.dtype for value in given.values()}
    device = input.device.type
    if torch.float64 not in dtypes and torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)  # as F.linear
    for name, value in given.items():
        if value.dtype != input.dtype:
            raise ValueError(f"{name}: got {describe(value)}, expected {str(input.dtype).removeprefix('torch.')} like {INPUT}")
    return input.dtype


def _flattened(operand: Operand, value: object, rows: torch.Size, count: int) -> object:
    """An operand with its leading axes, those of the input's rows, made one."""
    if not isinstance(value, Tensor) or len(rows) == 1 or set(operand.kinds) <= {ClassWeight, Scalar}:
        return value
    if value.shape[: len(rows)] != rows:
        expected = f"{tuple(rows)} or ({', '.join(map(str, rows))}, classes)" if rows else "() or (classes)"
        raise ValueError(f"{operand.name}: got {describe(value)}, expected shape {expected}: that of {INPUT} but for its last axis")
    return value.reshape(count, *value.shape[len(rows) :])
