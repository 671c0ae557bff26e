"""The C spelling of every primitive means what its torch function does: both columns of the table, at special values too."""

from __future__ import annotations

import ctypes
import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from losszoo.ir.expand import SPELLED
from losszoo.ir.expr import REDUCTIONS, Type
from losszoo.ir.primitives import TABLE
from losszoo.jit import Source, build
from tests.ir.test_primitives import POINTWISE
from tests.ir.test_simplify import TORCH

pytestmark = pytest.mark.cpu_only

SPELLINGS = {name: row.c for name, row in TABLE.items() if row.c}
READ = {Type.REAL: "{0}", Type.BOOL: "({0} > R(0))", Type.INT: "lz::int64({0})"}
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.5, 3.0, 0.3, 20.0, -20.0, 1e-30, 1e30, math.inf, -math.inf, math.nan)
WHOLE = (0.0, 1.0, -1.0, 2.0, -2.5, 3.7, 1e6)  # what fits the whole numbers that it is turned into
UNIT = (0.0, 0.25, 0.5, 1.0, math.nan)
DTYPES = {"double": torch.float64, "float": torch.float32}


def test_whatever_is_not_spelled_is_computed_in_another_way():
    """Reductions by monoids, the choice of a class by the printer, and what is spelled out in other primitives."""
    assert set(TABLE) - set(SPELLINGS) == REDUCTIONS | {"pick"} | set(SPELLED)


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    lines = [f"#include <losszoo/{header}.h>" for header in ("math", "item")]
    for name, c in SPELLINGS.items():
        text = c.format(*(f"v{i}" for i in range(len(POINTWISE[name].types))))
        reads = " ".join(
            f"const auto v{i} = {READ[t].format(f'x[i * 3 + {i}]')};" for i, t in enumerate(POINTWISE[name].types)
        )
        for real in DTYPES:
            head = f"void {name}_{real}(const {real}* x, {real}* y, lz::int64 n)"
            body = f"using R = {real}; constexpr bool ROUGH = false; (void)ROUGH; "
            body += f"for (lz::int64 i = 0; i < n; ++i) {{ {reads} y[i] = R({text}); }}"
            lines.append(f'extern "C" __attribute__((visibility("default"))) {head} {{ {body} }}')
    return ctypes.CDLL(str(build(Source("spelling", "cpp", "\n".join(lines) + "\n"))))


def call(library: ctypes.CDLL, name: str, real: str, x: Tensor) -> Tensor:
    y = torch.empty(len(x), dtype=x.dtype)
    getattr(library, f"{name}_{real}")(
        ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_int64(len(x))
    )
    return y


@pytest.mark.parametrize("real", DTYPES)
@pytest.mark.parametrize("name", SPELLINGS)
def test_both_columns_agree(library, name, real):
    types = POINTWISE[name].types
    domains = {"log1p_unit": UNIT, "reciprocal": [1.0, 1.25, 2.0, math.nan], "exp_falling": [x for x in SPECIAL if not x > 0]}
    numbers = WHOLE if POINTWISE[name].integral else domains.get(name, SPECIAL)
    rows = list(itertools.product(numbers, repeat=len(types)))
    x = torch.tensor([[*row, *[0.0] * (3 - len(row))] for row in rows], dtype=DTYPES[real])
    to = {Type.REAL: lambda v: v, Type.BOOL: lambda v: v > 0, Type.INT: Tensor.long}
    torchs = SimpleNamespace(**{**vars(TORCH), "real": x.dtype})
    want = TABLE[name].torch(torchs, *(to[t](x[:, i]) for i, t in enumerate(types))).to(x.dtype)
    got = call(library, name, real, x)
    tolerance = 32 * torch.finfo(x.dtype).eps
    wrong = ~torch.isclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert not wrong.any(), [(row, float(g), float(w)) for row, g, w, bad in zip(rows, got, want, wrong, strict=True) if bad][:9]
