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


@strategies
@given(st.data())
def test_cross_entropy(strategy, device, data):
    draw = data.draw
    inner = draw(st.sampled_from([(), (), (3,), (2, 2)])) if strategy == "rows" else ()
    options = {
        "label_smoothing": draw(st.sampled_from([0.0, 0.1])), "z_loss": draw(st.sampled_from([0.0, 0.01])),
        "softcap": draw(st.sampled_from([None, 3.0])), "reduction": draw(st.sampled_from(["mean", "sum", "none"])),
    }  # fmt: skip
    if options["reduction"] == "mean" and draw(st.booleans()):
        options["normalizer"] = draw(st.sampled_from([3.0, torch.tensor(7.0)]))
    rows, features, classes = draw(st.integers(0, 9)), draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 7, 33]))
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    some = case(
        "cross_entropy", rows, features, classes, dtype=dtype, bias=draw(st.booleans()), weighted=draw(st.booleans()),
        ignored=draw(st.sampled_from([0.0, 0.4, 1.0])), inner=inner, seed=draw(st.integers(0, 2**31)), **options,
    )  # fmt: skip
    some.frozen = draw(st.sampled_from([(), ("input",), ("linear_weight",), ("linear_bias",), ("linear_weight", "linear_bias")]))
    if not some.wanted:
        return
    memory = dtype.itemsize * draw(st.integers(1, 400))
    compare(some, device, rtol=1e-10 if dtype is torch.float64 else 2e-5, strategy=strategy, chunk_bytes=memory)


@strategies
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits(strategy, dtype, device):
    for reduction in "mean", "none":
        some = case("cross_entropy", 50, 32, 70, dtype=dtype, reduction=reduction)
        compare(some, device, rtol=16 * torch.finfo(dtype).eps, strategy=strategy, chunk_bytes=70 * 16 * 2)
