"""What a differentiable function owes: repeated and second backwards, frozen operands, no-grad mode, autocast, inputs untouched."""

from unittest.mock import patch

import pytest
import torch
from torch.nn import functional as F

import losszoo
from losszoo.linear_layer import classes, products, rows
from losszoo.linear_layer.chunks import chunk_size
from losszoo.linear_layer.function import choose
from losszoo.linear_layer.problem import make
from losszoo.spec import Index, Row, counts, log_softmax, where
from tests.linear.cases import BY_NAME, FUSED, LAYER, STRATEGIES, case, close, compare, fused, plain
from tests.losses.oracle import upstream_for

every = pytest.mark.parametrize("name", BY_NAME)
strategies = pytest.mark.parametrize("strategy", STRATEGIES)
SMALL = 8 * 9 * 8  # bytes: a few rows, or a class or two


@every
@strategies
def test_gradcheck(name, strategy, device):
    some = case(name, 5, 3, 4, normalizer=3.0)
    names = some.wanted
    others = {n: t.to(device) for n, t in some.tensors.items() if n not in names}

    def function(*tensors):
        return FUSED[name](**dict(zip(names, tensors, strict=True)), **others, **some.options, strategy=strategy, chunk_bytes=2 * 4 * 8)

    leaves = [some.tensors[n].to(device).requires_grad_() for n in names]
    torch.autograd.gradcheck(function, leaves, fast_mode=True)
    torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


@strategies
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_backward_twice_gives_the_same(strategy, reduction, dtype, device):
    some = case("cross_entropy", dtype=dtype, reduction=reduction)
    tensors = {n: t.to(device) for n, t in some.tensors.items()}
    leaves = [tensors[n].requires_grad_() for n in some.wanted]
    loss = losszoo.linear_cross_entropy(**tensors, **some.options, strategy=strategy, chunk_bytes=SMALL)
    upstream = torch.full_like(loss, 0.3)
    first = torch.autograd.grad(loss, leaves, upstream, retain_graph=True)
    copies = [g.clone() for g in first]
    for g in first:
        g.zero_()  # they are the caller's
    again = torch.autograd.grad(loss, leaves, 2 * upstream, retain_graph=True)
    last = torch.autograd.grad(loss, leaves, upstream)
    for a, b, c in zip(copies, again, last, strict=True):
        assert torch.equal(a, c)
        close(b.cpu(), 2 * a.cpu().double(), 0 if dtype is torch.float32 else 2**-8, "twice the gradient")
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, leaves, upstream)


@strategies
def test_two_runs_give_the_same_bits_and_write_no_input(strategy, device):
    for name in BY_NAME:
        some = case(name)
        tensors = {n: t.to(device) for n, t in some.tensors.items()}
        before = {n: t.clone() for n, t in tensors.items()}
        found = []
        for _ in range(2):
            leaves = [tensors[n].requires_grad_() for n in some.wanted]
            loss = FUSED[name](**tensors, strategy=strategy, chunk_bytes=SMALL)
            found.append([loss, *torch.autograd.grad(loss, leaves)])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
        assert all(torch.equal(tensors[n], before[n]) for n in tensors)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_frozen_operands_cost_no_product(reduction, device, monkeypatch):
    some = case("cross_entropy", ignored=0.0, reduction=reduction)
    _, expected = some.in_double().run(plain("cross_entropy"), "cpu")
    shapes = []

    def seen(out, a, b, **options):
        shapes.append(tuple(out.shape))
        products.product(out, a, b, **options)

    monkeypatch.setattr(rows, "plan", lambda *_: rows.Rows(4, 1 << 20))
    monkeypatch.setattr(classes, "plan", lambda *_: classes.Classes(4))
    for strategy, module, of_input, of_weight in ("rows", rows, (4, 6), (9, 6)), ("classes", classes, (11, 6), (4, 6)):
        monkeypatch.setattr(module, "product", seen)
        for frozen in {"input"}, {"linear_weight"}, {"linear_bias"}, {"input", "linear_weight"}:
            some.frozen = tuple(frozen)
            shapes.clear()
            _, grads = some.run(FUSED["cross_entropy"], device, strategy=strategy)
            assert grads.keys() == set(LAYER) - frozen
            for name, grad in grads.items():
                close(grad, expected[name], 1e-10, name)
            assert (of_weight in shapes) == ("linear_weight" not in frozen)
            assert (of_input in shapes) == ("input" not in frozen)


