"""Each loss, forward and backward, beside plain torch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from losszoo import losses
from losszoo.losses.demo import eager

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    """Median milliseconds of one forward and backward."""

    title: str
    shape: str
    eager: float
    fused: float


def problems() -> Iterator[tuple[str, Tensor, Tensor, Loss, Loss]]:
    """(title, input, target, plain torch, losszoo) of each loss."""
    torch.manual_seed(0)
    logits, labels = torch.randn(4096, 1000), torch.randint(1000, (4096,))
    yield "cross_entropy", logits, labels, F.cross_entropy, losses.cross_entropy
    smooth: dict[str, Any] = {"label_smoothing": 0.1}
    yield (
        "cross_entropy, label_smoothing=0.1", logits, labels,
        lambda x, y: F.cross_entropy(x, y, **smooth), lambda x, y: losses.cross_entropy(x, y, **smooth),
    )  # fmt: skip
    yield "softmax_focal_loss", logits, labels, eager.softmax_focal_loss, losses.softmax_focal_loss
    scores, hits = torch.randn(20_000, 80), (torch.rand(20_000, 80) < 0.01).float()
    yield (
        "sigmoid_focal_loss", scores, hits,
        eager.sigmoid_focal_loss, lambda x, y: losses.sigmoid_focal_loss(x, y, reduction="mean"),
    )  # fmt: skip
    corner = 600 * torch.rand(100_000, 2)
    target = torch.cat([corner, corner + 10 + 90 * torch.rand(100_000, 2)], 1)
    boxes = target + 5 * torch.rand(100_000, 4)
    yield "ciou_loss", boxes, target, eager.ciou_loss, losses.ciou_loss
    yield "wiou_loss", boxes, target, eager.wiou_loss, losses.wiou_loss


def measure(rounds: int = 9) -> Iterator[Row]:
    """Time every problem; the two sides take turns, so that whatever else the machine does falls on both."""
    for title, input, target, *sides in problems():
        input.requires_grad_()
        times: list[list[float]] = [[], []]
        for _ in range(rounds + 2):
            for loss, spent in zip(sides, times):
                begin = time.perf_counter()
                torch.autograd.grad(loss(input, target), input)
                spent.append(1e3 * (time.perf_counter() - begin))
        slow, fast = (statistics.median(spent[2:]) for spent in times)
        yield Row(title, " x ".join(map(str, input.shape)), slow, fast)
