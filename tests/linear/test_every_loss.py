"""Every row loss through `losszoo.linear` equals torch's product and the loss: loss and all gradients, however it is cut in chunks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.linear.cases import BY_NAME, STRATEGIES, case, compare

every = pytest.mark.parametrize("name", BY_NAME)
strategies = pytest.mark.parametrize("strategy", STRATEGIES)


@every
@strategies
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_double(name, strategy, reduction, device):
    some = case(name, reduction=reduction)
    for numbers in (2 * 9, 7 * 9, 22 * 9, 1000):  # memory for one row, three, all: uneven, even, one chunk
        compare(some, device, strategy=strategy, chunk_bytes=8 * numbers)


@every
@strategies
def test_no_rows_and_one(name, strategy, device):
    for rows in 0, 1:
        compare(case(name, rows, ignored=0.0), device, strategy=strategy)


# What specialises a kernel: dtype, class weights, smoothing, z-loss, soft-cap. More would compile for long.
FORMS = (
    (torch.float64, False, 0.0, 0.0, None),
    (torch.float64, True, 0.1, 0.01, 3.0),
    (torch.float32, True, 0.0, 0.0, None),
)


@strategies
@given(st.data())
def test_cross_entropy(strategy, device, data):
    draw = data.draw
    dtype, weighted, smoothing, z_loss, softcap = draw(st.sampled_from(FORMS))
    reduction = draw(st.sampled_from(["mean", "sum", "none"]))
    options = {"label_smoothing": smoothing, "z_loss": z_loss, "softcap": softcap, "reduction": reduction}
    if reduction == "mean" and draw(st.booleans()):
        options["normalizer"] = draw(st.sampled_from([3.0, torch.tensor(7.0)]))
    rows, features, classes = draw(st.integers(0, 9)), draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 7, 33]))
    some = case(
        "cross_entropy", rows, features, classes, dtype=dtype, bias=draw(st.booleans()), weighted=weighted,
        ignored=draw(st.sampled_from([0.0, 0.4, 1.0])), seed=draw(st.integers(0, 2**31)), **options,
    )  # fmt: skip
    some.frozen = draw(st.sampled_from([(), ("input",), ("linear_weight",), ("linear_bias",), ("linear_weight", "linear_bias")]))
    memory = dtype.itemsize * draw(st.integers(1, 400))
    compare(some, device, rtol=1e-10 if dtype is torch.float64 else 2e-5, strategy=strategy, chunk_bytes=memory)


@pytest.mark.parametrize("name", ["cross_entropy", "kl_distillation_loss", "distribution_focal_loss", "poly1_loss"])
def test_more_axes(name, device):
    for inner in (3,), (2, 2):
        for reduction in "mean", "none":
            compare(case(name, 5, inner=inner, reduction=reduction), device, chunk_bytes=8 * 9 * 12)


@strategies
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits(strategy, dtype, device):
    for reduction in "mean", "none":
        some = case("cross_entropy", 50, 32, 70, dtype=dtype, reduction=reduction)
        compare(some, device, rtol=16 * torch.finfo(dtype).eps, strategy=strategy, chunk_bytes=70 * 16 * 2)
