"""A call computed by its kernels: finds the form, builds the kernel on first use, packs the arguments, launches."""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from losszoo import jit
from losszoo.codegen.kernel import Form, Kernel
from losszoo.errors import CaptureError
from losszoo.runtime import counters, cuda_driver, memory, threads, tiling
from losszoo.runtime.arguments import Call
from losszoo.runtime.labels import check_labels, raise_stray
from losszoo.runtime.layout import Rows, class_axis, empty_rows, item_strides, walkable
from losszoo.spec.operands import ClassWeight, Row, Scalar

ELEMENTS_A_RANGE = 32768  # a CPU range: long enough to outweigh its hand-over, short enough to share out evenly
VECTOR = 16  # bytes that a CUDA thread reads at once
TILE = 256  # ranges begin at multiples of what the CPU kernels take at once


class Launchable:
    """A call and its kernel, with the values of the kernel's argument struct."""

    kernel: Kernel
    wrt: dict[str, Tensor]
    shape: Any  # CUDA: how a launch shares out the work

    def __init__(self, call: Call, device: torch.device) -> None:
        self.call, self.device = call, device
        self.values: dict[str, Any] = {
            "rows": call.rows, "classes": call.classes, "inner": 1, "mean": int(call.reduction == "mean"),
            "ignore_index": call.ignore_index,
        }  # fmt: skip
        self.placed: dict[str, Tensor] = {}  # kept until the launch, whose pointers lead into them
        self.storage: dict[str, str] = {}

    def _place(self, name: str, value: Tensor) -> None:
        self.placed[name] = value
        self.values[f"p_{name}"] = value.data_ptr()
        self.storage[name] = dtype_name(value.dtype)

    def _place_items(self, name: str, value: Tensor) -> None:
        """An operand without a class axis."""
        if (kind := self.call.kinds[name]) is Scalar:
            value = value.to(self.call.real).contiguous()
        else:
            value, item, component = item_strides(value, kind.components)
            self.values |= {f"s_{name}_item": item, f"s_{name}_component": component}
        self._place(name, value)

    @property
    def multiprocessors(self) -> int:
        return cuda_driver.multiprocessors(self.device.index)

    def gradient(self, name: str) -> Tensor:
        """Memory for the gradient of an operand, which the kernel will write."""
        operand = self.wrt[name]
        grad = memory.empty(operand.shape, operand.dtype, operand.device)
        self.values[f"g_{name}"] = grad.data_ptr()
        return grad

    def run(self, entry: str, **pointers: Tensor | int | None) -> None:
        """Launch one of the kernel's functions; `pointers` are the outputs and whatever else it needs."""
        for name, value in pointers.items():
            self.values[name] = value.data_ptr() if isinstance(value, Tensor) else value or 0
        self.values["grain"] = self.grain(entry)
        runner(self.directed(entry), self.device).run(entry, self)

    def directed(self, entry: str) -> Kernel:
        """The kernel that has the function, and whatever else is launched with the same tiling. All have the same arguments."""
        if self.shape is None:
            return self.kernel
        chosen = self.launch(entry).tiling
        wanted = tuple(e for e in self.kernel.entries if self.launch(e).tiling == chosen)
        return kernel_of(self.call.spec, self.call.choice, replace(self.kernel.form, tiling=chosen, wanted=wanted))

    def launch(self, entry: str) -> tiling.Launch:
        """Of a CUDA kernel's function."""
        return getattr(self.shape, entry)

    def grain(self, entry: str) -> int:
        """Rows of a CPU range."""
        raise NotImplementedError

    def pack(self) -> bytes:
        values = self.values
        return self.kernel.packer.pack(*(values.get(f.name, 0) for f in self.kernel.fields))

    def ranges(self) -> int:
        """How many have partial sums."""
        return max(1, -(-self.call.rows // self.grain("forward")))


class Prepared(Launchable):
    """A call with its operands in walkable memory, and the kernel that takes them."""

    def __init__(self, call: Call, operands: dict[str, Tensor], wrt: tuple[str, ...]) -> None:
        super().__init__(call, operands[call.differentiable[0]].device)
        self.layout: Rows | None = None
        for name in call.spec.trace(call.choice).leaves:
            self._place_operand(name, operands[name])
        self.lowering, self.wrt = self.layout.lowering if self.layout else "items", {name: operands[name] for name in wrt}
        dtypes = tuple(self.storage.values())
        dense = self.lowering == "items" and self._packed()
        self.shape = self._shape(dense) if self.device.type == "cuda" else None
        reduced = not self.shape or call.reduction != "none"
        self.kernel = kernel_of(call.spec, call.choice, Form(self.lowering, dtypes, dtype_name(call.real), wrt, dense, reduced=reduced))
        for name, number in zip(self.kernel.parameters, call.numbers, strict=True):
            self.values[f"u_{name}"] = number

    def _place_operand(self, name: str, value: Tensor) -> None:
        """Record an operand's address and strides, of a copy where it cannot be walked."""
        kind = self.call.kinds[name]
        if kind is Row:
            value, layout, outer, step = walkable(value, self.layout)
            self.layout = layout
            self.values |= {f"s_{name}_outer": outer, f"s_{name}_class": step, "inner": layout.inner}
            self._place(name, value)
        elif kind is ClassWeight:
            value = value.to(self.call.real).contiguous()
            self._place(name, value.clone() if value.data_ptr() % VECTOR else value)
        else:
            self._place_items(name, value)

    def _packed(self) -> bool:
        """Whether every operand of items lies without gaps, and on CUDA from a multiple of sixteen bytes."""
        for name, value in self.placed.items():
            if (kind := self.call.kinds[name]) is Scalar:
                continue
            if self.values[f"s_{name}_item"] != (kind.components or 1) or self.values[f"s_{name}_component"] != 1:
                return False
            if self.device.type == "cuda" and value.data_ptr() % VECTOR:
                return False
        return True

    def _shape(self, dense: bool) -> tiling.Shape:
        """How a CUDA launch shares out the work."""
        call, processors = self.call, self.multiprocessors
        if self.lowering == "items":
            sizes = [v.element_size() * (call.kinds[n].components or 1) for n, v in self.placed.items() if call.kinds[n] is not Scalar]
            return tiling.items(call.rows, max(1, VECTOR // max(sizes)) if dense else 1, processors)
        rows = [(name, value) for name, value in self.placed.items() if call.kinds[name] is Row]
        size = min(value.element_size() for _, value in rows)
        width = VECTOR // size
        # Where each operand's rows begin and how far apart things lie, in values. Gradients begin at multiples of 16 bytes, packed.
        begins = {v.data_ptr() // v.element_size() for _, v in rows} | ({0} if self.wrt else set())
        strides = {self.values[f"s_{name}_outer"] for name, _ in rows} if call.rows > self.values["inner"] else set()
        if self.lowering == "columns":
            strides |= {call.rows, self.values["inner"]} | {self.values[f"s_{name}_class"] for name, _ in rows if call.classes > 1}
            while any(v % width for v in begins | strides):
                width //= 2
            return tiling.columns(call.rows, call.classes, width, size, len(rows), processors)
        strides |= {call.classes} if self.packed_gradients() else set()
        skewed = any(v % width for v in begins | strides | {call.classes})
        if skewed and any(len({v % width for v in values}) > 1 for values in (begins, strides)):
            width, skewed = 1, False  # no two operands' vectors would hold the same classes
        return tiling.rows(call.rows, call.classes, width, skewed, len(rows), processors)

    def packed_gradients(self) -> bool:
        """Whether there are gradients whose rows follow each other without gaps."""
        return bool(self.wrt)

    def gradient(self, name: str) -> Tensor:
        if self.call.kinds[name] is not Row:
            return super().gradient(name)
        grad = empty_rows(self.wrt[name], self.lowering)
        outer = 0 if grad.ndim <= 2 and self.lowering == "columns" else self.call.classes * self.values["inner"]
        self.values |= {f"g_{name}": grad.data_ptr(), f"sg_{name}_outer": outer, f"sg_{name}_class": grad.stride(class_axis(grad.ndim))}
        return grad

    def grain(self, entry: str) -> int:
        if self.lowering == "rows":
            return max(1, ELEMENTS_A_RANGE // max(1, self.call.classes))
        size = max(1, self.call.classes)
        return max(TILE, ELEMENTS_A_RANGE // size // TILE * TILE)


def forward(prepared: Launchable, keep: bool) -> tuple[Tensor, Tensor]:
    """The loss, and what a backward wants of it: the states of all rows if they are to be kept, then the denominator if there is one.

    Two tensors: the user may write to the loss.
    """
    call, device = prepared.call, prepared.device
    options: dict[str, Any] = {"dtype": call.real, "device": device}
    reduced = call.reduction != "none"
    loss = torch.empty((), **options) if reduced else memory.empty(call.shape, **options)
    kept = torch.empty(states(prepared) * keep + int(reduced), **options)
    state, denominator = _split(prepared, kept, keep)
    outputs = {"total" if reduced else "loss": loss, "denominator": denominator, "state": state, "normalizer": call.normalizer}
    if prepared.shape:
        if os.environ.get("LOSSZOO_CHECK") == "1":
            check_labels(call)
        partial = torch.empty(2 * prepared.shape.forward.grid, dtype=torch.float64, device=device) if reduced else None
        counter = _counter(device) if reduced else None
        prepared.run("forward", partial=partial, counter=counter, **outputs)
    else:
        partial = torch.empty(2 * prepared.ranges(), dtype=torch.float64)
        status = torch.full((prepared.ranges(),), -1)
        prepared.run("forward", partial=partial, status=status, **outputs)
        if prepared.kernel.labels and (row := int(status[0])) >= 0:
            raise_stray(call, row)
    return loss, kept


def _counter(device: torch.device) -> int:
    return counters.slot(device.index, torch.cuda.current_stream(device).cuda_stream, torch.cuda.is_current_stream_capturing())


def states(prepared: Launchable) -> int:
    """How many numbers about its rows a call keeps for the backward."""
    return len(prepared.kernel.program.forward.state) * prepared.call.rows


def _split(prepared: Launchable, kept: Tensor, states_too: bool = True) -> tuple[Tensor | None, Tensor | None]:
    state = kept if states_too and states(prepared) else None
    return state, kept[-1:] if prepared.call.reduction != "none" else None


def backward(prepared: Launchable, grad: Tensor, kept: Tensor) -> list[Tensor]:
    """The gradients of the operands that the kernel was made for."""
    state, denominator = _split(prepared, kept)
    if grad.ndim == 0:
        item = 0
    else:
        grad, item, _ = item_strides(grad, None)
    prepared.values["grad_output_item"] = item
    grads = [prepared.gradient(name) for name in prepared.wrt]
    prepared.run("backward", grad_output=grad, denominator=denominator, state=state)
    return grads


class _Cpu:
    """The shared object of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        library = jit.load(jit.build(kernel.source("cpp")))
        self.functions: dict[str, Any] = {name: getattr(library, name) for name in (*kernel.entries, "finish")}

    def run(self, entry: str, prepared: Launchable) -> None:
        args = ctypes.create_string_buffer(prepared.pack())
        address = ctypes.addressof(args)
        threads.parallel_for(self.functions[entry], address, prepared.call.rows, prepared.grain(entry))
        if entry == "forward":
            finish = self.functions["finish"]
            finish(ctypes.c_void_p(address), ctypes.c_int64(0), ctypes.c_int64(0))


class _Cuda:
    """The cubin of a kernel, on one device."""

    def __init__(self, kernel: Kernel, device: int) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise CaptureError(
                f"{kernel.spec.name}: its kernel for these types and options has to be built or loaded, which cannot be done while a CUDA "
                f"graph is captured; call losszoo.warmup({kernel.spec.name}, ...) with such arguments before the capture"
            )
        module = cuda_driver.load(jit.build(kernel.source("cuda"), cuda_driver.arch(device)), device)
        self.functions: dict[str, Any] = {name: module.function(name) for name in kernel.entries}

    def run(self, entry: str, prepared: Launchable) -> None:
        stream = torch.cuda.current_stream(prepared.device).cuda_stream
        launch = prepared.launch(entry)
        self.functions[entry].launch(launch.grid, launch.threads, 0, stream, prepared.pack())


@cache
def kernel_of(spec, choice, form: Form) -> Kernel:
    return Kernel(spec, choice, form)


@cache
def runner(kernel: Kernel, device: torch.device) -> _Cpu | _Cuda:
    return _Cpu(kernel) if device.type == "cpu" else _Cuda(kernel, device.index)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


