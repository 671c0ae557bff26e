"""One small ordinary call of every loss, for what must hold of all of them."""

from __future__ import annotations

import torch

from tests.strategies import Call, box_pairs, generator, labels_for, logits

SHAPES = ("small", "large", "strided")


def sample(name: str, dtype: torch.dtype = torch.float32, size: str = "small", **options) -> Call:
    """`large` needs several blocks or threads; `strided` has its classes in the middle, or its boxes in a batch."""
    rng = generator(7)
    options = {"reduction": "mean", **options}
    if name in ("cross_entropy", "softmax_focal_loss"):
        shape = {"small": (6, 10), "large": (700, 70), "strided": (3, 7, 30, 40)}[size]
        x = logits("normal", shape, rng)
        target = labels_for(x, -100, 0.2, rng)
        weight = torch.rand(shape[1], generator=rng, dtype=torch.float64) + 0.5
        return Call({"input": x.to(dtype), "target": target, "weight": weight.to(dtype)}, options, ("input",))
    count = {"small": 9, "large": 20_001, "strided": 6_000}[size]
    if name == "sigmoid_focal_loss":
        shape = (count // 3, 3) if size == "strided" else (count,)
        x = logits("normal", shape, rng)
        target = (torch.rand(shape, generator=rng) < 0.3).to(dtype)
        return Call({"inputs": x.to(dtype), "targets": target}, options, ("inputs",))
    pred, target = box_pairs("random", count, rng)
    if size == "strided":
        pred, target = pred.view(2, -1, 4), target.view(2, -1, 4)
    return Call({"pred": pred.to(dtype), "target": target.to(dtype)}, options, ("pred", "target"))
