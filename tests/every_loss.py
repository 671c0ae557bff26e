"""One small forward and backward of every loss, through every lowering and dtype: `python -m tests.every_loss cuda`.

Meant to run under compute-sanitizer: memcheck, racecheck, initcheck, synccheck.
"""

from __future__ import annotations

import sys

import torch

import losszoo


def run(device: str) -> int:
    """Run them all; gives the number of calls made."""
    torch.manual_seed(0)
    calls = 0
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        for shape in ((7,), (5, 40), (3, 1000), (37, 33), (2, 19, 5, 9)):
            classes = shape[0] if len(shape) == 1 else shape[1]
            items = shape[:0] if len(shape) == 1 else (shape[0], *shape[2:])
            target = torch.randint(0, classes, items, device=device)
            if target.ndim:
                target.view(-1)[0] = -100
            probabilities = torch.rand(shape, device=device, dtype=dtype).requires_grad_()
            weight = torch.rand(classes, device=device, dtype=dtype)
            for options in ({}, {"weight": weight, "label_smoothing": 0.1}, {"reduction": "none"}):
                logits = torch.randn(shape, device=device, dtype=dtype).requires_grad_()
                losszoo.cross_entropy(logits, target, z_loss=0.01, softcap=5.0, **options).sum().backward()
                losszoo.cross_entropy(logits, probabilities, **options).sum().backward()
                losszoo.softmax_focal_loss(logits, target, **options).sum().backward()
                calls += 3
        for size in (1, 5, 300):
            for reduction in ("none", "mean"):
                logits = torch.randn(size, device=device, dtype=dtype).requires_grad_()
                losszoo.sigmoid_focal_loss(logits, torch.rand_like(logits), reduction=reduction).sum().backward()
                boxes = torch.rand(2, size, 4, device=device, dtype=dtype).cumsum(-1).requires_grad_()
                losszoo.ciou_loss(*boxes, reduction=reduction).sum().backward()
                calls += 2
                for version in (1, 2, 3):
                    losszoo.wiou_loss(*boxes, 0.8, version=version, reduction=reduction).sum().backward()
                    calls += 1
    if device == "cuda":
        torch.cuda.synchronize()
    return calls


if __name__ == "__main__":
    print(f"{run(sys.argv[1] if len(sys.argv) > 1 else 'cpu')} calls made")
