"""A small convolutional network that finds a digit on a larger canvas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from losszoo.losses.demo.data import CANVAS, Split, scenes
from losszoo.losses.demo.eager import box_iou
from losszoo.losses.demo.training import train

BATCH = 64


@dataclass(frozen=True)
class Localiser:
    """What a run gave: the loss of every step, the held-out canvases, their boxes (xyxy) and the boxes it found."""

    curve: list[float]
    canvases: Tensor
    boxes: Tensor
    found: Tensor
    iou: Tensor


class Network(nn.Module):
    """Canvases (n, 1, 48, 48) to boxes (n, 4), xyxy in pixels."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((1, 8), (8, 16), (16, 32), (32, 32)):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 9, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, canvases: Tensor) -> Tensor:
        centre, size = (CANVAS * self.layers(canvases).sigmoid()).split(2, 1)
        return torch.cat([centre - size / 2, centre + size / 2], 1)


def locate(
    title: str, loss: Callable[[Tensor, Tensor], Tensor], training: Split, held_out: Split, steps: int = 400
) -> Localiser:
    """Train on fresh canvases at every step, from a fixed seed; judge on canvases with digits never seen."""
    torch.manual_seed(0)
    network = Network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=8e-3)

    def losses() -> Iterator[Tensor]:
        for _ in range(steps):
            canvases, boxes = scenes(training.images[torch.randint(len(training.images), (BATCH,))])
            yield loss(network(canvases), boxes)

    curve = train(title, optimizer, losses(), steps)
    network.eval()
    torch.manual_seed(1)
    canvases, boxes = scenes(held_out.images)
    with torch.no_grad():
        found = network(canvases)
    return Localiser(curve, canvases, boxes, found, box_iou(found, boxes)[0])
