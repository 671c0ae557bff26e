"""`losszoo.linear(loss)`: the public function of a loss behind a linear layer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from losszoo.spec.declare import WEIGHT, Spec
from losszoo.spec.operands import Operand, Parameter, Row, Scalar
from losszoo.surface import ENGINE_DOC, Argument, LossFunction

if TYPE_CHECKING:
    from torch import Tensor

    from losszoo.parallel.shards import Shards

OWN = ("input", "linear_weight", "linear_bias", "strategy", "chunk_bytes")


def linear(loss: LossFunction) -> Callable[..., Tensor]:
    """A loss of rows, fused with the linear layer that makes its first Row operand: the logits are never in memory as a whole.

        linear_poly1 = losszoo.linear(poly1_loss)
        linear_poly1(hidden, head.weight, labels, linear_bias=head.bias, epsilon=2.0).backward()

    `loss` is any function made by `@losszoo.loss` that has a Row operand, a user's own included. The result takes `input` and
    `linear_weight` in the place of that operand, the loss's other operands, and by keyword the loss's options, `linear_bias`,
    `strategy` and `chunk_bytes`; its docstring says what they are. Raises TypeError for what is no such loss.
    """
    return fused(loss)


def fused(loss: LossFunction, shards: Shards | None = None) -> Callable[..., Tensor]:
    """The function that `linear` makes, of all classes or of those of each rank."""
    spec = getattr(loss, "spec", None)
    if not isinstance(spec, Spec):
        raise TypeError(f"linear: got {loss!r}, expected a loss made by @losszoo.loss")
    logits = next((o for o in spec.operands if Row in o.kinds), None)
    if logits is None:
        raise TypeError(f"linear: {spec.name} has no Row operand that a linear layer could make")
    taken = {name for name in spec.order if name != logits.name} & set(OWN)
    if taken:
        raise TypeError(f"linear: {spec.name} has an argument {min(taken)!r}, which is one of the linear layer's")
    signature = _signature(spec, logits, shards is None)

    # The runtime imports torch; a spec can be declared and rendered without it. The rest is imported by the first call.
    from losszoo.runtime import dispatch

    scope: dict[str, Any] = {}

    def prepare() -> bool:
        from losszoo.linear_layer import call

        if not scope:
            scope["run"] = call.outside_of_graphs()
        return True

    prepare = dispatch.while_tracing(prepare)

    def function(*args: Any, **kwargs: Any) -> Tensor:
        if dispatch.compiling():
            prepare()
            return scope["run"](spec, logits.name, signature, shards, args, kwargs)
        from losszoo.linear_layer import call

        return call.run(spec, logits.name, signature, shards, args, kwargs)

    function.__name__ = f"linear_{spec.name}"
    function.__qualname__ = function.__name__
    function.__module__ = loss.__module__
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__doc__ = _documentation(spec, logits, shards is None)
    return function


def _signature(spec: Spec, logits: Operand, alone: bool) -> inspect.Signature:
    """What must be given by position, as in torch's own; everything else by keyword."""
    place, name_only = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    required = [inspect.Parameter("input", place), inspect.Parameter("linear_weight", place)]
    optional = [inspect.Parameter("linear_bias", name_only, default=None)]
    every: list[Argument] = [*spec.operands, *spec.parameters, *spec.statics]
    arguments = {a.name: a for a in every}
    for name in spec.order:
        argument = arguments[name]
        if argument is logits:
            continue
        if isinstance(argument, Operand) and not argument.optional:
            required.append(inspect.Parameter(name, place))
        elif isinstance(argument, Parameter) and argument.required:
            optional.append(inspect.Parameter(name, name_only))
        else:
            absent = isinstance(argument, Operand) and argument.kinds != (Scalar,)
            optional.append(inspect.Parameter(name, name_only, default=None if absent else argument.default))
    engine: dict[str, object] = {"reduction": spec.reduction}
    if spec.labelled:
        engine["ignore_index"] = None
    if not spec.own_weight:
        engine[WEIGHT] = None
    engine |= {"normalizer": None, **({"strategy": None} if alone else {}), "chunk_bytes": None}
    optional += [inspect.Parameter(name, name_only, default=value) for name, value in engine.items()]
    return inspect.Signature(required + optional)


def _documentation(spec: Spec, logits: Operand, alone: bool) -> str:
    others = [o for o in spec.operands if o is not logits]
    lines = [f"`{spec.name}` of `{logits.name}` = input @ linear_weight.T + linear_bias, logits that are never in memory as a whole."]
    lines += ["", spec.doc, "", "Arguments:"]
    lines += ["    input: (..., F), the rows before the linear layer.", "    linear_weight: (C, F), C classes."]
    for o in others:
        kinds = " or ".join(f"{k} ({k.meaning})" for k in o.kinds)
        lines.append(f"    {o.name}: {kinds}{'; may be left out' if o.optional else ''}.")
    lines.append("    linear_bias: (C), or None.")
    names = [*(["ignore_index"] if spec.labelled else []), "reduction", *([] if spec.own_weight else [WEIGHT]), "normalizer"]
    lines += [f"    {ENGINE_DOC[n]}{' None stands for -100.' if n == 'ignore_index' else ''}" for n in names]
    return "\n".join([*lines, *((STRATEGY_DOC if alone else SHARDED_DOC) + LAYER_DOC).splitlines()])


SHARDED_DOC = """\
    chunk_bytes: of memory for logits and their gradient at a time; None stands for 128 MiB.
Of linear_weight, linear_bias and operands with a vector a row each rank gives its own classes; class weights are of all classes; input
and everything else are the same on every rank.
"""
STRATEGY_DOC = """\
    strategy: how the logits are gone through; None chooses by size. With N rows, and K chunks:
        "rows": whole rows, as many as fit in chunk_bytes. Three matrix products; four for reduction="none" and in float16, since
            there the gradient cannot be formed in the forward. Memory: chunk_bytes, and where K > 1 and the types have 16 bits, a
            float32 sum of linear_weight's gradient, 4 C F bytes; but none where that is more than chunk_bytes and K <= 4: then
            up to four sums are rounded to 16 bits, of which one would be rounded anyway.
        "classes": all rows, as many classes as fit in chunk_bytes. Three products if N <= F, and up to four with more rows,
            where rows would take three. linear_weight's gradient is complete in one product a chunk, input's is summed in float32.
            Memory: chunk_bytes and 4 N F bytes.
    chunk_bytes: of memory for logits and their gradient at a time; None stands for 512 MiB of rows, 128 MiB of classes.
Shapes: (...) stands for the axes of the rows, which one value a row and the loss have too; a vector a row is (..., C). With input
(N, F) the linear_weight may also be (C, d1, ..., F), linear_bias (C, d1, ...): then one value a row is (N, d1, ...), a vector a
row (N, C, d1, ...).
"""
LAYER_DOC = """\
Types: the matrix products have the input's, under autocast autocast's. The loss of 16-bit operands is float32; of float64 ones, float64.
On the CPU ignored rows cost no product; on CUDA, where leaving them out would wait for the device, they cost the same as others.
Under torch.compile the call is a graph break. A second derivative holds all logits in memory, and of sharded classes there is none.
Raises:
    TypeError, ValueError: an argument of the wrong type, shape or device, named with what was expected.
    IndexError: a label out of range, on the CPU; on CUDA that row's loss and the gradients are nan (LOSSZOO_CHECK=1 raises)."""
