"""Who counts the blocks of a launch: no two launches that may run at once share a counter."""

from __future__ import annotations

import pytest
import torch

from losszoo.runtime import counters


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    """The same bookkeeping over the CPU's memory."""
    zeros = torch.zeros
    monkeypatch.setattr(counters.torch, "zeros", lambda *size, dtype, device: zeros(*size, dtype=dtype))
    monkeypatch.setattr(counters.torch.cuda, "synchronize", lambda device: None)
    for name, empty in ("_pools", {}), ("_of_stream", {}), ("_taken", []):
        monkeypatch.setattr(counters, name, empty)
    monkeypatch.setattr(counters, "SLOTS", 4)


def test_a_stream_keeps_its_counter():
    first = counters.slot(0, 7, False)
    assert counters.slot(0, 7, False) == first
    assert len({first, counters.slot(0, 8, False), counters.slot(1, 7, False)}) == 3


def test_a_captured_launch_has_a_counter_of_its_own_for_ever():
    eager = counters.slot(0, 7, False)
    captured = [counters.slot(0, 7, True) for _ in range(10)]  # more than the pool holds
    later = [counters.slot(0, stream, False) for stream in range(8, 14)]
    assert len({eager, *captured, *later}) == 17
    assert counters.slot(0, 7, False) == eager


def test_counters_begin_at_zero_and_lie_apart():
    places = sorted(counters.slot(0, stream, False) for stream in range(9))
    assert all(b - a >= 4 for a, b in zip(places, places[1:]))
    assert all(not counter.any() for counter in counters._of_stream.values())
