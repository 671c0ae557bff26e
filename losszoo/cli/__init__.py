"""The command `losszoo`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import losszoo
from losszoo.cli.demo import demo
from losszoo.cli.doctor import doctor
from losszoo.cli.prebuild import DTYPES, prebuild
from losszoo.cli.show import print_list, show
from losszoo.errors import LosszooError, UsageError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        status = arguments.run(arguments)
        sys.stdout.flush()
        return status or 0
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (LosszooError, OSError) as error:
        print(f"losszoo: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1  # 2 is argparse's status for a mistake in the command
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("losszoo", description="Loss functions compiled to fused kernels.")
    parser.add_argument("--version", action="version", version=f"losszoo {losszoo.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("list", help="every loss: function, module, operands, formula")
    command.set_defaults(run=lambda arguments: print_list())

    command = commands.add_parser("show", help="a loss's signature and formula, or its rendered kernels")
    command.add_argument("name", help="function or module, as `losszoo list` has it")
    command.add_argument("--source", choices=("cuda", "cpu"), help="print the rendered kernels for this device")
    command.set_defaults(run=lambda arguments: show(arguments.name, arguments.source))

    command = commands.add_parser("doctor", help="what losszoo finds on this machine, and what to do about each problem")
    command.set_defaults(run=lambda arguments: doctor())

    command = commands.add_parser("prebuild", help="build kernels before they are needed; no GPU is needed")
    command.add_argument("names", nargs="*", metavar="NAME", help="function or module (default: all, and the native runtime)")
    command.add_argument("--arch", nargs="+", default=["cpu"], help="cpu, sm_80, sm_90 ... (default: cpu)")
    command.add_argument("--dtype", nargs="+", choices=DTYPES, default=["float32", "bfloat16"], help="default: float32 bfloat16")
    command.add_argument("--shape", nargs="+", default=[], help="of logits, such as 4096x32000 (default: a few of each kind)")
    command.add_argument("--every-option", action="store_true", help="also for options away from their defaults")
    command.add_argument("--jobs", type=int, help="how many compilers at once (default: as many as processors)")
    command.set_defaults(run=lambda given: prebuild(given.names, given.arch, given.dtype, given.shape, given.every_option, given.jobs))

    command = commands.add_parser("demo", help="train on real digits beside torch, time every loss, draw a picture")
    command.add_argument(
        "--out", type=Path, default=Path("losszoo-demo.png"), help="the picture (default: %(default)s)"
    )
    command.set_defaults(run=lambda arguments: demo(arguments.out))
    return parser
