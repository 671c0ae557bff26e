"""Which tiling is fastest for a shape: `python benchmarks/tune.py [part of a case's name ...]`, on a CUDA GPU.

Times forward + backward of every candidate tiling for some shapes, each checked against the present choice, the fastest first. What it
finds becomes a threshold in losszoo/runtime/tiling.py.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from gpu import Clock, Problem, problems

from losszoo.codegen.kernel import Tiling
from losszoo.runtime import tiling
from losszoo.runtime.tiling import Launch, Shape, power_of_two

PRESENT = {"rows": tiling.rows, "columns": tiling.columns, "items": tiling.items}


def row_candidates(count: int, classes: int, width: int, skewed: bool, operands: int, processors: int) -> Iterator[Shape]:
    vectors = -(-classes // width) + skewed
    yield PRESENT["rows"](count, classes, width, skewed, operands, processors)
    for in_flight in (2, 4, 8):
        team = power_of_two(-(-vectors // in_flight))
        full = min(in_flight, classes // (width * team))
        if 2 <= team <= 32:
            for threads, resident, ahead in (
                (128, 512, True), (128, 768, True), (128, 1024, True), (256, 512, True), (512, 512, True),
                (128, 1024, False), (128, 1536, False), (256, 1024, False),
            ):  # fmt: skip
                held = Tiling(width, in_flight, team, True, full, False, skewed, ahead, threads)
                yield shape(held, -(-count * team // threads), threads, resident, processors)
            if count * team <= 512:
                held = Tiling(width, in_flight, team, True, full, False, skewed, threads=512)
                for threads in (32, 64):
                    yield Shape(Launch(held, 1, power_of_two(count * team)), Launch(held, -(-count * team // threads), threads))
        if 64 <= team <= 512:
            for resident in (512, 768, 1024):
                held = Tiling(width, in_flight, 0, True, full, False, skewed, threads=team)
                yield shape(held, count, team, resident, processors)
        if vectors > 32 * in_flight and in_flight < 8:  # a warp a row, stepping
            for threads, resident in ((128, 512), (128, 768), (128, 1024), (256, 512)):
                looped = Tiling(width, in_flight, 32, skewed=skewed, threads=threads)
                yield shape(looped, -(-count * 32 // threads), threads, resident, processors)
        if vectors > 2048 and in_flight < 8:
            for threads, resident in ((256, 512), (256, 768), (512, 512), (512, 1024)):
                looped = Tiling(width, in_flight, skewed=skewed, threads=threads)
                yield shape(looped, count, threads, resident, processors)


def column_candidates(count: int, classes: int, width: int, size: int, operands: int, processors: int) -> Iterator[Shape]:
    yield PRESENT["columns"](count, classes, width, size, operands, processors)
    for wide, in_flight, ahead in itertools.product((1, 2, 4), (5, 10, classes), (True, False)):
        for resident in (512, 768, 1024) if width % wide == 0 and in_flight <= 32 else ():
            held = Tiling(wide, in_flight, held=in_flight == classes, ahead=ahead)
            yield shape(held, -(-count // (256 * wide)), 256, resident, processors)


def item_candidates(count: int, width: int, processors: int) -> Iterator[Shape]:
    yield PRESENT["items"](count, width, processors)
    for in_flight, resident in itertools.product((1, 2, 4), (1024, 1536, 2048)):
        chosen = Tiling(width, in_flight)
        yield shape(chosen, -(-count // (256 * width * in_flight)), 256, resident, processors)


def shape(*launch: Any) -> Shape:
    """Both directions launched alike."""
    return Shape(tiling.launch(*launch), tiling.launch(*launch))


CANDIDATES = {"rows": row_candidates, "columns": column_candidates, "items": item_candidates}


def tune(problem: Problem, clock: Clock) -> None:
    input, *others = problem.make()
    input.requires_grad_()
    cold = 3 * input.numel() * input.element_size() > 60 << 20
    floor = 1e6 * problem.floor_bytes / clock.bytes_a_second
    one = torch.ones((), device="cuda")
    def forward() -> torch.Tensor:
        return problem.ours(input, *others)

    def both() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(forward(), input, one)

    seen: list[tuple[str, tuple]] = []
    for name in CANDIDATES:
        with mock.patch.object(tiling, name, lambda *shape, name=name: seen.append((name, shape)) or PRESENT[name](*shape)):
            problem.ours(input, *others)
    (lowering, given), *_ = seen
    exact, (exact_grad,) = forward().detach(), both()  # by the tiling as it is, which the tests hold to the interpreter
    found, first = [], PRESENT[lowering](*given)
    for candidate in CANDIDATES[lowering](*given):
        with mock.patch.object(tiling, lowering, lambda *_, candidate=candidate: candidate):
            loss, (grad,) = forward().detach(), both()
            close = torch.allclose(loss, exact, rtol=1e-5)
            close &= torch.allclose(grad, exact_grad, rtol=1e-2, atol=1e-3 * float(exact_grad.abs().max()))
            times = [clock.work_us(work, cold)[0] for work in (both, forward)]
        found.append((times, candidate, close))
    print(f"\n{problem.name}: floor {floor:.1f} us", flush=True)
    found.sort(key=lambda f: f[0][1])
    backward = sorted(found, key=lambda f: f[0][0] - f[0][1])
    least = found[0][0][1] + backward[0][0][0] - backward[0][0][1]
    print(f"  {100 * floor / least:5.1f} % with the best of either direction", flush=True)
    for direction, best in ("forward", found[:4]), ("backward", backward[:4]), ("present", [f for f in found if f[1] == first]):
        for (total, forward_), candidate, close in best:
            launch = getattr(candidate, direction, candidate.backward)
            t = launch.tiling
            print(
                f"  {direction:8} {forward_:7.2f} + {total - forward_:7.2f}  w{t.width} v{t.vectors} g{t.group} held{t.held:d}"
                f" f{t.full} s{t.skipping:d} a{t.ahead:d} {launch.grid} x {launch.threads}{'' if close else '   WRONG'}",
                flush=True,
            )
    print(f"  {len(found)} candidates, wrong: {[c for _, c, close in found if not close][:3]}", flush=True)


def main() -> None:
    os.environ["LOSSZOO_RUNTIME"] = "python"  # the native runtime would remember the first tiling of a shape
    clock = Clock(ms=25.0)
    print(f"copy {clock.bytes_a_second / 1e9:.0f} GB/s")
    for problem in problems():
        if not sys.argv[1:] or any(part in problem.name for part in sys.argv[1:]):
            tune(problem, clock)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
