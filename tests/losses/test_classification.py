"""Cross-entropy and softmax focal loss against references and interpreter, and at the edges of their domain."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

import losszoo
from losszoo.testing import interpreted
from tests import references, tolerance
from tests.losses import oracle
from tests.losses.samples import sample
from tests.strategies import Call, generator, labels_for, logits, row_calls

inf, nan = torch.inf, torch.nan
both = pytest.mark.parametrize("name", oracle.LABELLED)


@both
@given(data=st.data())
def test_reference(name, data, device):
    call = data.draw(row_calls(focal=name == "softmax_focal_loss"))
    oracle.check(name, getattr(losszoo, name), call, device)


@both
@given(data=st.data())
def test_interpreter(name, data, device):
    call = data.draw(row_calls(focal=name == "softmax_focal_loss", double=True))
    fn = getattr(losszoo, name)
    oracle.compare(name, call, oracle.run(fn, call, device), oracle.run(interpreted(fn), call, device))


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize(
    "shape", [(3, 4097), (2, 32768), (1, 50_257), (2000, 5), (300, 130), (1, 19, 50, 60), (90, 70)]
)
def test_rows_of_every_length(name, shape, reduction, dtype, device):
    """Rows longer and shorter than a block, more rows than a block has, rows whose length no vector divides."""
    x = logits("normal", shape, generator(11))
    call = Call(
        {"input": x.to(dtype), "target": labels_for(x, -100, 0.1, generator(12))}, {"reduction": reduction}, ("input",)
    )
    oracle.check(name, getattr(losszoo, name), call, device)


@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing": 0.3},
        {"z_loss": 1e-2},
        {"softcap": 5.0},
        {"label_smoothing": 1.0, "z_loss": 1.0, "softcap": 1.0},
    ],
)
@pytest.mark.parametrize("size", ["small", "strided"])
def test_options_of_cross_entropy(options, size, device):
    for dtype in torch.float64, torch.bfloat16:
        oracle.check("cross_entropy", losszoo.cross_entropy, sample("cross_entropy", dtype, size, **options), device)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2}, {"z_loss": 1e-2}, {"softcap": 5.0}])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 2)])
def test_gradients_of_cross_entropy(shape, soft, options, device):
    rng = generator(0)
    axis = 1 if len(shape) > 1 else 0
    x = torch.randn(shape, generator=rng, dtype=torch.float64).to(device).requires_grad_()
    target = torch.rand(shape, generator=rng, dtype=torch.float64).to(device)
    target = target.requires_grad_() if soft else target.argmax(axis)
    weight = (torch.rand(shape[axis], generator=rng, dtype=torch.float64) + 0.5).to(device)
    for reduction in ("none", "mean"):

        def fn(x, target, reduction=reduction):
            return losszoo.cross_entropy(x, target, weight, reduction=reduction, **options)

        assert gradcheck(fn, (x, target))
        assert gradgradcheck(fn, (x, target))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 2)])
def test_gradients_of_softmax_focal(shape, smoothing, gamma, device):
    rng = generator(0)
    axis = 1 if len(shape) > 1 else 0
    x = torch.randn(shape, generator=rng, dtype=torch.float64).to(device).requires_grad_()
    y = torch.rand(shape, generator=rng).argmax(axis).to(device)
    for reduction in ("none", "mean"):

        def fn(x, reduction=reduction):
            return losszoo.softmax_focal_loss(x, y, gamma, label_smoothing=smoothing, reduction=reduction)

        assert gradcheck(fn, (x,))
        assert gradgradcheck(fn, (x,))


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", ["small", "large", "strided"])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}])
def test_ignored_rows_are_exactly_absent(name, options, size, dtype, device):
    """Loss and gradient are 0 there, whatever the logits are, and the others do not notice."""
    fn, call = getattr(losszoo, name), sample(name, dtype, size, **options)
    ignored = call.tensors["target"] == -100
    assert ignored.any() and not ignored.all()
    plain = oracle.run(fn, call, device)
    assert (plain.grads[0].movedim(1, -1)[ignored] == 0).all()
    assert (oracle.run(fn, call, device, reduction="none").loss[ignored] == 0).all()
    for garbage in (nan, inf, -inf):
        call.tensors["input"].movedim(1, -1)[ignored] = garbage
        spoiled = oracle.run(fn, call, device)
        assert torch.equal(spoiled.loss, plain.loss)
        assert torch.equal(spoiled.grads[0], plain.grads[0])


@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 5, 3)])
def test_all_ignored(name, shape, dtype, device):
    fn, x = getattr(losszoo, name), torch.randn(shape, dtype=dtype, device=device, requires_grad=True)
    axis = 1 if len(shape) > 1 else 0
    y = torch.full([n for i, n in enumerate(shape) if i != axis], -100, device=device)
    for reduction, value in ("mean", nan), ("sum", 0.0), ("none", 0.0):
        loss = fn(x, y, reduction=reduction)
        (grad,) = torch.autograd.grad(loss.sum(), x)
        torch.testing.assert_close(loss, torch.full_like(loss, value), rtol=0, atol=0, equal_nan=True)
        assert (grad == 0).all()


@both
@pytest.mark.parametrize("shape", [(0, 5), (0, 5, 3), (3, 5, 0)])
def test_empty_batch(name, shape, device):
    fn, x = getattr(losszoo, name), torch.zeros(shape, device=device, requires_grad=True)
    y = torch.zeros((shape[0], *shape[2:]), dtype=torch.long, device=device)
    for reduction, value in ("mean", nan), ("sum", 0.0):
        loss = fn(x, y, reduction=reduction)
        torch.testing.assert_close(loss, torch.tensor(value, device=device), equal_nan=True)
        (grad,) = torch.autograd.grad(loss, x)
        assert grad.shape == x.shape
    assert fn(x, y, reduction="none").shape == y.shape


@both
@pytest.mark.parametrize("poison", [nan, inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", ["small", "large", "strided"])
def test_a_bad_logit_poisons_its_row_only(name, size, dtype, poison, device):
    fn, call = getattr(losszoo, name), sample(name, dtype, size, reduction="none")
    plain = oracle.run(fn, call, device)
    kept = (call.tensors["target"] != -100).nonzero()
    rows = torch.zeros(call.tensors["target"].shape, dtype=torch.bool)
    for count, place in enumerate((kept[0], kept[len(kept) // 2], kept[-1])):
        rows[tuple(place)] = True
        classes = call.tensors["input"].movedim(1, -1)[tuple(place)]
        classes[[0, len(classes) // 2, -1][count]] = poison
    spoiled = oracle.run(fn, call, device)
    assert spoiled.loss[rows].isnan().all()
    assert torch.equal(spoiled.loss[~rows], plain.loss[~rows])
    grad, before = spoiled.grads[0].movedim(1, -1), plain.grads[0].movedim(1, -1)
    silent = rows & (oracle.upstream_for(plain.loss) == 0)  # 0 * nan may be either
    assert grad[rows & ~silent].isnan().all()
    assert torch.equal(grad[~rows], before[~rows])


@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("classes", [4, 700, 9000])
def test_masked_classes(name, classes, dtype, device):
    """A row that is -inf but for two classes, so that whole tiles of it are: a finite loss, no gradient there."""
    x = torch.full((3, classes), -inf, dtype=torch.float64)
    y = torch.tensor([0, classes - 1, classes // 2])
    for row, label in enumerate(y):
        x[row, label], x[row, (label + 2) % classes] = 1.0, 2.5
    call = Call({"input": x.to(dtype), "target": y}, {"reduction": "none"}, ("input",))
    oracle.check(name, getattr(losszoo, name), call, device)
    result = oracle.run(getattr(losszoo, name), call, device)
    assert result.loss.isfinite().all()
    assert (result.grads[0][x == -inf] == 0).all()


def test_a_label_on_a_masked_class_costs_infinitely_as_in_torch(device):
    x = torch.tensor([[0.0, -inf, 1.0]], device=device, requires_grad=True)
    y = torch.tensor([1], device=device)
    results = []
    for fn in losszoo.cross_entropy, F.cross_entropy:
        loss = fn(x, y)
        results.append((loss, *torch.autograd.grad(loss, x)))
    torch.testing.assert_close(*results)


def test_a_row_that_is_masked_everywhere_is_nan_and_alone(device):
    x = torch.tensor([[0.0, 1.0], [-inf, -inf], [2.0, 1.0]], device=device)
    loss = losszoo.cross_entropy(x, torch.tensor([0, 0, 1], device=device), reduction="none")
    assert loss.isnan().tolist() == [False, True, False]


def test_a_term_whose_coefficient_is_zero_is_absent(device):
    """0 * inf never appears: a zero probability, a zero class weight, no smoothing."""
    x = torch.tensor([[0.0, -inf, 1.0]], device=device, requires_grad=True)
    q = torch.tensor([[0.25, 0.0, 0.75]], device=device)
    w = torch.tensor([1.0, 0.0, 1.0], device=device)
    for loss in (
        losszoo.cross_entropy(x, q),
        losszoo.cross_entropy(x, torch.tensor([0], device=device), label_smoothing=0.0),
        losszoo.cross_entropy(x, torch.tensor([0], device=device), w, label_smoothing=0.3),
        losszoo.softmax_focal_loss(x, torch.tensor([0], device=device), 2.0, w, label_smoothing=0.3),
    ):
        (grad,) = torch.autograd.grad(loss, x)
        assert loss.isfinite() and grad.isfinite().all()
        assert grad[0, 1] == 0


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("gap", [5.0, 20.0, 100.0])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}])
def test_focal_where_the_model_is_sure(gamma, gap, options, device):
    """1 - p vanishes in float32 from a gap of 17: no 0 ** (gamma - 1) may turn into an infinite gradient."""
    x = torch.tensor([[gap, 0.0, -1.0], [0.0, gap, 1.0], [-gap, 0.0, gap]])
    call = Call(
        {"input": x, "target": torch.tensor([0, 1, 0])}, {"gamma": gamma, "reduction": "none"} | options, ("input",)
    )
    oracle.check("softmax_focal_loss", losszoo.softmax_focal_loss, call, device)


@both
@pytest.mark.parametrize("bad", [5, -1, -101, 2**40, -(2**40)])
@pytest.mark.cpu_only
@pytest.mark.parametrize("by", [lambda function: function, interpreted], ids=["kernels", "the interpreter"])
def test_label_out_of_range_on_the_cpu(name, bad, by):
    x, y = torch.randn(4, 5, requires_grad=True), torch.tensor([0, 1, bad, 3])
    with pytest.raises(IndexError) as error:
        by(getattr(losszoo, name))(x, y)
    for part in ("target", "2", str(bad), "5"):  # the argument, the row, the label, the number of classes
        assert part in str(error.value)


@both
@pytest.mark.parametrize("bad", [5, -1, -101, 2**40, -(2**40)])
@pytest.mark.cuda_only
def test_label_out_of_range_on_the_gpu(name, bad, monkeypatch):
    fn = getattr(losszoo, name)
    x, y = torch.randn(4, 5, device="cuda", requires_grad=True), torch.tensor([0, 1, bad, 3], device="cuda")
    loss = fn(x, y, reduction="none")
    (grad,) = torch.autograd.grad(loss.sum(), x)
    assert loss.isnan().tolist() == [False, False, True, False]
    assert grad.isnan().all(1).tolist() == [False, False, True, False]
    assert grad[[0, 1, 3]].isfinite().all()
    monkeypatch.setenv("LOSSZOO_CHECK", "1")
    with pytest.raises(IndexError) as error:
        fn(x, y)
    for part in ("target", "2", str(bad), "5"):
        assert part in str(error.value)


def test_a_label_out_of_range_is_legal_where_it_is_ignored(device):
    x = torch.randn(3, 5, device=device)
    y = torch.tensor([0, 255, 4], device=device)
    torch.testing.assert_close(losszoo.cross_entropy(x, y, ignore_index=255), F.cross_entropy(x, y, ignore_index=255))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_class_weights_may_be_float32_beside_16_bit_logits(dtype, device):
    x = torch.randn(6, 5, generator=generator(0)).to(dtype)
    weight = torch.tensor([0.3, 1.7, 1e-4, 3.3333, 0.1])
    call = Call({"input": x, "target": torch.arange(6) % 5, "weight": weight}, {"reduction": "mean"}, ("input",))
    oracle.check("cross_entropy", losszoo.cross_entropy, call, device)


def test_weights_without_smoothing_are_torchs_weighted_mean(device):
    call = sample("cross_entropy", torch.float64)
    ours, torchs = oracle.run(losszoo.cross_entropy, call, device), oracle.run(F.cross_entropy, call)
    oracle.compare("cross_entropy", call, ours, torchs)


def test_label_smoothing_has_a_class_of_its_own(device):
    call = sample("cross_entropy", torch.float32)
    placed = call.place(device)
    module = losszoo.LabelSmoothingCrossEntropy()
    expected = losszoo.cross_entropy(placed["input"], placed["target"], label_smoothing=0.1)
    assert torch.equal(module(placed["input"], placed["target"]), expected)


def test_every_bfloat16_row_loss_is_float32_accurate_at_a_large_vocabulary(device):
    x = logits("normal", (4, 262_144), generator(5)).to(torch.bfloat16)
    call = Call({"input": x, "target": torch.tensor([0, 1, 262_143, 77])}, {"reduction": "mean"}, ("input",))
    loss = oracle.run(losszoo.cross_entropy, call, device).loss
    expected = references.cross_entropy(x.double(), call.tensors["target"])
    # The 12 operations of the tolerance, without the random walk that it grants to a sum of 262,144 terms.
    tolerance.assert_close(loss, expected, 12 * tolerance.eps(x.dtype) * (1 + expected))
