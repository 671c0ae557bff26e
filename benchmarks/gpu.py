"""Kernels against their peers and the memory's limit on a CUDA GPU: `python benchmarks/gpu.py`. Exits with 1 where a bar is missed.

Forward and backward of every problem, side by side in one run: plain torch, torch.compile, Liger, QuACK, flash-attention's Triton
kernel, apex, and losszoo; peers that are not installed are named and left out. GPU time is, for large problems, from the first
kernel to the end of the last with a cold L2 cache; for small ones, within a CUDA graph that does them many times, so that it is not
the host's launch of the graph that is measured (3 to 4 us, also of an empty one). The floor of a
problem is the time that its bytes take at the copy bandwidth measured in the same run: operands read twice, gradient written once,
one float a row written and read. Wall time is that of the Python call. Writes a table, gpu.json and gpu.png to the folder --out.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import losszoo
from losszoo.losses.demo import eager
from losszoo.runtime import native

REPETITIONS, ENOUGH_MS = 250, 300.0  # calls, or as many as fit in the time
BATCHES = 9  # of replays
IN_A_GRAPH = 20  # times that a graph does its work
SMALL = 40 << 20  # bytes that stay in the L2 cache


@dataclass
class Problem:
    name: str
    group: str  # what the peers are: ce, box, wiou, focal
    make: Callable[[], tuple]  # (input, other operands)
    ours: Callable
    floor_bytes: int
    percent: float | None = None  # of the floor, at least
    micros: float | None = None  # at most
    ahead: bool = True  # of every peer
    against: tuple[str, float] | None = None  # at most so many times another problem's time


@dataclass
class Figure:
    gpu_us: float
    wall_us: float | None = None
    peak_extra_bytes: int | None = None
    loss_error: float | None = None
    grad_error: float | None = None
    percent_of_floor: float | None = None
    note: str = ""


@dataclass
class Result:
    problem: str
    floor_us: float
    figures: dict[str, Figure] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)


def cross_entropy_problem(shape: tuple[int, ...], dtype: torch.dtype, name: str = "", **bar) -> Problem:
    rows = shape[0] * int(torch.Size(shape[2:]).numel())

    def make() -> tuple:
        generator = torch.Generator("cuda").manual_seed(0)
        input = torch.randn(shape, device="cuda", dtype=dtype, generator=generator)
        return input, torch.randint(shape[1], (shape[0], *shape[2:]), device="cuda", generator=generator)

    kind = str(dtype).removeprefix("torch.").replace("float", "f")
    title = f"{'x'.join(map(str, shape))} {kind}"
    bytes_ = 3 * rows * shape[1] * dtype.itemsize + 2 * 8 * rows + 8 * rows
    bar = {"ours": losszoo.cross_entropy, "group": "ce", **bar}
    return Problem(name=f"{name or 'CE'} {title}", make=make, floor_bytes=bytes_, **bar)


def boxes(count: int) -> tuple:
    generator = torch.Generator("cuda").manual_seed(0)
    corner = 600 * torch.rand(count, 2, device="cuda", generator=generator)
    target = torch.cat([corner, corner + 10 + 90 * torch.rand(count, 2, device="cuda", generator=generator)], 1)
    return target + 5 * torch.rand(count, 4, device="cuda", generator=generator), target


def elements(count: int) -> tuple:
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn(count, device="cuda", generator=generator)
    return logits, (torch.rand(count, device="cuda", generator=generator) < 0.01).float()


def with_options(shape: tuple[int, int], dtype: torch.dtype, name: str, ignored: float = 0.0, weights: bool = False, loss=None, **options):
    base = cross_entropy_problem(shape, dtype)

    def make() -> tuple:
        input, target = base.make()
        generator = torch.Generator("cuda").manual_seed(1)
        target[torch.rand(target.shape, device="cuda", generator=generator) < ignored] = -100
        extra = (torch.rand(shape[1], device="cuda", generator=generator),) if weights else ()
        return input, target, *extra

    def ours(input: Tensor, target: Tensor, *weight: Tensor) -> Tensor:
        return (loss or losszoo.cross_entropy)(input, target, **({"weight": weight[0]} if weight else {}), **options)

    return Problem(name, "", make, ours, base.floor_bytes, ahead=False, against=("CE 4096x32000 bf16", 1.05))


def problems() -> Iterator[Problem]:
    bf16, f32 = torch.bfloat16, torch.float32
    for shape, dtype, percent in (
        ((8192, 128256), bf16, 95), ((2048, 262144), bf16, 95), ((512, 1000000), f32, 95), ((4096, 32000), bf16, 91),
        ((4096, 32000), f32, 93), ((16384, 4096), bf16, 86), ((65536, 1000), bf16, 86), ((1048576, 32), f32, 86),
        ((4096, 1000), f32, 90), ((8, 19, 512, 1024), f32, 90), ((8, 19, 512, 1024), bf16, 82), ((4, 150, 512, 512), f32, 92),
    ):  # fmt: skip
        yield cross_entropy_problem(shape, dtype, percent=percent)
    for shape, neighbour in (((65536, 1001), "CE 65536x1000 bf16"), ((4096, 32001), "CE 4096x32000 bf16")):
        yield cross_entropy_problem(shape, bf16, ahead=False, against=(neighbour, 1 / 0.9))
    for rows, classes, micros in ((16, 512, 4.2), (128, 1000, 5.0)):
        yield cross_entropy_problem((rows, classes), f32, micros=micros)
    yield with_options((4096, 32000), bf16, "CE smoothed 4096x32000 bf16", label_smoothing=0.1)
    yield with_options((4096, 32000), bf16, "CE weights+ignored 4096x32000 bf16", ignored=0.1, weights=True)
    yield with_options((4096, 32000), bf16, "softmax focal 4096x32000 bf16", loss=losszoo.softmax_focal_loss)
    four = functools.partial(boxes, 4_000_000)
    yield Problem("CIoU 4M f32", "box", four, losszoo.ciou_loss, 5 * 16 * 4_000_000, percent=75)
    yield Problem("WIoU v3 4M f32", "wiou", four, losszoo.wiou_loss, 5 * 16 * 4_000_000, percent=75)
    focal = functools.partial(losszoo.sigmoid_focal_loss, reduction="mean")
    many = functools.partial(elements, 49_100_000)
    yield Problem("sigmoid focal 49.1M f32", "focal", many, focal, 5 * 4 * 49_100_000, percent=90)


def peers(problem: Problem, wanted: list[str]) -> Iterator[tuple[str, Callable]]:
    """(name, function of the same operands) for every peer that has the problem and can be imported."""
    plain = {"ce": F.cross_entropy, "box": eager.ciou_loss, "wiou": eager.wiou_loss, "focal": eager.sigmoid_focal_loss}
    if problem.group in plain:
        if "eager" in wanted:
            yield "eager", plain[problem.group]
        if "compile" in wanted:
            torch.compiler.reset()
            yield "torch.compile", torch.compile(plain[problem.group], dynamic=False)
    if problem.group == "ce":
        two = len(problem.name.split()[1].split("x")) == 2
        for name, source, get in KERNEL_LIBRARIES:
            if name in wanted and two and (found := module(source)):
                yield name, get(found)


def _flash(module) -> Callable:
    return lambda x, t: module.cross_entropy_loss(x, t)[0].mean()


def _apex(module) -> Callable:
    return lambda x, t: module.SoftmaxCrossEntropyLoss.apply(x, t, 0.0, -100, True).mean()


KERNEL_LIBRARIES = (
    ("liger", "liger_kernel.transformers.functional", lambda m: lambda x, t: m.liger_cross_entropy(x, t)),
    ("quack", "quack.cross_entropy", lambda m: lambda x, t: m.cross_entropy(x, t)),
    ("flash-attn", "flash_attn.ops.triton.cross_entropy", _flash),
    ("apex", "apex.contrib.xentropy", _apex),
)
PEERS = ("eager", "compile", *(name for name, *_ in KERNEL_LIBRARIES))


@functools.cache
def module(name: str):
    try:
        return importlib.import_module(name)
    except Exception as error:  # a peer that is broken here is absent, and says why
        print(f"absent: {name.partition('.')[0]} ({type(error).__name__}: {str(error)[:100]})", flush=True)
        return None


class Clock:
    """GPU times on this device."""

    def __init__(self, ms: float = ENOUGH_MS) -> None:
        self.ms = ms
        self.flusher = torch.zeros(64 << 20, dtype=torch.float32, device="cuda")
        self.flushed = torch.empty((), device="cuda")
        source = torch.zeros(1 << 28, dtype=torch.float32, device="cuda")
        into = torch.empty_like(source)
        copies = (lambda: into.copy_(source), lambda: torch.neg(source, out=into))  # the driver's copy, and a kernel's
        seconds = 1e-6 * min(self.cold(copy) for copy in copies)
        self.bytes_a_second = 2 * source.numel() * source.element_size() / seconds

    def cold(self, work: Callable) -> float:
        """Microseconds on the GPU from the work's first kernel to the end of its last: the median over calls, each after a flush.

        The device is kept busy until the host has launched it all. The flush reads, since lines that it had written would have to be
        written back in the work's time.
        """
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        ahead = int(2e9 * (1.3 * (time.perf_counter() - begin) + 50e-6))  # cycles of a clock of at most 2 GHz
        torch.cuda.synchronize()
        times: list[float] = []
        while len(times) < 30 or len(times) < REPETITIONS and sum(times) < 1e3 * self.ms:
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            torch.amax(self.flusher, 0, out=self.flushed)
            torch.cuda._sleep(ahead)
            events[0].record()
            work()
            events[1].record()
            events[1].synchronize()
            times.append(1e3 * events[0].elapsed_time(events[1]))
        return statistics.median(times[len(times) // 5 :])

    def warm(self, work: Callable) -> float:
        """Microseconds of the work within a replayed CUDA graph, one after the other: the median over batches."""
        graph = self.captured(work)

        def batch(count: int) -> float:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(count):
                graph.replay()
            end.record()
            end.synchronize()
            return 1e3 * begin.elapsed_time(end) / (count * IN_A_GRAPH)

        batch(5)
        return statistics.median(batch(20) for _ in range(BATCHES))

    @staticmethod
    def captured(work: Callable) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(IN_A_GRAPH):
                work()
        return graph

    def work_us(self, work: Callable, cold: bool) -> tuple[float, str]:
        """Microseconds on the GPU, and how they were measured where that is not the usual way."""
        if cold:
            return self.cold(work), ""
        try:
            return self.warm(work), ""
        except Exception:  # a peer that waits for the device cannot be captured
            torch.cuda.synchronize()
            return self.cold(work), "not capturable; cold"


def wall(works: dict[str, Callable], rounds: int = 30) -> dict[str, float]:
    """Microseconds of each Python call until the device is done, taking turns."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            work()
            torch.cuda.synchronize()
            times[name].append(1e6 * (time.perf_counter() - begin))
    return {name: statistics.median(t[3:]) for name, t in times.items()}


