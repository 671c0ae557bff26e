from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from losszoo.jit import Source, build
from losszoo.runtime import threads
from losszoo.runtime.threads import parallel_for

# Each range notes its bounds and thread at the place of its first element. It yields its core, so that no thread can
# take every range before the others have woken up.
PROBE = r"""
#include <cstdint>
#include <sys/syscall.h>
#include <unistd.h>
struct Range { int64_t begin, end, thread; };
extern "C" __attribute__((visibility("default"))) void note(const void* args, int64_t begin, int64_t end) {
    static_cast<Range*>(const_cast<void*>(args))[begin] = {begin, end, syscall(SYS_gettid)};
    usleep(2000);
}
"""
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads Linux's /proc")


@pytest.fixture(scope="module")
def note() -> object:
    return ctypes.CDLL(str(build(Source("note", "cpp", PROBE)))).note


@pytest.fixture(autouse=True)
def two_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def ranges(note: object, count: int, grain: int) -> list[tuple[int, int, int]]:
    noted = torch.full((max(count, 1), 3), -1, dtype=torch.int64)
    parallel_for(note, noted.data_ptr(), count, grain)
    return [tuple(row) for row in noted.tolist() if row[0] >= 0]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("count", "grain"), [(0, 4), (1, 4), (4, 4), (5, 4), (13, 4), (3, 1), (3, 1 << 62)])
def test_ranges_cover_all_and_depend_on_the_grain_alone(note: object, workers: int, count: int, grain: int) -> None:
    torch.set_num_threads(workers)
    expected = [(begin, min(begin + grain, count)) for begin in range(0, count, grain)]
    assert [(begin, end) for begin, end, _ in ranges(note, count, grain)] == expected


def workers(note: object, count: int = 32, grain: int = 1) -> set[int]:
    return {thread for _, _, thread in ranges(note, count, grain)}


def test_the_pool_is_torch_s_own(note: object) -> None:
    x = torch.rand(1 << 20)
    torch.exp(x)  # torch's pool is running
    before = set(os.listdir("/proc/self/task"))
    used = workers(note)
    assert len(used) == 2
    assert set(os.listdir("/proc/self/task")) == before
    runtimes = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "omp" in line}
    assert len([path for path in runtimes if Path(path).name.startswith(("libgomp", "libomp", "libiomp"))]) == 1


def test_it_obeys_torch_s_number_of_threads_from_any_thread(note: object) -> None:
    torch.set_num_threads(1)
    assert workers(note) == {threading.get_native_id()}
    seen: list[set[int]] = []

    def other() -> None:
        seen.append(workers(note) - {threading.get_native_id()})

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [set()]


def test_one_range_runs_where_it_is_called(note: object) -> None:
    assert workers(note, count=4, grain=4) == {threading.get_native_id()}


def test_inside_a_parallel_region_it_runs_serially(note: object) -> None:
    # The function of the outer loop calls the launcher again, by its address.
    nest = r"""
    #include <cstdint>
    #include <sys/syscall.h>
    #include <unistd.h>
    using Range = void(const void*, int64_t, int64_t);
    struct Nest { void (*launch)(Range*, const void*, int64_t, int64_t); int64_t* strays; };
    struct Inner { int64_t thread; int64_t stray; };
    static void inner(const void* args, int64_t, int64_t) {
        auto* own = static_cast<Inner*>(const_cast<void*>(args));
        if (syscall(SYS_gettid) != own->thread) own->stray = 1;
        usleep(1000);
    }
    extern "C" __attribute__((visibility("default"))) void outer(const void* args, int64_t begin, int64_t) {
        auto* nest = static_cast<const Nest*>(args);
        Inner own{syscall(SYS_gettid), 0};
        nest->launch(inner, &own, 8, 1);
        nest->strays[begin] = own.stray;
    }
    """

    class Nest(ctypes.Structure):
        _fields_ = (("launch", ctypes.c_void_p), ("strays", ctypes.c_void_p))

    strays = torch.full((4,), -1)
    outer = ctypes.CDLL(str(build(Source("outer", "cpp", nest)))).outer
    args = Nest(ctypes.cast(threads.launcher(), ctypes.c_void_p).value, strays.data_ptr())
    parallel_for(outer, ctypes.addressof(args), 4, 1)
    assert strays.tolist() == [0] * 4


def test_without_openmp_it_runs_serially(note: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_openmp(path: str) -> object:
        raise OSError("undefined symbol: GOMP_parallel")

    monkeypatch.setattr(threads, "ctypes", SimpleNamespace(**{**vars(ctypes), "CDLL": no_openmp}))
    threads.launcher.cache_clear()
    try:
        assert workers(note) == {threading.get_native_id()}
        assert [(begin, end) for begin, end, _ in ranges(note, 5, 2)] == [(0, 2), (2, 4), (4, 5)]
    finally:
        threads.launcher.cache_clear()


def test_a_grain_of_nothing_is_refused(note: object) -> None:
    with pytest.raises(ValueError, match="grain: got 0, expected at least 1"):
        parallel_for(note, 0, 10, 0)
