"""Processes that are ranks of one group, started once and given many jobs."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

LIMIT = 240  # seconds for a job: a loaded machine that has to compile


class Pool:
    """`run(ranks, job, *arguments)` calls job(group, *arguments) in that many processes and gives what each returned."""

    def __init__(self, size: int, backend: str) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.parallel.jobs", "tests.parallel.cases"])  # imported once for all
        folder = tempfile.mkdtemp()
        self.pipes, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, backend, f"{folder}/store", theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, ranks: int, job: Callable, *arguments: Any) -> list:
        for pipe in self.pipes[:ranks]:
            pipe.send((ranks, job, arguments))
        results = []
        for rank, pipe in enumerate(self.pipes[:ranks]):
            if not pipe.poll(LIMIT):
                self.close()
                raise AssertionError(f"rank {rank} did not answer: the ranks wait for each other")
            results.append(pipe.recv())
        failed = [said for ok, said in results if not ok]
        assert not failed, "\n".join(failed)
        return [result for _, result in results]

    def close(self) -> None:
        started.cache_clear()
        for process in self.processes:
            process.kill()


@cache
def started(size: int, backend: str) -> Pool:
    made = Pool(size, backend)
    atexit.register(made.close)
    return made


def pool() -> Pool:
    return started(4, "gloo")


def _serve(rank: int, size: int, backend: str, store: str, pipe: Any) -> None:
    os.environ.pop("LOSSZOO_RUNTIME", None)  # the native runtime, which tests/conftest.py built
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
    groups = {n: dist.new_group(list(range(n))) for n in range(1, size + 1)}
    while True:
        try:
            ranks, job, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = True, job(groups[ranks], *arguments)
        except Exception:
            answer = False, f"rank {rank}: {traceback.format_exc()}"
        pipe.send(answer)
