"""`python -m tests.fuzz --specs 2000 --simt 300 --parts 300 --seed 0`: random specs, kernels against the interpreter.

Every spec runs on the CPU, the first ones also as CUDA through the SIMT machine, and with their classes in parts. What fails is shrunk
and printed as text that can become a test. Compiled kernels go to LOSSZOO_CACHE_DIR, if it is set, else to a directory that is thrown
away.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

from losszoo.errors import SpecError
from tests.fuzz.compare import Setting, draw, in_parts, mismatch, on_cpu, on_simt, random_setting
from tests.fuzz.program import Program, compiled, random_program
from tests.fuzz.shrink import shrink
from tests.simt import Fault

BACKENDS = {"cpu": on_cpu, "simt": on_simt, "parts": in_parts}


def failure(program: Program, setting: Setting, backend: str) -> str | None:
    """What is wrong with the kernels of a spec, or None."""
    try:
        function = compiled(program.text())
    except SpecError:
        return None  # refused where it is declared, as it should be
    try:
        return mismatch(draw(function, setting), setting, BACKENDS[backend])
    except Fault as fault:
        return str(fault)
    except Exception as error:  # a compiler's, say: a finding like any other
        return f"{type(error).__name__}: {error}"


def describe(program: Program, setting: Setting, backend: str, said: str) -> str:
    return f"{program.text()}\n{setting}\n{backend}: {said[:3000]}\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--specs", type=int, default=100, help="how many specs")
    parser.add_argument("--simt", type=int, default=0, help="how many of them run through the SIMT machine as well")
    parser.add_argument("--parts", type=int, default=0, help="how many of them run in parts as well")
    parser.add_argument("--seed", type=int, default=0, help="the first spec's number")
    parser.add_argument("--only", choices=BACKENDS, help="leave out the other backends")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("LOSSZOO_CACHE_DIR", os.path.join(cache, "kernels"))
        return run(options)


def run(options: argparse.Namespace) -> int:
    failed, begun = 0, time.monotonic()
    for number in range(options.specs):
        seed = options.seed + number
        program = random_program(seed)
        setting = random_setting(seed, row=any(kind.startswith("Row") for _, kind in program.operands))
        counts = {"cpu": options.specs, "simt": options.simt, "parts": options.parts}
        backends = [b for b in BACKENDS if number < counts[b] and options.only in (None, b)]
        for backend in backends:
            said = failure(program, setting, backend)
            if said:
                failed += 1
                print(f"--- spec {seed}\n{describe(program, setting, backend, said)}", flush=True)
                small = shrink((program, setting), lambda case, b=backend: failure(*case, b))
                print(f"--- spec {seed}, shrunk\n{describe(*small, backend, failure(*small, backend) or said)}", flush=True)
        if (number + 1) % 100 == 0:
            print(f"{number + 1} specs, {failed} failures, {time.monotonic() - begun:.0f} s", flush=True)
    print(f"{options.specs} specs, {failed} failures")
    return failed > 0


if __name__ == "__main__":
    raise SystemExit(main())
