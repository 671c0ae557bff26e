"""What is around a sharded loss: errors, modules, torch.compile, DTensors, Megatron's signature, data parallelism."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import losszoo
from losszoo.parallel import sharded
from losszoo.parallel.sharded import compute
from losszoo.parallel.shards import Shards
from losszoo.runtime import dispatch
from tests.parallel import jobs
from tests.parallel.pool import pool

pytestmark = pytest.mark.cpu_only


@pytest.mark.parametrize("job", [jobs.extreme, jobs.module, jobs.without_kernels], ids=lambda job: job.__name__)
def test_in_three_processes(job):
    pool().run(3, job)


@pytest.mark.parametrize("ranks", [1, 3])
def test_by_the_native_runtime(ranks):
    pool().run(ranks, jobs.natively)


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
        by_batch, labels, teacher, elements, shard = said
        assert "expected Shard(1) (its classes)" in by_batch
        assert "input is none" in labels and "to_local" in labels
        assert teacher.startswith("teacher: got a tensor beside DTensors")
        assert "to_local" in elements and "to_local" in shard


@pytest.mark.parametrize("smoothing", ["others", "all"])
def test_megatron(smoothing):
    pool().run(3, jobs.megatron, smoothing)


def test_alone():
    """Without torch.distributed there is one rank, which has all classes."""
    x, y, _ = jobs.data()
    assert torch.equal(sharded(losszoo.cross_entropy)(x, y), sharded(losszoo.cross_entropy, sizes=[50])(x, y))
    torch.testing.assert_close(sharded(losszoo.cross_entropy)(x, y), losszoo.cross_entropy(x, y))


class Sizes(TorchDispatchMode):
    """How many numbers each new tensor has."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        before = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        for x in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in before:
                self.found.append(x.numel())
        return result


def test_memory():
    """Nothing of the size of the logits but the gradient: else a few numbers a row."""
    x, y, _ = jobs.data(64, 4096)
    shards = Shards(None, [4096])
    call = dispatch.checker(losszoo.cross_entropy.spec)(x.requires_grad_(), y, None, 0.1, 0.0, None, -100, "mean", None, None, whole=4096)
    with Sizes() as sizes:
        compute(call, shards).backward()
    assert [n for n in sizes.found if n > 10 * 64] == [x.numel()]
    assert 64 in sizes.found or 5 * 64 in sizes.found, "the states were seen"


def test_fake_tensors_go_through_the_operator():
    x, y, _ = jobs.data()
    loss = sharded(losszoo.cross_entropy, sizes=[50])
    expected = loss(x, y, reduction="none")
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert loss(x.clone(), y, reduction="none").shape == expected.shape
    traced = make_fx(lambda x: loss(x, y, reduction="none"))(x)
    assert any("sharded" in str(node.target) for node in traced.graph.nodes)
    assert torch.equal(traced(x), expected)


def test_what_cannot_be_sharded():
    with pytest.raises(TypeError, match="no class axis"):
        sharded(losszoo.ciou_loss)
    with pytest.raises(ValueError, match="sizes"):
        sharded(losszoo.cross_entropy, sizes=[3, 4])
