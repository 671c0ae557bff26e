"""A call computed by the interpreter: without a compiler, for second derivatives, and as the tests' oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from losszoo.codegen.kernel import scheduled
from losszoo.ir.expr import CLASSES, POSITION, SMALLEST, UPSTREAM, Extent, Node, Type, leaf
from losszoo.ir.interpreter import Frozen, evaluate
from losszoo.runtime.arguments import Call
from losszoo.runtime.labels import raise_stray
from losszoo.runtime.layout import class_axis
from losszoo.spec.operands import Index, Row


def forward(call: Call, operands: dict[str, Tensor], frozen: Frozen | None = None) -> tuple[Tensor, Tensor | None]:
    """The loss, reduced, and the mean's denominator (None where nothing is divided)."""
    with torch.autocast(call.operands[call.differentiable[0]].device.type, enabled=False):
        traced = call.spec.trace(call.choice)
        leaves = leaf_values(call, operands)
        loss, counts = evaluate(torch, [traced.outputs["loss"], traced.outputs["counts"]], leaves, frozen)
        loss, counts = (v.expand(call.rows, 1) for v in (loss, counts))
        ignored, stray = label_masks(call, operands)
        if ignored is not None and stray is not None:
            loss = torch.where(ignored, 0, torch.where(stray, torch.nan, loss))
            counts = torch.where(ignored, 0, counts)
        if call.reduction == "none":
            return loss.reshape(call.shape), None
        total = loss.sum(dtype=torch.float64)
        if call.reduction == "sum":
            return total.to(call.real), None
        denominator = call.normalizer if call.normalizer is not None else counts.detach().sum(dtype=torch.float64)
        return (total / denominator).to(call.real), denominator.to(call.real)


def backward(
    call: Call, operands: dict[str, Tensor], wrt: tuple[str, ...], grad: Tensor, denominator: Tensor | None, frozen: Frozen | None = None
) -> list[Tensor]:
    """The gradients of the operands named, by the derived graph; differentiable once more."""
    with torch.autocast(grad.device.type, enabled=False):
        traced = call.spec.trace(call.choice)
        program = scheduled(call.spec, call.choice, wrt)
        leaves = leaf_values(call, operands)
        if denominator is not None:
            grad = grad / denominator
        leaves[UPSTREAM] = grad.to(call.real).reshape(-1, 1).expand(call.rows, 1)
        values = dict(zip(program.gradients, evaluate(torch, list(program.gradients.values()), leaves, frozen), strict=True))
        ignored, stray = label_masks(call, operands)
        return [_gradient(operands[n], traced.leaves[n], values, ignored, stray, call) for n in wrt]


def _gradient(operand: Tensor, leaves, values, ignored, stray, call: Call) -> Tensor:
    width = call.classes if leaves[0].extent is Extent.CLASS else 1
    parts = [values[leaf].expand(call.rows, width) for leaf in leaves]
    if ignored is not None:
        parts = [torch.where(ignored, 0, torch.where(stray, torch.nan, p)) for p in parts]
    if leaves[0].extent is not Extent.CLASS:
        return torch.cat(parts, 1).reshape(operand.shape).to(operand.dtype)
    shape = [*call.shape, call.classes]
    return parts[0].reshape(shape).movedim(-1, class_axis(operand.ndim)).to(operand.dtype)


def leaf_values(call: Call, operands: dict[str, Tensor]) -> dict[Node, Tensor]:
    """Each leaf's values, as (rows, classes) with 1 where they do not vary."""
    device = operands[call.differentiable[0]].device
    leaves: dict[Node, Tensor] = {}
    for name, nodes in call.spec.trace(call.choice).leaves.items():
        value, kind = operands[name], call.kinds[name]
        if kind is Row:
            leaves[nodes[0]] = value.movedim(class_axis(value.ndim), -1).reshape(call.rows, call.classes).to(call.real)
        elif kind.extent is Extent.ITEM:
            columns = value.reshape(call.rows, len(nodes))
            columns = columns if kind.type is Type.INT else columns.to(call.real)
            leaves |= {node: columns[:, i : i + 1] for i, node in enumerate(nodes)}
        else:
            leaves[nodes[0]] = value.reshape(1, -1).to(call.real)
    given = [p.name for p, present in zip(call.spec.parameters, call.choice.present, strict=True) if present]
    for name, number in zip(given, call.numbers, strict=True):
        leaves[leaf("param", name, Type.REAL, Extent.UNIFORM)] = torch.full((1, 1), number, dtype=call.real, device=device)
    leaves[CLASSES] = torch.full((1, 1), call.classes, device=device)
    leaves[SMALLEST] = torch.full((1, 1), torch.finfo(call.real).tiny, dtype=call.real, device=device)
    leaves[POSITION] = torch.arange(call.classes, device=device).reshape(1, -1)
    return leaves


def label_masks(call: Call, operands: dict[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """Which rows are ignored, and which have a label that names no class (an IndexError on the CPU)."""
    ignored = stray = None
    for name, kind in call.kinds.items():
        if kind is not Index:
            continue
        label = operands[name].reshape(-1, 1)
        skip = label == call.ignore_index
        out = (label < 0) | (label >= call.classes)
        ignored = skip if ignored is None else ignored | skip
        stray = out if stray is None else stray | out
    if ignored is not None and stray is not None:
        stray = stray & ~ignored
        if stray.device.type == "cpu" and stray.any():
            raise_stray(call, int(stray.nonzero()[0, 0]))
    return ignored, stray
