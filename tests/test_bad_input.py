"""Every mistake in a call is a TypeError, ValueError or IndexError: the argument, what it got, what was expected."""

from __future__ import annotations

import pytest
import torch

import losszoo
from tests.losses import oracle
from tests.losses.samples import sample

MISTAKES = (TypeError, ValueError, IndexError)
every = pytest.mark.parametrize("name", oracle.NAMES)
first_two = {
    "cross_entropy": ("input", "target"),
    "softmax_focal_loss": ("input", "target"),
    "sigmoid_focal_loss": ("inputs", "targets"),
    "ciou_loss": ("pred", "target"),
    "wiou_loss": ("pred", "target"),
}


@pytest.fixture(autouse=True)
def no_kernel(monkeypatch):
    """Checks come first: nothing is computed for a call that cannot run."""

    def refuse(*args, **kwargs):
        raise AssertionError("a kernel was asked for")

    monkeypatch.setattr("losszoo.runtime.kernels.forward", refuse)
    monkeypatch.setattr("losszoo.runtime.interpret.forward", refuse)


def expect(fn, *args, says, kinds=MISTAKES, **kwargs):
    """Raises one of `kinds`, and the message contains every one of `says`."""
    with pytest.raises(kinds) as error:
        fn(*args, **kwargs)
    for part in says:
        assert part in str(error.value), f"{part!r} is not in: {error.value}"


def bare(dtype):
    return str(dtype).removeprefix("torch.")


def operands(name, device, dtype=torch.float32):
    return list(sample(name, dtype).place(device).values())[:2]


@every
def test_typo_in_a_keyword(name, device):
    expect(getattr(losszoo, name), *operands(name, device), reducton="mean", kinds=TypeError, says=["reducton"])


@every
def test_missing_and_surplus_arguments(name, device):
    fn, tensors = getattr(losszoo, name), operands(name, device)
    expect(fn, tensors[0], kinds=TypeError, says=[first_two[name][1]])
    with pytest.raises(TypeError):
        fn(*tensors, *[None] * 12)


@every
@pytest.mark.parametrize("reduction", ["average", "Mean", "", None, 1])
def test_unknown_reduction(name, reduction, device):
    expect(
        getattr(losszoo, name),
        *operands(name, device),
        reduction=reduction,
        says=["reduction", repr(reduction), "none", "mean", "sum"],
    )


@every
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_normalizer_needs_a_mean(name, reduction, device):
    expect(
        getattr(losszoo, name),
        *operands(name, device),
        reduction=reduction,
        normalizer=3.0,
        kinds=ValueError,
        says=["normalizer", "mean", reduction],
    )


@every
def test_normalizer_of_the_wrong_kind(name, device):
    fn, tensors = getattr(losszoo, name), operands(name, device)
    expect(fn, *tensors, reduction="mean", normalizer=torch.ones(2, device=device), says=["normalizer", "(2,)"])
    expect(fn, *tensors, reduction="mean", normalizer="many", kinds=TypeError, says=["normalizer", "str"])
    trained = torch.ones((), device=device, requires_grad=True)
    expect(fn, *tensors, reduction="mean", normalizer=trained, kinds=ValueError, says=["normalizer", "grad"])


@every
@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("wrong", [None, [[1.0, 2.0]], 3.0, "logits"])
def test_not_a_tensor(name, position, wrong, device):
    tensors = operands(name, device)
    tensors[position] = wrong
    expect(
        getattr(losszoo, name),
        *tensors,
        kinds=TypeError,
        says=[first_two[name][position], "tensor", type(wrong).__name__],
    )


@every
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.complex64])
def test_integer_logits(name, dtype, device):
    first, second = operands(name, device)
    expect(
        getattr(losszoo, name),
        first.to(dtype),
        second,
        kinds=(TypeError, ValueError),
        says=[first_two[name][0], bare(dtype)],
    )