@strategies
def test_no_gradient_where_none_is_wanted(strategy, device, monkeypatch):
    some = case("cross_entropy")

    def refuse(*args, **kwargs):
        raise AssertionError("a gradient was computed")

    monkeypatch.setattr("losszoo.runtime.kernels.backward", refuse)
    monkeypatch.setattr("losszoo.linear_layer.rows.product", refuse)
    tensors = {n: t.to(device) for n, t in some.tensors.items()}
    loss = losszoo.linear_cross_entropy(**tensors, strategy=strategy, chunk_bytes=SMALL)
    assert not loss.requires_grad
    with torch.no_grad():
        wanted = {n: t.requires_grad_() if n in LAYER else t for n, t in tensors.items()}
        assert torch.equal(losszoo.linear_cross_entropy(**wanted, strategy=strategy, chunk_bytes=SMALL), loss)
    close(loss.cpu(), some.run(plain("cross_entropy"), "cpu")[0], 1e-12, "loss")


@strategies
def test_only_the_losss_own_operand_is_wanted(strategy, device):
    some = case("kl_distillation_loss")
    some.frozen = LAYER
    assert some.wanted == ["teacher"]
    compare(some, device, strategy=strategy, chunk_bytes=SMALL)


@pytest.mark.cpu_only
def test_ignored_rows_cost_no_product():
    some = case("cross_entropy", 40, ignored=0.5)
    kept = int((some.tensors["target"] != -100).sum())
    assert 0 < kept < 40
    seen = []
    mm = torch.addmm
    with patch("torch.addmm", lambda *a, **k: (seen.append(a[1].shape), mm(*a, **k))[1]):
        some.run(FUSED["cross_entropy"], "cpu", strategy="rows")
    assert sorted(seen) == [(9, kept), (kept, 6), (kept, 9)]


@strategies
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(strategy, dtype, device):
    """As torch's: products in 16 bits, gradients in the operands' own type."""
    for reduction in "mean", "none":
        some = case("cross_entropy", 40, 16, 30, dtype=torch.float32, reduction=reduction)
        with torch.autocast(device, dtype):
            loss, grads = some.run(FUSED["cross_entropy"], device, strategy=strategy, chunk_bytes=30 * 7 * 4)
        exact_loss, exact = some.in_double().run(plain("cross_entropy"), "cpu")
        close(loss, exact_loss, 16 * torch.finfo(dtype).eps, "loss")
        for name, grad in grads.items():
            assert grad.dtype is torch.float32
            close(grad, exact[name], 16 * torch.finfo(dtype).eps, name)


def test_autocast_in_a_second_derivative(device):
    """Products have the types of the forward, whatever is about in the backward."""
    some = case("cross_entropy", dtype=torch.float32)
    tensors = {n: t.to(device) for n, t in some.tensors.items()}
    w = tensors["linear_weight"].requires_grad_()
    found = []
    for enabled in False, True:
        loss = losszoo.linear_cross_entropy(**tensors)
        with torch.autocast(device, torch.bfloat16, enabled=enabled):
            (grad,) = torch.autograd.grad(loss, w, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), w)[0])
    torch.testing.assert_close(*found)


def test_autocast_leaves_double_alone(device):
    some = case("cross_entropy")
    with torch.autocast(device, torch.bfloat16):
        compare(some, device)


@strategies
def test_float16_under_a_loss_scale(strategy, device):
    """A gradient that float16 holds only times the scale, which the backward brings."""
    some = case("cross_entropy", 64, 16, 30, dtype=torch.float16, ignored=0.0, normalizer=1e6)
    tensors = {n: t.to(device) for n, t in some.tensors.items()}
    leaves = [tensors[n].requires_grad_() for n in some.wanted]
    loss = losszoo.linear_cross_entropy(**tensors, **some.options, strategy=strategy, chunk_bytes=30 * 2 * 2 * 20)
    grads = torch.autograd.grad(loss, leaves, torch.full_like(loss, 2.0**16))
    _, wanted = some.in_double().run(plain("cross_entropy"), "cpu")  # times upstream_for's 1.5
    for n, grad in zip(some.wanted, grads, strict=True):
        close(grad.cpu(), wanted[n] * (2.0**16 / 1.5), 4e-3, n)


@strategies
@pytest.mark.parametrize("shape", [(), (3, 4), (2, 0, 3)])
def test_other_axes_of_the_input(strategy, shape, device):
    for name in "cross_entropy", "kl_distillation_loss":
        count = torch.Size(shape).numel()
        some = case(name, count, ignored=0.0)
        loss, grads = some.run(fused(name, strategy=strategy, reduction="none"), device)
        for tensor in list(some.tensors):
            if not tensor.startswith("linear_"):
                some.tensors[tensor] = some.tensors[tensor].reshape([*shape, *some.tensors[tensor].shape[1:]])
        again, shaped = some.run(fused(name, strategy=strategy, reduction="none"), device)
        assert again.shape == shape and torch.equal(again.reshape(-1), loss)
        assert all(torch.equal(g.reshape(grads[n].shape), grads[n]) for n, g in shaped.items())


