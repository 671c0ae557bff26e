"""What is in memory at one time, and what 16 bits lose: never all logits, and nothing to sums over chunks."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import losszoo
from losszoo.linear_layer import rows
from tests.linear.cases import FUSED, LAYER, case, compare

ROWS, FEATURES, CLASSES = 256, 16, 2048
CHUNK = ROWS * CLASSES // 16  # numbers


class Alive(TorchDispatchMode):
    """Counts the bytes of tensors made while it is on, as long as they are alive."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self.given = {t.untyped_storage().data_ptr() for t in given}
        self.made: dict[int, tuple[int, list[weakref.ref]]] = {}
        self.peak = self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in tree_flatten(result)[0]:
            if isinstance(x, Tensor) and (at := x.untyped_storage().data_ptr()) not in self.given:
                size, tensors = self.made.get(at, (0, []))
                if not any(t() is not None for t in tensors):
                    size, tensors = x.untyped_storage().nbytes(), []
                self.made[at] = size, [*tensors, weakref.ref(x)]
                self.largest = max(self.largest, size)
        self.peak = max(self.peak, self.now())
        return result

    def now(self) -> int:
        return sum(size for size, tensors in self.made.values() if any(t() is not None for t in tensors))


@pytest.mark.parametrize("name", ["cross_entropy", "kl_distillation_loss", "jsd_distillation_loss"])
@pytest.mark.parametrize("strategy", ["rows", "classes"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_logits_are_never_there_as_a_whole(name, strategy, reduction, device):
    some = case(name, ROWS, FEATURES, CLASSES, reduction=reduction)
    tensors = {n: t.to(device) for n, t in some.tensors.items()}
    leaves = [tensors[n].requires_grad_() for n in LAYER]
    wide = 8
    with Alive(list(tensors.values())) as alive:
        loss = FUSED[name](**tensors, **some.options, strategy=strategy, chunk_bytes=wide * CHUNK)
        kept = alive.now()
        grads = torch.autograd.grad(loss, leaves, torch.ones_like(loss))
    gradients = sum(g.numel() for g in grads)
    few = 24 * ROWS + 2 * CLASSES  # numbers a row, sums of a bias
    sums = 0 if strategy == "rows" else FEATURES * ROWS
    assert alive.largest < wide * ROWS * CLASSES / 8
    assert alive.peak <= wide * (CHUNK + gradients + few + sums)
    assert kept <= wide * ((gradients if reduction == "mean" else 0) + few)


@pytest.mark.parametrize("strategy", ["rows", "classes"])
def test_the_gradient_is_handed_over(strategy, device):
    """The weight's gradient is in memory once; twice only where the graph is retained."""
    some = case("cross_entropy", 8, 256, 512, bias=False)
    x, w, y = (t.to(device) for t in some.tensors.values())
    w.requires_grad_()
    for retain in False, True:
        with Alive([x, w, y]) as alive:
            loss = losszoo.linear_cross_entropy(x, w, y, strategy=strategy, chunk_bytes=8 * 1024)
            loss.backward(retain_graph=retain)
        assert alive.peak <= w.numel() * 8 * (1.25 + retain)
        w.grad = None


class Products(TorchDispatchMode):
    """Counts the logits that are computed."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes, self.logits = classes, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.out:
            self.logits += kwargs["out"].numel()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows, features, share", [(64, 64, 0.0), (16, 64, 0.0), (128, 64, 0.5), (256, 64, 0.75), (256, 4, 1.0)])
def test_logits_wait_where_the_weights_gradient_will_be(rows, features, share, device):
    """Of `rows` times as many numbers as it has room for only that share is computed again, but for a chunk or two."""
    classes, chunk = 2048, 32
    some = case("cross_entropy", rows, features, classes, bias=False, ignored=0.0)
    for frozen, again in ((), share), (("linear_weight",), 1.0):
        some.frozen = frozen
        with Products(classes) as products:
            compare(some, device, strategy="classes", chunk_bytes=2 * chunk * rows * 8)
        assert abs(products.logits / (rows * classes) - 1 - again) <= 3 * chunk / classes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_over_chunks_lose_nothing_to_16_bits(dtype, device):
    """Against float64: many chunks are as near as one, by either strategy; a sum in 16 bits is not."""
    some = case("cross_entropy", 2048, 64, 16, dtype=dtype, bias=False, ignored=0.0)
    x, w, y = (t.to(device) for t in some.tensors.values())
    exact = [x.double().requires_grad_(), w.double().requires_grad_()]
    wanted = torch.autograd.grad(losszoo.linear_cross_entropy(*exact, y), exact)

    def errors(**options) -> list[float]:
        leaves = [x.detach().requires_grad_(), w.detach().requires_grad_()]
        grads = torch.autograd.grad(losszoo.linear_cross_entropy(*leaves, y, **options), leaves)
        return [float((g.double() - t).square().mean().sqrt()) for g, t in zip(grads, wanted, strict=True)]

    whole = errors(strategy="rows")
    for options in {"strategy": "rows", "chunk_bytes": 16 * 2 * 2 * 16}, {"strategy": "classes", "chunk_bytes": 2048 * 2 * 2}:
        for error, one in zip(errors(**options), whole, strict=True):
            assert error <= 1.1 * one


def test_a_few_sums_in_16_bits(device, monkeypatch):
    """Where float32 would take more memory than a chunk, and there are at most four: about one rounding more than one product's."""
    dtype = torch.bfloat16
    some = case("cross_entropy", 2048, 64, 16, dtype=dtype, bias=False, ignored=0.0)
    x, w, y = (t.to(device) for t in some.tensors.values())
    exact = w.double().requires_grad_()
    (wanted,) = torch.autograd.grad(losszoo.linear_cross_entropy(x.double(), exact, y), exact)
    w.requires_grad_()
    found = {}
    for chunks in 1, 4:
        monkeypatch.setattr(rows, "plan", lambda p, wanted, memory, chunks=chunks: rows.Rows(2048 // chunks, 1))
        (grad,) = torch.autograd.grad(losszoo.linear_cross_entropy(x, w, y, strategy="rows"), w)
        found[chunks] = float((grad.double() - wanted).square().mean().sqrt())
    assert found[4] <= 1.6 * found[1]
