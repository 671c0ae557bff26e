"""The `@loss` decorator: reads a function's signature, traces its body to a graph, and refuses what cannot become a kernel."""

from __future__ import annotations

import inspect
import itertools
import traceback
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from losszoo.errors import SpecError
from losszoo.ir import build as b
from losszoo.ir.expr import ZERO, Extent, Node, Type, const, leaf
from losszoo.spec.geometry import FORMATS, BoxExpr
from losszoo.spec.maths import Expr, _node
from losszoo.spec.operands import (
    Box,
    Choices,
    ClassWeight,
    Elem,
    Index,
    Kind,
    Operand,
    OwnKernel,
    Parameter,
    PerRow,
    Row,
    Scalar,
    StaticArgument,
    Union,
)  # fmt: skip

WEIGHT = "weight"  # the engine's own operand: a factor an item, multiplied into the loss


@dataclass(frozen=True)
class Counts:
    """What a row adds to the mean's denominator."""

    value: object


@dataclass(frozen=True)
class RunningMean:
    """A scalar operand that a module keeps as the running mean, over batches, of a value."""

    scalar: str
    value: object


def counts(e: object) -> Counts:
    """Return beside the loss: each row adds e to the mean's denominator (1 where nothing is said; ignored rows add nothing)."""
    return Counts(e)


def running_mean(scalar: Expr, e: object) -> RunningMean:
    """Return beside the loss: modules keep `scalar` as the running mean of e over the batches seen in training."""
    node = _node(scalar)
    if node.op != "scalar":
        raise SpecError("running_mean(scalar, e) takes a Scalar operand first")
    return RunningMean(node.attr, e)


@dataclass(frozen=True)
class Choice:
    """What specialises a trace: the kind of each operand given (None: left out), static values, which parameters are free."""

    kinds: tuple[Kind | None, ...]
    statics: tuple[object, ...]
    present: tuple[bool, ...]  # which parameters are not at a fixed value
    weighted: bool = False
    output: str = "loss"


@dataclass(frozen=True)
class Traced:
    """A loss's graph: outputs by name (loss, counts), and the leaves of each operand."""

    outputs: Mapping[str, Node]
    leaves: Mapping[str, tuple[Node, ...]]
    running: Mapping[str, str]  # scalar -> the output whose mean it follows
    absent: Node | None = None  # where this holds, an item has no loss and no gradient, whatever its operands are


