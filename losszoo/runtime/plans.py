"""Plans for the native runtime: what a call's metadata decides, worked out once by the Python that does such calls itself.

The same types, shapes, strides, alignments and options always give the same kernel, launch and arguments but for a few words.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from losszoo.runtime import autograd, interpret, kernels, memory
from losszoo.runtime.arguments import Call
from losszoo.runtime.labels import raise_stray
from losszoo.runtime.parts import Parts
from losszoo.spec.operands import ClassWeight, Index, Scalar

if TYPE_CHECKING:
    from losszoo.parallel.shards import Shards

# Patch::What of csrc/runtime/plan.h
OPERAND, GRADIENT, LOSS, STATE, DENOMINATOR, PARTIAL, STATUS = range(7)
COUNTER, NORMALIZER, UPSTREAM, UPSTREAM_STEP, IGNORE_INDEX, FLOAT, DOUBLE, FOLDED, MERGED, GATHERED = range(7, 17)
WHERE = {
    "state": STATE, "denominator": DENOMINATOR, "partial": PARTIAL, "status": STATUS, "counter": COUNTER, "normalizer": NORMALIZER,
    "grad_output": UPSTREAM, "grad_output_item": UPSTREAM_STEP, "ignore_index": IGNORE_INDEX, "folded": FOLDED, "merged": MERGED,
    "gathered": GATHERED,
}  # fmt: skip


def plan(call: Call, given: list[object], shards: Shards | None = None) -> dict[str, object] | None:
    """The plan of a checked call whose operands were given as `given`, or None where such calls need what only Python does.

    shards: where the classes of all ranks are, if this one has but some of them.
    """
    device = autograd.device_of(call)
    if not autograd.compiled(device.type) or any(x.numel() == 0 for x in call.operands.values()):
        return None
    wrt = autograd.wanted(call)
    built = autograd.built_for(call, wrt)
    prepared = kernels.Prepared(call, dict(call.operands), built) if shards is None else shards.parts(call, built)
    operands = [_operand(prepared, name, value) for name, value in zip(call.operands, given, strict=True)]
    if None in operands:
        return None
    gradients = [prepared.gradient(name) for name in wrt]
    names, reduced = list(call.operands), call.reduction != "none"
    patches, unbound = _patches(prepared, names), call.with_operands({})
    return {
        "name": _node_name(call.spec.name), "real": torch.empty(0, dtype=call.real, device=device), "rows": call.rows,
        "partials": 2 * (prepared.launch("forward").grid if prepared.shape else prepared.ranges()),
        "states": kernels.states(prepared) // call.rows, "numbers": len(call.numbers), "reduced": reduced,
        "labels": bool(prepared.kernel.labels), "shape": () if reduced else call.shape, "operands": operands,
        "memory": None if reduced else memory.source(call.rows, call.real, device),
        "gradients": [
            (names.index(name), x, memory.source(x.numel(), x.dtype, device)) for name, x in zip(wrt, gradients, strict=True)
        ],
        "forward": _launch(prepared, "forward", patches), "backward": _launch(prepared, "backward", patches),
        "folds": _folds(prepared, patches), "gather": shards and shards.gather, "stray": shards and _stray(unbound),
        "differentiable": _differentiable(unbound, wrt) if shards is None else partial(shards.refuse, unbound),
    }  # fmt: skip


def _operand(prepared: kernels.Launchable, name: str, given: Any) -> tuple[Tensor | None, bool] | None:
    """How the runtime reads an operand: a tensor of the type it converts to, or None; and whether the backward keeps what it read."""
    tensor, kind = prepared.call.operands[name], prepared.call.kinds[name]
    real = torch.empty(0, dtype=prepared.call.real)
    moved = prepared.values[f"p_{name}"] != tensor.data_ptr()
    if tensor is given and not moved:
        return None, False
    if tensor is given and kind in (ClassWeight, Scalar):
        # Which is converted. One that is not was moved to a better address, or is in part on this rank.
        converted = tensor.dtype is not real.dtype or not tensor.is_contiguous()
        return (real, False) if converted and prepared.placed[name].numel() == tensor.numel() else None
    if not moved and (kind is Index and tensor.is_contiguous() and tensor.dtype is not given.dtype or kind is Scalar):
        return tensor[:0].reshape(0) if kind is Index else real, True
    return None


def _patches(prepared: kernels.Launchable, names: list[str]) -> list[tuple[int, int, int]]:
    """(offset, what, which) of the words in the argument struct that differ from call to call."""
    kernel, loss = prepared.kernel, "loss" if prepared.call.reduction == "none" else "total"
    absent = {"denominator"} if prepared.call.reduction == "none" else set()
    patches, layout = [], "@"
    for field in kernel.fields:
        offset = struct.calcsize(layout + "0" + field.code)
        layout += field.code
        group, _, name = field.name.partition("_")
        if field.name in WHERE:
            if field.name not in absent:
                patches.append((offset, WHERE[field.name], 0))
        elif field.name == loss:
            patches.append((offset, LOSS, 0))
        elif group == "p":
            patches.append((offset, OPERAND, names.index(name)))
        elif group == "g" and name in prepared.wrt:
            patches.append((offset, GRADIENT, list(prepared.wrt).index(name)))
        elif group == "u":
            patches.append((offset, FLOAT if field.code == "f" else DOUBLE, kernel.parameters.index(name)))
    return patches


def _launch(prepared: kernels.Launchable, entry: str, patches: list[tuple[int, int, int]]) -> dict[str, object]:
    """How one of a kernel's functions is launched."""
    kernel, grain = prepared.kernel, prepared.grain(entry)
    values = prepared.values | {"grain": grain}
    args = kernel.packer.pack(*(values.get(f.name, 0) if f.code == "q" else 0 for f in kernel.fields))
    functions = kernels.runner(prepared.directed(entry), prepared.device).functions
    common = {"args": args, "patches": patches, "grain": grain, "finish": 0, "context": 0, "shared": 0, "follows": False}
    if prepared.shape:
        shape = prepared.launch(entry)
        return common | {"grid": (shape.grid, 1, 1), "block": (shape.threads, 1, 1)} | functions[entry].handles
    address = {name: ctypes.cast(f, ctypes.c_void_p).value for name, f in functions.items()}
    finish = address["finish"] if entry == "forward" else 0
    return common | {"grid": (0, 0, 0), "block": (0, 0, 0), "function": address[entry], "finish": finish}


