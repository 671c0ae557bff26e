"""`losszoo demo`: the zoo's losses at work on the UCI handwritten digits."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F

from losszoo import losses
from losszoo.losses.demo.classify import classify
from losszoo.losses.demo.data import digits
from losszoo.losses.demo.locate import locate
from losszoo.losses.demo.plot import draw
from losszoo.losses.demo.timing import measure


def run(out: Path, epochs: int = 30, steps: int = 400, rounds: int = 9) -> None:
    """Train a classifier and a localiser, time each loss, draw the picture `out`; print what was found."""
    training, held_out = digits()

    print("1. A classifier of handwritten digits, label-smoothed cross-entropy", flush=True)
    ours = classify("losszoo", losses.LabelSmoothingCrossEntropy(label_smoothing=0.1), training, held_out, epochs)
    torchs = classify("torch", lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), training, held_out, epochs)
    print(f"   held-out accuracy   losszoo {ours.accuracy:.2%}   torch {torchs.accuracy:.2%}")
    print(f"   largest difference of the loss curves   {max(abs(a - b) for a, b in zip(ours.curve, torchs.curve)):.1e}")

    print("\n2. A localiser that finds a digit on a larger canvas", flush=True)
    localisers = {
        name: locate(name, loss, training, held_out, steps)
        for name, loss in (("CIoU", losses.CIoULoss()), ("WIoU v3", losses.WIoULoss(version=3)))
    }
    print(
        "   mean IoU on held-out digits   " + "   ".join(f"{name} {r.iou.mean():.3f}" for name, r in localisers.items())
    )

    print("\n3. Forward + backward, median milliseconds (plain torch, losszoo)", flush=True)
    for row in measure(rounds):
        print(
            f"   {row.title:<36}{row.shape:>12}{row.eager:9.2f}{row.fused:9.2f}   {row.eager / row.fused:5.1f}x",
            flush=True,
        )

    draw(out, ours, torchs, localisers)
    print(f"\nThe picture: {out}")
