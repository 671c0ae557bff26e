"""What a call costs beside its kernels: `python benchmarks/launch.py [--device cuda]`. Exits with 1 where a bar is missed.

losszoo and torch take turns, many short rounds of each; the ratio is the median of each round's ratio. `same` is torch against
itself, which says how far the figures can be trusted. On the CPU the tensors are so small that there is nothing but the call. On a
GPU the time is the wall's, from Python and through to the device.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import losszoo
from losszoo.runtime import native

THREADS = 2
CALLS = {"cpu": 200, "cuda": 100}  # in a turn
# device: (rows, classes), and the most of torch's time that a forward, and a forward with backward, may take
BARS = {"cpu": [((4, 8), None, 0.75)], "cuda": [((16, 512), 0.75, 0.70), ((128, 1000), 0.75, 0.70)]}


def forward(loss: Callable, x: torch.Tensor, y: torch.Tensor) -> None:
    loss(x, y)


def both(loss: Callable, x: torch.Tensor, y: torch.Tensor) -> None:
    loss(x, y).backward()
    x.grad = None


def turn(step: Callable, loss: Callable, x: torch.Tensor, y: torch.Tensor) -> float:
    """Microseconds a call."""
    calls = CALLS[x.device.type]
    if x.device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        step(loss, x, y)
    if x.device.type == "cuda":
        torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - begin) / calls


def measure(step: Callable, x: torch.Tensor, y: torch.Tensor, bar: float | None, rounds: int) -> bool:
    """Print a row of the table; whether the bar is met."""
    losses = (F.cross_entropy, losszoo.cross_entropy, F.cross_entropy)
    times: list[list[float]] = [[] for _ in losses]
    for _ in range(rounds + 5):
        for loss, spent in zip(losses, times):
            spent.append(turn(step, loss, x, y))
    torchs, ours, again = (spent[5:] for spent in times)
    ratio, same = (statistics.median(b / a for a, b in zip(torchs, other)) for other in (ours, again))
    met = bar is None or ratio <= bar
    print(
        f"{x.shape[0]:>4} x {x.shape[1]:<6}{step.__name__:<10}{statistics.median(torchs):10.2f}{statistics.median(ours):10.2f}"
        f"{ratio:9.3f}{same:8.3f}   {'' if bar is None else f'at most {bar:.2f}'}{'' if met else '   MISSED'}",
        flush=True,
    )
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=101)
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    native.wait()
    gc.disable()
    where = torch.cuda.get_device_name() if given.device == "cuda" else f"{THREADS} threads"
    print(f"torch {torch.__version__}, {given.device}, {where}, microseconds a call, {given.rounds} rounds")
    print(f"{'':<21}{'torch':>10}{'losszoo':>10}{'ratio':>9}{'same':>8}")
    met = True
    for shape, *bars in BARS[given.device]:
        x = torch.randn(shape, device=given.device, requires_grad=True)
        y = torch.randint(shape[1], shape[:1], device=given.device)
        for step, bar in zip((forward, both), bars):
            met &= measure(step, x, y, bar, given.rounds)
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