@pytest.mark.parametrize("name", ["ciou_loss", "wiou_loss", "sigmoid_focal_loss"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_integer_targets_where_numbers_are_meant(name, dtype, device):
    first, second = operands(name, device)
    expect(getattr(losszoo, name), first, second.to(dtype), says=[first_two[name][1], bare(dtype)])


def test_float_labels_where_classes_are_meant(device):
    x = torch.randn(4, 5, device=device)
    y = torch.tensor([0.0, 1.0, 2.0, 3.0], device=device)
    expect(losszoo.cross_entropy, x, y, says=["target", "(4,)", "float32"])
    expect(losszoo.softmax_focal_loss, x, y, says=["target", "float32"])
    expect(losszoo.softmax_focal_loss, x, x.softmax(-1), says=["target", "float32"])


@pytest.mark.parametrize("name", oracle.LABELLED)
def test_labels_of_the_wrong_type(name, device):
    x = torch.randn(4, 5, device=device)
    for dtype in torch.bool, torch.complex64:
        expect(getattr(losszoo, name), x, torch.zeros(4, dtype=dtype, device=device), says=["target", bare(dtype)])


@pytest.mark.parametrize("name", oracle.LABELLED)
@pytest.mark.parametrize(
    "input_shape, expected, given",
    [
        ((4, 5), (4,), (3,)),
        ((4, 5), (4,), (4, 1)),
        ((4, 5), (4,), (4, 5)),
        ((4, 5), (4,), ()),
        ((5,), (), (5,)),
        ((4, 5, 3), (4, 3), (4, 5)),
        ((4, 5, 3), (4, 3), (12,)),
    ],
)
def test_labels_of_the_wrong_shape(name, input_shape, expected, given, device):
    x, y = torch.randn(input_shape, device=device), torch.zeros(given, dtype=torch.long, device=device)
    expect(getattr(losszoo, name), x, y, says=["target", str(given), str(expected)])


@pytest.mark.parametrize("target_shape", [(4, 6), (3, 5), (5, 4), (4, 5, 1)])
def test_probabilities_of_the_wrong_shape(target_shape, device):
    x = torch.randn(4, 5, device=device)
    expect(
        losszoo.cross_entropy, x, torch.rand(target_shape, device=device), says=["target", str(target_shape), "(4, 5)"]
    )


@pytest.mark.parametrize("name", oracle.LABELLED)
def test_logits_without_a_class_axis(name, device):
    x, y = torch.tensor(1.0, device=device), torch.tensor(0, device=device)
    expect(getattr(losszoo, name), x, y, says=["input", "()"])


@pytest.mark.parametrize("name", oracle.LABELLED)
def test_no_class_to_choose_from(name, device):
    x, y = torch.zeros(3, 0, device=device), torch.zeros(3, dtype=torch.long, device=device)
    expect(getattr(losszoo, name), x, y, says=["input", "(3, 0)"])


@pytest.mark.parametrize("name", oracle.LABELLED)
@pytest.mark.parametrize("shape", [(4,), (6,), (1,), (5, 1), (4, 5), ()])
def test_class_weights_of_the_wrong_length(name, shape, device):
    x, y = torch.randn(4, 5, device=device), torch.zeros(4, dtype=torch.long, device=device)
    weight = torch.ones(shape, device=device)
    expect(getattr(losszoo, name), x, y, weight=weight, says=["weight", str(shape), "5"])


@pytest.mark.parametrize("name", oracle.LABELLED)
def test_class_weights_of_the_wrong_type(name, device):
    x, y = torch.randn(4, 5, device=device), torch.zeros(4, dtype=torch.long, device=device)
    expect(
        getattr(losszoo, name),
        x,
        y,
        weight=torch.ones(5, dtype=torch.long, device=device),
        says=["weight", "int64"],
    )
    expect(getattr(losszoo, name), x, y, weight=[1.0] * 5, kinds=TypeError, says=["weight", "list"])


@pytest.mark.parametrize("name", ["ciou_loss", "wiou_loss"])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (4, 3), (3, 2, 2), ()])
def test_boxes_of_the_wrong_shape(name, shape, device):
    boxes = torch.rand(shape, device=device)
    if shape[-1:] != (4,):
        expect(getattr(losszoo, name), boxes, boxes, says=["pred", str(shape), "4"])


@pytest.mark.parametrize("name", ["ciou_loss", "wiou_loss"])
@pytest.mark.parametrize(
    "shapes", [((3, 4), (2, 4)), ((3, 4), (1, 4)), ((3, 4), (4,)), ((2, 3, 4), (3, 2, 4)), ((2, 3, 4), (6, 4))]
)
def test_boxes_that_do_not_match(name, shapes, device):
    pred, target = (torch.rand(shape, device=device) for shape in shapes)
    expect(getattr(losszoo, name), pred, target, says=["target", str(shapes[0]), str(shapes[1])])