@dataclass(frozen=True, eq=False)
class Spec:
    """A declared loss: its name, documentation, arguments, and the function that says its maths."""

    name: str
    doc: str
    function: Callable
    operands: tuple[Operand, ...]
    parameters: tuple[Parameter, ...]
    statics: tuple[StaticArgument, ...]
    order: tuple[str, ...]  # the arguments in the order of the signature
    positional: int  # how many of them may be given by position
    open_ended: bool  # whether the engine's own arguments may follow by position
    reduction: str
    _traces: dict[Choice, Traced] = field(default_factory=dict, repr=False)

    @property
    def row(self) -> bool:
        """Whether there is a class axis."""
        return any(kind is Row for o in self.operands for kind in o.kinds)

    @property
    def labelled(self) -> bool:
        return any(Index in o.kinds for o in self.operands)

    @property
    def own_weight(self) -> bool:
        """Whether the spec's own operands take the name `weight`, so that the engine adds none."""
        return any(o.name == WEIGHT for o in self.operands)

    def default_choice(self) -> Choice:
        kinds = tuple(None if o.optional and o.kinds != (Scalar,) else o.kinds[0] for o in self.operands)
        return Choice(kinds, tuple(s.default for s in self.statics), tuple(p.free(p.default) for p in self.parameters))

    def choices(self) -> list[Choice]:
        """Every way to specialise the spec, for declaration-time checks and for building ahead."""
        kinds = [((None,) if o.optional and o.kinds != (Scalar,) else ()) + o.kinds for o in self.operands]
        present = [(False, True) if p.fixed else (True,) for p in self.parameters]
        statics = [s.choices for s in self.statics]
        every = itertools.product(itertools.product(*kinds), itertools.product(*statics), itertools.product(*present))
        return [Choice(*choice) for choice in every]

    def trace(self, choice: Choice) -> Traced:
        if choice not in self._traces:
            self._traces[choice] = self._trace(choice)
        return self._traces[choice]

    def _trace(self, choice: Choice) -> Traced:
        statics: dict[str, Any] = dict(zip((s.name for s in self.statics), choice.statics, strict=True))
        box_format = statics.pop("box_format", FORMATS[0])
        arguments: dict[str, object] = dict(statics)
        leaves: dict[str, tuple[Node, ...]] = {}
        for operand, kind in zip(self.operands, choice.kinds, strict=True):
            if kind is None:
                assert operand.default is not None  # or it could not be left out
                arguments[operand.name] = Expr(const(operand.default))
                continue
            leaves[operand.name] = nodes = kind.leaves(operand.name)
            if kind is Box:
                arguments[operand.name] = BoxExpr(nodes, box_format)
            elif kind.components is None:
                arguments[operand.name] = Expr(nodes[0])
            else:
                arguments[operand.name] = tuple(Expr(n) for n in nodes)
        for parameter, present in zip(self.parameters, choice.present, strict=True):
            node = leaf("param", parameter.name, Type.REAL, Extent.UNIFORM)
            arguments[parameter.name] = Expr(node) if present else parameter.fixed[0]
        outputs, running = self._outputs(self._run(arguments))
        if choice.output != "loss":
            outputs = {"loss": outputs[choice.output], "counts": const(1.0)}
        if choice.weighted:
            leaves[WEIGHT] = PerRow.leaves(WEIGHT)
            absent = b.apply("eq", leaves[WEIGHT][0], ZERO)
            outputs["loss"] = b.where(absent, ZERO, b.mul(outputs["loss"], leaves[WEIGHT][0]))
            return Traced(outputs, leaves, running, absent)
        return Traced(outputs, leaves, running)

    def _run(self, arguments: dict[str, object]) -> object:
        code = self.function.__code__
        try:
            return self.function(**arguments)
        except Exception as error:
            frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == code.co_filename]
            line = frames[-1].lineno if frames else code.co_firstlineno
            said = str(error) if isinstance(error, SpecError) else f"{type(error).__name__}: {error}"
            raise SpecError(f"{code.co_filename}:{line}: loss {self.name!r}: {said}") from error

    def _outputs(self, returned: object) -> tuple[dict[str, Node], dict[str, str]]:
        parts = returned if isinstance(returned, tuple) else (returned,)
        outputs: dict[str, Node] = {}
        running: dict[str, str] = {}
        for part in parts:
            if isinstance(part, Counts):
                if "counts" in outputs:
                    raise self.error("returns counts(...) twice")
                outputs["counts"] = self._item(part.value, "counts(...)")
            elif isinstance(part, RunningMean):
                running[part.scalar] = f"mean of {part.scalar}"
                outputs[running[part.scalar]] = self._item(part.value, "running_mean(...)")
            elif isinstance(part, dict):
                if clash := {"loss", "counts"} & set(part):
                    raise self.error(f"an output cannot be called {min(clash)!r}")
                outputs |= {name: self._item(value, f"the output {name!r}") for name, value in part.items()}
            elif "loss" not in outputs:
                outputs["loss"] = self._item(part, "the loss")
            else:
                raise self.error(f"returns {part!r} beside the loss; counts(...), running_mean(...) or a dict of outputs may stand there")
        if "loss" not in outputs:
            raise self.error("returns no loss")
        if outputs["loss"].extent is Extent.UNIFORM:
            raise self.error("the loss depends on no operand that has rows or elements")
        outputs.setdefault("counts", const(1.0))
        return outputs, running

    def _item(self, value: object, what: str) -> Node:
        if not isinstance(value, (Expr, int, float)):
            raise self.error(f"{what} is a {type(value).__name__}, not a value made of the operands")
        node = b.real(_node(value))
        if node.extent is Extent.CLASS:
            raise self.error(f"{what} has a value for each class: reduce it with sum, max, logsumexp or x[y]")
        return node

    def error(self, message: str) -> SpecError:
        code = self.function.__code__
        return SpecError(f"{code.co_filename}:{code.co_firstlineno}: loss {self.name!r}: {message}")


