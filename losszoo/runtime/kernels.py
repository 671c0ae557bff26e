"""A call computed by its kernels: finds the form, builds the kernel on first use, packs the arguments, launches."""

from __future__ import annotations

import ctypes
import os
from functools import cache

import torch
from torch import Tensor

from losszoo import jit
from losszoo.codegen.kernel import Form, Kernel
from losszoo.runtime import cuda_driver, memory, threads
from losszoo.runtime.arguments import Call
from losszoo.runtime.labels import check_labels, raise_stray
from losszoo.runtime.layout import Rows, class_axis, empty_rows, item_strides, row_layout, walkable
from losszoo.spec.operands import ClassWeight, Row, Scalar

ELEMENTS_A_RANGE = 32768  # a CPU range: long enough to outweigh its hand-over, short enough to share out evenly
TILE = 256  # ranges begin at multiples of what the CPU kernels take at once
THREADS = 256  # of a CUDA block, where the row does not say otherwise
BLOCKS_A_PROCESSOR = 8  # a grid that fills the device a few times over; each block strides over the rest


class Prepared:
    """A call with its operands in walkable memory, and the kernel that takes them."""

    def __init__(self, call: Call, operands: dict[str, Tensor], wrt: tuple[str, ...]) -> None:
        self.call, self.device = call, operands[call.differentiable[0]].device
        self.values: dict[str, int | float] = {
            "rows": call.rows, "classes": call.classes, "inner": 1, "mean": int(call.reduction == "mean"),
            "ignore_index": call.ignore_index,
        }  # fmt: skip
        self.alive: list[Tensor] = []  # kept until the launch, whose pointers lead into them
        lowering, dense = self._place(call, operands)
        self.lowering, self.wrt = lowering, {name: operands[name] for name in wrt}
        if self.device.type == "cuda" and lowering == "rows":  # the rows of a gradient lie packed
            dense = dense and all(call.classes * x.element_size() % 16 == 0 for x in self.wrt.values())
        dtypes = tuple(self._storage[name] for name in call.spec.trace(call.choice).leaves)
        form = Form(lowering, dtypes, _name(call.real), wrt, dense)
        self.kernel = _kernel(call.spec, call.choice, form)
        for name, number in zip(self.kernel.parameters, call.numbers, strict=True):
            self.values[f"u_{name}"] = number
        self.values["grain"] = self._grain()

    def _place(self, call: Call, operands: dict[str, Tensor]) -> tuple[str, bool]:
        """Record each operand's address and strides; say which lowering fits and whether all are dense."""
        self._storage: dict[str, str] = {}
        self.layout: Rows | None = None
        dense = True
        for name in call.spec.trace(call.choice).leaves:
            value, kind = operands[name], call.kinds[name]
            if kind is Row:
                value, self.layout, outer, step = walkable(value, self.layout)
                self.values |= {f"s_{name}_outer": outer, f"s_{name}_class": step, "inner": self.layout.inner}
                dense = dense and self._aligned(value, True)
            elif kind in (ClassWeight, Scalar):
                value = value.to(call.real).contiguous()
            else:
                value, item, component = item_strides(value, kind.components)
                self.values |= {f"s_{name}_item": item, f"s_{name}_component": component}
                if not call.spec.row:
                    dense = dense and item == (kind.components or 1) and component == 1 and self._aligned(value, False)
            self.alive.append(value)
            self.values[f"p_{name}"] = value.data_ptr()
            self._storage[name] = _name(value.dtype)
        lowering = self.layout.lowering if self.layout else "items"
        return lowering, dense and lowering != "columns" and (lowering == "items" or self.device.type == "cuda")

    def _aligned(self, value: Tensor, row: bool) -> bool:
        """Whether CUDA can read sixteen bytes at once: from the start, and for rows from the start of each."""
        if self.device.type != "cuda":
            return True
        if value.data_ptr() % 16:
            return False
        found = row_layout(value) if row else None
        return found is None or found[1] * value.element_size() % 16 == 0

    def gradient(self, name: str) -> Tensor:
        """Memory for the gradient of an operand, which the kernel will write."""
        operand = self.wrt[name]
        if self.call.kinds[name] is Row:
            grad = empty_rows(operand, self.lowering)
            step = grad.stride(class_axis(grad.ndim))
            outer = 0 if grad.ndim <= 2 and self.lowering == "columns" else self.call.classes * self.layout.inner
            self.values |= {f"sg_{name}_outer": outer, f"sg_{name}_class": step}
        else:
            grad = memory.empty(operand.shape, operand.dtype, operand.device)
        self.values[f"g_{name}"] = grad.data_ptr()
        return grad

    def _grain(self) -> int:
        if self.lowering == "rows":
            return max(1, ELEMENTS_A_RANGE // max(1, self.call.classes))
        size = max(1, self.call.classes)
        return max(TILE, ELEMENTS_A_RANGE // size // TILE * TILE)

    def run(self, direction: str, **pointers: Tensor | int | None) -> None:
        """Launch the forward or the backward; `pointers` are the outputs and whatever else the direction needs."""
        for name, value in pointers.items():
            self.values[name] = value.data_ptr() if isinstance(value, Tensor) else value or 0
        runner = _runner(self.kernel, self.device.type, self.device.index)
        runner.run(direction, self)

    def pack(self) -> bytes:
        values = self.values
        return self.kernel.packer.pack(*(values.get(f.name, 0) for f in self.kernel.fields))

    def ranges(self) -> int:
        return max(1, -(-self.call.rows // self.values["grain"]))


def forward(prepared: Prepared, keep: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The loss, the mean's denominator, and the row state if it is to be kept for a backward."""
    call, device = prepared.call, prepared.device
    options = {"dtype": call.real, "device": device}
    plan = prepared.kernel.program.forward
    state = torch.empty(len(plan.state), call.rows, **options) if keep and plan.state else None
    reduced = call.reduction != "none"
    loss = None if reduced else memory.empty(call.shape, **options)
    # Two tensors: the user may write to the loss, and the backward still needs the denominator.
    total, denominator = (torch.empty((), **options) if reduced else None for _ in range(2))
    outputs = {"loss": loss, "total": total, "denominator": denominator, "state": state, "normalizer": call.normalizer}
    if device.type == "cuda":
        if os.environ.get("LOSSZOO_CHECK") == "1":
            check_labels(call)
        grid, _ = launch_shape(prepared)
        partial = torch.empty(2 * grid, dtype=torch.float64, device=device) if reduced else None
        counter = torch.zeros((), dtype=torch.int32, device=device) if reduced else None
        prepared.run("forward", partial=partial, counter=counter, **outputs)
    else:
        partial = torch.empty(2 * prepared.ranges(), dtype=torch.float64)
        status = torch.full((prepared.ranges(),), -1)
        prepared.run("forward", partial=partial, status=status, **outputs)
        if prepared.kernel.labels and (row := int(status[0])) >= 0:
            raise_stray(call, row)
    return (total if reduced else loss), denominator, state


def backward(prepared: Prepared, grad: Tensor, denominator: Tensor | None, state: Tensor | None) -> list[Tensor]:
    """The gradients of the operands that the kernel was made for."""
    if grad.ndim == 0:
        item = 0
    else:
        grad, item, _ = item_strides(grad, None)
    prepared.values["grad_output_item"] = item
    grads = [prepared.gradient(name) for name in prepared.wrt]
    prepared.run("backward", grad_output=grad, denominator=denominator, state=state)
    return grads


def launch_shape(prepared: Prepared) -> tuple[int, int]:
    """Blocks and threads of a CUDA launch."""
    call = prepared.call
    most = cuda_driver.multiprocessors(prepared.device.index) * BLOCKS_A_PROCESSOR
    if prepared.lowering == "rows":
        chunk = 8 if prepared.kernel.form.dense else 1
        threads = 128
        while threads < 512 and threads * chunk * 4 < call.classes:
            threads *= 2
        return max(1, min(call.rows, most * 512 // threads)), threads
    items = THREADS * (4 if prepared.lowering == "items" and prepared.kernel.form.dense else 1)
    return max(1, min(-(-call.rows // items), most)), THREADS


class _Cpu:
    """The shared object of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        library = jit.load(jit.build(kernel.source("cpp")))
        self.functions = {name: getattr(library, name) for name in ("forward", "backward", "finish")}

    def run(self, direction: str, prepared: Prepared) -> None:
        args = ctypes.create_string_buffer(prepared.pack())
        address = ctypes.addressof(args)
        threads.parallel_for(self.functions[direction], address, prepared.call.rows, prepared.values["grain"])
        if direction == "forward":
            finish = self.functions["finish"]
            finish(ctypes.c_void_p(address), ctypes.c_int64(0), ctypes.c_int64(0))


class _Cuda:
    """The cubin of a kernel, on one device."""

    def __init__(self, kernel: Kernel, device: int) -> None:
        module = cuda_driver.load(jit.build(kernel.source("cuda"), cuda_driver.arch(device)), device)
        self.functions = {name: module.function(name) for name in ("forward", "backward")}

    def run(self, direction: str, prepared: Prepared) -> None:
        grid, block = launch_shape(prepared)
        stream = torch.cuda.current_stream(prepared.device).cuda_stream
        self.functions[direction].launch(grid, block, 0, stream, prepared.pack())


@cache
def _kernel(spec, choice, form: Form) -> Kernel:
    return Kernel(spec, choice, form)


@cache
def _runner(kernel: Kernel, device_type: str, index: int | None) -> _Cpu | _Cuda:
    return _Cpu(kernel) if device_type == "cpu" else _Cuda(kernel, index)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