@pytest.mark.parametrize("name", ["ciou_loss", "wiou_loss"])
def test_unknown_box_format(name, device):
    expect(
        getattr(losszoo, name),
        *operands(name, device),
        box_format="yxyx",
        says=["box_format", "'yxyx'", "xyxy", "xywh", "cxcywh"],
    )


@pytest.mark.parametrize("name", ["ciou_loss", "wiou_loss", "sigmoid_focal_loss"])
def test_weight_of_the_wrong_shape(name, device):
    tensors = operands(name, device)
    rows = tensors[0].shape[0]
    for shape in (rows + 1,), (rows, 3):
        expect(
            getattr(losszoo, name),
            *tensors,
            weight=torch.ones(shape, device=device),
            says=["weight", str(shape), str(rows)],
        )
    expect(getattr(losszoo, name), *tensors, weight="heavy", kinds=TypeError, says=["weight", "str"])


def test_elements_that_do_not_match(device):
    x, t = torch.randn(4, 5, device=device), torch.rand(4, 6, device=device)
    expect(losszoo.sigmoid_focal_loss, x, t, says=["targets", "(4, 6)", "(4, 5)"])


@pytest.mark.parametrize("version", [0, 4, "3", None, 2.5])
def test_unknown_version(version, device):
    expect(
        losszoo.wiou_loss,
        *operands("wiou_loss", device),
        version=version,
        says=["version", repr(version), "1", "2", "3"],
    )


def test_running_mean_of_the_wrong_kind(device):
    boxes = operands("wiou_loss", device)
    expect(losszoo.wiou_loss, *boxes, torch.ones(3, device=device), says=["iou_mean", "(3,)"])
    expect(losszoo.wiou_loss, *boxes, "mean", kinds=TypeError, says=["iou_mean", "str"])


@every
@pytest.mark.parametrize("value", ["much", [0.1], torch.ones(2)])
def test_options_that_are_no_number(name, value, device):
    option = {"cross_entropy": "label_smoothing", "ciou_loss": "eps"}.get(name, "gamma")
    expect(
        getattr(losszoo, name),
        *operands(name, device),
        **{option: value},
        kinds=TypeError,
        says=[option, "tensor" if isinstance(value, torch.Tensor) else type(value).__name__],
    )


@every
@pytest.mark.cuda_only
def test_operands_on_different_devices(name, device):
    first, second = operands(name, device)
    fn = getattr(losszoo, name)
    expect(fn, first, second.cpu(), says=[first_two[name][1], "cpu", "cuda"])
    expect(fn, first.cpu(), second, says=[first_two[name][1], "cpu", "cuda"])
    weight = torch.ones(first.shape[1] if name in oracle.LABELLED else first.shape[0])
    expect(fn, first, second, weight=weight, says=["weight", "cpu", "cuda"])
    expect(fn, first, second, reduction="mean", normalizer=torch.tensor(2.0), says=["normalizer", "cpu", "cuda"])


@every
def test_operands_on_a_device_without_kernels(name, device):
    first, second = operands(name, device)
    expect(getattr(losszoo, name), first.to("meta"), second, says=[first_two[name][1], "meta", device])


@every
def test_weights_that_require_grad(name, device):
    tensors = operands(name, device)
    size = tensors[0].shape[1] if name in oracle.LABELLED else tensors[0].shape[0]
    weight = torch.ones(size, device=device, requires_grad=True)
    expect(getattr(losszoo, name), *tensors, weight=weight, kinds=ValueError, says=["weight", "grad"])


def test_a_running_mean_that_requires_grad(device):
    mean = torch.ones((), device=device, requires_grad=True)
    expect(losszoo.wiou_loss, *operands("wiou_loss", device), mean, kinds=ValueError, says=["iou_mean", "grad"])


@pytest.mark.parametrize("module", ["CrossEntropyLoss", "SoftmaxFocalLoss", "SigmoidFocalLoss", "CIoULoss", "WIoULoss"])
def test_modules_refuse_what_the_function_refuses(module, device):
    name = {"CIoULoss": "ciou_loss", "WIoULoss": "wiou_loss", "SigmoidFocalLoss": "sigmoid_focal_loss"}.get(module)
    with pytest.raises(TypeError, match="reducton"):
        getattr(losszoo, module)(reducton="mean")
    with pytest.raises(ValueError, match="average"):
        getattr(losszoo, module)(reduction="average")(*operands(name or "cross_entropy", device))
