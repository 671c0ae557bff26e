"""Accuracy of the kernels' maths against torch in float64; `--device cuda` tests the CUDA side of the headers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from losszoo.errors import ToolchainMissing
from losszoo.jit import Source, build, find_toolchain

from .kernels import LOOPS, STORAGE, Call, cuda, gcc_on_x86, on_cpu, on_cuda

inf, nan = math.inf, math.nan
SPECIALS = (
    *(
        0.0,
        0.5,
        1.0,
        1.5,
        2.0,
        2.5,
        3.0,
        4.0,
        7.0,
        88.0,
        100.0,
        1000.0,
        1e-3,
        1e-10,
        1e-30,
        2.0**-126,
        1e-40,
        2.0**-149,
    ),
    *(1 + 2.0**-23, 1 - 2.0**-24, 2.0**23 + 1, 2.0**24 + 2, 2.0**31, 3e38, 2.0**127, inf, nan),
)


@pytest.fixture(scope="session")
def compiled(device: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Call, str]:
    try:
        return (on_cuda(), "") if device == "cuda" else on_cpu(tmp_path_factory.mktemp("csrc"))
    except ToolchainMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def call(compiled: tuple[Call, str]) -> Call:
    return compiled[0]


def specials() -> Tensor:
    x = torch.tensor(SPECIALS)
    return torch.cat([x, -x])


def pairs() -> list[Tensor]:
    return [v.flatten() for v in torch.meshgrid(specials(), specials(), indexing="ij")]


def sweep(stride: int = 32749) -> Tensor:
    """Floats of every exponent and sign, evenly over the bit patterns; denser where losses live."""
    patterns = torch.arange(-(2**31), 2**31, stride, dtype=torch.int64).to(torch.int32).view(torch.float32)
    generator = torch.Generator().manual_seed(0)
    near = [torch.randn(15_000, generator=generator) * scale for scale in (0.1, 1, 10, 50)]
    return torch.cat([patterns, *near, specials()])


def ulps(got: Tensor, want: Tensor) -> Tensor:
    """The error of float32 `got` in ulp of float64 `want`; infinite where only one is nan or infinite.

    Beyond the largest float32, infinity counts as 2**128: to overflow early is an error of its size.
    """
    got = got.double()
    past = torch.full_like(got, 2.0**128).copysign(got)
    finite_want = torch.where(want.abs() >= 2.0**128, past.copysign(want), want)
    error = (torch.where(got.isinf(), past, got) - finite_want).abs()
    exponent = torch.frexp(finite_want).exponent.clamp(min=-125)
    error = error / torch.ldexp(torch.ones_like(error), exponent - 24)
    error = torch.where(want.isinf() & ~got.isinf(), inf, error)
    return torch.where(got.isnan() | want.isnan(), torch.where(got.isnan() & want.isnan(), 0.0, inf), error)


def assert_within(got: Tensor, want: Tensor, bound: Tensor | float, *operands: Tensor) -> None:
    error = ulps(got, want)
    within = (error <= bound) | (error == 0)
    at = int(within.int().argmin())
    case = [float(x[at]) for x in operands], float(got[at]), float(want[at])
    assert within[at], f"{float(error[at]):.3g} ulp: at {case[0]} got {case[1]!r}, want {case[2]!r}"


def assert_same(got: Tensor, want: Tensor, *operands: Tensor) -> None:
    """Equal with the signs of zeros; any nan equals any nan."""
    same = (got == want) & (got.signbit() == want.signbit()) | got.isnan() & want.isnan()
    at = int(same.int().argmin())
    assert same[at], f"at {[float(x[at]) for x in operands]} got {float(got[at])!r}, want {float(want[at])!r}"


BOUNDS = dict(exp=2, log=2, log1p=2, expm1=2, atan=2, asin=3, acos=3, tanh=3, sin=2, cos=2)
BOUNDS |= dict(sqrt=0.5, abs=0, floor=0)


@pytest.mark.parametrize("name", BOUNDS)
def test_float(call: Call, name: str) -> None:
    x = sweep()
    got, want = call(f"{name}_float", x), getattr(torch, name)(x.double())
    assert_within(got, want, BOUNDS[name], x)
    zero = torch.tensor([0.0, -0.0])
    assert_same(call(f"{name}_float", zero), getattr(torch, name)(zero), zero)


def test_exp_fast(call: Call, device: str) -> None:
    x = sweep()
    x = x[~(x > 0)]
    got, want = call("exp_fast_float", x), x.double().exp()
    flushed = (got == 0) & (x < (-87.33 if device == "cuda" else -87.67))
    bound = 3 + 4 / 3 * x.abs() if device == "cuda" else 2 + x.abs() / 16
    assert_within(got, torch.where(flushed, 0.0, want), bound, x)
    assert not got[x < -104].any()
    assert (got[x > -1e-9] == 1).all()


def test_exp_falling(call: Call, device: str) -> None:
    x = sweep()
    x = x[~(x > 0)]
    got, want = call("exp_falling_float", x), x.double().exp()
    flushed = (got == 0) & (x < (-87.33 if device == "cuda" else -87.67))
    assert_within(got, torch.where(flushed, 0.0, want), 3 + x.abs() / 16, x)
    assert not got[x < -104].any()
    assert (got[x > -1e-9] == 1).all()


def test_log1p_unit(call: Call, device: str) -> None:
    x = sweep()
    x = x[~(x < 0) & ~(x > 1)]
    assert_within(call("log1p_unit_float", x), x.double().log1p(), 3 if device == "cuda" else 2, x)


def test_atan2(call: Call) -> None:
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31, (2, 150_000), generator=generator).to(torch.int32).view(torch.float32)
    near = torch.randn((2, 150_000), generator=generator)
    diagonal = near[:1] * torch.cat([torch.ones(1, 150_000), 1 + 1e-4 * near[1:]])
    y, x = torch.cat([bits, near, diagonal], 1)
    assert_within(call("atan2_float", y, x), torch.atan2(y.double(), x.double()), 3, y, x)
    y, x = pairs()
    got, want = call("atan2_float", y, x), torch.atan2(y.double(), x.double())
    assert_within(got, want, 3, y, x)
    assert (got.signbit() == want.signbit())[~want.isnan()].all()


def pow_bound(x: Tensor, y: Tensor) -> Tensor:
    return 4 + ((y.double() * x.double().abs().log2()).abs() / 3).nan_to_num(0.0, posinf=0.0)


def test_pow(call: Call) -> None:
    generator = torch.Generator().manual_seed(2)
    n = 100_000
    uniform = torch.rand((4, n), generator=generator)
    bits = torch.randint(-(2**31), 2**31, (2, n), generator=generator).to(torch.int32).view(torch.float32)
    cases = [
        (uniform[0], 8 * uniform[1] - 2),  # probabilities to the powers of a loss
        (bits[0].abs(), 2 * uniform[1] - 1),
        (bits[0], bits[1]),
        (20 * uniform[2] - 10, (20 * uniform[3] - 10).round()),
        (0.5 + uniform[2], (2 * uniform[3] - 1) * 120 / (0.5 + uniform[2]).log2().abs()),
    ]
    for x, y in cases:
        assert_within(call("pow_float", x, y), x.double() ** y.double(), pow_bound(x, y), x, y)


def test_pow_of_special_values(call: Call) -> None:
    x, y = pairs()
    got, want = call("pow_float", x, y), x.double() ** y.double()
    assert_within(got, want, pow_bound(x, y), x, y)
    exact = ((want == 0) | want.isinf() | want.isnan() | (x.abs() == 1) | (y == 0)) & (want.float() == want)
    assert_same(got[exact], want[exact].float(), x[exact], y[exact])
    assert (got.signbit() == want.signbit())[~want.isnan()].all()


@pytest.mark.parametrize("name", sorted({*BOUNDS, "exp_fast", "exp_falling", "log1p_unit"}))
def test_double(call: Call, name: str) -> None:
    x = sweep(262139).double()
    x = x if name not in ("exp_fast", "exp_falling", "log1p_unit") else x[~(x < 0) & ~(x > 1)]
    plain = name.removesuffix("_fast").removesuffix("_falling").removesuffix("_unit")
    torch.testing.assert_close(call(f"{name}_double", x), getattr(torch, plain)(x), rtol=1e-15, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["atan2", "pow"])
def test_double_of_two(call: Call, name: str) -> None:
    x, y = (v.double() for v in pairs())
    got, want = call(f"{name}_double", x, y), getattr(torch, name)(x, y)
    torch.testing.assert_close(got, want, rtol=1e-15, atol=0, equal_nan=True)


@pytest.mark.parametrize("real", [torch.float32, torch.float64])
def test_selection_and_tests(call: Call, real: torch.dtype) -> None:
    suffix = "float" if real == torch.float32 else "double"
    x, y = (v.to(real) for v in pairs())
    for name in "isnan", "isinf", "isfinite", "signbit":
        # The sign of a nan is nobody's business.
        kept = x.isnan().logical_not() if name == "signbit" else torch.ones_like(x, dtype=torch.bool)
        assert_same(call(f"{name}_{suffix}", x)[kept], getattr(torch, name)(x).to(real)[kept], x[kept])
    for name in "maximum", "minimum":
        torch.testing.assert_close(
            call(f"{name}_{suffix}", x, y), getattr(torch, name)(x, y), rtol=0, atol=0, equal_nan=True
        )
    assert_same(call(f"copysign_{suffix}", x, y), torch.copysign(x, y), x, y)
    assert_same(call(f"select_{suffix}", x, y), torch.where(x < y, x, y), x, y)
    fused = torch.addcmul(x, x, y)
    torch.testing.assert_close(call(f"fma_{suffix}", x, y), fused, rtol=1e-6, atol=1e-38, equal_nan=True)
    assert call(f"infinity_{suffix}", torch.ones(3, dtype=real)).tolist() == [inf] * 3
    assert call(f"nan_{suffix}", torch.ones(3, dtype=real)).isnan().all()


def patterns(dtype: torch.dtype) -> Tensor:
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("real", [torch.float32, torch.float64])
def test_every_16_bit_value_is_widened(call: Call, storage: str, real: torch.dtype) -> None:
    x = patterns(STORAGE[storage])
    suffix = "float" if real == torch.float32 else "double"
    assert_same(call(f"load_{storage}_{suffix}", x), x.to(real), x)


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("real", [torch.float32, torch.float64])
def test_narrowing_rounds_to_nearest_even(call: Call, storage: str, real: torch.dtype) -> None:
    """At every 16-bit value, at the midpoint to the next, and one float32 ulp to either side of both."""
    dtype, suffix = STORAGE[storage], "float" if real == torch.float32 else "double"
    values = patterns(dtype).float()
    values = values[values.isfinite()].sort().values
    ends = torch.tensor([-inf, inf])
    points = torch.cat([values, (values[1:] + values[:-1]) / 2, specials(), sweep(65521)])
    points = torch.cat([points, *(torch.nextafter(points, end.expand_as(points)) for end in ends)])
    # A float64 goes through float32: these are float32 already.
    assert_same(call(f"store_{storage}_{suffix}", points.to(real)).float(), points.to(dtype).float(), points)


@pytest.mark.cuda_only
@pytest.mark.parametrize("name", [name for name, loop in LOOPS.items() if loop.vector])
def test_vector_accesses_copy(call: Call, name: str) -> None:
    loop = LOOPS[name]
    short = loop.operand.itemsize == 2
    x = patterns(loop.operand) if short else sweep(65521)[:32768].to(loop.operand)
    assert_same(call(name, x).double(), x.double(), x)


@pytest.mark.cpu_only
def test_loops_vectorise_without_warnings(compiled: tuple[Call, str]) -> None:
    """GCC is the compiler that needs care: clang vectorises whatever GCC does."""
    if not gcc_on_x86(find_toolchain("cpp").compiler):
        pytest.skip("reads the remarks of GCC on x86-64")
    remarks = compiled[1].split("\n")
    assert not [line for line in remarks if "warning:" in line]
    vectorised = {int(line.split(":")[1]) for line in remarks if "loop vectorized" in line}
    loops = [loop for loop in LOOPS.values() if not loop.vector]
    plain = {loop.name for line, loop in enumerate(loops, start=3) if line not in vectorised}
    called = {*BOUNDS, "exp_fast", "exp_falling", "log1p_unit", "atan2", "pow"} - {"sqrt", "abs", "floor"}
    library = {"sin_float", "cos_float", *(f"{name}_double" for name in called)}
    twins = {"exp_fast_float", "exp_falling_float"}  # the same code, compiled once
    assert not twins <= plain and plain - twins <= library


@pytest.mark.cpu_only
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_headers_compile_for_cuda(arch: str) -> None:
    try:
        find_toolchain("cuda")
    except ToolchainMissing as error:
        pytest.skip(str(error))
    assert build(Source("loops", "cuda", cuda()), arch).read_bytes()[:4] == b"\x7fELF"
