"""warmup, and what a CUDA graph needs of it."""

from __future__ import annotations

import pytest
import torch

import losszoo
from losszoo.errors import CaptureError
from tests.losses import oracle
from tests.losses.samples import sample

every = pytest.mark.parametrize("name", oracle.NAMES)


@every
def test_warmup_makes_the_plan_and_writes_nothing(name, fresh, device):
    call, function = sample(name), fresh(name)
    tensors = call.place(device)
    leaf = tensors[call.differentiable[0]].requires_grad_()
    before = leaf.detach().clone()
    losszoo.warmup(function, **tensors, **call.options)
    entry = function.__globals__["_call_"]
    assert entry.plans() == (1, 1) and leaf.grad is None and torch.equal(leaf, before)
    function(**tensors, **call.options).backward()
    assert entry.plans() == (1, 1)


def test_warmup_leaves_a_module_as_it_was(device):
    criterion = losszoo.WIoULoss(iou_mean=0.5).to(device)
    boxes = torch.rand(2, 5, 4, device=device).cumsum(-1).requires_grad_()
    losszoo.warmup(criterion, *boxes)
    assert criterion.iou_mean == 0.5 and boxes.grad is None


def test_warmup_takes_a_function_of_ones_own(device):
    x = torch.randn(4, 7, device=device, requires_grad=True)
    y = torch.zeros(4, dtype=torch.long, device=device)
    losszoo.warmup(lambda logits: losszoo.cross_entropy(logits, y) + logits.mean(), x)
    losszoo.warmup(losszoo.cross_entropy, x.detach(), y)
    assert x.grad is None


@pytest.mark.cuda_only
@every
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_graph_of_forward_and_backward(name, native, reduction, by_python, device):
    """Replayed on new values, more than once, beside eager calls on the same stream and on another."""
    call = sample(name, torch.float32, "strided", reduction=reduction)
    function = getattr(losszoo, name) if native else by_python(name)
    tensors = call.place(device)
    leaves = [tensors[k].requires_grad_() for k in call.differentiable]
    options = call.place_options(device)
    losszoo.warmup(function, **tensors, **options)
    graph, other = torch.cuda.CUDAGraph(), torch.cuda.Stream()

    def step():
        loss = function(**tensors, **options)
        return loss, *torch.autograd.grad(loss, leaves, torch.full_like(loss, 0.5))

    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = step()
    for scale in (1.0, 0.7, 1.3):
        with torch.no_grad():
            for leaf in leaves:
                leaf.mul_(scale)
        for _ in range(3):
            graph.replay()
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            beside = step()
        torch.cuda.current_stream().wait_stream(other)
        for got, also, want in zip(captured, beside, step()):
            assert torch.equal(got, want) and torch.equal(also, want)


@pytest.mark.cuda_only
@pytest.mark.parametrize("native", [True, False])
def test_a_cold_kernel_in_a_capture_is_an_error_that_names_warmup(native, device, by_python):
    @losszoo.loss
    def never_called(x: losszoo.spec.Row, y: losszoo.spec.Index, *, slope: float = 1.5):
        """slope times the negative log-probability."""
        return -slope * losszoo.spec.log_softmax(x)[y]

    x, y = torch.randn(4, 7, device=device), torch.zeros(4, dtype=torch.long, device=device)
    losszoo.cross_entropy(x, y)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(CaptureError, match="losszoo.warmup"), torch.cuda.graph(graph):
        (never_called if native else by_python(never_called))(x, y)


@pytest.mark.cuda_only
def test_two_streams_at_once(device):
    torch.manual_seed(0)
    batches = [(torch.randn(4096, 300, device=device), torch.randint(300, (4096,), device=device)) for _ in range(2)]
    expected = [losszoo.cross_entropy(*batch) for batch in batches]
    streams = [torch.cuda.Stream() for _ in batches]
    torch.cuda.synchronize()
    got = [[], []]
    for _ in range(50):
        for stream, batch, losses in zip(streams, batches, got):
            with torch.cuda.stream(stream):
                losses.append(losszoo.cross_entropy(*batch))
    torch.cuda.synchronize()
    for losses, want in zip(got, expected):
        assert all(torch.equal(loss, want) for loss in losses)


@pytest.mark.cuda_only
def test_nothing_waits_for_the_device(device):
    x = torch.randn(64, 300, device=device, requires_grad=True)
    y = torch.randint(300, (64,), device=device)
    losszoo.warmup(losszoo.cross_entropy, x, y)
    with torch.cuda.device(device):
        torch.cuda.set_sync_debug_mode("error")
        try:
            losszoo.cross_entropy(x, y).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
