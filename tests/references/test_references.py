"""The references against torch's own functions, and torchvision's where it is installed."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests import references, tolerance
from tests.losses import oracle
from tests.references import boxes
from tests.strategies import Call, box_pairs, from_corners, generator

try:
    import torchvision.ops
except ImportError:  # a further oracle where there is one, never the only one
    torchvision = None

close = torch.testing.assert_close
needs_torchvision = pytest.mark.skipif(
    torchvision is None, reason="torchvision is not installed: the formulas are written out"
)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (4, 5, 3), (2, 5, 3, 2)])
@pytest.mark.parametrize("soft", [False, True])
def test_cross_entropy_is_torchs(shape, soft, weighted, smoothing, reduction):
    rng = generator(0)
    x = torch.randn(shape, generator=rng, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(5, generator=rng, dtype=torch.float64) if weighted else None
    axis = 1 if len(shape) > 1 else 0
    target = torch.randn(shape, generator=rng, dtype=torch.float64).softmax(axis)
    if not soft:
        target = target.argmax(axis)
        if target.dim():
            target[0] = 2
            target[-1] = 2
    options = dict(weight=weight, label_smoothing=smoothing, reduction=reduction)
    options |= {} if soft else {"ignore_index": 2}
    ours, torchs = references.cross_entropy(x, target, **options), F.cross_entropy(x, target, **options)
    close(ours, torchs, equal_nan=True)
    upstream = oracle.upstream_for(ours)
    close(*(torch.autograd.grad(loss, x, upstream, retain_graph=True)[0] for loss in (ours, torchs)), equal_nan=True)


def test_cross_entropy_of_masked_classes_is_torchs():
    x = torch.tensor([[0.0, -torch.inf, 1.0], [2.0, 3.0, -torch.inf]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([2, 0])
    ours, torchs = references.cross_entropy(x, y), F.cross_entropy(x, y)
    close(ours, torchs)
    close(*(torch.autograd.grad(loss, x)[0] for loss in (ours, torchs)))
    q = F.one_hot(y, 3).double()
    close(references.cross_entropy(x, q), torchs)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_softmax_focal_is_its_formula(gamma):
    x = torch.randn(6, 4, generator=generator(1), dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 3, -100, 1])
    p = x.softmax(-1)[torch.arange(6), y.clamp(min=0)]
    rows = (1 - p) ** gamma * -p.log()
    close(references.softmax_focal_loss(x, y, gamma), rows[y >= 0].mean())


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_softmax_focal_of_a_sure_row_and_of_one_class_has_a_finite_gradient(gamma):
    for x, y in ([[900.0, 0.0, -900.0]], [0]), ([[3.0]], [0]), ([[4.0, -torch.inf, -torch.inf]], [0]):
        x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
        loss = references.softmax_focal_loss(x, torch.tensor(y), gamma)
        (grad,) = torch.autograd.grad(loss, x)
        assert loss == 0 and (grad == 0).all()


@pytest.mark.parametrize("alpha", [0.25, -1.0])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_sigmoid_focal_is_its_formula(alpha, gamma):
    rng = generator(2)
    x = 3 * torch.randn(50, generator=rng, dtype=torch.float64)
    t = torch.rand(50, generator=rng, dtype=torch.float64)
    t[:20] = t[:20].round()
    p = torch.sigmoid(x)
    p_t = p * t + (1 - p) * (1 - t)
    loss = F.binary_cross_entropy_with_logits(x, t, reduction="none") * (1 - p_t) ** gamma
    if alpha >= 0:
        loss = loss * (alpha * t + (1 - alpha) * (1 - t))
    close(references.sigmoid_focal_loss(x, t, alpha, gamma), loss)
    if torchvision is not None:
        close(loss, torchvision.ops.sigmoid_focal_loss(x, t, alpha, gamma))


@pytest.mark.parametrize("box_format", ["xyxy", "xywh", "cxcywh"])
def test_corners_undo_from_corners(box_format):
    pred, _ = box_pairs("random", 10, generator(3))
    close(boxes.corners(from_corners(pred, box_format), box_format), pred)


def test_box_losses_of_one_pair_by_hand():
    pred = torch.tensor([0.0, 0.0, 2.0, 2.0], dtype=torch.float64)
    target = torch.tensor([1.0, 1.0, 3.0, 3.0], dtype=torch.float64)
    close(references.ciou_loss(pred, target).item(), 1 - 1 / 7 + 2 / 18)
    v1 = torch.tensor(2 / 18).exp().item() * 6 / 7
    close(references.wiou_loss(pred, target, version=1).item(), v1, rtol=1e-6, atol=0)
    close(references.wiou_loss(pred, target, 0.5, version=2, gamma=2.0).item(), (12 / 7) ** 2 * v1, rtol=1e-6, atol=0)
    beta = 6 / 7
    close(references.wiou_loss(pred, target).item(), beta / (3 * 1.9 ** (beta - 3)) * v1, rtol=1e-6, atol=0)


@needs_torchvision
@pytest.mark.parametrize("kind", ["random", "nested", "disjoint", "huge"])
def test_ciou_is_torchvisions(kind):
    pred, target = box_pairs(kind, 200, generator(4))
    area = (target[:, 2:] - target[:, :2]).prod(-1)
    close(
        references.ciou_loss(pred, target, reduction="none"),
        torchvision.ops.complete_box_iou_loss(pred, target),
        rtol=1e-9,
        # torchvision adds its eps to the union and the squared diagonal, which are areas, and to alpha's denominator, which is none
        atol=1e-7 * (1 + 2 / area.min().item()),
    )


def test_a_tolerance_can_fail():
    call = Call({"input": torch.randn(4, 5), "target": torch.tensor([0, 1, 2, 3])}, {"reduction": "mean"}, ("input",))
    right = oracle.run(references.cross_entropy, oracle.in_double(call))
    rounded = oracle.Result(right.loss.float(), tuple(grad.float() for grad in right.grads))
    oracle.compare("cross_entropy", call, rounded, right)
    for wrong in (
        rounded._replace(loss=rounded.loss * (1 + 1e-5)),
        rounded._replace(loss=rounded.loss * torch.nan),
        rounded._replace(grads=tuple(grad * (1 + 1e-4) for grad in rounded.grads)),
    ):
        with pytest.raises(AssertionError):
            oracle.compare("cross_entropy", call, wrong, right)
    with pytest.raises(AssertionError, match="shape"):
        tolerance.assert_close(torch.zeros(2), torch.zeros(3), 1.0)
