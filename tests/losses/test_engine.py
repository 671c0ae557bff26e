"""What holds of every loss whatever its formula: reductions, strides, upstreams, determinism, torch's machinery."""

from __future__ import annotations

import copy
import io
import itertools
from concurrent.futures import ThreadPoolExecutor
from math import inf, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import losszoo
from losszoo import spec
from tests import references
from tests.layouts import LAYOUTS
from tests.losses import oracle
from tests.losses.samples import SHAPES, sample
from tests.strategies import REDUCTIONS, Call, box_calls, elementwise_calls, generator, row_calls

every = pytest.mark.parametrize("name", oracle.NAMES)
sizes = pytest.mark.parametrize("size", SHAPES)
CALLS = {
    "cross_entropy": row_calls(),
    "softmax_focal_loss": row_calls(focal=True),
    "sigmoid_focal_loss": elementwise_calls(),
    "ciou_loss": box_calls(),
    "wiou_loss": box_calls(wise=True),
}
ROWWISE = ("ciou_loss", "wiou_loss", "sigmoid_focal_loss")  # the losses whose weight= is the engine's, one value a row


def bits(tensor):
    dense = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    return dense.copy_(tensor.detach().reshape(-1)).view(torch.uint8)


@every
@sizes
@pytest.mark.parametrize(
    "dtype, reduction",
    [
        (torch.float64, "mean"),
        (torch.float32, "none"),
        (torch.float32, "mean"),
        (torch.float16, "sum"),
        (torch.bfloat16, "mean"),
    ],
)
def test_reference_at_every_size(name, size, dtype, reduction, device):
    oracle.check(name, getattr(losszoo, name), sample(name, dtype, size, reduction=reduction), device)


@every
@given(data=st.data())
def test_two_runs_give_the_same_bits_and_write_no_input(name, data, device):
    call, fn = data.draw(CALLS[name]), getattr(losszoo, name)
    tensors, options = call.place(device), call.place_options(device)
    inputs = {**tensors, **{k: v for k, v in options.items() if isinstance(v, torch.Tensor)}}
    before = {k: v.clone() for k, v in inputs.items()}
    for operand in call.differentiable:
        tensors[operand].requires_grad_()
    leaves = [tensors[operand] for operand in call.differentiable]
    runs = []
    for _ in range(2):
        loss = fn(**tensors, **options)
        upstream = oracle.upstream_for(loss)
        runs.append([loss.detach(), *torch.autograd.grad(loss, leaves, upstream)])
        assert torch.equal(upstream, oracle.upstream_for(loss))
    for first, second in zip(*runs):
        assert torch.equal(bits(first), bits(second))
    for k, value in inputs.items():
        assert torch.equal(bits(value), bits(before[k])), f"{k} was written"


