"""Under torch.compile and with fake tensors every loss is one operator, with the same results."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import losszoo
from losszoo.runtime import ops
from losszoo.spec import Index, Row, exp, log_softmax
from tests.losses import oracle
from tests.losses.samples import SHAPES, sample

every = pytest.mark.parametrize("name", oracle.NAMES)

# What a loss is called with beside its defaults, each parameter in turn with values that compile nothing.
PARAMETERS = {
    "cross_entropy": ["label_smoothing", "z_loss", "softcap"],
    "softmax_focal_loss": ["gamma", "label_smoothing"],
    "sigmoid_focal_loss": ["alpha", "gamma"],
    "ciou_loss": ["eps"],
    "wiou_loss": ["alpha", "delta", "gamma"],
}


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()
    counters.clear()


def compiled(function, backend="aot_eager", **options):
    return torch.compile(lambda **call: function(**call), fullgraph=True, backend=backend, **options)


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


@every
@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("dtype, reduction", [(torch.float32, "mean"), (torch.bfloat16, "none")])
def test_the_same_bits_as_without(name, size, dtype, reduction, device):
    call, function = sample(name, dtype, size, reduction=reduction), getattr(losszoo, name)
    expected, got = oracle.run(function, call, device), oracle.run(compiled(function), call, device)
    for a, b in zip((got.loss, *got.grads), (expected.loss, *expected.grads)):
        assert torch.equal(a, b) and a.dtype == b.dtype and a.stride() == b.stride()
    assert graphs() == 1


@pytest.mark.parametrize("name", ["cross_entropy", "wiou_loss"])
def test_with_the_default_compiler(name, device):
    call, function = sample(name, torch.float32), getattr(losszoo, name)
    oracle.check(name, compiled(lambda **k: 2 * function(**k) / 2, "inductor"), call, device)


@pytest.mark.parametrize("name, parameter", [(n, p) for n, ps in PARAMETERS.items() for p in ps])
def test_new_parameter_values_compile_nothing(name, parameter, device):
    call, function = sample(name, torch.float32), getattr(losszoo, name)
    fast, seen = compiled(function), []
    for value in (0.31, 0.42, 0.53, 0.64, 0.75):
        call.options[parameter] = value
        got, want = oracle.run(fast, call, device), oracle.run(function, call, device)
        assert torch.equal(got.loss, want.loss) and all(map(torch.equal, got.grads, want.grads))
        seen.append(graphs())
    assert seen[0] == 1 and seen[-1] == seen[1] <= 2, "Dynamo itself compiles once more, when it learns that the number changes"


@pytest.mark.parametrize("name", ["cross_entropy", "sigmoid_focal_loss", "wiou_loss"])  # rows, elements, boxes
def test_new_row_counts_compile_nothing(name, device):
    """Not by dynamic=True, which has torch trace the numbers' defaults a dozen times over."""
    function = getattr(losszoo, name)
    fast = compiled(function)

    def of_any_rows(**call):
        for operand, value in call.items():
            if isinstance(value, torch.Tensor) and operand != "weight":
                torch._dynamo.mark_dynamic(value, 0)
        return fast(**call)

    for rows in (4, 6, 3, 2):  # twice as many rows, and never as many as classes: a size that two dimensions share is one to torch
        call = sample(name, torch.float32)
        short = {k: v[:rows] if k != "weight" else v for k, v in call.tensors.items()}
        short = {k: v.repeat(2, *[1] * (v.ndim - 1)) if k != "weight" else v for k, v in short.items()}
        oracle.check(name, of_any_rows, type(call)(short, call.options, call.differentiable), device)
    assert graphs() == 1


