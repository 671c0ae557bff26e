"""Hypothesis strategies for everything that a loss may be called with; values come from a drawn seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.layouts import LAYOUTS, arrange

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
REDUCTIONS = ("none", "mean", "sum")
FORMATS = ("xyxy", "xywh", "cxcywh")

F64, F32, F16, BF16 = DTYPES
# What specialises a kernel, paired so that every two settings meet: all combinations would compile for many minutes.
ROW_FORMS = (  # dtype, probabilities with a gradient or not (None: labels), class weights, soft cap, smoothing, z-loss
    (F64, None, True, True, True, False),
    (F64, True, True, False, False, True),
    (F64, False, False, True, False, False),
    (F32, None, True, False, True, True),
    (F32, None, False, True, False, False),
    (F32, True, False, False, True, False),
    (F16, None, True, False, False, False),
    (F16, False, True, True, True, True),
    (BF16, None, False, False, False, True),
    (BF16, True, True, True, True, False),
)
FOCAL_FORMS = tuple(
    (dtype, None, weighted, False, weighted == (dtype in (F64, F16)), False)
    for dtype in DTYPES
    for weighted in (True, False)
)
ELEMENT_FORMS = (  # dtype, weighted, gradient of the targets
    *((dtype, both, both) for dtype in DTYPES for both in (True, False)),
    (F32, True, False),
    (F32, False, True),
)
BOX_FORMS = (  # dtype, box format, version (of Wise-IoU), weighted, gradient of the targets
    (F64, "xyxy", 1, True, True),
    (F64, "xywh", 3, False, True),
    (F64, "cxcywh", 2, True, False),
    (F32, "xyxy", 3, True, False),
    (F32, "xywh", 2, True, True),
    (F32, "cxcywh", 1, False, True),
    (F16, "xyxy", 2, False, True),
    (F16, "cxcywh", 3, True, True),
    (BF16, "xywh", 1, False, False),
    (BF16, "xyxy", 3, False, True),
)

layouts = st.sampled_from(LAYOUTS)
seeds = st.integers(0, 2**31 - 1)
classes = st.sampled_from([1, 2, 3, 4, 7, 8, 16, 19, 32, 33, 63, 100, 257, 1000, 1025])


@dataclass
class Call:
    """One call of a loss: CPU tensors by argument name and how to stride them, options, and what gets a gradient."""

    tensors: dict[str, Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    differentiable: tuple[str, ...] = ()
    layouts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors = self.place("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors[self.differentiable[0]].dtype

    def place(self, device: str) -> dict[str, Tensor]:
        """Fresh copies of the tensors there, in their layouts."""
        return {
            name: arrange(tensor.to(device, copy=True), self.layouts.get(name, "contiguous"))
            for name, tensor in self.tensors.items()
        }

    def place_options(self, device: str) -> dict[str, Any]:
        return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in self.options.items()}

    def __repr__(self) -> str:
        tensors = {k: f"{t.dtype}{tuple(t.shape)}" for k, t in self.tensors.items()}
        return f"Call({tensors}, {self.options}, {self.differentiable}, {self.layouts})"


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@st.composite
def row_shapes(draw: st.DrawFn) -> tuple[int, ...]:
    """(C), (N, C), (N, C, d1), (N, C, d1, d2), at most some 20,000 numbers; N and d may be 0."""
    c = draw(classes)
    rank = draw(st.sampled_from([1, 2, 2, 2, 3, 4]))
    if rank == 1:
        return (c,)
    rest = draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 9]), min_size=rank - 1, max_size=rank - 1))
    while c * torch.Size(rest).numel() > 20_000:
        rest[rest.index(max(rest))] //= 2
    return (rest[0], c, *rest[1:])


def logits(kind: str, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Float64 logits. Masked ones keep class 0 (of dim 1, or of dim 0 in a vector) finite."""
    x = 3 * torch.randn(shape, generator=rng, dtype=torch.float64)
    if kind == "offset":
        return x + 1e4
    if kind == "below":
        return x - 1e4
    if kind == "saturated":
        return 100 * torch.sign(x)
    if kind == "equal":
        return torch.zeros_like(x)
    if kind == "masked":
        mask = torch.rand(shape, generator=rng) < 0.4
        mask.select(1 if len(shape) > 1 else 0, 0).fill_(False)
        return x.masked_fill(mask, -torch.inf)
    return x


