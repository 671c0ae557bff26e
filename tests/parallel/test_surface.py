"""What is around a sharded loss: errors, modules, torch.compile, DTensors, Megatron's signature, data parallelism."""

from __future__ import annotations

import pytest
import torch

import losszoo
from losszoo.parallel import sharded
from tests.parallel import jobs
from tests.parallel.pool import pool

pytestmark = pytest.mark.cpu_only


@pytest.mark.parametrize("job", [jobs.extreme, jobs.module, jobs.without_kernels], ids=lambda job: job.__name__)
def test_in_three_processes(job):
    pool().run(3, job)


def test_under_torch_compile():
    pool().run(2, jobs.compiled)


def test_data_parallel_and_sharded():
    pool().run(4, jobs.data_parallel)


@pytest.mark.parametrize("job", [jobs.ddp, jobs.fsdp2], ids=lambda job: job.__name__)
def test_the_mean_over_all_batches(job):
    pool().run(2, job)


def test_the_example_learns_the_same_with_any_number_of_ranks():
    alone, *_ = pool().run(1, jobs.example)
    for losses in pool().run(3, jobs.example):
        assert losses == pytest.approx(alone, rel=1e-4) and losses[-1] < 0.5 * losses[0]


def test_a_stray_label_is_an_error_on_every_rank():
    said = pool().run(3, jobs.stray)
    assert len(set(said)) == 1 and "row 0" in said[0] and "label < 50" in said[0]


def test_all_rows_ignored():
    for loss, grad in pool().run(2, jobs.all_ignored):
        assert loss.isnan() and (grad == 0).all()


def test_another_size_is_an_error():
    for said in pool().run(2, jobs.other_size):
        assert "24 classes, and 25 were agreed on" in said


def test_no_second_derivative():
    for said in pool().run(2, jobs.twice):
        assert "no second derivative" in said


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_dtensors(ranks):
    for said in pool().run(ranks, jobs.distributed_tensor):
        by_batch, labels, teacher, elements = said
        assert "expected Shard(1) (its classes)" in by_batch
        assert "input is none" in labels and "to_local" in labels
        assert teacher.startswith("teacher: got a tensor beside DTensors")
        assert "to_local" in elements


@pytest.mark.parametrize("smoothing", ["others", "all"])
def test_megatron(smoothing):
    pool().run(3, jobs.megatron, smoothing)


def test_alone():
    """Without torch.distributed there is one rank, which has all classes."""
    x, y, _ = jobs.data()
    assert torch.equal(sharded(losszoo.cross_entropy)(x, y), sharded(losszoo.cross_entropy, sizes=[50])(x, y))
    torch.testing.assert_close(sharded(losszoo.cross_entropy)(x, y), losszoo.cross_entropy(x, y))


def test_what_cannot_be_sharded():
    with pytest.raises(TypeError, match="no class axis"):
        sharded(losszoo.ciou_loss)
    with pytest.raises(ValueError, match="sizes"):
        sharded(losszoo.cross_entropy, sizes=[3, 4])
