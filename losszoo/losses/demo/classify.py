"""A small classifier of the digits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from losszoo.losses.demo.data import Split
from losszoo.losses.demo.training import train

BATCH = 64


@dataclass(frozen=True)
class Classifier:
    """What a run gave: the loss of every step, and the share of held-out digits that are named rightly."""

    curve: list[float]
    accuracy: float


def classify(
    title: str, loss: Callable[[Tensor, Tensor], Tensor], training: Split, held_out: Split, epochs: int = 30
) -> Classifier:
    """Train from a fixed seed, so that two losses that agree give the same curve."""
    torch.manual_seed(0)
    # GELU and not ReLU: without kinks, rounding differences stay the size they are instead of growing step by step
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)

    def losses() -> Iterator[Tensor]:
        for _ in range(epochs):
            for index in torch.randperm(len(training.labels)).split(BATCH):
                yield loss(network(training.images[index]), training.labels[index])

    curve = train(title, optimizer, losses(), epochs * -(-len(training.labels) // BATCH))
    with torch.no_grad():
        right = network(held_out.images).argmax(1) == held_out.labels
    return Classifier(curve, right.float().mean().item())
