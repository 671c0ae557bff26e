"""Counters in a GPU's memory, by which the blocks of a launch learn which of them is the last. Each launch leaves its own at zero."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import torch
from torch import Tensor

SLOTS = 16384  # 64 KiB a device

_pools: dict[int, Iterator[Tensor]] = {}  # device -> its counters that no one has taken
_of_stream: dict[tuple[int, int], Tensor] = {}
_taken: list[Tensor] = []  # by captured graphs, which may be replayed at any time
_lock = threading.Lock()


def slot(device: int, stream: int, capturing: bool) -> int:
    """The address of a zeroed counter for a launch on a stream.

    The launches of a stream follow each other, so one counter serves them all. A graph is replayed beside whatever runs then, so each
    launch in it has a counter that no other launch will ever use.
    """
    with _lock:
        if capturing:
            counter = _captured(device)
        elif (device, stream) in _of_stream:
            counter = _of_stream[device, stream]
        else:
            counter = _of_stream[device, stream] = _fresh(device)
    return counter.data_ptr()


def _fresh(device: int) -> Tensor:
    counter = next(_pools.get(device, iter(())), None)
    if counter is None:
        counters = torch.zeros(SLOTS, dtype=torch.int32, device=torch.device("cuda", device))
        torch.cuda.synchronize(device)  # once: whichever stream comes next finds zeros
        _pools[device] = map(counters.__getitem__, range(SLOTS))
        counter = next(_pools[device])
    return counter


def _captured(device: int) -> Tensor:
    counter = next(_pools.get(device, iter(())), None)
    if counter is None:  # no memory may be made ready during a capture, so the graph itself sets this one to zero
        counter = torch.zeros((), dtype=torch.int32, device=torch.device("cuda", device))
    _taken.append(counter)
    return counter
