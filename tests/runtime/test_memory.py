"""The memory of large CPU outputs is used again when its last tensor is gone, never before, and acts as any tensor's."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

import losszoo
from losszoo.runtime import memory

pytestmark = [
    pytest.mark.cpu_only,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is torch.empty"),
]

CPU = torch.device("cpu")
COUNT = memory.LARGE // 4  # floats, just enough


@pytest.fixture(scope="module", autouse=True)
def others_garbage_is_theirs():
    """So that the collections here look at little."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_kept():
    gc.collect()
    memory._free.clear()
    yield
    memory._free.clear()


def empty(count: int = COUNT) -> torch.Tensor:
    return memory.empty((count,), torch.float32, CPU)


def gradient(x: torch.Tensor) -> torch.Tensor:
    labels = torch.zeros(x.shape[:1] + x.shape[2:], dtype=torch.long)
    return torch.autograd.grad(losszoo.cross_entropy(x, labels), x)[0]


def unreduced(x: torch.Tensor) -> torch.Tensor:
    return losszoo.sigmoid_focal_loss(x, torch.zeros_like(x), reduction="none")


def test_a_gradient_gets_the_memory_of_the_one_before():
    x = torch.randn(3000, 1000, requires_grad=True)
    first = gradient(x)
    expected, address = first.clone(), first.data_ptr()
    del first
    second = gradient(x)
    assert second.data_ptr() == address and torch.equal(second, expected)
    third = gradient(x)
    assert third.data_ptr() != address and torch.equal(second, expected) and torch.equal(third, expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: gradient(torch.randn(1000, 3000).t().requires_grad_()),
        lambda: gradient(torch.randn(2, 3, 600, 600).requires_grad_()[:, :, ::1]),
        lambda: gradient(torch.randn(2, 600, 600, 3).movedim(-1, 1).requires_grad_()),
        lambda: gradient(torch.randn(6000, 1000, dtype=torch.bfloat16).requires_grad_()),
        lambda: torch.autograd.grad(unreduced(x := torch.randn(COUNT).requires_grad_()).sum(), x)[0],
        lambda: unreduced(torch.randn(COUNT)),
        lambda: unreduced(torch.randn(COUNT).requires_grad_()),
    ],
    ids=["columns", "images", "channels last", "bfloat16", "elements", "unreduced", "unreduced with gradient"],
)
def test_so_does_every_large_output(make):
    made = make()
    kept, address = made.clone(), made.data_ptr()
    del made
    assert address in memory._free
    again = make()
    assert again.data_ptr() not in memory._free and again.shape == kept.shape and again.stride() == kept.stride()
    assert len(memory._free) == 0 or again.data_ptr() == address


def test_small_outputs_are_torch_s():
    empty(COUNT - 1)
    assert not memory._free


@pytest.mark.parametrize(
    "hold",
    [lambda x: x[5:], lambda x: x.detach(), lambda x: x.numpy(), lambda x: x.untyped_storage(), lambda x: memoryview(x.numpy()),
     lambda x: torch.utils.dlpack.to_dlpack(x), lambda x: torch.nn.Parameter(x), lambda x: x.view(torch.int32)],
    ids=["view", "detach", "numpy", "storage", "memoryview", "dlpack", "parameter", "reinterpreted"],
)  # fmt: skip
def test_memory_in_use_is_not_given_out(hold):
    held = hold(empty())
    assert not memory._free
    del held
    gc.collect()
    assert len(memory._free) == 1


def test_it_takes_part_in_autograd_as_fresh_memory():
    loss = unreduced(torch.randn(COUNT, requires_grad=True))
    assert not loss._is_view()
    loss *= 2  # a view made without gradients could not be written to
    loss.sum().backward()


def test_gradients_add_up_in_it():
    x = torch.randn(COUNT, requires_grad=True)
    unreduced(x).sum().backward()
    once = x.grad.clone()
    unreduced(x).sum().backward()
    assert torch.equal(x.grad, 2 * once)


def saved(x: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(x, file)
    return torch.load(io.BytesIO(file.getvalue()))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), saved, torch.clone])
