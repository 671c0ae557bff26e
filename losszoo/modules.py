"""Losses as modules, made from their functions: what is not a tensor of the batch is an argument of the constructor."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from losszoo.runtime.arguments import check_options
from losszoo.spec.declare import WEIGHT
from losszoo.spec.operands import ClassWeight, Scalar
from losszoo.surface import LossFunction, expose

MOMENTUM = 0.01  # of a running mean: the weight of the newest batch


class LossModule(nn.Module):
    """Base of the loss modules. Class weights and running means are buffers, so they move and are saved with the module."""

    function: LossFunction
    _call_time: tuple[str, ...]  # operands that each batch brings
    _kept: tuple[str, ...]  # tensors that the module keeps as buffers
    _running: dict[str, LossFunction]  # buffer -> the function whose mean it follows
    _options: dict[str, Any]
    momentum: float

    def forward(self, *operands: Tensor, **engine: Tensor) -> Tensor:
        unknown = set(engine) - {WEIGHT, "normalizer"} | set(engine) & set(self._kept)
        if len(operands) > len(self._call_time) or unknown:
            expected = f"{', '.join(self._call_time)} and keywords weight, normalizer"
            raise TypeError(f"{type(self).__name__}: got {len(operands)} operands and {sorted(engine)}, expected {expected}")
        given = dict(zip(self._call_time, operands, strict=False))
        if self.training:
            self._follow(given)
        buffers = {name: getattr(self, name) for name in self._kept}
        return self.function(**given, **buffers, **self._options, **engine)

    @torch.no_grad()
    def _follow(self, given: dict[str, Tensor]) -> None:
        """Move each running mean toward this batch's, on the device. A batch of nothing has no mean and changes nothing."""
        for name, function in self._running.items():
            if next(iter(given.values())).numel():
                options = {k: v for k, v in self._options.items() if k not in ("reduction",)}
                mean = function(**given, **{name: getattr(self, name)}, **options, reduction="mean")
                getattr(self, name).lerp_(mean.to(getattr(self, name).dtype), self.momentum)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._options.items())


def make_module(function: LossFunction, name: str, defaults: dict[str, object]) -> type[LossModule]:
    """The module class of a loss function, called `name`, with other defaults where given."""
    spec = function.spec
    kept = tuple(o.name for o in spec.operands if set(o.kinds) <= {ClassWeight, Scalar})
    trace = spec.trace(spec.default_choice())
    running = {scalar: expose(spec, output) for scalar, output in trace.running.items()}
    batch = tuple(o.name for o in spec.operands if o.name not in kept)
    parameters = [
        p.replace(default=defaults.get(p.name, p.default), kind=p.POSITIONAL_OR_KEYWORD)
        for p in inspect.signature(function).parameters.values()
        if p.name not in batch and (p.name not in (WEIGHT, "normalizer") or p.name in kept)
    ]
    if running:
        parameters.append(inspect.Parameter("momentum", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=MOMENTUM))
    unknown = set(defaults) - {p.name for p in parameters}
    if unknown:
        raise TypeError(f"module {name}: {spec.name} has no argument {sorted(unknown)}")
    parameters.sort(key=lambda p: p.name not in kept)  # class weights first, as in torch.nn
    signature = inspect.Signature(parameters)

    def __init__(self, *args: object, **kwargs: object) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        LossModule.__init__(self)
        if running:
            self.momentum = bound.arguments.pop("momentum")
        for buffer in kept:
            value = bound.arguments.pop(buffer)
            self.register_buffer(buffer, value if isinstance(value, Tensor) or value is None else torch.tensor(float(value)))
        self._options = options = dict(bound.arguments)
        parameters, statics = (tuple(options[a.name] for a in group) for group in (spec.parameters, spec.statics))
        check_options(spec, parameters, statics, options.get("ignore_index"), options["reduction"])

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    __init__.__signature__ = inspect.Signature([own, *parameters])  # type: ignore[attr-defined]
    members = {
        "__init__": __init__, "__doc__": f"The module of `{spec.name}`.\n\n{function.__doc__}", "__module__": function.__module__,
        "__qualname__": name, "function": staticmethod(function), "_call_time": batch, "_kept": kept, "_running": running,
    }  # fmt: skip
    return type(name, (LossModule,), members)
