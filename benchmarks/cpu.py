"""Kernels against plain torch and torch.compile on the CPU: `python benchmarks/cpu.py`. Exits with 1 where a bar is missed.

Forward and backward on two threads, the three taking turns; the figures are medians, the ratios medians of each round's ratio.
All of it twice, since much of a large gradient's time is the kernel handing out its pages: as is, and with
THP_MEM_ALLOC_ENABLE=1, by which torch asks for pages of 2 MB. The bars hold for both.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

THREADS = 2
ROUNDS = 11
THP = "THP_MEM_ALLOC_ENABLE"

Problem = tuple[str, tuple, Callable, Callable, float, float]


def problems() -> Iterator[Problem]:
    """(title, (input, target), plain torch, losszoo, how many times faster than eager, than torch.compile)."""
    import torch
    import torch.nn.functional as F

    import losszoo
    from losszoo.losses.demo import eager

    torch.manual_seed(0)
    for rows, classes, *bars in ((4096, 1000, 3.0, 2.0), (256, 128256, 2.5, 1.8)):
        data = torch.randn(rows, classes), torch.randint(classes, (rows,))
        yield f"cross_entropy {rows} x {classes}", data, F.cross_entropy, losszoo.cross_entropy, *bars
    data = torch.randn(10_000_000), (torch.rand(10_000_000) < 0.01).float()

    def focal(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return losszoo.sigmoid_focal_loss(inputs, targets, reduction="mean")

    yield "sigmoid_focal_loss 10M", data, eager.sigmoid_focal_loss, focal, 12.0, 2.0
    corner = 600 * torch.rand(1_000_000, 2)
    target = torch.cat([corner, corner + 10 + 90 * torch.rand(1_000_000, 2)], 1)
    data = target + 5 * torch.rand(1_000_000, 4), target
    yield "ciou_loss 1M boxes", data, eager.ciou_loss, losszoo.ciou_loss, 10.0, 3.0


def measure(problem: Problem) -> bool:
    """Print a row of the table; whether both bars are met."""
    import torch

    title, (input, target), plain, fused, *bars = problem
    input.requires_grad_()
    torch.compiler.reset()
    losses = (plain, torch.compile(plain), fused)
    times: list[list[float]] = [[] for _ in losses]
    for _ in range(ROUNDS + 2):
        for loss, spent in zip(losses, times):
            time.sleep(0.02)  # a compiled function brings an OpenMP of its own, whose threads spin for a while after it
            begin = time.perf_counter()
            torch.autograd.grad(loss(input, target), input)
            spent.append(1e3 * (time.perf_counter() - begin))
    eager, compiled, ours = (spent[2:] for spent in times)
    ratios = [statistics.median(a / b for a, b in zip(other, ours)) for other in (eager, compiled)]
    met = all(ratio >= bar for ratio, bar in zip(ratios, bars))
    print(
        f"{title:<28}" + "".join(f"{statistics.median(spent):10.2f}" for spent in (eager, compiled, ours))
        + "".join(f"{ratio:8.1f}x (at least {bar:.1f})" for ratio, bar in zip(ratios, bars)) + "   MISSED" * (not met),
        flush=True,
    )  # fmt: skip
    return met


def table() -> int:
    import torch

    from losszoo.runtime import native

    native.wait()  # or it would be built beside
    torch.set_num_threads(THREADS)
    print(f"\n{THP}={os.environ[THP]}, torch {torch.__version__}, {THREADS} threads, forward + backward, ms")
    print(f"{'':<28}{'eager':>10}{'compile':>10}{'losszoo':>10}{'eager / losszoo':>24}{'compile / losszoo':>24}")
    return int(not all([measure(problem) for problem in problems()]))


def main() -> int:
    """torch reads the variable as it loads, so each setting has a process of its own."""
    return max(
        subprocess.run([sys.executable, __file__, "table"], env={**os.environ, THP: on}).returncode for on in ("0", "1")
    )


if __name__ == "__main__":
    sys.exit(table() if sys.argv[1:] == ["table"] else main())