def declare(function: Callable, reduction: str) -> Spec:
    """Read the signature, and trace the body in every way that it can be called."""
    if not isinstance(function, types.FunctionType):
        raise SpecError(f"@loss goes on a function, not on {function!r}")
    code = function.__code__

    def refuse(message: str) -> SpecError:
        return SpecError(f"{code.co_filename}:{code.co_firstlineno}: loss {function.__name__!r}: {message}")

    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception as error:
        raise refuse(f"its annotations do not evaluate: {type(error).__name__}: {error}") from error
    operands: list[Operand] = []
    parameters: list[Parameter] = []
    statics: list[StaticArgument] = []
    for p in signature.parameters.values():
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            raise refuse(f"argument {p.name!r}: only plain and keyword-only arguments are possible")
        argument = _argument(p, refuse)
        if isinstance(argument, Operand):
            operands.append(argument)
        elif isinstance(argument, Parameter):
            parameters.append(argument)
        else:
            statics.append(argument)
    kinds = {kind for o in operands for kind in o.kinds}
    if any(kind is Box for kind in kinds):
        statics.append(StaticArgument("box_format", FORMATS, FORMATS[0]))
    if Row in kinds and Elem in kinds:
        raise refuse("Elem and Row together: take Row for what varies along the class axis, PerRow for one value a row")
    for kind in (Index, ClassWeight):
        if kind in kinds and Row not in kinds:
            raise refuse(f"{kind} needs a Row beside it: without one there is no class axis")
    if not any(kind.differentiable for kind in kinds):
        raise refuse("no operand has a gradient: at least one must be a Row, Elem, Box or Tuple")
    names = list(signature.parameters)
    weight = [o for o in operands if o.name == WEIGHT and o.kinds == (ClassWeight,)]
    taken = {"reduction", "normalizer", "box_format", "ignore_index", WEIGHT} - ({WEIGHT} if weight else set())
    if clash := taken & set(names):
        raise refuse(f"argument {min(clash)!r}: the engine has an argument of this name (only a ClassWeight may be called weight)")
    keyword_only = [n for n in names if signature.parameters[n].kind is inspect.Parameter.KEYWORD_ONLY]
    if reduction not in ("none", "mean", "sum"):
        raise refuse(f"reduction must be 'none', 'mean' or 'sum', got {reduction!r}")
    spec = Spec(
        function.__name__, inspect.getdoc(function) or "", function, tuple(operands), tuple(parameters), tuple(statics),
        tuple(names + ["box_format"] * any(s.name == "box_format" for s in statics)),
        len(names) - len(keyword_only), not keyword_only, reduction,
    )  # fmt: skip
    for choice in spec.choices():
        spec.trace(choice)
    return spec


def _argument(p: inspect.Parameter, refuse: Callable[[str], SpecError]) -> Operand | Parameter | StaticArgument:
    annotation, default = p.annotation, None if p.default is p.empty else p.default
    number = isinstance(default, (int, float)) and not isinstance(default, bool)
    if annotation is p.empty:
        raise refuse(f"argument {p.name!r} has no annotation: say what it is (Row, Index, Elem, Box, float, Static[...] ...)")
    if isinstance(annotation, Choices):
        if p.default is p.empty:
            raise refuse(f"argument {p.name!r}: a Static argument needs a default")
        if default not in annotation.values:
            raise refuse(f"argument {p.name!r}: its default {default!r} is not one of {annotation.values}")
        return StaticArgument(p.name, annotation.values, default)
    if isinstance(annotation, (Kind, Union)):
        kinds = annotation.kinds if isinstance(annotation, Union) else (annotation,)
        if default is not None and not number:
            raise refuse(f"operand {p.name!r}: its default must be the number that stands for it when it is left out, got {default!r}")
        return Operand(p.name, kinds, None if default is None else float(default))
    fixed: tuple[None | float, ...] | None = None
    if annotation is float:
        fixed = ()
    elif isinstance(annotation, OwnKernel):
        fixed = annotation.values
    elif isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        fixed = (None,) if set(typing.get_args(annotation)) == {float, type(None)} else None
    if fixed is not None:
        if not (number or p.default is p.empty or (default is None and None in fixed)):
            raise refuse(f"parameter {p.name!r}: its default must be a number, got {default!r}")
        return Parameter(p.name, default if default is None else float(default), p.default is p.empty, fixed)
    raise refuse(
        f"argument {p.name!r}: cannot be a {annotation!r}; possible are Row, Index, ClassWeight, Elem, Box, Tuple[k], PerRow, Scalar, "
        "float, float | None, float | Zero, float | Usual[value] and Static[...]"
    )
