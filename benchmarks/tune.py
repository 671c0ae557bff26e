"""Which tiling is fastest for a shape: `python benchmarks/tune.py [part of a case's name ...]`, on a CUDA GPU.

Times forward + backward of every candidate tiling for some shapes, each checked against the present choice, the fastest first. What it
finds becomes a threshold in losszoo/runtime/tiling.py.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from unittest import mock

import torch
from gpu import Clock, Problem, problems

from losszoo.codegen.kernel import Tiling
from losszoo.runtime import tiling
from losszoo.runtime.tiling import Launch, Shape, power_of_two


def row_candidates(count: int, classes: int, width: int, skewed: bool, operands: int, processors: int) -> Iterator[Shape]:
    vectors = -(-classes // width) + skewed
    for in_flight in (1, 2, 3, 4, 6, 8):
        team = power_of_two(-(-vectors // in_flight))
        full = 0 if skewed else classes // (width * team)
        if team <= 32 and team * in_flight < 2 * vectors + 2:
            for threads, resident in itertools.product((64, 128, 256), (1024, 1536, 2048)):
                grid = min(-(-count // (threads // team)), processors * (resident // threads))
                yield shape(Tiling(width, in_flight, team, True, full, team == 32, skewed, threads), grid, threads)
        if 32 <= team <= 1024 and team * in_flight < 2 * vectors + 32:
            for resident in (1024, 2048, 1 << 20):
                grid = min(count, processors * (resident // team))
                yield shape(Tiling(width, in_flight, 0, True, full, True, skewed, team), grid, team)
        if vectors > 512 and in_flight <= 4:
            for threads, resident in itertools.product((256, 512, 1024), (1024, 2048, 1 << 20)):
                if team > threads:
                    grid = min(count, processors * (resident // threads))
                    yield shape(Tiling(width, in_flight, skewed=skewed, threads=threads), grid, threads)


def shape(chosen: Tiling, grid: int, threads: int) -> Shape:
    return Shape(chosen, Launch(grid, threads), Launch(grid, threads))


def column_candidates(count: int, classes: int, width: int, operands: int, processors: int) -> Iterator[Shape]:
    for wide, in_flight, threads, resident in itertools.product((1, 2, 4, 8), (4, 8, 10, 12, 16, 20), (128, 256), (1024, 2048, 1 << 20)):
        if width % wide == 0 and wide * in_flight <= 64 and in_flight < classes + 4:
            grid = min(-(-count // (threads * wide)), processors * (resident // threads))
            yield shape(Tiling(wide, in_flight, threads=threads), grid, threads)


def item_candidates(count: int, width: int, operands: int, processors: int) -> Iterator[Shape]:
    for in_flight, threads, resident in itertools.product((1, 2, 4), (128, 256, 512), (1024, 2048, 1 << 20)):
        grid = min(-(-count // (threads * width * in_flight)), processors * (resident // threads))
        yield shape(Tiling(width, in_flight, threads=threads), grid, threads)


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
        with mock.patch.object(tiling, name, lambda *shape, name=name: seen.append((name, shape)) or next(CANDIDATES[name](*shape))):
            problem.ours(input, *others)
    (lowering, given), *_ = seen
    exact, (exact_grad,) = forward().detach(), both()  # by the tiling as it is, which the tests hold to the interpreter
    found = []
    for candidate in CANDIDATES[lowering](*given):
        with mock.patch.object(tiling, lowering, lambda *_, candidate=candidate: candidate):
            loss, (grad,) = forward().detach(), both()
            close = torch.allclose(loss, exact, rtol=1e-5)
            close &= torch.allclose(grad, exact_grad, rtol=1e-2, atol=1e-3 * float(exact_grad.abs().max()))
            times = [clock.work_us(work, cold)[0] for work in (both, forward)]
        found.append((times, candidate, close))
    found.sort(key=lambda f: f[0][0])
    print(f"\n{problem.name}: floor {floor:.1f} us", flush=True)
    best_forward = min(found, key=lambda f: f[0][1])
    best_backward = min(found, key=lambda f: f[0][0] - f[0][1])
    for (total, forward_), candidate, close in [*found[:4], best_forward, best_backward]:
        t = candidate.tiling
        print(
            f"  {100 * floor / total:5.1f} %  {total:8.2f} us = {forward_:8.2f} + {total - forward_:8.2f}   width {t.width}"
            f" vectors {t.vectors} group {t.group} full {t.full}"
            f" threads {candidate.forward.threads} grid {candidate.forward.grid}{'' if close else '   WRONG'}",
            flush=True,
        )
    print(f"  {len(found)} candidates, wrong: {[c for _, c, close in found if not close][:3]}", flush=True)


def main() -> None:
    clock = Clock(ms=25.0)
    print(f"copy {clock.bytes_a_second / 1e9:.0f} GB/s")
    for problem in problems():
        if not sys.argv[1:] or any(part in problem.name for part in sys.argv[1:]):
            tune(problem, clock)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
