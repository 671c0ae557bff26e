from __future__ import annotations

import multiprocessing
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own, not yet made."""
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that every user can reach, which tmp_path is not."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put a shell script in the compiler's place; it logs each compile, and the log is returned."""

    def install(body: str = 'exec c++ "$@"') -> Path:
        script, log = tmp_path / "compiler", tmp_path / "compiles"
        asked = '[ "$1" = --version ] && { echo "$0"; exit; }'
        script.write_text(f"#!/bin/sh\n{asked}\necho compile >> '{log}'\n{body}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        log.touch()
        monkeypatch.setenv("CXX", str(script))
        return log

    return install


def in_children(functions: list[Callable[[], str]], uid: int | None = None) -> list[str]:
    """Call each function in a forked process of its own, all at once; what they return, or the error they raise.

    A fork brings the imported modules along, where a new process would import torch. Children may run as another user,
    since no permission stops the administrator, whom containers run tests as.
    """
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(len(functions))

    def child(function: Callable[[], str], send) -> None:
        try:
            if uid is not None and os.geteuid() == 0:
                os.setuid(uid)
            barrier.wait(60)
            send.send(function())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent asserts on it
            send.send(f"{type(error).__name__}: {error}")

    pipes = [context.Pipe(duplex=False) for _ in functions]
    children = [
        context.Process(target=child, args=(function, send))
        for function, (_, send) in zip(functions, pipes, strict=True)
    ]
    for process in children:
        process.start()
    answers = []
    for process, (receive, send) in zip(children, pipes, strict=True):
        send.close()
        answers.append(receive.recv())
        process.join(60)
    return answers
