"""How long a loss makes its first caller wait: `python benchmarks/build.py [cpu|cuda]`. Exits with 1 where a bar is missed.

Every figure is the median over new processes. The clock starts when torch, losszoo, the inputs and (on a GPU) the CUDA context
are there, and stops when the first gradient is: "cold" with an empty cache, where the native runtime's build begins beside it; "warm"
with the kernels that the cold run left and the runtime. Python's bytecode is there, as in any installed package, even where
PYTHONDONTWRITEBYTECODE would keep a checkout without it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = 3
BARS = {("cold", "cpu"): 1500.0, ("cold", "cuda"): 600.0, ("warm", "cpu"): 30.0, ("warm", "cuda"): 30.0}  # milliseconds
IMPORT_BAR = 150.0
LOSSES = ("cross_entropy", "softmax_focal_loss", "sigmoid_focal_loss", "ciou_loss", "wiou_loss")


def first_result(name: str, device: str) -> float:
    """In a new process: milliseconds from the call to the gradient."""
    import torch

    import losszoo
    from losszoo.runtime import native

    torch.manual_seed(0)
    if name in ("cross_entropy", "softmax_focal_loss"):
        input, target = torch.randn(128, 1000), torch.randint(1000, (128,))
    elif name == "sigmoid_focal_loss":
        input, target = torch.randn(1000, 80), torch.rand(1000, 80).round()
    else:
        corner = torch.rand(1000, 2)
        input, target = (torch.cat([corner, corner + torch.rand(1000, 2)], 1) for _ in range(2))
    input, target = input.to(device).requires_grad_(), target.to(device)
    torch.autograd.grad(input.exp().mean(), input)  # torch's own first time

    begin = time.perf_counter()
    torch.autograd.grad(getattr(losszoo, name)(input, target, reduction="mean"), input)
    if device == "cuda":
        torch.cuda.synchronize()
    spent = 1e3 * (time.perf_counter() - begin)
    if native._building is not None:  # it would outlive this process, and take the next one's time
        os.killpg(native._building.pid, signal.SIGTERM)
    return spent


def imports() -> float:
    """In a new process: milliseconds that `import losszoo` adds to `import torch`."""
    import torch  # noqa: F401

    begin = time.perf_counter()
    import losszoo  # noqa: F401

    return 1e3 * (time.perf_counter() - begin)


def runtime() -> None:
    """In a new process: the native runtime, built into its cache."""
    from losszoo.runtime import native

    native.wait()


def devices() -> list[str]:
    """In a new process, as the parent would otherwise hold a CUDA context: where to measure."""
    import torch

    return ["cpu"] + ["cuda"] * torch.cuda.is_available()


def in_new_process(function: str, *arguments: str, **environment: str) -> object:
    command = [sys.executable, __file__, function, *arguments]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | environment
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(result.stdout)


def main(device: str | None = None) -> int:
    wanted = [d for d in in_new_process("devices") if device in (None, d)]
    if not wanted:
        sys.exit(f"build.py: got {device!r}, expected cpu, or cuda where there is a GPU")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/bytecode"
        in_new_process("first_result", LOSSES[0], "cpu", LOSSZOO_CACHE_DIR=f"{folder}/kernels")  # writes the bytecode
        in_new_process("runtime", LOSSZOO_CACHE_DIR=f"{folder}/runtime")
        return report_all(f"{folder}/runtime", wanted)


def report_all(with_runtime: str, wanted: list[str]) -> int:
    missed = 0

    def report(what: str, figures: list[float], bar: float) -> None:
        nonlocal missed
        figure = statistics.median(figures)
        missed += figure > bar
        print(f"{what:<36}{figure:9.1f} ms   (at most {bar:.0f}){'   MISSED' * (figure > bar)}", flush=True)

    report("import losszoo after import torch", [in_new_process("imports") for _ in range(2 * ROUNDS + 1)], IMPORT_BAR)
    for device in wanted:
        for name in LOSSES:
            cold, warm = [], []
            for _ in range(ROUNDS):
                with tempfile.TemporaryDirectory() as cache:
                    cold.append(in_new_process("first_result", name, device, LOSSZOO_CACHE_DIR=cache))
                    shutil.copytree(with_runtime, cache, dirs_exist_ok=True)
                    warm.append(in_new_process("first_result", name, device, LOSSZOO_CACHE_DIR=cache))
            report(f"{name}, {device}, cold", cold, BARS["cold", device])
            report(f"{name}, {device}, warm", warm, BARS["warm", device])
    return int(missed > 0)


if __name__ == "__main__":
    if len(sys.argv) == 1 or sys.argv[1] not in globals():
        sys.exit(main(*sys.argv[1:]))
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
