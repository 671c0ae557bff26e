"""CIoU and WIoU against their references and the interpreter, on every odd geometry, and WIoU's running mean."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import losszoo
from losszoo.testing import interpreted
from tests import references
from tests.losses import oracle
from tests.references.boxes import overlap
from tests.strategies import BOX_KINDS, DTYPES, FORMATS, Call, box_calls, box_pairs, from_corners, generator

both = pytest.mark.parametrize("name", ["ciou_loss", "wiou_loss"])
VARIANTS = [("ciou_loss", {}), *(("wiou_loss", {"version": version}) for version in (1, 2, 3))]
variants = pytest.mark.parametrize("name, options", VARIANTS)


@both
@given(data=st.data())
def test_reference(name, data, device):
    oracle.check(name, getattr(losszoo, name), data.draw(box_calls(wise=name == "wiou_loss")), device)


@both
@given(data=st.data())
def test_interpreter(name, data, device):
    """Kinks too, where corners are given and no rounding decides on which side a box lies."""
    call, fn = data.draw(box_calls(wise=name == "wiou_loss", double=True)), getattr(losszoo, name)
    kinks = call.options["box_format"] == "xyxy"
    actual, expected = oracle.run(fn, call, device), oracle.run(interpreted(fn), call, device)
    oracle.compare(name, call, actual, expected, kinks=kinks)


@variants
@pytest.mark.parametrize("kind", BOX_KINDS)
def test_every_geometry(name, options, kind, device):
    """The loss finite everywhere, the gradient bounded by the boxes' own sides (see the oracle)."""
    for i, dtype in enumerate(DTYPES, options.get("version", 0)):
        box_format = FORMATS[i % len(FORMATS)]  # each meets every type and every variant
        pair = [from_corners(b, box_format).to(dtype) for b in box_pairs(kind, 65, generator(1))]
        if dtype == torch.float16 and kind == "tiny":
            pair = [100 * b for b in pair]  # a gradient of 1 / side would overflow
        call = Call(
            dict(zip(("pred", "target"), pair)),
            {"box_format": box_format, "reduction": "none", **options},
            ("pred", "target"),
        )
        oracle.check(name, getattr(losszoo, name), call, device)


@variants
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_identical_boxes_cost_nothing(name, options, scale, device):
    pred, _ = box_pairs("random", 500, generator(2))
    pred = (scale * pred).float().to(device).requires_grad_()
    loss = getattr(losszoo, name)(pred, pred.detach(), reduction="none", **options)
    (grad,) = torch.autograd.grad(loss.sum(), pred)
    eps = torch.finfo(torch.float32).eps
    bound = (8 * eps) ** 0.5 if options.get("version") == 2 else 8 * eps  # version 2 takes the square root of beta
    assert (loss.abs() <= bound).all()
    assert grad.isfinite().all()


@variants
def test_eps_shifts_no_geometry_that_needs_none(name, options, device):
    pred, target = (b.float().to(device) for b in box_pairs("random", 100, generator(3)))
    fn = getattr(losszoo, name)
    assert torch.equal(fn(pred, target, eps=1e-7, **options), fn(pred, target, eps=0.1, **options))


@variants
@pytest.mark.parametrize("count", [1, 31, 257, 40_003])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_every_count(name, options, count, reduction, device):
    pred, target = box_pairs("random", count, generator(count))
    call = Call({"pred": pred.float(), "target": target.float()}, {"reduction": reduction, **options}, ("pred",))
    oracle.check(name, getattr(losszoo, name), call, device)


@variants
def test_nan_poisons_its_box_only(name, options, device):
    pred, target = (b.float() for b in box_pairs("random", 50, generator(4)))
    pred[17, 2] = torch.nan
    call = Call({"pred": pred, "target": target}, {"reduction": "none", **options}, ("pred",))
    result = oracle.run(getattr(losszoo, name), call, device)
    assert result.loss.isnan().nonzero().tolist() == [[17]]
    assert result.grads[0].isnan().any(-1).nonzero().tolist() == [[17]]


@variants
@pytest.mark.parametrize("box_format", FORMATS)
def test_second_derivatives_are_the_references(name, options, box_format, device):
    """Through the stop-gradients, which gradgradcheck cannot follow."""
    pred, target = (from_corners(b, box_format) for b in box_pairs("random", 12, generator(5)))
    results = []
    for fn, place in (getattr(losszoo, name), device), (getattr(references, name), "cpu"):
        leaves = [b.to(place, copy=True).requires_grad_() for b in (pred, target)]
        loss = fn(*leaves, box_format=box_format, reduction="sum", **options)
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        scalar = sum((grad * grad.detach().sin()).sum() for grad in first)
        results.append([g.cpu() for g in (*first, *torch.autograd.grad(scalar, leaves))])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@variants
@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4)])
def test_empty_batch(name, options, shape, device):
    fn, pred = getattr(losszoo, name), torch.zeros(shape, device=device, requires_grad=True)
    target = torch.zeros(shape, device=device)
    assert fn(pred, target, reduction="none", **options).shape == shape[:-1]
    assert fn(pred, target, reduction="sum", **options) == 0
    assert fn(pred, target, reduction="mean", normalizer=1.0, **options) == 0
    loss = fn(pred, target, reduction="mean", **options)
    assert loss.isnan()  # 0 / 0, as torch's means
    (grad,) = torch.autograd.grad(loss, pred)
    assert grad.shape == pred.shape


def test_running_mean(device):
    """Updated by the batch before it scales, in train mode only, on the device, and not by an empty batch."""
    module = losszoo.WIoULoss(version=3, momentum=0.25).to(device)
    assert module.iou_mean.item() == 1.0
    pred, target = (b.float() for b in box_pairs("random", 40, generator(6)))
    here = pred.to(device).requires_grad_(), target.to(device)
    batch = (1 - overlap(pred.double(), target.double(), 1e-7).iou).mean().item()

    loss = module(*here)
    expected_mean = 1.0 + 0.25 * (batch - 1.0)
    assert module.iou_mean.item() == pytest.approx(expected_mean, rel=1e-6)
    expected = references.wiou_loss(pred.double(), target.double(), expected_mean)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    assert here[0].grad.isfinite().all()

    before = module.iou_mean.clone()
    module.eval()(*here)
    module.train()(here[0][:0], here[1][:0])
    assert torch.equal(module.iou_mean, before)
    assert not module.iou_mean.requires_grad


@pytest.mark.parametrize("version", [1, 2, 3])
def test_state_of_the_running_mean(version, device):
    module = losszoo.WIoULoss(version=version, momentum=0.25).to(device)
    pair = [b.float().to(device) for b in box_pairs("random", 40, generator(6))]
    module(*pair)
    assert list(module.state_dict()) == ["iou_mean"]
    fresh = losszoo.WIoULoss(version=version, momentum=0.25).to(device)
    fresh.load_state_dict(module.state_dict())
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    for twin in fresh, copy.deepcopy(module), torch.load(buffer, weights_only=False):
        assert torch.equal(twin.iou_mean, module.iou_mean)
        assert torch.equal(twin.eval()(*pair), copy.deepcopy(module).eval()(*pair))


def test_the_running_mean_may_be_a_number_or_a_tensor(device):
    pair = [b.float().to(device) for b in box_pairs("random", 40, generator(6))]
    number = losszoo.wiou_loss(*pair, 0.5)
    assert torch.equal(number, losszoo.wiou_loss(*pair, torch.tensor(0.5, device=device)))
    assert torch.equal(number, losszoo.wiou_loss(*pair, iou_mean=0.5))
    assert number != losszoo.wiou_loss(*pair)
