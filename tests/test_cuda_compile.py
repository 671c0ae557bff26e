"""Every CUDA kernel of every loss compiles for every architecture that we care for; this needs NVRTC and no GPU."""

from __future__ import annotations

import pytest

import losszoo
import losszoo.codegen
import losszoo.jit
from losszoo.codegen import Form, Kernel
from losszoo.runtime import tiling

LOSSES = [name for name in losszoo.losses.__all__ if not isinstance(getattr(losszoo, name), type)]


@pytest.mark.parametrize("arch", ["sm_80", "sm_87", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", LOSSES)
def test_compiles(name, arch):
    sources = losszoo.codegen.sources(getattr(losszoo, name).spec, "cuda")
    assert sources
    for source in sources:
        assert source.language == "cuda"
        cubin = losszoo.jit.build(source, arch=arch)
        assert cubin.read_bytes()[:4] == b"\x7fELF", source.name


# Rows, classes, whether rows are skewed: teams below a warp, a warp, a block that holds a row, one that steps over it.
SHAPES = ((4096, 32, False), (4096, 1000, False), (4096, 1001, True), (64, 16384, False), (64, 16001, True), (64, 1 << 18, False))


@pytest.mark.parametrize("arch", ["sm_80", "sm_87", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", [name for name in LOSSES if getattr(losszoo, name).spec.row])
def test_every_kind_of_tiling_compiles(name, arch):
    spec = getattr(losszoo, name).spec
    choice = spec.default_choice()
    for dtype, width in (("bfloat16", 8), ("float32", 4), ("float64", 2))[: 3 if arch == "sm_90" else 1]:
        for rows, classes, skewed in SHAPES:
            shape = tiling.rows(rows, classes, width, skewed, 1, 132)
            for chosen in {shape.forward.tiling, shape.backward.tiling}:
                form = Form("rows", (dtype, "int64"), "float64" if dtype == "float64" else "float32", ("input",), False, chosen)
                assert losszoo.jit.build(Kernel(spec, choice, form).source("cuda"), arch=arch).stat().st_size


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", [name for name in LOSSES if getattr(losszoo, name).spec.row])
def test_parts_compile(name, arch):
    spec = getattr(losszoo, name).spec
    for dtype, width, skewed in (("bfloat16", 8, False), ("float32", 4, True))[: 2 if arch == "sm_90" else 1]:
        shape = tiling.parts(4096 if skewed else 64, 1 << 14, width, skewed, 1, 132)
        for chosen in {shape.fold.tiling, shape.backward.tiling}:
            form = Form("parts", (dtype, "int64"), "float32", ("input",), False, chosen)
            assert losszoo.jit.build(Kernel(spec, spec.default_choice(), form).source("cuda"), arch=arch).stat().st_size


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_text_is_stable(name, language):
    """Same spec, same bytes; and no kernel twice."""
    first, second = (losszoo.codegen.sources(getattr(losszoo, name).spec, language) for _ in range(2))
    assert [s.text for s in first] == [s.text for s in second]
    assert len({s.text for s in first}) == len(first)