class Recorded(TorchDispatchMode):
    """The calls of losszoo's operators."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "losszoo":
            self.calls.append((func, args))
        return func(*args, **kwargs or {})


@every
@pytest.mark.parametrize("size", ["small", "strided"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_opcheck(name, size, reduction, device):
    call = sample(name, torch.float32, size, reduction=reduction)
    tensors = call.place(device)
    for operand in call.differentiable:
        tensors[operand].requires_grad_()
    with Recorded() as recorded:
        loss = getattr(losszoo, name)(**tensors, **call.options)
        torch.autograd.grad(loss, [tensors[k] for k in call.differentiable], torch.ones_like(loss))
    (forward, arguments), (backward, others) = recorded.calls
    assert backward.name() == forward.name() + "_backward"
    given = [x.detach().requires_grad_() if any(x is tensors[k] for k in call.differentiable) else x for x in arguments]
    torch.library.opcheck(forward, given)
    tests = ("test_schema", "test_faketensor")  # it has no derivative, and says so
    torch.library.opcheck(backward, [x.detach() if isinstance(x, torch.Tensor) else x for x in others], test_utils=tests)


@every
def test_no_second_derivative_is_an_error_and_not_a_zero(name, device):
    call = sample(name, torch.float32)
    tensors = call.place(device)
    leaf = tensors[call.differentiable[0]].requires_grad_()
    with Recorded():
        loss = getattr(losszoo, name)(**tensors, **call.options)
    (grad,) = torch.autograd.grad(loss, leaf, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        grad.sum().backward()


@every
def test_fake_tensors(name, device):
    call = sample(name, torch.bfloat16, "strided", reduction="none")
    real = oracle.run(getattr(losszoo, name), call, device)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        tensors = {k: mode.from_tensor(v) for k, v in call.place(device).items()}
        leaves = [tensors[k].requires_grad_() for k in call.differentiable]
        loss = getattr(losszoo, name)(**tensors, **call.options)
        grads = torch.autograd.grad(loss, leaves, torch.ones_like(loss))
    for fake, result in zip((loss, *grads), (real.loss, *real.grads)):
        assert (fake.shape, fake.dtype, fake.stride()) == (result.shape, result.dtype, result.stride())


def test_a_module_that_keeps_a_running_mean(device):
    torch.manual_seed(0)
    boxes = torch.rand(2, 9, 4, device=device).cumsum(-1)
    modules = [losszoo.WIoULoss().to(device) for _ in range(2)]
    fast = torch.compile(modules[1], fullgraph=True, backend="aot_eager")
    for step in range(4):
        pred = (boxes[0] + 0.1 * step).requires_grad_()
        losses = [modules[0](pred, boxes[1]), fast(pred, boxes[1])]
        assert torch.equal(*losses) and torch.equal(*[torch.autograd.grad(loss, pred)[0] for loss in losses])
        assert torch.equal(modules[0].iou_mean, modules[1].iou_mean)
    assert modules[1].iou_mean != 1 and graphs() == 1


@pytest.mark.parametrize("options", [{"normalizer": 3}, {"normalizer": torch.tensor(3.0)}, {"weight": torch.rand(9)}, {"iou_mean": 0.5}])
def test_numbers_that_stand_for_tensors(options, device):
    options = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    call = sample("wiou_loss", torch.float32)
    call.options |= options
    got, want = (oracle.run(f, call, device) for f in (compiled(losszoo.wiou_loss), losszoo.wiou_loss))
    assert torch.equal(got.loss, want.loss) and all(map(torch.equal, got.grads, want.grads))


def test_a_gradient_that_there_is_not_is_refused(device):
    call = sample("cross_entropy", torch.float32)
    tensors = call.place(device)
    tensors["weight"].requires_grad_()
    with pytest.raises(Exception, match="an operand that has no gradient requires one"):
        compiled(losszoo.cross_entropy)(**tensors)


def test_broadcast_operands_get_gradients_of_their_own_shape(device):
    x, t = torch.randn(4, 1, device=device, requires_grad=True), torch.rand(4, 5, device=device)
    losses = [f(inputs=x, targets=t, reduction="mean") for f in (losszoo.sigmoid_focal_loss, compiled(losszoo.sigmoid_focal_loss))]
    torch.testing.assert_close(*[torch.autograd.grad(loss, x)[0] for loss in losses])


def test_a_loss_of_ones_own(device):
    @losszoo.loss
    def generalized(logits: Row, target: Index, *, q: float = 0.7):
        """(1 - p[y]**q) / q."""
        return (1 - exp(q * log_softmax(logits)[target])) / q

    x, y = torch.randn(6, 5, device=device, requires_grad=True), torch.randint(5, (6,), device=device)
    losses = [f(logits=x, target=y, q=0.4) for f in (generalized, compiled(generalized))]
    assert torch.equal(*losses) and torch.equal(*[torch.autograd.grad(loss, x)[0] for loss in losses])


def test_a_second_loss_of_the_same_name_is_another_operator():
    first, second = (ops.operator(losszoo.ciou_loss.spec) for _ in range(2))
    boxes = torch.rand(2, 3, 4).cumsum(-1)
    with Recorded() as recorded:
        for call in (first, second):
            call(*boxes, 1e-7, "xyxy", None, "mean", None, None)
    assert len({op.name() for op, _ in recorded.calls}) == 2


def test_a_compiled_model_under_autocast(device):
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 10).to(device)
    x, y = torch.randn(32, 16, device=device), torch.randint(10, (32,), device=device)

    def step(loss):
        def run(x, y):
            with torch.autocast(device, dtype=torch.bfloat16):
                return loss(model(x), y, label_smoothing=0.1)

        return run

    def result(run):
        model.zero_grad()
        loss = run(x, y)
        loss.backward()
        return loss.detach(), model.weight.grad

    eager, torchs = (result(step(loss)) for loss in (losszoo.cross_entropy, torch.nn.functional.cross_entropy))
    fast = result(torch.compile(step(losszoo.cross_entropy), fullgraph=True, backend="aot_eager"))
    assert eager[0].dtype == fast[0].dtype == torch.float32
    for a, b, c in zip(eager, fast, torchs):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a, c, rtol=2e-2, atol=1e-3)
