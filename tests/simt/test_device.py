"""What CUDA kernels are built from, by itself, and labels that no CUDA test without a GPU would otherwise meet."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

import losszoo
from losszoo.jit import Source, build
from losszoo.runtime import cuda_driver
from tests import simt
from tests.simt.run import checked, differentiate

pytestmark = pytest.mark.cpu_only
SOURCE = Source("device", "cuda", (Path(__file__).parent / "device.cu").read_text())


def launch(name: str, grid: int, block: int, tensors: dict[str, torch.Tensor], n: int, mean: bool = False) -> None:
    fields = ("numbers", "values", "quotients", "total", "denominator", "partial", "counter", "normalizer")
    with simt.machine(seed=grid):
        function = cuda_driver.load(build(SOURCE, "simt"), 0).function(name)
        pointers = (tensors[field].data_ptr() if field in tensors else 0 for field in fields)
        function.launch(grid, block, 0, 0, struct.pack("@8P2q", *pointers, n, mean))


def test_quotients():
    edges = [0, 1, 2, 7, 33, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**33 + 5, 2**53 + 1, 2**62]
    pairs = [(a, b) for a in edges for b in edges if b]
    numbers, quotients = torch.tensor(pairs).flatten(), torch.zeros(len(pairs), dtype=torch.int64)
    launch("divide", 1, 64, {"numbers": numbers, "quotients": quotients}, len(pairs))
    assert quotients.tolist() == [a // b for a, b in pairs]


@pytest.mark.parametrize("grid, block", [(1, 32), (1, 64), (3, 256), (7, 128)])
@pytest.mark.parametrize("values", ["far apart", "cancelling", "infinite", "nan"])
def test_sums_lose_nothing(grid, block, values):
    """In single precision a thread adds up as if with twice the digits, and infinities survive the compensation."""
    n = 20_000
    x = torch.rand(n, generator=torch.Generator().manual_seed(n))
    if values == "far apart":
        x[: n // 2] *= 1e7
    if values == "cancelling":
        x = torch.cat([x * 1e7, -x * 1e7, torch.full((100,), 0.125)])
    if values in ("infinite", "nan"):
        x[77] = float(values.removesuffix("inite"))
    total, denominator, partial = torch.zeros(()), torch.zeros(()), torch.empty(2 * grid, dtype=torch.float64)
    given = {"values": x, "total": total, "denominator": denominator, "partial": partial, "counter": torch.zeros((), dtype=torch.int32)}
    launch("add_up", grid, block, given, len(x), mean=True)
    assert denominator == len(x)
    expected, size = x.double().sum() / len(x), float(x.nan_to_num(0, 0).abs().double().sum() / len(x))
    torch.testing.assert_close(total, expected.float(), rtol=1e-7, atol=1e-14 * size, equal_nan=True)


@pytest.mark.parametrize("name", ["cross_entropy", "softmax_focal_loss"])
@pytest.mark.parametrize("shape", [(5, 3), (7, 100), (5, 1030), (3, 9000), (2, 5, 4)])
@pytest.mark.parametrize("stray", [-1, "classes", 2**40])
def test_a_label_out_of_range_spoils_its_row_only(name, shape, stray):
    generator = torch.Generator().manual_seed(shape[1])
    x = torch.randn(shape, generator=generator)
    y = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
    spoilt = y.clone()
    spoilt.view(-1)[::3] = shape[1] if stray == "classes" else stray
    results = []
    for labels in (y, spoilt):
        call = checked(getattr(losszoo, name), x, labels, reduction="none")
        results.append(differentiate(call, ("input",), torch.ones_like))
    (loss, (grad,)), (spoilt_loss, (spoilt_grad,)) = results
    rows = spoilt != y
    assert spoilt_loss[rows].isnan().all() and torch.equal(spoilt_loss[~rows], loss[~rows])
    assert spoilt_grad.movedim(1, -1)[rows].isnan().all() and torch.equal(spoilt_grad.movedim(1, -1)[~rows], grad.movedim(1, -1)[~rows])
