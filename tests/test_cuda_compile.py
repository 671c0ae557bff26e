"""Every CUDA kernel of every loss compiles for every architecture that we care for; this needs NVRTC and no GPU."""

from __future__ import annotations

import pytest

import losszoo
import losszoo.codegen
import losszoo.jit

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


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_text_is_stable(name, language):
    """Same spec, same bytes; and no kernel twice."""
    first, second = (losszoo.codegen.sources(getattr(losszoo, name).spec, language) for _ in range(2))
    assert [s.text for s in first] == [s.text for s in second]
    assert len({s.text for s in first}) == len(first)