def labels_for(x: Tensor, ignore_index: int, ignored: float, rng: torch.Generator) -> Tensor:
    """A label a row among the classes that are not masked, some of them ignored."""
    axis = 1 if x.dim() > 1 else 0
    lottery = torch.rand(x.shape, generator=rng, dtype=torch.float64)
    labels = lottery.masked_fill(x.isinf(), -1).argmax(axis)
    return labels.masked_fill(torch.rand(labels.shape, generator=rng) < ignored, ignore_index)


def form_of(forms: tuple, double: bool) -> st.SearchStrategy[tuple]:
    return st.sampled_from([form for form in forms if form[0] == F64] if double else forms)


@st.composite
def row_calls(draw: st.DrawFn, *, focal: bool = False, double: bool = False) -> Call:
    rng = generator(draw(seeds))
    dtype, soft, weighted, capped, smoothed, z = draw(form_of(FOCAL_FORMS if focal else ROW_FORMS, double))
    shape = draw(row_shapes())
    kinds = ["normal", "offset", "below", "saturated", "equal"]
    if not soft and not smoothed:  # elsewhere a loss or a gradient is infinite
        kinds.append("masked")
    kind = draw(st.sampled_from(kinds))
    layout = {"input": draw(layouts), "target": draw(layouts)}
    x = arrange(logits(kind, shape, rng).to(dtype), layout["input"])
    axis = 1 if len(shape) > 1 else 0
    smoothing = draw(st.sampled_from([0.1, 1.0])) if smoothed else 0.0
    options: dict[str, Any] = {"label_smoothing": smoothing, "reduction": draw(st.sampled_from(REDUCTIONS))}
    ignore_index = draw(st.sampled_from([-100, -1, 0, 255]))
    if soft is not None:
        q = torch.rand(shape, generator=rng, dtype=torch.float64).masked_fill(x.isinf(), 0)
        q = (q / q.sum(axis, keepdim=True)).masked_fill(torch.rand(shape, generator=rng) < 0.2, 0)
        target = q.to(dtype)
    else:
        ignored = draw(st.sampled_from([0.0, 0.3, 1.0]))
        options["ignore_index"] = ignore_index
        target = labels_for(x, ignore_index, ignored, rng)
    if layout["target"] == "expanded" and kind == "masked":
        layout["target"] = layout["input"]  # so that no label moves onto a masked class
    tensors = {"input": x, "target": target}
    if weighted:
        weight = torch.rand(shape[axis], generator=rng, dtype=torch.float64) + 0.1
        if shape[axis] > 2:
            weight[-1] = 0
        tensors["weight"] = weight.to(draw(st.sampled_from([dtype, torch.float32])) if dtype.itemsize < 4 else dtype)
    if focal:
        options["gamma"] = draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.5]))
    else:
        options["z_loss"] = 1e-4 if z else 0.0
        options["softcap"] = 30.0 if capped else None
    if options["reduction"] == "mean" and draw(st.booleans()):
        options["normalizer"] = draw(normalizers())
    return Call(tensors, options, ("input", "target") if soft else ("input",), layout)


@st.composite
def normalizers(draw: st.DrawFn) -> float | Tensor:
    value = draw(st.sampled_from([1.0, 7.5, 300.0]))
    return torch.tensor(value) if draw(st.booleans()) else value