def errors(problem: Problem, function: Callable, operands: tuple) -> tuple[float, float]:
    """Largest relative errors of loss and gradient against float64, on as many rows as fit."""
    input, *others = operands
    rows = max(1, min(input.shape[0], (1 << 26) // max(1, input[0].numel())))
    part = [o[:rows] if o.shape[:1] == input.shape[:1] else o for o in (input.detach(), *others)]
    reference = {"ce": F.cross_entropy, "box": eager.ciou_loss, "wiou": eager.wiou_loss, "focal": eager.sigmoid_focal_loss}[problem.group]
    found = []
    for loss, convert in ((function, lambda o: o.clone()), (reference, lambda o: o.double() if o.is_floating_point() else o)):
        x, *rest = (convert(o) for o in part)
        value = loss(x.requires_grad_(), *rest)
        found.append((value.detach().double(), torch.autograd.grad(value, x)[0].double()))
    (value, grad), (exact, exact_grad) = found
    return float((value - exact).abs() / exact.abs()), float((grad - exact_grad).abs().max() / exact_grad.abs().max())


def measure(problem: Problem, clock: Clock, wanted: list[str], quick: bool) -> Result:
    operands = problem.make()
    input, *others = operands
    input.requires_grad_()
    one = torch.ones((), device="cuda", dtype=torch.float32)
    cold = 3 * input.numel() * input.element_size() > SMALL * 1.5
    result = Result(problem.name, 1e6 * problem.floor_bytes / clock.bytes_a_second)
    functions = {**dict(peers(problem, wanted)), "losszoo": problem.ours}
    works: dict[str, Callable] = {}
    for name, function in functions.items():
        def work(function=function) -> None:
            loss = function(input, *others)
            torch.autograd.grad(loss, input, one.to(loss.dtype))

        try:
            work()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            work()
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - before - input.numel() * input.element_size()
            micros, note = clock.work_us(work, cold)
        except Exception as error:  # a peer that fails here says so in the table
            if name == "losszoo":
                raise
            result.figures[name] = Figure(float("nan"), note=f"{type(error).__name__}: {str(error)[:60]}")
            continue
        works[name] = work
        figure = result.figures[name] = Figure(micros, peak_extra_bytes=peak, note=note)
        figure.percent_of_floor = 100 * result.floor_us / micros
        if problem.group and not quick:
            figure.loss_error, figure.grad_error = errors(problem, function, operands)
    if not quick:
        for name, micros in wall(works).items():
            result.figures[name].wall_us = micros
    gc.collect()
    torch.cuda.empty_cache()
    return result


def judge(problem: Problem, result: Result, all_results: dict[str, Result]) -> None:
    ours = result.figures["losszoo"]
    others = {name: f.gpu_us for name, f in result.figures.items() if name != "losszoo" and f.gpu_us == f.gpu_us}
    if problem.percent and ours.percent_of_floor < problem.percent:
        result.missed.append(f"{ours.percent_of_floor:.1f} % of the floor, bar {problem.percent}")
    if problem.micros and ours.gpu_us > problem.micros:
        result.missed.append(f"{ours.gpu_us:.2f} us, bar {problem.micros}")
    if problem.ahead:
        result.missed += [f"{name} takes {t:.1f} us" for name, t in others.items() if t <= ours.gpu_us]
    if problem.against and problem.against[0] in all_results:
        limit = problem.against[1] * all_results[problem.against[0]].figures["losszoo"].gpu_us
        if ours.gpu_us > limit:
            result.missed.append(f"{ours.gpu_us:.1f} us, bar {limit:.1f}")
    plain = result.figures.get("eager")
    if plain and plain.wall_us and ours.wall_us > plain.wall_us:
        result.missed.append(f"wall {ours.wall_us:.0f} us, eager {plain.wall_us:.0f}")
    rows = problem.floor_bytes  # the gradient plus O(rows): no more than a hundredth of all bytes
    if ours.peak_extra_bytes and ours.peak_extra_bytes > max(rows // 3, 1 << 16):
        result.missed.append(f"{ours.peak_extra_bytes >> 10} KiB beside the gradient")


def show(result: Result) -> None:
    print(f"\n{result.problem}: floor {result.floor_us:.1f} us" + "".join(f"   MISSED {m}" for m in result.missed))
    for name, f in result.figures.items():
        text = f"  {name:<14}{f.gpu_us:10.2f} us"
        text += f"{f.percent_of_floor:7.1f} %" if f.percent_of_floor else ""
        text += f"   wall {f.wall_us:8.1f}" if f.wall_us else ""
        text += f"   extra {f.peak_extra_bytes / 1e6:9.2f} MB" if f.peak_extra_bytes is not None else ""
        text += f"   errors {f.loss_error:.1e} {f.grad_error:.1e}" if f.loss_error is not None else ""
        print(text + (f"   ({f.note})" if f.note else ""), flush=True)


def chart(results: list[Result], path: Path) -> None:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("absent: matplotlib (no chart)")
        return
    names = list(dict.fromkeys(n for r in results for n in r.figures))
    figure, axes = pyplot.subplots(figsize=(10, 0.5 * len(results) * max(2, len(names)) / 3 + 1))
    for i, name in enumerate(names):
        at = [k + 0.8 * i / len(names) for k in range(len(results))]
        axes.barh(at, [(r.figures[name].percent_of_floor or 0) if name in r.figures else 0 for r in results], 0.75 / len(names), label=name)
    axes.set_yticks(range(len(results)), [r.problem for r in results])
    axes.invert_yaxis()
    axes.set_xlabel("percent of the memory floor, forward + backward")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="problems whose name contains this")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {','.join(PEERS)}")
    parser.add_argument("--quick", action="store_true", help="GPU times only")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for gpu.json and gpu.png")
    options = parser.parse_args()
    native.wait()
    clock = Clock()
    device = torch.cuda.get_device_properties(0)
    versions = {"torch": torch.__version__, "losszoo": losszoo.__version__, "cuda": torch.version.cuda}
    print(f"{device.name}, {time.strftime('%Y-%m-%d')}, {versions}, copy {clock.bytes_a_second / 1e9:.0f} GB/s", flush=True)
    chosen = [p for p in problems() if options.only in p.name]
    results: dict[str, Result] = {}
    for problem in chosen:
        result = results[problem.name] = measure(problem, clock, options.peers.split(","), options.quick)
        judge(problem, result, results)
        show(result)
    options.out.mkdir(parents=True, exist_ok=True)
    facts = {"device": device.name, "date": time.strftime("%Y-%m-%d"), "versions": versions, "copy_gb_s": clock.bytes_a_second / 1e9}
    (options.out / "gpu.json").write_text(json.dumps({**facts, "results": [asdict(r) for r in results.values()]}, indent=1))
    chart(list(results.values()), options.out / "gpu.png")
    missed = [name for name, r in results.items() if r.missed]
    print(f"\n{len(results)} problems, bars missed at: {', '.join(missed) or 'none'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
