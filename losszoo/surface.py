"""From a spec to what people call: a plain function with the signature of the spec and the engine's arguments after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, overload

from losszoo.spec.declare import WEIGHT, Spec, declare
from losszoo.spec.operands import Operand, Parameter, Scalar, StaticArgument

if TYPE_CHECKING:
    from torch import Tensor

    from losszoo.modules import LossModule

Argument = Operand | Parameter | StaticArgument

ENGINE_DOC = {
    "box_format": 'box_format: "xyxy" (corners), "xywh" (corner and size) or "cxcywh" (centre and size).',
    "ignore_index": "ignore_index: rows with this label have loss 0, gradient 0, and no place in the mean.",
    "reduction": 'reduction: "none" (a loss an item), "mean" or "sum". All rows ignored: nan for the mean, with zero gradient.',
    WEIGHT: "weight: a factor for each item's loss, broadcast to the loss's shape. It does not enter the mean's denominator.",
    "normalizer": "normalizer: a number, or a tensor of one number on the device, in the place of the mean's denominator.",
}
RAISES = """TypeError, ValueError: an argument of the wrong type, shape or device, named with what was expected.
IndexError: a label out of range, on the CPU; on CUDA that row's loss and gradient are nan (LOSSZOO_CHECK=1 raises)."""


class LossFunction(Protocol):
    """A loss as people call it: a function of tensors that knows its spec, and makes module classes of itself."""

    __name__: str
    spec: Spec

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor: ...

    def module(self, name: str, **defaults: object) -> type[LossModule]: ...


@overload
def loss(function: Callable, *, reduction: str = "mean") -> LossFunction: ...


@overload
def loss(function: None = None, *, reduction: str = "mean") -> Callable[[Callable], LossFunction]: ...


def loss(function: Callable | None = None, *, reduction: str = "mean") -> LossFunction | Callable[[Callable], LossFunction]:
    """Declare a loss by the maths of its forward pass.

        from losszoo.spec import Index, Row, log_softmax, loss

        @loss
        def my_loss(x: Row, y: Index):
            return -log_softmax(x)[y]

    The result is an ordinary differentiable function of tensors: my_loss(x, y, ignore_index=-100, reduction="mean", weight=None,
    normalizer=None). `reduction` is its default. Raises SpecError, with file and line, for what the language cannot express.
    """
    if function is None:
        return lambda f: loss(f, reduction=reduction)
    return expose(declare(function, reduction))


def expose(
    spec: Spec, output: str = "loss", interpreted: bool = False, engine: tuple[Callable, Callable] | None = None
) -> LossFunction:
    """The public function of a spec, for its loss or for another of its named outputs, by kernels or by the interpreter.

    engine: what gives the function of all arguments in a row, as dispatch.caller does, and the one that torch.compile looks into.
    """
    options: dict[str, object] = {"ignore_index": -100} if spec.labelled else {}
    options["reduction"] = spec.reduction
    if not spec.own_weight:
        options[WEIGHT] = None
    options["normalizer"] = None
    arguments: list[Argument] = [*spec.operands, *spec.parameters, *spec.statics]
    defaults = {a.name: a for a in arguments}
    text = []
    for i, name in enumerate(spec.order):
        if i == spec.positional:
            text.append("*")
        text.append(name + _default(defaults[name]))
    if spec.positional == len(spec.order) and not spec.open_ended:
        text.append("*")
    text += [f"{name}={value!r}" for name, value in options.items()]
    scope: dict[str, Any] = {f"_default_{a.name}_": a.default for a in defaults.values()}
    passed = list(defaults)
    passed += ["ignore_index" if spec.labelled else "None", "reduction", "None" if spec.own_weight else WEIGHT, "normalizer"]
    _bind(scope, spec, output, interpreted, engine)
    lines = [
        f"def {spec.name}({', '.join(text)}):",
        "    if _compiling_():",
        "        _prepare_()",
        f"        return _traced_({', '.join(passed)})",
        f"    return _call_({', '.join(passed)})",
    ]
    exec(compile("\n".join(lines), f"<losszoo {spec.name}>", "exec"), scope)  # noqa: S102  (as dataclasses do)
    function = scope[spec.name]
    function.__module__ = spec.function.__module__
    function.__qualname__ = spec.function.__qualname__
    function.__doc__ = _documentation(spec, options)
    function.spec = spec

    def module(name: str, **defaults: object) -> type[LossModule]:
        from losszoo.modules import make_module

        return make_module(function, name, defaults)

    function.module = module
    return function


def _bind(scope: dict, spec: Spec, output: str, interpreted: bool, engine: tuple[Callable, Callable] | None) -> None:
    """Give the public function what it calls, with its arguments in a row: `_call_`, or `_traced_` under torch.compile."""
    # The runtime imports torch; a spec can be declared and rendered without it.
    from losszoo.runtime import dispatch

    caller, traced = engine or (lambda: dispatch.caller(spec, output, interpreted), lambda: dispatch.traced(spec, output))

    def by_dispatch(*arguments):
        function, final = caller()
        if final:  # the native runtime, once it is ready, takes the place of this
            scope["_call_"] = function
        return function(*arguments)

    def prepare():
        if "_traced_" not in scope:
            scope["_traced_"] = traced()
        return True

    scope |= {"_call_": by_dispatch, "_compiling_": dispatch.compiling, "_prepare_": dispatch.while_tracing(prepare)}


def _default(argument: Argument) -> str:
    if isinstance(argument, Parameter):
        return "" if argument.required else f"=_default_{argument.name}_"
    if isinstance(argument, StaticArgument):
        return f"=_default_{argument.name}_"
    if not argument.optional:
        return ""
    return f"=_default_{argument.name}_" if argument.kinds == (Scalar,) else "=None"


def _documentation(spec: Spec, engine: dict) -> str:
    lines = [spec.doc, "", "Arguments:"]
    for o in spec.operands:
        kinds = " or ".join(f"{k} ({k.meaning})" for k in o.kinds)
        lines.append(f"    {o.name}: {kinds}{'; may be left out' if o.optional else ''}.")
    names = [*(["box_format"] if any(s.name == "box_format" for s in spec.statics) else []), *engine]
    lines += [f"    {ENGINE_DOC[n]}" for n in names]
    if spec.row:
        lines.append("Shapes: rows are (C), (N, C) or (N, C, d1, ...); one value a row has that shape without C, and so has the loss.")
    elif any(k.components for o in spec.operands for k in o.kinds):
        lines.append("Shapes: (..., k) for k numbers an item; the loss is (...).")
    else:
        lines.append("Shapes: any that broadcast together; the loss has the broadcast shape.")
    lines.append("The loss of 16-bit operands is float32; of float64 operands, float64.")
    return "\n".join([*lines, "Raises:", *(f"    {line}" for line in RAISES.splitlines())])
