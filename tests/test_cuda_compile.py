"""Every CUDA kernel of every loss compiles, for every architecture that we care for; this needs NVRTC and no GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

import losszoo
import losszoo.codegen
import losszoo.jit
from losszoo.codegen import Form, Kernel
from losszoo.runtime import tiling

LOSSES = [name for name in losszoo.losses.__all__ if not isinstance(getattr(losszoo, name), type)]


# Before sm_90 some instructions are others; beyond that the architectures are the compiler's business, and share the work.
ARCHS = ("sm_80", "sm_90", "sm_87", "sm_100")  # those before and those from there on by turns


def compiled(source, arch: str) -> bytes:
    assert source.language == "cuda"
    return losszoo.jit.build(source, arch=arch).read_bytes()


@pytest.mark.parametrize("name, archs", [(name, ARCHS[i % 2 * 2 :][:2]) for i, name in enumerate(LOSSES)])
def test_compiles(name, archs):
    sources = losszoo.codegen.sources(getattr(losszoo, name).spec, "cuda")
    assert sources
    for source in sources:
        for arch in archs:
            assert compiled(source, arch)[:4] == b"\x7fELF", source.name


# Rows, classes, whether rows are skewed: teams below a warp, a warp, a block that holds a row, one that steps over it.
SHAPES = ((4096, 32, False), (4096, 1000, False), (4096, 1001, True), (64, 16384, False), (64, 16001, True), (64, 1 << 18, False))
TYPES = (("bfloat16", 8), ("float32", 4), ("float64", 2))


@pytest.mark.parametrize("name", [name for name in LOSSES if getattr(losszoo, name).spec.row])
@pytest.mark.parametrize("turn", range(len(SHAPES)))
def test_every_kind_of_tiling_compiles(name, turn):
    """Each with every type, and each loss with some."""
    spec = getattr(losszoo, name).spec
    rows, classes, skewed = SHAPES[turn]
    for i, (dtype, width) in enumerate(TYPES):
        if i == turn % 3 or name == "cross_entropy":
            shape = tiling.rows(rows, classes, width, skewed, 1, 132)
            real, same = "float64" if dtype == "float64" else "float32", shape.forward.tiling == shape.backward.tiling
            for j, wanted in enumerate([("forward", "backward")] if same else [("forward",), ("backward",)]):
                chosen = getattr(shape, wanted[0]).tiling
                form = Form("rows", (dtype, "int64"), real, ("input",), False, chosen, wanted=wanted)
                assert compiled(Kernel(spec, spec.default_choice(), form).source("cuda"), ARCHS[(turn + i + j) % len(ARCHS)])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", [name for name in LOSSES if getattr(losszoo, name).spec.row])
def test_parts_compile(name, arch):
    spec = getattr(losszoo, name).spec
    for dtype, width, skewed in (("bfloat16", 8, False), ("float32", 4, True))[: 2 if arch == "sm_90" else 1]:
        shape = tiling.parts(4096 if skewed else 64, 1 << (14 if skewed else 20), width, skewed, 1, 132)
        form = Form("parts", (dtype, "int64"), "float32", ("input",))
        every = Kernel(spec, spec.default_choice(), form).entries
        for chosen, wanted in (shape.fold.tiling, every[:-1]), (shape.backward.tiling, every[-1:]):
            kernel = Kernel(spec, spec.default_choice(), replace(form, tiling=chosen, wanted=wanted))
            assert compiled(kernel.source("cuda"), arch)[:4] == b"\x7fELF"


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_text_is_stable(name, language):
    """Same spec, same bytes; and no kernel twice."""
    first, second = (losszoo.codegen.sources(getattr(losszoo, name).spec, language) for _ in range(2))
    assert [s.text for s in first] == [s.text for s in second]
    assert len({s.text for s in first}) == len(first)
