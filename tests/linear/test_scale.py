"""A gradient times the upstream one, on the CPU and by the CUDA kernel, which the SIMT machine runs."""

import pytest
import torch

import losszoo.jit
from losszoo.linear_layer import scale as module
from losszoo.linear_layer.scale import scale, source
from tests import simt

TYPES = ((torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64))
types = pytest.mark.parametrize("dtype, real", TYPES)


@types
@pytest.mark.parametrize("factor", [1.0, 0.3, -2.0])
def test_scale(dtype, real, factor, device):
    x = torch.linspace(-3, 5, 1001, dtype=torch.float64, device=device).to(dtype)
    for given in x.clone(), x.clone()[::3]:
        expected = (given.to(real) * torch.tensor(factor, dtype=real, device=device)).to(dtype)
        scale(given, torch.tensor(factor, dtype=real, device=device))
        assert torch.equal(given, expected)


@pytest.mark.cpu_only
@types
def test_the_kernel(dtype, real):
    module._function.cache_clear()
    for count in 1, 7, 256 * 8 * 3 + 5:
        for factor in 0.3, 1.0:
            x = torch.linspace(-3, 5, count, dtype=torch.float64).to(dtype)
            number = torch.tensor(factor, dtype=real)
            expected = (x.to(real) * number).to(dtype)
            with simt.machine(multiprocessors=1, read_only=[number] if factor != 1 else [number, x]) as launches:
                scale(x, number)
            assert torch.equal(x, expected) and len(launches) == 1
    module._function.cache_clear()


@pytest.mark.cpu_only
@types
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_it_compiles(dtype, real, arch):
    built = losszoo.jit.build(source(str(dtype).removeprefix("torch."), str(real).removeprefix("torch.")), arch=arch)
    assert built.read_bytes()[:4] == b"\x7fELF"
