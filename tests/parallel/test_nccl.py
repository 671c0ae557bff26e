"""Sharded losses on two GPUs through NCCL: `pytest --device cuda tests/parallel`."""

from __future__ import annotations

import pytest
import torch

from losszoo import testing
from tests.parallel import jobs
from tests.parallel.pool import started
from tests.parallel.test_sharded import FORMS, RANGES, choice_of, found, hold

pytestmark = [pytest.mark.cuda_only, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")]


@pytest.mark.parametrize("where, dtype, kinds, free", FORMS, ids=[f"{w.split(':')[1]}-{str(d)[6:]}" for w, d, *_ in FORMS])
def test_sharded_is_unsharded(where, dtype, kinds, free):
    spec, choice = found(where).spec, choice_of(where, kinds, free)
    for number, sizes in enumerate(((500, 524), (3, 8), (0, 33), (4096, 4096), (20001, 9), (1024,))):
        shape, reduction = (7, sum(sizes)), ("mean", "none", "sum")[number % 3]
        call = testing._draw(spec, choice, dtype, testing.LAYOUTS[number % 4], shape, reduction, number, RANGES, "cpu")
        hold(where, call, sizes, number % 2 == 0, number % 4 > 1, number, started(2, "nccl"))


@pytest.mark.parametrize(
    "job", [jobs.extreme, jobs.module, jobs.natively, jobs.compiled, jobs.captured, jobs.distributed_tensor, jobs.ddp, jobs.fsdp2],
    ids=lambda job: job.__name__,
)  # fmt: skip
def test_on_two_gpus(job):
    started(2, "nccl").run(2, job)


@pytest.mark.parametrize("smoothing", ["others", "all"])
def test_megatron(smoothing):
    started(2, "nccl").run(2, jobs.megatron, smoothing)
