"""Every mistake in a call raises before anything is multiplied, and names the argument."""

import pytest
import torch

import losszoo
from losszoo.spec import Elem, Row, sum
from tests.linear.cases import FUSED, case
from tests.test_bad_input import expect


@pytest.fixture(autouse=True)
def no_product(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a product was asked for")

    for name in "mm", "addmm":
        monkeypatch.setattr(torch, name, refuse)


def tensors(device, name="cross_entropy"):
    return {n: t.to(device) for n, t in case(name, dtype=torch.float32).tensors.items()}


def wrong(device, says, kinds=(TypeError, ValueError), name="cross_entropy", **changes):
    expect(FUSED[name], **{**tensors(device, name), **changes}, says=says, kinds=kinds)


@pytest.mark.parametrize("argument", ["input", "linear_weight", "linear_bias"])
def test_what_is_multiplied(argument, device):
    good = tensors(device)[argument]
    wrong(device, [argument, "list"], TypeError, **{argument: [1.0]})
    wrong(device, [argument, "int64"], TypeError, **{argument: good.long()})
    wrong(device, [argument, "sparse"], TypeError, **{argument: good.to_sparse()})
    wrong(device, ["float64", "float32", "linear_weight" if argument == "input" else argument], ValueError, **{argument: good.double()})
    if argument != "linear_bias":
        wrong(device, [argument, "NoneType"], TypeError, **{argument: None})


@pytest.mark.parametrize("shape", [(9, 5), (6,), (6, 9), ()])
def test_weight_of_the_wrong_shape(shape, device):
    wrong(device, ["linear_weight", str(shape), "(classes, 6)"], ValueError, linear_weight=torch.ones(shape, device=device))


def test_no_class(device):
    wrong(device, ["linear_weight", "(0, 6)", "class"], ValueError, linear_weight=torch.ones(0, 6, device=device), linear_bias=None)


@pytest.mark.parametrize("shape", [(8,), (1,), (9, 1), (11, 9)])
def test_bias_of_the_wrong_shape(shape, device):
    wrong(device, ["linear_bias", str(shape), "(9,)"], ValueError, linear_bias=torch.ones(shape, device=device))


def test_input_without_features(device):
    wrong(device, ["input", "()"], ValueError, input=torch.ones((), device=device))


def test_more_axes_of_input_and_weight(device):
    given = {"input": torch.ones(2, 3, 6, device=device), "linear_weight": torch.ones(9, 2, 6, device=device), "linear_bias": None}
    wrong(device, ["input", "(2, 3, 6)", "(N, 6)"], ValueError, **given)
    given["input"] = torch.ones(11, 6, device=device)
    labels = torch.zeros(11, 2, dtype=torch.int64, device=device)
    wrong(device, ["strategy", "classes", "two axes"], ValueError, **given, target=labels, strategy="classes")
    wrong(device, ["target", "(11,)", "(11, 2)"], ValueError, **given)


def test_the_losss_own_operands(device):
    labels = torch.zeros(10, dtype=torch.int64, device=device)
    wrong(device, ["target", "(10,)", "(11,)"], ValueError, target=labels)
    wrong(device, ["target", "list"], TypeError, target=[1])
    wrong(device, ["weight", "(8,)", "(9,)"], ValueError, weight=torch.ones(8, device=device))
    wrong(device, ["teacher", "(11, 8)", "(11, 9)"], ValueError, "kl_distillation_loss", teacher=torch.ones(11, 8, device=device))
    trained = torch.ones(9, device=device, requires_grad=True)
    wrong(device, ["weight", "grad"], ValueError, weight=trained)
    batch = torch.ones(2, 5, 6, device=device)
    wrong(device, ["target", "(10,)", "(2, 5)", "input"], ValueError, input=batch, target=labels)


def test_options(device):
    wrong(device, ["reduction", "average"], ValueError, reduction="average")
    wrong(device, ["strategy", "columns", "rows", "classes"], ValueError, strategy="columns")
    for value in 0, -1, 1.5, True, "1G":
        wrong(device, ["chunk_bytes", repr(value)], ValueError, chunk_bytes=value)
    wrong(device, ["label_smoothing", "str"], TypeError, label_smoothing="much")
    wrong(device, ["reducton"], TypeError, reducton="mean")
    wrong(device, ["normalizer", "sum"], ValueError, reduction="sum", normalizer=2.0)
    wrong(device, ["ignore_index"], TypeError, ignore_index=1.0)
    probabilities = torch.rand(11, 9, device=device)
    wrong(device, ["ignore_index", "3", "labels"], ValueError, target=probabilities, ignore_index=3)


def test_arguments_by_position(device):
    x, w, b, y = tensors(device).values()
    with pytest.raises(TypeError, match="positional"):
        losszoo.linear_cross_entropy(x, w, y, b)
    with pytest.raises(TypeError, match="target"):
        losszoo.linear_cross_entropy(x, w)


@pytest.mark.cpu_only
@pytest.mark.parametrize("strategy", ["rows", "classes"])
def test_label_out_of_range(strategy):
    labels = torch.tensor([0, 1, 2, 3, 4, -100, 6, 7, 8, 9, 10])
    wrong("cpu", ["target", "row 9", "label 9", "9"], IndexError, target=labels, strategy=strategy, chunk_bytes=100)


@pytest.mark.cuda_only
def test_operands_on_different_devices(device):
    for name, value in tensors(device).items():
        if name != "input":
            wrong(device, [name, "cpu", "cuda"], ValueError, **{name: value.cpu()})


@losszoo.loss
def no_rows(x: Elem):
    return x * x


@losszoo.loss
def clashing(x: Row, linear_bias: Row):
    return sum(x * linear_bias)


@pytest.mark.parametrize("weight", [None, torch.ones(6), torch.ones(9, 6).long()])
def test_shards(weight):
    """Without ranks there is one, whose classes are all."""
    given = tensors("cpu")
    expect(losszoo.parallel.linear(losszoo.cross_entropy), **{**given, "linear_weight": weight}, says=["linear_weight"])
    given |= {"linear_weight": torch.ones(9, 2, 6), "linear_bias": None, "target": torch.zeros(11, 2).long()}
    expect(losszoo.parallel.linear(losszoo.cross_entropy), **given, says=["linear_weight", "(9, 2, 6)", "two axes"])
    expect(losszoo.parallel.linear(losszoo.cross_entropy), **given, strategy="rows", kinds=TypeError, says=["strategy"])


def test_what_is_no_loss_of_rows():
    for value in torch.nn.functional.cross_entropy, None, losszoo.linear_cross_entropy:
        expect(losszoo.linear, value, says=["linear", "@losszoo.loss"], kinds=TypeError)
    expect(losszoo.linear, no_rows, says=["no_rows", "Row"], kinds=TypeError)
    expect(losszoo.linear, clashing, says=["clashing", "linear_bias"], kinds=TypeError)


def test_the_documentation_says_what_there_is():
    text = losszoo.linear_cross_entropy.__doc__
    for word in "input", "linear_weight", "linear_bias", "target", "weight", "ignore_index", "strategy", "chunk_bytes", "Source", "Memory":
        assert word in text
    assert losszoo.linear_cross_entropy.__name__ == "linear_cross_entropy"
