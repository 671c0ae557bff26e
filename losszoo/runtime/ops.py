"""Losses as functional operators of torch, which is what torch.compile, export and fake tensors see of them.

An operator takes the arguments of the public function in a row, gives the loss and what its backward wants, and runs the same kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain, count

import torch
from torch import Tensor

from losszoo.codegen.kernel import scheduled
from losszoo.runtime import autograd
from losszoo.runtime.arguments import Call, check
from losszoo.runtime.layout import Rows, empty_rows, walkable
from losszoo.spec.declare import Spec
from losszoo.spec.operands import Row, Scalar

_library = torch.library.Library("losszoo", "FRAGMENT")
_taken: set[str] = set()


class Engine:
    """What an operator runs: the kernels of whole rows, or others."""

    suffix = ""  # of the operator's name
    parts = False  # whether its kernels see a part of the classes

    @property
    def whole(self) -> int | None:
        """Then the number of all of them."""
        return None

    def forward(self, call: Call, wrt: tuple[str, ...], interpreted: bool) -> tuple[Tensor, Tensor]:
        return autograd.forward(call, dict(call.operands), wrt, interpreted)

    def backward(self, call: Call, wrt: tuple[str, ...], grad: Tensor, kept: Tensor, interpreted: bool) -> list[Tensor]:
        return autograd.backward(call, dict(call.operands), wrt, grad, kept, interpreted)


WHOLE = Engine()


def operator(spec: Spec, output: str = "loss", engine: Engine = WHOLE) -> Callable[..., Tensor]:
    """The operator of a spec's output, as a function of all arguments in a row: operands, parameters, statics, the engine's own."""
    operands, parameters, statics = len(spec.operands), len(spec.parameters), len(spec.statics)
    numbers, options = operands + parameters, operands + parameters + statics
    differentiable = [i for i, o in enumerate(spec.operands) if any(k.differentiable for k in o.kinds)]

    def checked(arguments: Sequence, number: Callable[[Tensor], float]) -> tuple[Call, tuple[str, ...]]:
        *arguments, wrt = arguments
        arguments, traced = arguments[: options + 4], arguments[options + 4 :]
        values = tuple(v if t is None else number(t) for v, t in zip(arguments[operands:numbers], traced, strict=True))
        chosen = tuple(s.choices[i] for s, i in zip(spec.statics, arguments[numbers:options], strict=True))
        ignore_index, reduction, weight, normalizer = arguments[options:]
        call = check(spec, tuple(arguments[:operands]), values, chosen, ignore_index, reduction, weight, normalizer, output, engine.whole)
        return call, tuple(spec.operands[i].name for i, wanted in zip(differentiable, wrt, strict=True) if wanted)

    def forward(*arguments):
        call, wrt = checked(arguments, Tensor.item)
        interpreted = not autograd.compiled(autograd.device_of(call).type)
        with torch.no_grad():
            loss, kept = engine.forward(call, autograd.built_for(call, wrt), interpreted)
        if interpreted:  # which keeps the denominator alone
            kept = torch.cat([kept.new_zeros(_kept(call, wrt, engine) - kept.numel()), kept])
        return loss.contiguous(), kept

    def forward_fake(*arguments):
        call, wrt = checked(arguments, _any_number)
        like = call.operands[call.differentiable[0]]
        shape = call.shape if call.reduction == "none" else ()
        return like.new_empty(shape, dtype=call.real), like.new_empty(_kept(call, wrt, engine), dtype=call.real)

    def backward(grad, kept, *arguments):
        call, wrt = checked(arguments, Tensor.item)
        interpreted = not autograd.compiled(grad.device.type)
        with torch.no_grad():
            found = engine.backward(call, wrt, grad, kept, interpreted)
        if interpreted:
            found = [_memory(call, name, engine).copy_(x) for name, x in zip(wrt, found, strict=True)]
        return _spread(iter(found), arguments[-1], grad)

    def backward_fake(grad, kept, *arguments):
        call, wrt = checked(arguments, _any_number)
        return _spread(iter([_memory(call, name, engine) for name in wrt]), arguments[-1], grad)

    def setup_context(ctx, inputs, output):
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        ctx.save_for_backward(output[1], *tensors)
        ctx.others = [None if isinstance(x, Tensor) else (x,) for x in inputs]
        ctx.set_materialize_grads(False)

    def backward_formula(ctx, grad, _):
        if grad is None:
            return (None,) * len(ctx.others)
        kept, *tensors = ctx.saved_tensors
        given = iter(tensors)
        arguments = [next(given) if other is None else other[0] for other in ctx.others]
        grads = backward_op(grad, kept, *arguments)
        grads = (grads,) if isinstance(grads, Tensor) else grads
        result = [None] * len(arguments)
        for i, found, wanted in zip(differentiable, grads, arguments[-1], strict=True):
            if wanted:
                result[i] = found.sum_to_size(arguments[i].shape)
        return tuple(result)

    def refuse(ctx, *_):
        raise NotImplementedError(f"{spec.name}: its operator has no second derivative; take it outside torch.compile")

    name = _name((spec.name if output == "loss" else f"{spec.name}_{output}") + engine.suffix)
    kinds = ["Tensor?" if o.optional else "Tensor" for o in spec.operands] + ["float?"] * parameters + ["int"] * statics
    schema = ", ".join(f"{kind} a{i}" for i, kind in enumerate([*kinds, "SymInt?", "str", *["Tensor?"] * (2 + parameters), "bool[]"]))
    grads = ", ".join(["Tensor"] * len(differentiable))
    op = _define(name, f"({schema}) -> (Tensor, Tensor)", forward, forward_fake)
    backward_op = _define(f"{name}_backward", f"(Tensor grad, Tensor kept, {schema}) -> ({grads})", backward, backward_fake)
    torch.library.register_autograd(f"losszoo::{name}", backward_formula, setup_context=setup_context, lib=_library)
    torch.library.register_autograd(f"losszoo::{name}_backward", refuse, setup_context=lambda ctx, inputs, output: None, lib=_library)
    scalars = [i for i, o in enumerate(spec.operands) if o.kinds == (Scalar,)]
    choices = [s.choices for s in spec.statics]
    constant = [*(i for i in range(operands) if i not in differentiable), options + 2, options + 3]

    def call(*arguments):
        """What torch.compile traces: plain Python around one operator."""
        given = list(arguments)
        leader = given[differentiable[0]]
        for i in (*scalars, len(given) - 1):
            if isinstance(given[i], (int, float)):
                given[i] = torch.full((), given[i], dtype=torch.float64, device=leader.device)
        for i, values in enumerate(choices, numbers):
            given[i] = values.index(given[i])
        traced = [None] * parameters
        if torch.compiler.is_compiling():
            for i, parameter in enumerate(spec.parameters):
                value = given[operands + i]
                if value is not None and value != parameter.default and parameter.free(value):
                    # A number that an operator is given is compiled in, but one that is added to a tensor is not.
                    given[operands + i], traced[i] = None, torch.zeros((), dtype=torch.float64) + value
        recorded = torch.is_grad_enabled()
        for i in constant:
            if recorded and isinstance(given[i], Tensor) and given[i].requires_grad:
                raise ValueError(f"{spec.name}: an operand that has no gradient requires one; pass it detached")
        wrt = [recorded and given[i] is not None and given[i].requires_grad for i in differentiable]
        return op(*given, *traced, wrt)[0]

    return call


def _any_number(_: Tensor) -> float:
    """What stands for a number that is not known yet: it is none of those with kernels of their own, or it would be."""
    return math.nan


def _define(name: str, schema: str, implementation: Callable, fake: Callable) -> Callable:
    _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"losszoo::{name}", fake, lib=_library)
    return getattr(torch.ops.losszoo, name).default


def _name(wanted: str) -> str:
    """An operator's name: that of the loss, and a number behind it where a loss of this name was declared before."""
    base = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in wanted)
    name = next(n for n in chain([base], (f"{base}_{i}" for i in count(1))) if _taken.isdisjoint((n, f"{n}_backward")))
    _taken.update((name, f"{name}_backward"))
    return name


def _kept(call: Call, wrt: tuple[str, ...], engine: Engine) -> int:
    """How many numbers a call keeps for its backward."""
    states = len(scheduled(call.spec, call.choice, autograd.built_for(call, wrt), engine.parts).forward.state)
    return states * call.rows + int(call.reduction != "none")


def _memory(call: Call, name: str, engine: Engine) -> Tensor:
    """Memory for a gradient, laid out as the kernels do."""
    if call.kinds[name] is not Row:
        return call.operands[name].new_empty(call.operands[name].shape)
    if engine.parts:
        return empty_rows(call.operands[name], "rows")
    layout: Rows | None = None
    for row, kind in call.kinds.items():
        if kind is Row:
            _, layout, *_ = walkable(call.operands[row], layout)
    assert layout is not None  # `name` is a Row
    return empty_rows(call.operands[name], layout.lowering)


def _spread(found, wrt: Sequence[bool], like: Tensor) -> tuple[Tensor, ...] | Tensor:
    """A gradient for each operand that can have one; nothing in the place of those that are not wanted."""
    grads = tuple(next(found) if wanted else like.new_empty(0) for wanted in wrt)
    return grads if len(grads) != 1 else grads[0]
