"""The hint for large pages stays inside the tensor, and is given for large outputs only."""

from types import SimpleNamespace

import pytest
import torch

import losszoo
from losszoo.runtime import memory

pytestmark = pytest.mark.cpu_only


@pytest.fixture
def hints(monkeypatch):
    calls = []
    monkeypatch.setattr(memory, "_libc", SimpleNamespace(madvise=lambda at, size, advice: calls.append((at.value, size.value))))
    return calls


@pytest.mark.parametrize("offset", [0, 1, 12345])
def test_the_hint_stays_inside(hints, offset):
    whole = torch.empty((16 << 20) + offset, dtype=torch.uint8)
    part = whole[offset:]
    assert memory.in_large_pages(part) is part
    ((at, size),) = hints
    assert at % memory.HUGE_PAGE == 0 and size % memory.HUGE_PAGE == 0 and size >= (12 << 20)
    assert part.data_ptr() <= at and at + size <= part.data_ptr() + part.numel()


def test_small_memory_is_left_alone(hints):
    memory.in_large_pages(torch.empty(1000))
    assert not hints


def test_a_large_gradient_asks_for_it(hints):
    x = torch.randn(3000, 1000, requires_grad=True)
    losszoo.cross_entropy(x, torch.zeros(3000, dtype=torch.long)).backward()
    assert len(hints) == 1