def _folds(prepared: kernels.Launchable, patches: list[tuple[int, int, int]]) -> list[tuple[int, dict, dict | None]]:
    """(numbers of a row, how they are folded, how they are merged for the next pass) of the passes of a call in parts."""
    numbers = prepared.numbers if isinstance(prepared, Parts) else ()
    return [
        (n, _launch(prepared, f"fold{i}", patches), _launch(prepared, f"merge{i}", patches) if i < len(numbers) - 1 else None)
        for i, n in enumerate(numbers)
    ]


def _node_name(name: str) -> bytes:
    return ("".join(word.capitalize() for word in name.split("_")) + "Backward").encode()


def _differentiable(call: Call, wrt: tuple[str, ...]) -> Callable:
    """The backward for a gradient that is to be differentiated again."""

    def gradients(tensors: tuple[Tensor, ...], numbers: tuple[float, ...], ignore_index: int, grad: Tensor, denominator: Tensor | None):
        operands = dict(zip(call.kinds, tensors, strict=True))
        again = call.with_operands(operands, numbers=numbers, ignore_index=ignore_index)
        return interpret.backward(again, operands, wrt, grad, denominator)

    return gradients


def _stray(call: Call) -> Callable:
    """Raises the error of a row whose label names no class."""

    def stray(tensors: tuple[Tensor, ...], row: int):
        raise_stray(call.with_operands(dict(zip(call.kinds, tensors, strict=True))), row)

    return stray
