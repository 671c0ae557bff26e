"""The native runtime: the same bits as by Python, plans made once, and a node that behaves like any of torch's."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import losszoo
from losszoo.runtime.memory import LARGE
from tests.losses import oracle
from tests.losses.samples import SHAPES, sample

every = pytest.mark.parametrize("name", oracle.NAMES)


def plans(function):
    """(kinds of calls known, how many of them have plans)."""
    return function.__globals__["_call_"].plans()


def row(device, classes=8):
    x = torch.randn(4, classes, device=device, requires_grad=True)
    return x, torch.randint(classes, (4,), device=device)


@every
@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_same_bits_as_by_python(name, size, dtype, reduction, by_python, device):
    call = sample(name, dtype, size, reduction=reduction)
    python, native = by_python(name), getattr(losszoo, name)
    expected = oracle.run(python, call, device)
    for _ in range(2):
        got = oracle.run(native, call, device)
        for a, b in zip((got.loss, *got.grads), (expected.loss, *expected.grads)):
            assert a.dtype == b.dtype and a.stride() == b.stride()
            assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


@every
def test_one_plan_for_calls_that_differ_in_values_alone(name, fresh, device):
    function = fresh(name)
    for seed in range(3):
        torch.manual_seed(seed)
        call = sample(name)
        leaf = call.tensors[call.differentiable[0]]
        call.tensors[call.differentiable[0]] = leaf + torch.rand(()) if leaf.shape[-1] != 4 else leaf * 1.5
        oracle.check(name, function, call, device)
    assert plans(function) == (1, 1)


def test_another_plan_for_another_shape_stride_type_or_option(fresh, device):
    function = fresh("cross_entropy")
    x, y = row(device)
    calls = [
        (x, y, {}), (x[:3], y[:3], {}), (x.detach(), y, {}), (x.double(), y, {}), (x, y, {"reduction": "sum"}),
        (x.t().contiguous().t(), y, {}), (x, y, {"label_smoothing": 0.1}),
        (x, y, {"weight": torch.rand(8, device=device)}), (x, y.int(), {}),
        (x, y, {"softcap": 3.0}), (x, y, {"normalizer": 3}), (x, y, {"normalizer": torch.tensor(3.0, device=device)}),
    ]  # fmt: skip
    for number, (logits, target, options) in enumerate(calls, 1):
        reference = {k: v for k, v in options.items() if k not in ("softcap", "normalizer")}
        for _ in range(2):
            got = function(logits, target, **options)
            if reference == options:
                torch.testing.assert_close(got, torch.nn.functional.cross_entropy(logits, target.long(), **reference))
        assert plans(function) == (number, number)
    with torch.no_grad():
        assert not function(x, y).requires_grad
    assert plans(function)[0] == len(calls) + 1
    for smoothing in 0.2, 0.3, 1:
        got, want = (f(x, y, label_smoothing=smoothing) for f in (function, torch.nn.functional.cross_entropy))
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(torch.autograd.grad(got, x), torch.autograd.grad(want, x))
    for ignored in 0, 1, 2:
        got, want = (f(x, y, ignore_index=ignored) for f in (function, torch.nn.functional.cross_entropy))
        torch.testing.assert_close(got, want, equal_nan=True)
    assert plans(function)[0] == len(calls) + 1


@pytest.mark.parametrize("name, shape, reduction", [("cross_entropy", (2100, 1000), "mean"), ("sigmoid_focal_loss", (2100, 1000), "none")])
def test_large_outputs_have_plans_too(name, shape, reduction, fresh, by_python, device):
    """Whose memory on the CPU comes from losszoo.runtime.memory."""
    x = torch.randn(shape, device=device, requires_grad=True)
    target = torch.randint(shape[1], shape[:1], device=device) if name == "cross_entropy" else torch.rand(shape, device=device)
    assert x.nbytes >= LARGE
    native, results = fresh(name), []
    for function in (by_python(name), native, native):
        loss = function(x, target, reduction=reduction)
        results.append((loss.detach(), *torch.autograd.grad(loss.sum(), x)))
    for got in results[1:]:
        assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(got, results[0]))
    assert plans(native) == (1, 1)


def test_plans_are_bounded(fresh, device):
    function = fresh("sigmoid_focal_loss")
    for size in range(1, 1100):
        x = torch.randn(size, device=device)
        function(x, x)
    assert plans(function) == (1024, 1024)


def test_calls_that_python_does_are_known_as_such(fresh, device):
    function = fresh("cross_entropy")
    x, y = row(device)
    for _ in range(3):
        assert function(x[:0], y[:0], reduction="sum") == 0
    assert plans(function) == (1, 0)


@pytest.mark.cpu_only
@pytest.mark.parametrize("bad", [-1, 8])
def test_a_stray_label_is_an_index_error_hot_or_cold(bad, fresh, device):
    function = fresh("cross_entropy")
    x, y = row(device)
    for kept in range(3):
        y[2] = bad if kept != 1 else 0
        if kept == 1:
            function(x, y)
        else:
            with pytest.raises(IndexError, match=f"target: row 2 has label {bad}, expected 0 <= label < 8"):
                function(x, y)


def test_the_node_has_a_name_and_hooks(device):
    x, y = row(device)
    loss = losszoo.cross_entropy(x, y)
    assert loss.grad_fn.name() == "CrossEntropyBackward"
    seen = []
    loss.grad_fn.register_prehook(lambda grads: seen.append("before"))
    loss.grad_fn.register_hook(lambda grads, _: seen.append("after"))
    loss.backward()
    assert seen == ["before", "after"]


def test_writing_an_operand_before_the_backward_is_an_error(device):
    x, y = row(device)
    logits = x * 1
    loss = losszoo.cross_entropy(logits, y)
    with torch.no_grad():
        logits.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@every
def test_what_is_kept_goes_with_the_graph(name, device):
    call = sample(name)
    tensors = call.place(device)
    made = tensors[call.differentiable[0]].requires_grad_() * 1
    tensors[call.differentiable[0]] = made
    loss = getattr(losszoo, name)(**tensors, **call.options)
    gone = weakref.ref(made)
    loss.backward()
    del tensors, made
    gc.collect()
    assert gone() is None


def test_hooks_on_saved_tensors(device):
    x, y = row(device)
    packed = []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor.cpu()

    expected = torch.autograd.grad(losszoo.cross_entropy(x, y), x)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor.to(device)):
        loss = losszoo.cross_entropy(x, y)
    assert packed[1:] == [x.shape, y.shape]
    torch.testing.assert_close(torch.autograd.grad(loss, x), expected, rtol=0, atol=0)


@every
@pytest.mark.parametrize("again", [True, False])
def test_checkpointing_by_either_way(name, again, by_python, device):
    """What was computed by Python may be computed again by the runtime, once it is built: both must keep the same tensors."""
    call = sample(name)
    tensors = call.place(device)
    leaves = [tensors[k].requires_grad_() for k in call.differentiable]
    native, python = getattr(losszoo, name), by_python(name)
    expected = torch.autograd.grad(native(**tensors, **call.options), leaves)
    turns = iter([python, native] if again else [native, python])
    loss = checkpoint(lambda: next(turns)(**tensors, **call.options), use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(loss, leaves), expected, rtol=0, atol=0)


@every
@pytest.mark.parametrize("native", [True, False])
def test_many_upstreams_at_once(name, native, by_python, device):
    """A transform hands the backward tensors without memory of their own."""
    call = sample(name, torch.float64, reduction="none")
    tensors = call.place(device)
    leaf = tensors[call.differentiable[0]].requires_grad_()
    loss = (getattr(losszoo, name) if native else by_python(name))(**tensors, **call.options)
    upstreams = torch.randn(3, *loss.shape, device=device, dtype=loss.dtype)
    (got,) = torch.autograd.grad(loss, leaf, upstreams, is_grads_batched=True, retain_graph=True)
    expected = [torch.autograd.grad(loss, leaf, upstream, retain_graph=True)[0] for upstream in upstreams]
    torch.testing.assert_close(got, torch.stack(expected))


def test_no_gradient_flows_where_none_is_asked(device):
    x, y = row(device)
    losses = [losszoo.cross_entropy(x, y), losszoo.cross_entropy(2 * x, y)]
    (got,) = torch.autograd.grad(losses[0] + 0 * losses[1].detach(), x, retain_graph=True)
    torch.testing.assert_close(got, torch.autograd.grad(losses[0], x)[0])
    with torch.inference_mode():
        loss = losszoo.cross_entropy(x, y)
    assert loss.is_inference() and not loss.requires_grad


def test_forward_mode_is_refused_as_by_python(device):
    x, y = row(device)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach().requires_grad_(), torch.ones_like(x))
        with pytest.raises(RuntimeError, match="forward mode|jvp"):
            losszoo.cross_entropy(dual, y)


def test_subclasses_and_modes_reach_python(device):
    class Own(torch.Tensor):
        pass

    x, y = row(device)
    torch.testing.assert_close(losszoo.cross_entropy(x.as_subclass(Own), y).as_subclass(torch.Tensor), losszoo.cross_entropy(x, y))


def test_threads_share_plans(fresh, device):
    function = fresh("cross_entropy")
    batches = [row(device, classes) for classes in (3, 5, 8, 13)] * 20
    expected = [torch.autograd.grad(losszoo.cross_entropy(x, y), x)[0] for x, y in batches]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda batch: torch.autograd.grad(function(*batch), batch[0])[0], batches))
    for a, b in zip(got, expected):
        assert torch.equal(a, b)
    assert plans(function) == (4, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_class_weights_that_begin_anywhere(dtype, fresh, device):
    """Those of whose memory a kernel could read no vector are copied, each time."""
    x, y = row(device, 1024)
    function = fresh("cross_entropy")
    memory = torch.rand(1025, device=device).to(dtype)
    for first in 0, 1, 1:
        weight = memory[first : first + 1024]
        expected = torch.nn.functional.cross_entropy(x, y, weight.float())
        got = function(x, y, weight)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(torch.autograd.grad(got, x), torch.autograd.grad(expected, x))
