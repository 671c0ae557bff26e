"""`python -m tests.mutations`: plants each fault in a copy of the tree and runs the tests meant to catch it.

A fault that they miss is tried on the whole suite. Files that record rendered text are left out, since they notice any change. Run on
demand: it takes a while. Exit status 1 if a fault is missed, or its text is no longer in its file.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import hypothesis  # noqa: F401  # once, and not for every fault
import pytest
import torch  # noqa: F401

from tests.mutations.faults import Fault, read

ROOT = Path(__file__).parents[2]
LEFT_OUT = ("tests/codegen/test_golden.py", "tests/mutations")


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__, formatter_class=raw)
    parser.add_argument("words", nargs="*", help="only the faults whose name or file has one of these words")
    parser.add_argument("--list", action="store_true", help="print the faults and where they are")
    parser.add_argument("--no-suite", action="store_true", help="a fault that its own tests miss is missed")
    options = parser.parse_args()
    chosen = [f for f in read() if not options.words or any(word in f"{f.name} {f.file}" for word in options.words)]
    stale = [f for f in chosen if places(ROOT, f) != 1]
    for fault in stale:
        print(f"stale: {fault.name}: the text is {places(ROOT, fault)} times in {fault.file}")
    if options.list:
        print(*(f"{f.file}: {f.name}" for f in chosen), sep="\n")
    if options.list or stale:
        return bool(stale)
    with tempfile.TemporaryDirectory(prefix="mutations-") as place:
        tree = copied(Path(place, "tree"))
        for built in Path(os.environ.get("LOSSZOO_CACHE_DIR", place)).glob("losszoo_runtime-*"):
            shutil.copytree(built, tree.parent / "kernels" / built.name)  # it takes a minute, and is kept where its sources are the same
        missed = [fault.name for fault in chosen if not caught(tree, fault, suite=not options.no_suite)]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults caught" + "".join(f"\nmissed: {name}" for name in missed))
    return bool(missed)


def places(tree: Path, fault: Fault) -> int:
    return (tree / fault.file).read_text(encoding="utf-8").count(fault.old)


def copied(tree: Path) -> Path:
    """The files that git tracks, without what must not be run."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in names:
        if not name.startswith(LEFT_OUT):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def caught(tree: Path, fault: Fault, suite: bool) -> bool:
    """Plant the fault, run the tests, and put the file back."""
    path = tree / fault.file
    sound = path.read_text(encoding="utf-8")
    begun = time.monotonic()
    path.write_text(sound.replace(fault.old, fault.new), encoding="utf-8")
    try:
        stages = [*fault.stages, *([("tests",)] if suite else [])]
        by = next(filter(None, (failure(tree, [*stage]) for stage in stages)), None)
    finally:
        path.write_text(sound, encoding="utf-8")
    print(f"{'caught' if by else 'MISSED'} in {time.monotonic() - begun:.0f} s: {fault.name}", flush=True)
    if by:
        print(f"    by {by}", flush=True)
    return bool(by)


def failure(tree: Path, tests: list[str]) -> str | None:
    """The first test that fails, or None."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            status = 99
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                status = test(tree, tests)
            finally:
                sys.stdout.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        text = output.read()
    if status == 0:
        return None
    if status in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED, 99):
        raise SystemExit(f"{' '.join(tests)}: {text[-1000:]}")
    said = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return said[0] if said else f"exit status {status}: {text[-300:]}"


def test(tree: Path, tests: list[str]) -> int:
    """Run tests of the tree in this process, which has torch already and nothing of losszoo's."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "losszoo")]:
        del sys.modules[name]
    sys.path[0] = str(tree)
    sys.dont_write_bytecode = True
    os.chdir(tree)
    os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "CI": "true", "LOSSZOO_CACHE_DIR": str(tree.parent / "kernels")}
    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--tb=no", *tests]))


if __name__ == "__main__":
    raise SystemExit(main())
