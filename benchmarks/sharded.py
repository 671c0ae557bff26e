"""Cross-entropy with its classes split over two GPUs: `python benchmarks/sharded.py`. Exits with 1 where a bar is missed.

Forward and backward, side by side in one run: DTensor's loss_parallel, Megatron's algorithm in plain torch, Megatron-core's fused
kernel, Liger, flash-attention's Triton kernel, and losszoo; peers that are not installed, or refuse, are named and left out. Two
clocks, both with a cold L2 cache, the ranks having met right before, of the slower rank, and the median over calls. GPU time is from
the first kernel to the end of the last, as where the host is ahead; it is held against the floor, the time that a rank's bytes take at
the copy bandwidth measured in the same run: its shard read twice and its gradient written once. "Alone" is from the call to the
end of its work with nothing queued before it, host and all. Peers are compared by both. Writes a table, and sharded.json to --out.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from gpu import Clock
from torch import Tensor

import losszoo
from losszoo.parallel import sharded

RANKS, CALLS = 2, 40
BARS = {(8192, 128256): 80, (2048, 262144): 62, (16384, 32000): 62, (1024, 2500000): 88}  # percent of the floor, at least
AHEAD = 1.5  # times faster than every peer
CHECKED = 8  # rows that are compared with float64


@dataclass
class Figure:
    gpu_us: float
    wall_us: float = float("nan")
    percent_of_floor: float = 0.0
    extra_bytes: int = 0  # beside logits and gradient
    loss_error: float = 0.0
    grad_error: float = 0.0
    note: str = ""


@dataclass
class Result:
    rows: int
    classes: int
    floor_us: float
    collective_us: float  # alone; with the floor it is what the model of docs/parallel.md says
    figures: dict[str, Figure] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)


class MegatronLike(torch.autograd.Function):
    """What Megatron-core computes, step by step in torch: the maximum, the label's logit and the sum, a collective each."""

    @staticmethod
    def forward(ctx, logits: Tensor, target: Tensor) -> Tensor:
        local = logits.shape[1]
        logits = logits.float()
        peak = logits.amax(1)
        dist.all_reduce(peak, op=dist.ReduceOp.MAX)
        logits = logits - peak[:, None]
        label = target - dist.get_rank() * local
        here = (label >= 0) & (label < local)
        label = torch.where(here, label, 0)
        picked = torch.where(here, logits.gather(1, label[:, None])[:, 0], 0)
        dist.all_reduce(picked)
        probabilities = logits.exp_()
        total = probabilities.sum(1)
        dist.all_reduce(total)
        ctx.save_for_backward(probabilities.div_(total[:, None]), label, here)
        return total.log() - picked

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        probabilities, label, here = ctx.saved_tensors
        probabilities = probabilities.clone()
        probabilities.scatter_add_(1, label[:, None], -here.float()[:, None])
        return (probabilities * grad[:, None]).bfloat16(), None