@st.composite
def elementwise_calls(draw: st.DrawFn, *, double: bool = False) -> Call:
    rng = generator(draw(seeds))
    dtype, weighted, both = draw(form_of(ELEMENT_FORMS, double))
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 7, 16, 33]), max_size=3).map(tuple))
    kind = draw(st.sampled_from(["normal", "small", "saturated", "extreme"]))
    x = (1e-3 if kind == "small" else 4) * torch.randn(shape, generator=rng, dtype=torch.float64)
    if kind == "saturated":
        x = 100 * torch.sign(x)
    if kind == "extreme":
        x = 50 * x.clamp(-12, 12)
    soft = draw(st.booleans())
    t = torch.rand(shape, generator=rng, dtype=torch.float64)
    t = t.clamp(0.01, 0.99) if soft else t.round()
    tensors = {"inputs": x.to(dtype), "targets": t.to(dtype)}
    if weighted:
        tensors["weight"] = torch.rand(shape, generator=rng, dtype=torch.float64).to(dtype)
    layout = {name: draw(layouts) for name in tensors}
    options: dict[str, Any] = {
        "alpha": draw(st.sampled_from([0.25, 0.5, 0.9, 0.0, -1.0])),
        "gamma": draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.5])),
        "reduction": draw(st.sampled_from(REDUCTIONS)),
    }
    if options["reduction"] == "mean" and draw(st.booleans()):
        options["normalizer"] = draw(normalizers())
    return Call(tensors, options, ("inputs", "targets") if both else ("inputs",), layout)


BOX_KINDS = ("random", "identical", "nested", "disjoint", "touching", "huge", "tiny", "flat", "point")


def box_pairs(kind: str, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two sets of boxes as corners, in float64."""
    r = torch.rand(8, count, generator=rng, dtype=torch.float64)
    low, side = 10 * r[:2].T, 0.5 + 8 * r[2:4].T
    pred = torch.cat([low, low + side], -1)
    other = low + 4 * (r[4:6].T - 0.5)
    target = torch.cat([other, other + 0.5 + 8 * r[6:8].T], -1)
    if kind == "identical":
        target = pred.clone()
    if kind == "nested":
        target = torch.cat([low + 0.2 * side, low + (0.4 + 0.5 * r[4:6].T) * side], -1)
    if kind == "disjoint":
        target = pred + 20 + 5 * r[4:5].T
    if kind == "touching":
        target = pred + torch.cat([side[:, :1], torch.zeros_like(side[:, :1])], -1).repeat(1, 2)
    if kind == "huge":
        pred, target = pred * 1e3, target * 1e3
    if kind == "tiny":
        pred, target = pred * 1e-4, target * 1e-4
    if kind in ("flat", "point"):
        pred = torch.cat([low, low + side * (torch.tensor([1.0, 0.0]) if kind == "flat" else 0.0)], -1)
    if kind == "point" and count > 1:
        target[::2] = pred[::2]
    return pred, target


def from_corners(boxes: Tensor, box_format: str) -> Tensor:
    low, high = boxes[..., :2], boxes[..., 2:]
    if box_format == "xyxy":
        return boxes
    return torch.cat([low if box_format == "xywh" else (low + high) / 2, high - low], -1)


@st.composite
def box_calls(draw: st.DrawFn, *, wise: bool = False, double: bool = False, kinds: tuple[str, ...] = BOX_KINDS) -> Call:
    rng = generator(draw(seeds))
    dtype, box_format, version, weighted, both = draw(form_of(BOX_FORMS, double))
    shape = draw(st.sampled_from([(), (1,), (2,), (5,), (64,), (301,), (2, 3), (0,), (2, 0)]))
    pair = box_pairs(draw(st.sampled_from(kinds)), torch.Size(shape).numel(), rng)
    if dtype == torch.float16:  # no overflow of a gradient of 1 / side
        pair = tuple(b * 100 if b.numel() and b.abs().max() < 0.01 else b for b in pair)
    pred, target = (from_corners(b, box_format).view(*shape, 4).to(dtype) for b in pair)
    tensors = {"pred": pred, "target": target}
    if weighted:
        tensors["weight"] = torch.rand(shape, generator=rng, dtype=torch.float64).to(dtype)
    layout = {name: draw(layouts) for name in tensors}
    options: dict[str, Any] = {"box_format": box_format, "reduction": draw(st.sampled_from(REDUCTIONS))}
    if wise:
        options["version"] = version
        mean = draw(st.sampled_from([1.0, 0.3]))
        options["iou_mean"] = torch.tensor(mean) if draw(st.booleans()) else mean
        options |= draw(st.sampled_from([{}, {"alpha": 1.7, "delta": 2.7, "gamma": 1.5}]))
    if options["reduction"] == "mean" and draw(st.booleans()):
        options["normalizer"] = draw(normalizers())
    return Call(tensors, options, ("pred", "target") if both else ("pred",), layout)
