from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import losszoo
from losszoo.spec import Elem
from tests.jit.conftest import in_children

ROOT = Path(__file__).parents[2]

TRAIN = """
import torch, losszoo
from losszoo.spec import Elem

@losszoo.loss
def squared(x: Elem):
    return x * x

def train():
    x = torch.arange(5.0, requires_grad=True)
    squared(x, reduction="sum").backward()
    if not torch.equal(x.grad, 2 * x):
        raise RuntimeError(f"wrong: {x.grad}")
"""
ONCE = TRAIN + "train(); print('right')"

FORKS = """
import os
def in_children(count, work):
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work()
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * count
"""

UNWANTED = ("CXX", "XDG_CACHE_HOME")

Python = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Run a script in a new process with an empty kernel cache, or whatever else the environment given says."""

    def run(script: str, *flags: str, arguments: tuple = (), program: str = "-c", **environment: object) -> subprocess.CompletedProcess:
        command = [sys.executable, *flags, program, script, *map(str, arguments)]
        given = {"PYTHONPATH": ROOT, "LOSSZOO_CACHE_DIR": tmp_path / "cache", **environment}
        kept = {name: value for name, value in os.environ.items() if name not in UNWANTED}
        return subprocess.run(
            command, env=kept | {name: str(value) for name, value in given.items()}, cwd=tmp_path, capture_output=True, text=True
        )

    return run


@pytest.fixture
def compiler(tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """A compiler that is a shell script, and the file to which it adds a line a compile."""

    def install(body: str = 'exec c++ "$@"') -> tuple[Path, Path]:
        script, log = tmp_path / "compiler", tmp_path / "compiles"
        script.write_text(f"#!/bin/sh\n[ \"$1\" = --version ] && exec c++ --version\necho compile >> '{log}'\n{body}\n")
        script.chmod(0o755)
        log.touch()
        return script, log

    return install


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A small file system in memory with the options given; skips where this user may not mount (see docs/machines.md)."""
    places: list[Path] = []

    def mounted(options: str) -> Path:
        place = tmp_path / "disk"
        place.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "tmpfs", place], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
        places.append(place)
        return place

    yield mounted
    for place in places:
        subprocess.run(["umount", place], check=True)


def trained(**environment: object) -> str:
    """What comes of `train_new_loss` in a process forked off: "right", or the error."""
    (answer,) = in_children([lambda: train_new_loss(environment)])
    return answer


def train_new_loss(environment: dict[str, object]) -> str:
    """Differentiate a loss that this process never built before; for forked processes, whose environment it changes."""
    os.environ.update({name: str(value) for name, value in environment.items()})
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork

    @losszoo.loss
    def squared(x: Elem):
        return x * x

    x = torch.arange(5.0, requires_grad=True)
    squared(x, reduction="sum").backward()
    return "right" if torch.equal(x.grad, 2 * x) else f"wrong: {x.grad}"
