"""A call whose class axis comes in parts: from ranks that hold a part each, or from one device that has one at a time.

    parts = Parts(call, wrt)
    for number in range(parts.passes):
        states = parts.fold(part, number)                  # (numbers, rows): what the rest of the loss has to know of this part
        gathered = ...                                     # the states of all parts in their order: (parts, numbers, rows)
        parts.merge(gathered, number)
    loss, kept = parts.finish(keep=True)
    gradients = Parts(call, wrt).backward(part, grad, kept)

One device that walks over the parts joins them as it goes: states = parts.fold(part, number, states), and gathered = states[None].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from losszoo.codegen.kernel import Form
from losszoo.runtime import kernels, tiling
from losszoo.runtime.arguments import Call
from losszoo.runtime.layout import Rows, class_axis, empty_rows, row_layout, walkable
from losszoo.spec.operands import ClassWeight, Row

ROWS_A_RANGE = 4096  # of what a CPU computes from states alone


@dataclass(frozen=True)
class Part:
    """Neighbouring classes of every row: the number of the first, and the operands with a class axis, of these classes alone.

    Class weights that are not among them are taken from the call's, which has those of all classes.
    """

    offset: int
    operands: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor] = field(default_factory=dict)  # memory for gradients of operands here; the operand's own will do


class Parts(kernels.Launchable):
    """A checked call (`call.classes` are all classes) whose rows come in parts. Of the call's Row operands only the types matter."""

    def __init__(self, call: Call, wrt: tuple[str, ...]) -> None:
        super().__init__(call, call.operands[call.differentiable[0]].device)
        self.names = wrt
        for name in call.spec.trace(call.choice).leaves:
            if call.kinds[name] in (Row, ClassWeight):
                self.storage[name] = kernels.dtype_name(call.operands[name].dtype if call.kinds[name] is Row else call.real)
            else:
                self._place_items(name, call.operands[name])
        self.shape: tiling.PartsShape | None = None
        form = Form("parts", tuple(self.storage.values()), kernels.dtype_name(call.real), self.names)
        self.kernel = kernels.kernel_of(call.spec, call.choice, form)
        self.values |= {f"u_{name}": number for name, number in zip(self.kernel.parameters, call.numbers, strict=True)}
        self.numbers = self.kernel.states  # of a row, in each pass
        self.gathered: Tensor | None = None  # the states of the last pass

    @property
    def passes(self) -> int:
        """How often every part has to be read, and states gathered. None where the loss needs nothing of its rows."""
        return len(self.numbers)

    @cached_property
    def merged(self) -> Tensor:
        """The states of all passes but the last."""
        return self._states(sum(self.numbers[:-1]))

    def _states(self, numbers: int) -> Tensor:
        return torch.empty((numbers, self.call.rows), dtype=self.call.real, device=self.device)

    def fold(self, part: Part, number: int = 0, states: Tensor | None = None) -> Tensor:
        """The states (numbers, rows) of this part in a pass, in new memory, or joined to the states given, in their place."""
        self.bind(part)
        join = states is not None
        if states is None:
            states = self._states(self.numbers[number])
        self.run(f"fold{number}", folded=states, merged=self.merged, join=int(join))
        return states

    def merge(self, gathered: Tensor, number: int = 0) -> None:
        """Take note of the states (parts, numbers, rows) of all parts in a pass."""
        gathered = gathered.contiguous()
        if number == self.passes - 1:
            self.gathered = gathered
        else:
            self.run(f"merge{number}", gathered=gathered, merged=self.merged, parts=gathered.shape[0])

    def finish(self, keep: bool) -> tuple[Tensor, Tensor]:
        """The loss, and what a backward wants of it, as kernels.forward does: everybody who does this gets the same bits."""
        states = self.gathered
        self.values["merged"] = self.merged.data_ptr()
        self.values |= {"gathered": 0 if states is None else states.data_ptr(), "parts": 0 if states is None else states.shape[0]}
        return kernels.forward(self, keep)

    def backward(self, part: Part, grad: Tensor, kept: Tensor) -> list[Tensor]:
        """The gradients of the operands of `wrt`: of a Row, of this part."""
        self.bind(part)
        return kernels.backward(self, grad, kept)

    def gradient(self, name: str) -> Tensor:
        if self.call.kinds[name] is not Row:
            return super().gradient(name)
        operand = self.part.operands[name]
        grad = self.part.gradients.get(name)
        if grad is None:
            grad = empty_rows(operand, "rows")
        found = row_layout(grad)
        if found is None or found[0].lowering != "rows" or grad.shape != operand.shape or grad.dtype != operand.dtype:
            raise ValueError(f"the memory for the gradient of {name} must be like the operand, with classes side by side")
        self.values |= {f"g_{name}": grad.data_ptr(), f"sg_{name}_outer": found[1], f"sg_{name}_class": 1}
        return grad

    def bind(self, part: Part) -> None:
        """Place the operands of a part, and find the kernel that takes them."""
        call, kinds = self.call, self.call.kinds
        self.part = part
        local = next(x.shape[class_axis(x.ndim)] for n, x in part.operands.items() if kinds[n] is Row)
        if not 0 <= part.offset <= part.offset + local <= call.classes:
            raise ValueError(f"a part of {local} classes from class {part.offset} on is none of {call.classes} classes")
        rows = Rows("rows", call.rows, local, 1)
        for name in self.storage:
            if kinds[name] is Row:
                value, _, outer, _ = walkable(part.operands[name], rows)
                self.values |= {f"s_{name}_outer": outer, f"s_{name}_class": 1}
                self._place(name, value)
            elif kinds[name] is ClassWeight:
                whole = call.operands[name]
                value = part.operands[name] if name in part.operands else whole[part.offset : part.offset + local]
                value = value.to(call.real).contiguous()
                self._place(name, value.clone() if value.data_ptr() % kernels.VECTOR else value)
        self.values |= {"offset": part.offset, "local": local}
        self.wrt = {name: part.operands.get(name, call.operands[name]) for name in self.names}
        if self.device.type == "cuda":
            self.shape = self._shape(local)

    def _shape(self, local: int) -> tiling.PartsShape:
        rows = [(name, value) for name, value in self.placed.items() if self.call.kinds[name] is Row]
        width = kernels.VECTOR // min(value.element_size() for _, value in rows)
        # Where rows begin and how far apart they lie, in values; a gradient whose memory is not given begins at a multiple of 16 bytes
        # and is packed.
        begins = {x.data_ptr() // x.element_size() for _, x in rows} | {0}
        packed = {local} if any(name not in self.part.gradients for name in self.names if self.call.kinds[name] is Row) else set()
        strides = {self.values[f"s_{name}_outer"] for name, _ in rows} | packed if self.call.rows > 1 else set()
        for grad in self.part.gradients.values():
            begins.add(grad.data_ptr() // grad.element_size())
            strides |= {s for n, s in zip(grad.shape, grad.stride(), strict=True) if n > 1 and s != 1}
        skewed = any(v % width for v in begins | strides | {local})
        if skewed and any(len({v % width for v in values}) > 1 for values in (begins, strides)):
            width, skewed = 1, False  # no two operands' vectors would hold the same classes
        return tiling.parts(self.call.rows, local, width, skewed, len(rows), self.multiprocessors)

    def grain(self, entry: str) -> int:
        reads = entry.startswith("fold") or entry == "backward"
        return max(1, kernels.ELEMENTS_A_RANGE // max(1, self.values["local"])) if reads else ROWS_A_RANGE

    def launch(self, entry: str) -> tiling.Launch:
        assert self.shape is not None  # on CUDA
        return self.shape.fold if entry.startswith("fold") else self.shape.backward if entry == "backward" else self.shape.forward
