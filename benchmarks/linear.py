"""A loss behind a linear layer on a CUDA GPU, by its strategies and its peers: `python benchmarks/linear.py`. Exits with 1 at a missed bar.

Forward and backward of logits and cross-entropy with gradients of input and weight, side by side in one run: plain torch, torch.compile,
`F.linear_cross_entropy` where torch has it (in chunks), Liger, CCE, and losszoo, rows and classes in chunks; peers that are not installed
are named and left out. The time is the median of GPU times, each from the first kernel to the end of the last; the extra memory is the
peak of torch's allocator beyond the inputs and the two gradients; the errors are those of the loss, and of each gradient as the root of
the mean square over that of the gradient itself, against float64. The three products alone are timed too. Writes linear.json to --out.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from gpu import module
from torch import Tensor

import losszoo

PROBLEMS = ((8192, 4096, 128256), (8192, 2048, 32000))  # rows, features, classes
REPETITIONS = 12
ROWS_MB, CLASSES_MB = 600, 300
AGAINST_COMPILE, AGAINST_FUSED, AGAINST_EAGER = 1.0, 0.9, 1.2
OURS = ("losszoo rows", "losszoo classes")


@dataclass
class Figure:
    ms: float
    extra_mb: float = float("nan")
    loss_error: float = float("nan")
    input_error: float = float("nan")
    weight_error: float = float("nan")
    note: str = ""


@dataclass
class Result:
    problem: str
    products_ms: float
    figures: dict[str, Figure] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)


def plain(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w), y)


def functions(wanted: list[str]) -> Iterator[tuple[str, Callable]]:
    """(name, function of input, weight and labels) of losszoo and of every peer that can be imported."""
    if "eager" in wanted:
        yield "eager", plain
    if "compile" in wanted:
        torch.compiler.reset()
        yield "torch.compile", torch.compile(plain, dynamic=False)
    if "torch" in wanted:
        if hasattr(F, "linear_cross_entropy"):
            chunked = torch.nn.LinearCrossEntropyOptions()
            yield "F.linear_cross_entropy", lambda x, w, y: F.linear_cross_entropy(x, w, y, options=chunked)
        else:
            print(f"absent: F.linear_cross_entropy (torch {torch.__version__})")
    if "liger" in wanted and (found := module("liger_kernel.transformers.functional")):
        yield "liger", lambda x, w, y: found.liger_fused_linear_cross_entropy(x, w, y)
    if "cce" in wanted and (cce := module("cut_cross_entropy")):
        yield "cce", lambda x, w, y: cce.linear_cross_entropy(x, w, y)
    for name in OURS:
        yield name, functools.partial(losszoo.linear_cross_entropy, strategy=name.split()[1])


PEERS = ("eager", "compile", "torch", "liger", "cce")


def milliseconds(work: Callable) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    ahead = int(2e9 * (1.3 * (time.perf_counter() - begin) + 200e-6))  # cycles, of a clock of at most 2 GHz, in which the host gets ahead
    times = []
    for _ in range(REPETITIONS):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        torch.cuda.synchronize()
        torch.cuda._sleep(ahead)
        events[0].record()
        work()
        events[1].record()
        events[1].synchronize()
        times.append(events[0].elapsed_time(events[1]))
    return statistics.median(times)


def products(x: Tensor, w: Tensor) -> Callable:
    """The three products of a step by themselves, on some rows' worth of logits, scaled up to all."""
    rows = min(x.shape[0], 2048)
    part = x.detach()[:rows]
    logits = F.linear(part, w.detach())
    into, weight_into = torch.empty_like(part), torch.empty_like(w)

    def work() -> None:
        for _ in range(x.shape[0] // rows):
            torch.mm(part, w.detach().t(), out=logits)
            torch.mm(logits, w.detach(), out=into)
            torch.mm(logits.t(), part, out=weight_into)

    return work


def exact(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and gradients in float64, a few rows at a time."""
    wide, total = w.detach().double(), torch.zeros((), dtype=torch.float64, device=x.device)
    grads = torch.empty(x.shape, dtype=torch.float64, device=x.device), torch.zeros_like(wide)
    for begin in range(0, x.shape[0], 1024):
        part = x.detach()[begin : begin + 1024].double()
        logits = (part @ wide.t()).requires_grad_()
        loss = F.cross_entropy(logits, y[begin : begin + 1024], reduction="sum") / x.shape[0]
        (grad,) = torch.autograd.grad(loss, logits)
        total += loss.detach()
        grads[0][begin : begin + 1024] = grad @ wide
        grads[1].addmm_(grad.t(), part)
    return total, *grads


def error(got: Tensor, want: Tensor) -> float:
    total = size = 0.0
    for a, b in zip(got.split(4096), want.split(4096), strict=True):
        total += float((a.double() - b).square().sum())
        size += float(b.square().sum())
    return (total / size) ** 0.5


def measure(sizes: tuple[int, int, int], wanted: list[str]) -> Result:
    rows, features, classes = sizes
    generator = torch.Generator("cuda").manual_seed(0)
    options = {"device": "cuda", "dtype": torch.bfloat16, "generator": generator}
    x = torch.randn(rows, features, **options).requires_grad_()
    w = torch.randn(classes, features, **options).mul_(2 * features**-0.5).requires_grad_()
    y = torch.randint(classes, (rows,), device="cuda", generator=generator)
    three = products(x, w)
    three()
    result = Result("x".join(map(str, sizes)), milliseconds(three))
    del three
    want = exact(x, w, y)
    for name, function in functions(wanted):
        def work(function=function) -> None:
            x.grad = w.grad = None
            function(x, w, y).backward()

        try:
            for _ in range(3):
                work()
            x.grad = w.grad = None
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            work()
            torch.cuda.synchronize()
            extra = torch.cuda.max_memory_allocated() - before - sum(t.numel() * t.element_size() for t in (x, w))
            figure = Figure(milliseconds(work), extra / 1e6)
            x.grad = w.grad = None
            loss = function(x, w, y)
            loss.backward()
            figure.loss_error = float((loss.detach().double() - want[0]).abs() / want[0])
            figure.input_error, figure.weight_error = error(x.grad, want[1]), error(w.grad, want[2])
        except Exception as failure:  # a peer that fails here says so in the table
            if name in OURS:
                raise
            figure = Figure(float("nan"), note=f"{type(failure).__name__}: {str(failure)[:80]}")
        result.figures[name] = figure
        x.grad = w.grad = loss = None
        gc.collect()
        torch.cuda.empty_cache()
    return result


def judge(result: Result) -> None:
    figures = {name: f for name, f in result.figures.items() if f.ms == f.ms}

    def bar(ours: str, what: str, got: float, limit: float | None) -> None:
        if limit is None:
            result.unjudged.append(f"{ours}: {what}")
        elif not got <= limit:
            result.missed.append(f"{ours}: {what} {got:.4g}, bar {limit:.4g}")

    compiled, plainly = figures.get("torch.compile"), figures.get("eager")
    fused = [figures[name].ms for name in ("liger", "cce") if name in figures]
    rows, classes = (figures[name] for name in OURS)
    bar(OURS[0], "ms", rows.ms, AGAINST_COMPILE * compiled.ms if compiled else None)
    bar(OURS[1], "ms", classes.ms, AGAINST_FUSED * min(fused) if fused else None)
    bar(OURS[0], "extra MB", rows.extra_mb, ROWS_MB)
    bar(OURS[1], "extra MB", classes.extra_mb, CLASSES_MB)
    for name, f in zip(OURS, (rows, classes), strict=True):
        bar(name, "input's error", f.input_error, AGAINST_EAGER * plainly.input_error if plainly else None)
        bar(name, "weight's error", f.weight_error, AGAINST_EAGER * plainly.weight_error if plainly else None)


def show(result: Result) -> None:
    print(f"\n{result.problem} bf16: three products {result.products_ms:.2f} ms")
    for name, f in result.figures.items():
        text = f"  {name:<24}{f.ms:8.2f} ms  extra {f.extra_mb:9.1f} MB  errors: loss {f.loss_error:.1e}"
        print(f"{text}, input {f.input_error:.2e}, weight {f.weight_error:.2e}" + (f"  ({f.note})" if f.note else ""), flush=True)
    for text in result.missed:
        print(f"  MISSED {text}")
    for text in result.unjudged:
        print(f"  not judged, for want of the peer: {text}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {','.join(PEERS)}")
    parser.add_argument("--only", default="", help="problems whose name contains this, such as 32000")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for linear.json")
    options = parser.parse_args()
    device = torch.cuda.get_device_properties(0)
    versions = {"torch": torch.__version__, "losszoo": losszoo.__version__, "cuda": torch.version.cuda}
    print(f"{device.name}, {time.strftime('%Y-%m-%d')}, {versions}", flush=True)
    results = []
    for sizes in PROBLEMS:
        if options.only in "x".join(map(str, sizes)):
            results.append(measure(sizes, options.peers.split(",")))
            judge(results[-1])
            show(results[-1])
    options.out.mkdir(parents=True, exist_ok=True)
    facts = {"device": device.name, "date": time.strftime("%Y-%m-%d"), "versions": versions}
    (options.out / "linear.json").write_text(json.dumps({**facts, "results": [asdict(r) for r in results]}, indent=1))
    missed = [r.problem for r in results if r.missed]
    print(f"\n{len(results)} problems, bars missed at: {', '.join(missed) or 'none'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