@pytest.mark.parametrize("name", ["cross_entropy", "softmax_focal_loss"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_of_any_whole_type(name, dtype, device):
    fn, rng = getattr(losszoo, name), torch.Generator().manual_seed(0)
    logits = torch.randn(40, 11, generator=rng).to(device).requires_grad_()
    labels = torch.randint(11, (40,), generator=rng).to(device)
    for options in {"reduction": "none"}, {"reduction": "mean", "ignore_index": 3}:
        runs = [fn(logits, labels.to(kind), **options) for kind in (dtype, torch.int64)]
        grads = [torch.autograd.grad(loss, logits, oracle.upstream_for(loss))[0] for loss in runs]
        assert torch.equal(bits(runs[0]), bits(runs[1])) and torch.equal(bits(grads[0]), bits(grads[1]))


@every
@sizes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_backward_twice_gives_the_same_bits(name, size, dtype, device):
    call = sample(name, dtype, size)
    tensors = call.place(device)
    leaves = [tensors[operand].requires_grad_() for operand in call.differentiable]
    loss = getattr(losszoo, name)(**tensors, **call.options)
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    second = torch.autograd.grad(loss, leaves)
    for a, b in zip(first, second):
        assert torch.equal(bits(a), bits(b))
    with pytest.raises(RuntimeError, match="second time|already been freed"):
        torch.autograd.grad(loss, leaves)


@losszoo.loss(reduction="none")
def largest_of_row(x: spec.Row):
    """The largest value."""
    return spec.max(x)


@losszoo.loss(reduction="none")
def sum_of_row(x: spec.Row):
    """The sum."""
    return spec.sum(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("function, reference", [(largest_of_row, torch.amax), (sum_of_row, torch.sum)])
def test_reductions_of_special_rows_are_torchs(function, reference, dtype, device):
    """Nan, infinities and ties, anywhere among many classes; side by side, and a stride apart."""
    special = torch.tensor(list(itertools.product((0.0, -1.5, 7.0, inf, -inf, nan), repeat=3)), dtype=dtype)
    for classes in (3, 40, 1000):
        for places in ((0, 1, 2), (0, classes // 2, classes - 1)):
            x = torch.full((len(special), classes), -3.0, dtype=dtype)
            x[:, list(places)] = special
            want = reference(x, dim=-1)
            for placed in (x, x.t().contiguous().t()):
                torch.testing.assert_close(function(placed.to(device)).cpu(), want, equal_nan=True)


@every
@pytest.mark.parametrize("size", ["small", "strided"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_changes_no_value(name, size, layout, device):
    """Strides are a matter of memory: the reference knows nothing of them."""
    call = sample(name, torch.float32, size)
    strided = Call(call.tensors, call.options, call.differentiable, {k: layout for k in call.tensors})
    oracle.check(name, getattr(losszoo, name), strided, device)


@every
@sizes
@pytest.mark.parametrize("kind", ["expanded", "transposed", "sliced", "overlapping"])
def test_upstream_gradient_of_any_strides(name, size, kind, device):
    call = sample(name, torch.float32, size, reduction="none")
    tensors = call.place(device)
    leaves = [tensors[operand].requires_grad_() for operand in call.differentiable]
    loss = getattr(losszoo, name)(**tensors, **call.options)
    plain = oracle.upstream_for(loss)
    if kind == "expanded":
        upstream = torch.full((), 0.7, device=device).expand(loss.shape)
    elif kind == "transposed":
        upstream = plain.transpose(0, -1).contiguous().transpose(0, -1)
    elif kind == "sliced":
        upstream = torch.stack([plain, plain], -1)[..., 1]
    else:
        upstream = plain.flatten()[:1].expand(loss.numel()).view(loss.shape)
    got = torch.autograd.grad(loss, leaves, upstream, retain_graph=True)
    expected = torch.autograd.grad(loss, leaves, upstream.contiguous().clone())
    for a, b in zip(got, expected):
        assert torch.equal(a, b)


@every
def test_the_loss_may_be_one_term_among_others(name, device):
    """A scalar upstream that another operation made, and a leaf that other losses share."""
    call = sample(name, torch.float32)
    tensors = call.place(device)
    leaf = tensors[call.differentiable[0]].requires_grad_()
    loss = getattr(losszoo, name)(**tensors, **call.options)
    (alone,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    total = 3 * loss + (leaf**2).sum()
    (got,) = torch.autograd.grad(total, leaf)
    torch.testing.assert_close(got, 3 * alone + 2 * leaf.detach())


@every
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_no_graph_without_requires_grad(name, reduction, device):
    call = sample(name, torch.float32, reduction=reduction)
    fn, tensors = getattr(losszoo, name), call.place(device)
    loss = fn(**tensors, **call.options)
    assert not loss.requires_grad and loss.grad_fn is None
    tensors[call.differentiable[0]].requires_grad_()
    with torch.no_grad():
        assert not fn(**tensors, **call.options).requires_grad
    tracked = fn(**tensors, **call.options)
    assert tracked.requires_grad
    assert torch.equal(tracked.detach(), loss)


@every
@pytest.mark.parametrize(
    "normalizer", [4, 4.0, torch.tensor(4.0), torch.tensor(4), torch.tensor(4.0, dtype=torch.float64)]
)
def test_normalizer_is_a_number_or_a_scalar_tensor(name, normalizer, device):
    call, fn = sample(name, torch.float32), getattr(losszoo, name)
    placed = normalizer.to(device) if isinstance(normalizer, torch.Tensor) else normalizer
    normal, total = oracle.run(fn, call, device, normalizer=placed), oracle.run(fn, call, device, reduction="sum")
    torch.testing.assert_close(normal.loss, total.loss / 4)
    torch.testing.assert_close(normal.grads, tuple(grad / 4 for grad in total.grads))


@every
def test_normalizer_of_zero_divides_by_zero(name, device):
    loss = oracle.run(getattr(losszoo, name), sample(name, torch.float32), device, normalizer=0.0).loss
    assert loss == torch.inf


@pytest.mark.parametrize("name", ROWWISE)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weight_dtype", [torch.float32, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_a_row_multiplies_the_loss_and_leaves_the_mean_alone(name, reduction, weight_dtype, dtype, device):
    call = sample(name, dtype, "strided", reduction=reduction)
    rows = oracle.rows_of(name, call).shape
    weight = torch.rand(rows, generator=generator(3)).to(weight_dtype or dtype)
    weight.view(-1)[::3] = 0
    call.tensors["weight"] = weight
    oracle.check(name, getattr(losszoo, name), call, device)
    grad = oracle.run(getattr(losszoo, name), call, device).grads[0]
    assert (grad.reshape(rows.numel(), -1)[::3] == 0).all()


@pytest.mark.parametrize("name", ROWWISE)
def test_a_weight_of_zero_hides_a_nan(name, device):
    """A term whose coefficient is 0 is absent, also where it is nan."""
    call = sample(name, torch.float32, "small", reduction="sum")
    first = call.differentiable[0]
    call.tensors[first].view(-1)[0] = torch.nan
    rows = oracle.rows_of(name, call)
    call.tensors["weight"] = torch.ones(rows.shape)
    call.tensors["weight"].view(-1)[0] = 0
    result = oracle.run(getattr(losszoo, name), call, device)
    assert result.loss.isfinite()
    assert all(grad.isfinite().all() for grad in result.grads)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_autocast_leaves_it_alone(name, dtype, device):
    call, fn = sample(name, dtype), getattr(losszoo, name)
    plain = oracle.run(fn, call, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        cast = oracle.run(fn, call, device)
    assert cast.loss.dtype == plain.loss.dtype and torch.equal(cast.loss, plain.loss)
    for a, b in zip(cast.grads, plain.grads):
        assert a.dtype == b.dtype == dtype and torch.equal(a, b)


@pytest.mark.parametrize("name", ["cross_entropy", *ROWWISE])
@pytest.mark.parametrize("first, second", [(torch.bfloat16, torch.float32), (torch.float32, torch.float64)])
def test_operands_of_two_dtypes_are_computed_in_the_wider(name, first, second, device):
    call = sample(name, torch.float64)
    if name == "cross_entropy":
        call.tensors["target"] = call.tensors["input"].flip(0).softmax(1)
    (a, x), (b, t) = list(call.tensors.items())[:2]
    mixed = Call({a: x.to(first), b: t.to(second)}, call.options, (a, b))
    result = oracle.run(getattr(losszoo, name), mixed, device)
    assert result.loss.dtype == second and [grad.dtype for grad in result.grads] == [first, second]
    mixed = Call(mixed.tensors, mixed.options, (b, a))  # bounds of the wider type ...
    result = oracle.Result(result.loss, (result.grads[1], result.grads[0]))
    expected = oracle.run(getattr(references, name), oracle.in_double(mixed))
    torch.testing.assert_close(result.loss.double(), expected.loss, rtol=2e-6, atol=1e-6)
    for got, want in zip(result.grads, expected.grads):
        torch.testing.assert_close(got, want.to(got.dtype), rtol=2 * torch.finfo(got.dtype).eps, atol=1e-6)


@every
def test_double_backward_is_right(name, device):
    """Against the reference, with create_graph; no kernel has a second derivative, so the interpreter runs."""
    call = sample(name, torch.float64)
    results = []
    for fn, place in (getattr(losszoo, name), device), (getattr(references, name), "cpu"):
        tensors = call.place(place)
        leaves = [tensors[operand].requires_grad_() for operand in call.differentiable]
        loss = fn(**tensors, **call.options)
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        second = torch.autograd.grad(sum((grad**2).sum() for grad in first), leaves)
        results.append([g.detach().cpu() for g in (loss, *first, *second)])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)


@every
def test_backward_hooks_and_accumulation(name, device):
    call = sample(name, torch.float32)
    tensors = call.place(device)
    leaf, seen = tensors[call.differentiable[0]].requires_grad_(), []
    leaf.register_hook(seen.append)
    for _ in range(2):
        getattr(losszoo, name)(**tensors, **call.options).backward()
    assert len(seen) == 2
    torch.testing.assert_close(leaf.grad, 2 * seen[0])


@every
def test_several_threads_at_once(name, device):
    call, fn = sample(name, torch.float32, "large"), getattr(losszoo, name)
    expected = oracle.run(fn, call, device)
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: oracle.run(fn, call, device), range(8)):
            assert torch.equal(result.loss, expected.loss)
            assert all(torch.equal(a, b) for a, b in zip(result.grads, expected.grads))


@pytest.mark.cpu_only
@every
@sizes
def test_the_number_of_threads_changes_no_bit(name, size, device):
    call, fn = sample(name, torch.float32, size), getattr(losszoo, name)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(oracle.run(fn, call, device))
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert torch.equal(result.loss, results[0].loss)
        assert all(torch.equal(a, b) for a, b in zip(result.grads, results[0].grads))


MODULES = {
    "CrossEntropyLoss": ("cross_entropy", {"label_smoothing": 0.2, "ignore_index": 3, "reduction": "sum"}),
    "LabelSmoothingCrossEntropy": ("cross_entropy", {"label_smoothing": 0.1, "reduction": "none"}),
    "SoftmaxFocalLoss": ("softmax_focal_loss", {"gamma": 1.5, "label_smoothing": 0.2, "reduction": "sum"}),
    "SigmoidFocalLoss": ("sigmoid_focal_loss", {"alpha": 0.6, "gamma": 1.5, "reduction": "mean"}),
    "CIoULoss": ("ciou_loss", {"box_format": "cxcywh", "eps": 1e-6, "reduction": "sum"}),
    "WIoULoss": ("wiou_loss", {"version": 2, "gamma": 0.7, "box_format": "xywh", "reduction": "none"}),
}
modules = pytest.mark.parametrize("module", MODULES)


def operands_of(module, device):
    """Legal for every option above: no label but 3 is ever ignored."""
    first, second = list(sample(MODULES[module][0], torch.float32).place(device).values())[:2]
    return first, second if second.is_floating_point() else second.where(second >= 0, 3)


def test_every_module_is_tested():
    classes = {name for name in losszoo.losses.__all__ if isinstance(getattr(losszoo, name), type)}
    functions = set(losszoo.losses.__all__) - classes
    assert classes == set(MODULES) and functions == set(oracle.NAMES)


@modules
def test_module_is_the_function(module, device):
    """With its own options, and with none: the defaults are the same."""
    name, options = MODULES[module]
    operands = operands_of(module, device)
    expected = getattr(losszoo, name)(*operands, **options)
    instance = getattr(losszoo, module)(**options).to(device).eval()
    assert isinstance(instance, torch.nn.Module)
    assert torch.equal(instance(*operands), expected)
    default = {"label_smoothing": 0.1} if module == "LabelSmoothingCrossEntropy" else {}
    plain = getattr(losszoo, module)().to(device).eval()
    assert torch.equal(plain(*operands), getattr(losszoo, name)(*operands, **default))


@modules
def test_modules_copy_and_pickle(module, device):
    options, operands = MODULES[module][1], operands_of(module, device)
    instance = getattr(losszoo, module)(**options).to(device).eval()
    buffer = io.BytesIO()
    torch.save(instance, buffer)
    buffer.seek(0)
    for twin in copy.deepcopy(instance), torch.load(buffer, weights_only=False):
        assert type(twin) is type(instance) and repr(twin) == repr(instance)
        assert torch.equal(twin(*operands), instance(*operands))


@modules
def test_module_says_its_options(module):
    text = repr(getattr(losszoo, module)(**MODULES[module][1]))
    assert text.startswith(module)
    for option, value in MODULES[module][1].items():
        assert f"{option}={value!r}" in text


@pytest.mark.parametrize("module", ["CrossEntropyLoss", "LabelSmoothingCrossEntropy", "SoftmaxFocalLoss"])
def test_class_weight_moves_and_saves_with_its_module_as_in_torch(module, device):
    weight = torch.rand(10) + 0.5
    instance = getattr(losszoo, module)(weight=weight).to(device)
    assert list(instance.state_dict()) == ["weight"]
    assert instance.weight.device.type == device
    call = sample(MODULES[module][0], torch.float32)
    x, y = list(call.place(device).values())[:2]
    smoothing = {"label_smoothing": 0.1} if module == "LabelSmoothingCrossEntropy" else {}
    expected = getattr(losszoo, MODULES[module][0])(x, y, weight=weight.to(device), **smoothing)
    assert torch.equal(instance(x, y), expected)


@pytest.mark.parametrize("name", ROWWISE)
def test_modules_take_weight_and_normalizer_in_the_call(name, device):
    module = {"ciou_loss": "CIoULoss", "wiou_loss": "WIoULoss", "sigmoid_focal_loss": "SigmoidFocalLoss"}[name]
    call = sample(name, torch.float32)
    operands = list(call.place(device).values())[:2]
    weight = torch.rand(oracle.rows_of(name, call).shape, device=device)
    extras = {"weight": weight, "normalizer": torch.tensor(3.0, device=device)}
    instance = getattr(losszoo, module)(reduction="mean").to(device).eval()
    assert torch.equal(instance(*operands, **extras), getattr(losszoo, name)(*operands, reduction="mean", **extras))