def peers() -> Iterator[tuple[str, Callable]]:
    """(name, function of this rank's logits and the labels) for every peer that can be imported; each gives the mean."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh("cuda", (RANKS,))

    yield "loss_parallel", lambda x, y: F.cross_entropy(DTensor.from_local(x, mesh, [Shard(1)], run_check=False), y)
    yield "megatron plain", lambda x, y: MegatronLike.apply(x, y).mean()
    group = dist.group.WORLD
    for name, module, get in (
        ("megatron fused", "megatron.core.fusions.fused_cross_entropy",
         lambda m: lambda x, y: m.fused_vocab_parallel_cross_entropy(x[:, None], y[:, None], group).mean()),
        ("liger", "liger_kernel.megatron.cross_entropy",
         lambda m: lambda x, y: m.LigerMegatronCrossEntropy()(x[:, None], y[:, None], group).mean()),
        ("flash-attn", "flash_attn.ops.triton.cross_entropy",
         lambda m: lambda x, y: m.cross_entropy_loss(x, y, process_group=group)[0].mean()),
    ):  # fmt: skip
        try:
            yield name, get(importlib.import_module(module))
        except Exception as error:  # a peer that is broken here is absent, and says why
            if dist.get_rank() == 0:
                print(f"absent: {name} ({type(error).__name__}: {str(error)[:100]})", flush=True)


class RankClock(Clock):
    """GPU times of work that all ranks do together."""

    def together(self, work: Callable) -> float:
        """Microseconds, of the slower rank in each call: the median over calls."""
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        work()
        ahead = self.longest(2e9 * (1.3 * (time.perf_counter() - begin) + 200e-6))  # cycles of a clock of at most 2 GHz
        torch.cuda.synchronize()
        meet, times = torch.zeros(1, device="cuda"), []
        for _ in range(CALLS):
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            torch.amax(self.flusher, 0, out=self.flushed)
            torch.cuda._sleep(int(ahead))
            dist.all_reduce(meet)
            events[0].record()
            work()
            events[1].record()
            events[1].synchronize()
            times.append(1e3 * events[0].elapsed_time(events[1]))
        return self.of_slower(times)

    def alone(self, work: Callable) -> float:
        """Microseconds from the call to the end of its work, with nothing queued before it: the median over calls, of the slower rank."""
        meet, times = torch.zeros(1, device="cuda"), []
        for _ in range(CALLS):
            torch.amax(self.flusher, 0, out=self.flushed)
            dist.all_reduce(meet)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            work()
            torch.cuda.synchronize()
            times.append(1e6 * (time.perf_counter() - begin))
        return self.of_slower(times)

    @staticmethod
    def of_slower(times: list[float]) -> float:
        slower = torch.tensor(times, device="cuda")
        dist.all_reduce(slower, op=dist.ReduceOp.MAX)
        return statistics.median(slower[CALLS // 5 :].tolist())

    @staticmethod
    def longest(x: float) -> float:
        every = torch.tensor([x], device="cuda", dtype=torch.float64)
        dist.all_reduce(every, op=dist.ReduceOp.MAX)
        return float(every)


def step(name: str, function: Callable, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and gradient."""
    from torch.distributed.tensor.parallel import loss_parallel

    with loss_parallel() if name == "loss_parallel" else contextlib.nullcontext():
        loss = function(x, y)
        return loss.detach(), torch.autograd.grad(loss, x, torch.ones_like(loss))[0]