def test_copies_are_of_their_own(again):
    x = empty().fill_(3)
    y = again(x)
    x.zero_()
    assert y.eq(3).all() and y.untyped_storage().nbytes() == 4 * COUNT


def test_sharing_moves_it_and_gives_the_memory_back():
    x = empty().fill_(3)
    y = x[10:]
    x.share_memory_()
    assert len(memory._free) == 1 and x.is_shared() and y.is_shared()
    empty().zero_()
    assert x.eq(3).all() and y.eq(3).all()


def test_it_shrinks_and_does_not_grow():
    x = empty()
    x.resize_(10)
    assert x.shape == (10,) and not memory._free
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(2 * COUNT)


@pytest.mark.parametrize(("first", "second", "again"), [(5, 4, True), (4, 4, True), (4, 5, False), (6, 4, False)])
def test_a_block_serves_what_nearly_fills_it(first, second, again):
    address = empty(first * COUNT).data_ptr()
    assert (empty(second * COUNT).data_ptr() == address) is again
    assert empty(second * COUNT).untyped_storage().nbytes() == 4 * second * COUNT


def test_the_latest_two_are_kept():
    several = [empty() for _ in range(5)]
    addresses = [x.data_ptr() for x in several]
    while several:
        several.pop(0)
    assert list(memory._free) == addresses[-2:]


def test_what_is_kept_may_be_taken_back(monkeypatch):
    """Both hints are given for whole pages inside the block."""
    hints = []
    monkeypatch.setattr(memory, "_libc", SimpleNamespace(madvise=lambda at, size, advice: hints.append((at.value, size.value, advice))))
    x = empty(5_000_000)
    begin, end = x.data_ptr(), x.data_ptr() + 4 * 5_000_000
    del x
    assert [advice for *_, advice in hints] == [memory.MADV_HUGEPAGE, memory.MADV_FREE]
    for at, size, _ in hints:
        assert at % memory.HUGE_PAGE == 0 and size % memory.HUGE_PAGE == 0 and size >= 14_000_000
        assert begin <= at and at + size <= end


def test_threads_never_share_a_block():
    wrong, barrier = [], threading.Barrier(4)

    def work(own: int) -> None:
        barrier.wait()
        for _ in range(10):
            x = empty().fill_(own)
            y = empty().fill_(-own)
            if not (x.eq(own).all() and y.eq(-own).all()):
                wrong.append(own)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(memory._free) == memory.KEPT


def test_a_block_that_another_thread_took_meanwhile_is_not_taken(monkeypatch):
    class Contended(dict):
        def items(self):
            seen = list(super().items())
            taken.extend(self.pop(address) for address, _ in seen)
            return seen

    taken: list[torch.Tensor] = []
    monkeypatch.setattr(memory, "_free", Contended())
    address = empty().data_ptr()
    assert empty().data_ptr() != address == taken[0].data_ptr()


def test_a_child_has_pages_of_its_own():
    x = empty().fill_(3)
    address = empty().fill_(4).data_ptr()
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)  # OpenMP's threads are not there any more
            y = empty().fill_(5)
            os._exit(0 if y.data_ptr() == address and x.eq(3).all() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    y = empty()
    assert y.data_ptr() == address and not y.eq(5).any() and x.eq(3).all()


def test_the_default_device_does_not_matter():
    with torch.device("meta"):
        assert empty().device == CPU and memory._take(memory.LARGE).device == CPU


AT_EXIT = """
import torch
from losszoo.runtime import memory

def make():
    return memory.empty((memory.LARGE,), torch.uint8, torch.device("cpu"))

class Late:
    def __del__(self, make=make):
        self.x.fill_(1)

alive, kept = make(), make()
del kept
cycle = [make()]
cycle.append(cycle)
torch.alive = make()
late = Late()
late.x, late.me = make(), late
"""


def test_python_ends_quietly_with_tensors_alive():
    result = subprocess.run([sys.executable, "-X", "dev", "-W", "ignore", "-c", AT_EXIT], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