def test_memory_in_any_order(device):
    """Transposed and expanded operands."""
    some = case("cross_entropy")
    expected, wanted = some.run(plain("cross_entropy"), "cpu")
    x, w, b, y = (some.tensors[n].to(device) for n in (*LAYER, "target"))
    leaves = [x.t().contiguous().t().requires_grad_(), w.t().contiguous().t().requires_grad_(), b.requires_grad_()]
    wide = torch.stack([y, y], 1)[:, 0]
    loss = losszoo.linear_cross_entropy(leaves[0], leaves[1], wide, linear_bias=leaves[2])
    close(loss.detach().cpu(), expected, 1e-12, "loss")
    for n, g in zip(LAYER, torch.autograd.grad(loss, leaves, upstream_for(loss)), strict=True):
        close(g.cpu(), wanted[n], 1e-12, n)


def test_weight_an_item(device):
    some = case("kl_distillation_loss", reduction="mean")
    x, w, b, t = (v.to(device) for v in some.tensors.values())
    weight = torch.rand(11, dtype=torch.float64, device=device)
    loss = FUSED["kl_distillation_loss"](x, w, t, linear_bias=b, weight=weight, normalizer=3.0)
    expected = BY_NAME["kl_distillation_loss"](F.linear(x, w, b), t, weight=weight, normalizer=3.0)
    torch.testing.assert_close(loss, expected)


@every
def test_without_a_compiler(name, device, monkeypatch):
    """By the interpreter, and no kernel."""
    for reduction in "mean", "none":
        some = case(name, reduction=reduction)
        expected, wanted = some.run(plain(name), "cpu")
        with monkeypatch.context() as without:
            without.setattr("losszoo.linear_layer.problem.compiled", lambda device: False)
            without.setattr("losszoo.runtime.kernels.Launchable.run", None)
            loss, grads = some.run(FUSED[name], device, chunk_bytes=SMALL)
        close(loss, expected, 1e-10, "loss")
        for n, grad in grads.items():
            close(grad, wanted[n], 1e-10, n)


@losszoo.loss
def hard_examples(x: Row, y: Index):
    """Of which the mean counts only those with a large loss."""
    logp = log_softmax(x)[y]
    return -logp, counts(where(logp < -2, 1, 0))


def test_a_denominator_that_depends_on_the_logits(device):
    some = case("cross_entropy", 40)
    x, w, b, y = (some.tensors[n].to(device) for n in (*LAYER, "target"))
    leaves = [t.requires_grad_() for t in (x, w, b)]
    loss = losszoo.linear(hard_examples)(x, w, y, linear_bias=b, chunk_bytes=SMALL)
    expected = hard_examples(F.linear(x, w, b), y)
    torch.testing.assert_close(loss, expected)
    for a, b in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(a, b)


def test_saved_gradients_become_the_gradients(device):
    """A weight's gradient is handed over and not copied, so that it is there once."""
    some = case("cross_entropy")
    x, w, y = (some.tensors[n].to(device) for n in ("input", "linear_weight", "target"))
    w.requires_grad_()
    loss = losszoo.linear_cross_entropy(x, w, y)
    saved = {t.data_ptr() for t in loss.grad_fn.saved_tensors}
    loss.backward()
    assert w.grad.data_ptr() in saved


def test_chunks_are_about_as_large():
    assert chunk_size(37, 10, 100) == 10 and chunk_size(37, 10, 200) == 20
    assert chunk_size(8192, 2 * 128256, 512 << 20) == 2048
    assert chunk_size(8192, 1, 10000) == 8192 and chunk_size(8193, 1, 8192) == 4224
    assert chunk_size(5, 10, 1) == chunk_size(0, 10, 100) == 1


def test_the_strategy_is_chosen_by_size(monkeypatch):
    monkeypatch.setattr(rows, "in_place", lambda p, wrt: True)  # as on CUDA

    def chosen(count, features, classes, dtype=torch.bfloat16, **options):
        one = torch.ones((), dtype=dtype)
        x, w, y = one.expand(count, features), one.expand(classes, features), torch.zeros(count, dtype=torch.int64)
        p, _ = make(losszoo.cross_entropy.spec, "input", x, w, None, {"target": y, "weight": None}, (0.0, 0.0, None), (), None,
                    options.get("reduction", "mean"), None, None)  # fmt: skip
        return type(choose(p, frozenset({"input", "linear_weight"}), None, None)).__name__

    assert chosen(8192, 4096, 128256) == "Rows"
    assert chosen(8192, 2048, 32000) == "Rows"
    assert chosen(8192, 4096, 128256, torch.float16) == "Classes"  # as many products
    assert chosen(8192, 4096, 128256, reduction="none") == "Classes"
    assert chosen(100, 2048, 32000, reduction="none") == "Rows"  # in one chunk
    assert chosen(8192, 2048, 2_500_000) == "Classes"  # rows would come a hundred at a time