def errors(name: str, function: Callable, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Largest relative errors of loss and gradient against float64, of a few rows."""
    own = x.detach()[:CHECKED].clone().requires_grad_()
    loss, grad = step(name, function, own, y[:CHECKED])
    shards = [torch.empty_like(own.detach()) for _ in range(RANKS)]
    dist.all_gather(shards, own.detach())
    whole = torch.cat(shards, 1).double().requires_grad_()
    exact = F.cross_entropy(whole, y[:CHECKED])
    exact_grad = torch.autograd.grad(exact, whole)[0].tensor_split(RANKS, 1)[dist.get_rank()]
    loss, exact = loss.to_local() if hasattr(loss, "to_local") else loss, exact.detach()
    return (
        RankClock.longest(float((loss.double() - exact).abs() / exact.abs())),
        RankClock.longest(float((grad.double() - exact_grad).abs().max() / exact_grad.abs().max())),
    )


def measure(rows: int, classes: int, clock: RankClock, bandwidth: float) -> Result:
    local = classes // RANKS
    generator = torch.Generator("cuda").manual_seed(dist.get_rank())
    x = torch.randn(rows, local, device="cuda", dtype=torch.bfloat16, generator=generator).requires_grad_()
    y = torch.randint(classes, (rows,), device="cuda", generator=torch.Generator("cuda").manual_seed(7))
    shard = x.numel() * x.element_size()
    states = torch.zeros(3, rows, device="cuda")
    gathered = states.new_empty(RANKS * 3, rows)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    result = Result(rows, classes, 1e6 * 3 * shard / bandwidth, clock.together(lambda: gather(gathered, states)))
    functions = {**dict(peers()), "losszoo": sharded(losszoo.cross_entropy, sizes=[local] * RANKS)}
    for name, function in functions.items():
        def work(name=name, function=function) -> Tensor:
            return step(name, function, x, y)[0]

        try:
            work()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            work()
            torch.cuda.synchronize()
            extra = torch.cuda.max_memory_allocated() - before - shard
            figure = result.figures[name] = Figure(clock.together(work), clock.alone(work), extra_bytes=extra)
            figure.percent_of_floor = 100 * result.floor_us / figure.gpu_us
            figure.loss_error, figure.grad_error = errors(name, function, x, y)
        except Exception as error:  # a peer that fails here says so in the table
            if name == "losszoo":
                raise
            result.figures[name] = Figure(float("nan"), note=f"{type(error).__name__}: {str(error)[:60]}")
        gc.collect()
        torch.cuda.empty_cache()
    losses = [torch.empty((), device="cuda") for _ in range(RANKS)]
    dist.all_gather(losses, work())
    judge(result, len({loss.item() for loss in losses}) == 1)
    return result


def judge(result: Result, same: bool) -> None:
    ours = result.figures["losszoo"]
    if ours.percent_of_floor < (bar := BARS[result.rows, result.classes]):
        result.missed.append(f"{ours.percent_of_floor:.1f} % of the floor, bar {bar}")
    for name, figure in result.figures.items():
        for clock, theirs, own in ("on the GPU", figure.gpu_us, ours.gpu_us), ("alone", figure.wall_us, ours.wall_us):
            if name != "losszoo" and theirs < AHEAD * own:
                result.missed.append(f"{name} takes {theirs / own:.2f} times as long {clock}, bar {AHEAD}")
    if ours.extra_bytes > 128 * result.rows + (1 << 20):
        result.missed.append(f"{ours.extra_bytes >> 10} KiB beside logits and gradient")
    if not same:
        result.missed.append("the ranks' losses differ")


def show(result: Result) -> None:
    title = f"{result.rows}x{result.classes} bf16 over {RANKS}: floor {result.floor_us:.0f} us, collective {result.collective_us:.0f} us"
    print(f"\n{title}" + "".join(f"   MISSED {m}" for m in result.missed))
    for name, f in result.figures.items():
        times = f"{f.gpu_us:10.1f} us{f.percent_of_floor:7.1f} %   alone {f.wall_us:8.1f} us"
        rest = f"   extra {f.extra_bytes / 1e6:9.2f} MB   errors {f.loss_error:.1e} {f.grad_error:.1e}"
        print(f"  {name:<15}{times}{rest}" + (f"   ({f.note})" if f.note else ""), flush=True)


def rank(number: int, store: str, options: argparse.Namespace) -> None:
    torch.cuda.set_device(number)
    where = torch.device("cuda", number)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=number, world_size=RANKS, device_id=where)
    clock = RankClock()
    bandwidth = -RankClock.longest(-clock.bytes_a_second)  # of the slower GPU
    if number == 0:
        name = torch.cuda.get_device_properties(0).name
        print(f"{RANKS} x {name}, {time.strftime('%Y-%m-%d')}, torch {torch.__version__}, copy {bandwidth / 1e9:.0f} GB/s", flush=True)
    results = []
    for rows, classes in BARS:
        if options.only in f"{rows}x{classes}":
            results.append(measure(rows, classes, clock, bandwidth))
            if number == 0:
                show(results[-1])
    if number == 0:
        options.out.mkdir(parents=True, exist_ok=True)
        facts = {"device": name, "ranks": RANKS, "copy_gb_s": bandwidth / 1e9, "results": [asdict(r) for r in results]}
        (options.out / "sharded.json").write_text(json.dumps(facts, indent=1))
        print(f"\nbars missed at: {', '.join(f'{r.rows}x{r.classes}' for r in results if r.missed) or 'none'}")
    dist.destroy_process_group()
    sys.exit(int(any(r.missed for r in results)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="shapes (rows x classes) whose name contains this")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for sharded.json")
    options = parser.parse_args()
    if torch.cuda.device_count() < RANKS:
        parser.error(f"needs {RANKS} GPUs, and torch finds {torch.cuda.device_count()}")
    with tempfile.TemporaryDirectory() as folder:
        context = torch.multiprocessing.spawn(rank, (f"{folder}/store", options), RANKS, join=False)
        for process in context.processes:
            process.join()
    return max(abs(process.exitcode) for process in context.processes)


if __name__ == "__main__":
    sys.exit(main())
