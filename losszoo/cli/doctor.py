"""`losszoo doctor`: what losszoo finds on this machine, and what to do about each problem. It compiles, loads and runs small kernels."""

from __future__ import annotations

import os
import platform
import shutil
import struct
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

import losszoo
from losszoo import jit
from losszoo.errors import ToolchainMissing
from losszoo.jit import Language, Nvcc, Nvrtc, Source, cache, extension
from losszoo.runtime import cuda_driver, native, threads

CPU = """#include <losszoo/host.h>
extern "C" LZ_EXPORT int answer() { return 42; }
"""
CUDA = """#include <losszoo/platform.h>
struct Args { lz::int32* to; };
extern "C" __global__ void answer(const Args args) { *args.to = 42; }
"""
ANY_ARCH = "sm_90"  # to compile for where there is no GPU

Mark = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """What was found, and what to do about it. A note costs speed or a device; with a problem losszoo cannot compile here."""

    subject: str
    text: str
    mark: Mark = "ok"


def doctor() -> int:
    """Print what was found; 0 if losszoo can compile for every device that torch sees, else 1."""
    problems = 0
    for check in CHECKS:
        for finding in check():
            text = finding.text.strip().replace("\n", "\n" + " " * 24)
            print(f"{finding.mark:<8} {finding.subject:<14} {text}", flush=True)
            problems += finding.mark == "problem"
    print("\nlosszoo cannot compile here: see the problems above." if problems else "\nlosszoo can compile here.")
    return min(problems, 1)


def _versions() -> Iterator[Finding]:
    yield Finding("losszoo", f"{losszoo.__version__} in {Path(losszoo.__file__).parent}")
    yield Finding("Python", f"{platform.python_version()}, {sys.executable}, on {platform.platform()}")
    cuda = torch.version.cuda
    yield Finding("torch", f"{torch.__version__}, built for {f'CUDA {cuda}' if cuda else 'the CPU only'}")


def _cache() -> Iterator[Finding]:
    root = cache.place()
    if not root.is_dir():
        yield Finding("kernel cache", f"{root}, not made yet")
        return
    entries = [path for path in root.glob("*-*") if path.is_dir() and not path.name.startswith(".")]
    size = sum(file.stat().st_size for entry in entries for file in entry.iterdir())
    yield Finding("kernel cache", f"{root}, {len(entries)} entries, {size / 1e6:.1f} MB, mode {root.stat().st_mode & 0o777:o}")


def _cpu() -> Iterator[Finding]:
    try:
        yield Finding("C++ compiler", jit.find_toolchain("cpp").description)
        with _built(CPU, "cpp") as (path, spent, said):
            yield from (Finding("kernel cache", text, "note") for text in said)
            yield _ran("CPU kernels", jit.load(path).answer(), f"one was compiled in {spent:.2f} s and runs")
    except ToolchainMissing as missing:
        yield Finding("C++ compiler", f"{missing}\nUntil then the losses run in the interpreter: right, but slower.", "problem")
    except (RuntimeError, OSError) as error:
        yield Finding("CPU kernels", str(error), "problem")


def _threads() -> Iterator[Finding]:
    text = f"torch uses {torch.get_num_threads()} on {os.cpu_count()} processors"
    if threads.launcher():
        yield Finding("threads", text)
    else:
        yield Finding("threads", f"{text}; CPU kernels use one: what hands their work to torch's could not be built or loaded", "note")


def _runtime() -> Iterator[Finding]:
    """Without it everything works, and calls of a few elements take longer: notes only."""
    try:
        if os.environ.get("LOSSZOO_RUNTIME") == "python":
            yield Finding("native runtime", "LOSSZOO_RUNTIME=python keeps it from being used", "note")
        elif (path := extension.find()) is None:
            yield Finding("native runtime", "not built yet: the first call starts it in the background, `losszoo prebuild` waits", "note")
        elif native.runtime() is None:
            yield Finding("native runtime", f"{path} does not load; `rm -r {path.parent}` has it built again", "note")
        else:
            yield Finding("native runtime", str(path))
    except native.CANNOT as error:
        yield Finding("native runtime", str(error), "note")


def _cuda() -> Iterator[Finding]:
    devices: Sequence[int] = ()
    try:
        devices = yield from _gpus()
        for name, compiler in (("NVRTC", Nvrtc), ("nvcc", Nvcc)):
            try:
                yield Finding(name, compiler.find().description)
            except ToolchainMissing:
                yield Finding(name, "not found")  # one of them will do
        if not devices:
            with _built(CUDA, "cuda", ANY_ARCH) as (path, spent, _):
                yield Finding("CUDA kernels", f"one was compiled for {ANY_ARCH} in {spent:.2f} s, with no GPU to run it on")
        for device in devices:
            with _built(CUDA, "cuda", cuda_driver.arch(device)) as (path, spent, _):
                yield _ran(f"GPU {device} kernels", _launch(path, device), f"one was compiled in {spent:.2f} s and runs")
    except (RuntimeError, OSError) as error:  # torch's own are RuntimeErrors too
        yield Finding("CUDA kernels", str(error), "problem" if devices else "note")


def _gpus() -> Generator[Finding, None, Sequence[int]]:
    with warnings.catch_warnings(record=True) as said:  # torch says so if it cannot use the driver
        warnings.simplefilter("always")
        devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
    for device in devices:
        yield Finding(f"GPU {device}", f"{torch.cuda.get_device_name(device)}, {cuda_driver.arch(device)}")
    if devices:
        yield Finding("CUDA driver", f"for programs up to CUDA {cuda_driver.version()}")
    elif torch.version.cuda:
        why = "; ".join(str(warning.message) for warning in said) or "no GPU, no driver, or CUDA_VISIBLE_DEVICES hides them"
        yield Finding("GPU", f"torch finds none: {why}", "note")
    else:
        yield Finding("GPU", "this torch uses none; for one that does see https://pytorch.org/get-started")
    return devices


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (_versions, _cache, _cpu, _threads, _runtime, _cuda)


@contextmanager
def _built(text: str, language: Language, arch: str | None = None) -> Iterator[tuple[Path, float, list[str]]]:
    """An artefact built anew where every kernel goes, the seconds that took, and what was warned of. It is taken away again."""
    begin = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        path = jit.build(Source("doctor", language, f"{text}// {os.getpid()} {time.time_ns()}\n"), arch)
    try:
        yield path, time.perf_counter() - begin, [str(warning.message) for warning in said]
    finally:
        shutil.rmtree(path.parent, ignore_errors=True)


def _launch(path: Path, device: int) -> int:
    result = torch.zeros((), dtype=torch.int32, device=f"cuda:{device}")
    stream = torch.cuda.current_stream(device).cuda_stream
    cuda_driver.load(path, device).function("answer").launch(1, 1, 0, stream, struct.pack("P", result.data_ptr()))
    return int(result)


def _ran(subject: str, answer: int, text: str) -> Finding:
    if answer == 42:
        return Finding(subject, text)
    return Finding(subject, f"the kernel was compiled but answered {answer} for 42: another compiler may do better", "problem")
