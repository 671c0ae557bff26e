"""A linear layer whose classes are split over one to four processes, in chunks there, is the layer and the loss of all classes."""

from __future__ import annotations

import pytest
import torch

from losszoo.codegen.kernel import scheduled
from losszoo.spec.operands import Row
from tests.linear import jobs
from tests.linear.cases import BY_NAME, case, close, plain
from tests.parallel.pool import pool, started

on_cpu = pytest.mark.cpu_only
SIZES = ((9,), (4, 5), (0, 9), (3, 1, 0, 5))  # classes of each rank


@on_cpu
@pytest.mark.parametrize("name, reduction", [*((name, "mean") for name in BY_NAME), ("cross_entropy", "none")])
def test_sharded_is_whole(name, reduction):
    some = case(name, reduction=reduction)
    expected, wanted = some.run(plain(name), "cpu")
    spec = BY_NAME[name].spec
    wrt = tuple(o.name for o in spec.operands if o.kinds == (Row,))
    passes = len(scheduled(spec, spec.default_choice(), wrt, True).forward.passes)
    split = {"linear_weight": 0, "linear_bias": 0} | {n: 1 for n in wrt[1:]}  # along which axis
    for sizes in SIZES:
        for memory in 8 * 11 * 2 * 2, None:  # two classes at a time, all
            results = pool().run(len(sizes), jobs.run, some, sizes, "cpu", {"chunk_bytes": memory})
            for loss, grads, forward, backward in results:
                assert torch.equal(loss.nan_to_num(7.0), results[0][0].nan_to_num(7.0))
                assert torch.equal(grads["input"], results[0][1]["input"])
                if len(sizes) > 1:
                    early = reduction == "mean"
                    assert (len(forward), len(backward)) == (passes + early, 1 - early)
            close(results[0][0], expected, 1e-10, "loss")
            for n, want in wanted.items():
                got = torch.cat([r[1][n] for r in results], split[n]) if n in split else results[0][1][n]
                close(got, want, 1e-10, n)


@on_cpu
def test_options_and_16_bits():
    some = case("cross_entropy", 40, 16, 30, dtype=torch.bfloat16, weighted=True, label_smoothing=0.1, z_loss=0.01, softcap=5.0)
    expected, wanted = some.in_double().run(plain("cross_entropy"), "cpu")
    for loss, grads, *_ in pool().run(2, jobs.run, some, (11, 19), "cpu", {"chunk_bytes": 40 * 4 * 4}):
        assert loss.dtype is torch.float32 and grads["input"].dtype is torch.bfloat16
        close(loss, expected, 2e-2, "loss")
        close(grads["input"], wanted["input"], 2e-2, "gradient of input")


@on_cpu
def test_a_second_derivative_is_refused():
    for said in pool().run(2, jobs.twice, case("cross_entropy"), (4, 5)):
        assert "second derivative" in said


@on_cpu
def test_mistakes_are_said_on_every_rank():
    for weights, label, size in pool().run(2, jobs.mistakes, case("cross_entropy"), (4, 5)):
        assert weights.startswith("ValueError: weight: ") and "(9,)" in weights
        assert label.startswith("IndexError: target: ") and "9 (the classes)" in label
        assert size.startswith("ValueError: rank ")


@pytest.mark.cuda_only
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", BY_NAME)
def test_on_two_gpus(name):
    for dtype, rtol in (torch.float32, 1e-5), (torch.bfloat16, 2e-2):
        some = case(name, 70, 32, 1000, dtype=dtype)
        expected, wanted = some.in_double().run(plain(name), "cpu")
        for sizes in (500, 500), (0, 1000), (999, 1):
            results = started(2, "nccl").run(2, jobs.run, some, sizes, "cuda", {"chunk_bytes": 70 * 128 * 4})
            assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1]["input"], results[1][1]["input"])
            close(results[0][0], expected, rtol, "loss")
            close(results[0][1]["input"], wanted["input"], rtol, "input")
            close(torch.cat([r[1]["linear_weight"] for r in results]), wanted["linear_weight"], rtol, "linear_weight")
