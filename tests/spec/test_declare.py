"""What a spec may say: the forms of the signature and of what is returned, and the function that comes of it."""

from __future__ import annotations

import inspect
import math

import pytest
import torch

from losszoo.ir.expr import Extent, Type, topological
from losszoo.spec import (
    Box,
    ClassWeight,
    Elem,
    Index,
    PerRow,
    Row,
    Scalar,
    Static,
    Tuple,
    Usual,
    Zero,
    clamp,
    counts,
    exp,
    expectation,
    floor,
    is_label,
    log_softmax,
    logsumexp,
    loss,
    onehot,
    pi,
    running_mean,
    softmax,
    sum,
    where,
)  # fmt: skip
from losszoo.spec.declare import Choice
from tests.spec.declaring import FUTURE, HEAD, module


@loss
def labelled(x: Row, y: Index | Row, w: ClassWeight = 1, *, cap: float | None = None, smooth: float | Zero = 0.0):
    """Of a label or of probabilities."""
    x = x if cap is None else clamp(x, max=cap)
    value = -expectation(w * log_softmax(x), y) + where(smooth > 0, smooth * logsumexp(x), 0)
    return value, counts(w[y] if is_label(y) else 1), {"lse": logsumexp(x)}


Mode = Static["area", "side"]


@loss(reduction="sum")
def boxed(p: Box, t: Box, seen: Scalar = 1.0, *, mode: Mode = "side", eps: float = 1e-7):
    value = (p.area - t.area if mode == "area" else p.w - t.w) ** 2 / (seen + eps)
    return value, running_mean(seen, value)


@loss
def paired(p: Tuple[2], t: Tuple[2], scale: PerRow):
    return scale * ((p[0] - t[0]) ** 2 + (p[1] - t[1]) ** 2)


@loss(reduction="none")
def pointwise(x: Elem, t: Elem = 0.0, a: float = 0.5):
    return a * (x - t) ** 2


def test_operands_are_read_from_the_signature():
    x, y, w = labelled.spec.operands
    assert (x.name, x.kinds, x.optional) == ("x", (Row,), False)
    assert (y.name, y.kinds, y.optional) == ("y", (Index, Row), False)
    assert (w.name, w.kinds, w.default) == ("w", (ClassWeight,), 1.0)
    assert [o.kinds[0].components for o in paired.spec.operands] == [2, 2, None]


def test_parameters_and_statics():
    cap, smooth = labelled.spec.parameters
    assert (cap.default, cap.fixed, smooth.default, smooth.fixed) == (None, (None,), 0.0, (0.0,))
    assert not cap.free(None) and cap.free(0.0) and not smooth.free(0) and smooth.free(0.1)
    statics = {s.name: (s.choices, s.default) for s in boxed.spec.statics}
    assert statics == {"mode": (("area", "side"), "side"), "box_format": (("xyxy", "xywh", "cxcywh"), "xyxy")}


def test_a_usual_value_is_a_plain_number_to_the_spec():
    seen = []

    @loss
    def powered(x: Elem, p: float | Usual[2.0] = 2.0):
        seen.append(p)
        return x**p

    assert powered.spec.parameters[0].fixed == (2.0,) and not powered.spec.default_choice().present[0]
    assert [p for p in seen if isinstance(p, float)] == [2.0] and len(seen) == 2
    x = torch.tensor([3.0], requires_grad=True)
    torch.testing.assert_close(powered(x, 2.0, reduction="sum"), torch.tensor(9.0))
    torch.testing.assert_close(powered(x, 3.0, reduction="sum"), torch.tensor(27.0))
    with pytest.raises(TypeError, match="only float"):
        int | Usual[2.0]


def signature(function) -> str:
    return str(inspect.signature(function))


def test_the_function_has_the_signature_of_the_spec_and_the_engines_arguments():
    assert signature(pointwise) == "(x, t=None, a=0.5, reduction='none', weight=None, normalizer=None)"
    assert signature(paired) == "(p, t, scale, reduction='mean', weight=None, normalizer=None)"
    assert signature(labelled) == (
        "(x, y, w=None, *, cap=None, smooth=0.0, ignore_index=-100, reduction='mean', weight=None, normalizer=None)"
    )
    assert signature(boxed) == (
        "(p, t, seen=1.0, *, mode='side', eps=1e-07, box_format='xyxy', reduction='sum', weight=None, normalizer=None)"
    )


def test_the_weight_of_a_spec_takes_the_place_of_the_engines(tmp_path):
    body = "@loss\ndef f(x: Row, y: Index, weight: ClassWeight = 1):\n    return -weight[y] * log_softmax(x)[y]\n"
    f = module(tmp_path, body).f
    assert signature(f) == "(x, y, weight=None, ignore_index=-100, reduction='mean', normalizer=None)"


@pytest.mark.parametrize("text, default", [("float('inf')", math.inf), ("-float('inf')", -math.inf), ("1", 1.0), ("1e-300", 1e-300)])
def test_any_number_is_a_default(tmp_path, text, default):
    f = module(tmp_path, f"@loss\ndef f(x: Elem, *, a: float = {text}):\n    return minimum(x, a)\n").f
    assert inspect.signature(f).parameters["a"].default == default


def test_names_and_documentation():
    assert (labelled.__name__, labelled.__qualname__, labelled.__module__) == ("labelled", "labelled", __name__)
    assert labelled.spec.name == "labelled" and labelled.spec.doc == "Of a label or of probabilities."
    text = labelled.__doc__
    assert text.startswith("Of a label or of probabilities.\n")
    for said in (
        "x: Row (a vector along the class axis).", "y: Index (one class label a row) or Row", "w: ClassWeight (one value a class); may be",
        "ignore_index:", "reduction:", "weight:", "normalizer:", "(N, C, d1, ...)", "IndexError",
    ):  # fmt: skip
        assert said in text, said
    assert "box_format:" in boxed.__doc__ and "ignore_index" not in boxed.__doc__


def test_every_way_to_call_is_traced_when_it_is_declared():
    """Two kinds of target, with weights or without, each parameter on or off."""
    assert len(labelled.spec.choices()) == len(set(labelled.spec.choices())) == 2 * 2 * 2 * 2
    assert set(labelled.spec._traces) == set(labelled.spec.choices())
    assert len(boxed.spec.choices()) == 2 * 3
    assert labelled.spec.default_choice() == Choice((Row, Index, None), (), (False, False))
    assert boxed.spec.default_choice() == Choice((Box, Box, Scalar), ("side", "xyxy"), (True,))


def operands(outputs) -> set[str]:
    return {n.attr[0] if n.op == "operand" else n.attr for n in topological(outputs.values()) if n.op in ("operand", "param", "scalar")}


def test_what_is_left_out_is_not_in_the_graph():
    spec = labelled.spec
    assert operands(spec.trace(Choice((Row, Index, None), (), (False, False))).outputs) == {"x", "y"}
    assert operands(spec.trace(Choice((Row, Row, ClassWeight), (), (True, True))).outputs) == {"x", "y", "w", "cap", "smooth"}
    assert operands(pointwise.spec.trace(Choice((Elem, None), (), (True,))).outputs) == {"x", "a"}


def test_outputs():
    labels, probabilities = (labelled.spec.trace(Choice((Row, k, ClassWeight), (), (False, False))).outputs for k in (Index, Row))
    assert set(labels) == {"loss", "counts", "lse"}
    assert labels["counts"].op == "pick" and probabilities["counts"].attr == 1.0
    assert all(node.extent <= Extent.ITEM and node.type is Type.REAL for node in [*labels.values(), *probabilities.values()])
    traced = boxed.spec.trace(boxed.spec.default_choice())
    assert traced.running == {"seen": "mean of seen"} and traced.outputs["mean of seen"] is not None


def test_the_engines_weight_is_a_factor_of_the_loss():
    spec = pointwise.spec
    weighted = spec.trace(Choice((Elem, None), (), (True,), weighted=True))
    assert "weight" in weighted.leaves and "weight" in operands({"loss": weighted.outputs["loss"]})
    assert "weight" not in operands({"counts": weighted.outputs["counts"]})


def test_a_condition_is_a_loss(tmp_path):
    """0 or 1, such as a top-1 error; and a mean may count with any number."""
    f = module(tmp_path, "@loss\ndef f(x: Row, y: Index):\n    return x[y] < max(x), counts(2)\n").f
    outputs = f.spec.trace(f.spec.default_choice()).outputs
    assert outputs["loss"].type is Type.REAL and outputs["counts"].attr == 2.0


@pytest.mark.parametrize("head", [HEAD, FUTURE + HEAD], ids=["", "future annotations"])
def test_a_file_of_a_users_own(tmp_path, head):
    """Annotations as objects or as texts give the same graph."""
    body = '''
K = 2


@loss
def f(x: Row, y: Index | Row, p: PerRow = 1.0, *, a: float | None = None, m: Static["u", "v"] = "u"):
    """A docstring."""
    return p * -expectation(log_softmax(x), y) + (0 if a is None else a) * (m == "u")


@loss
def g(x: Tuple[K], t: Tuple[K]):
    return builtins.sum((a - b) ** 2 for a, b in zip(x, t))


FLoss = f.module("FLoss", m="v")
'''
    user = module(tmp_path, body, head)
    assert user.f.__module__ == user.__name__ and user.f.__doc__.startswith("A docstring.")
    assert user.f.spec.operands[1].kinds == (Index, Row) and user.g.spec.operands[0].kinds[0].components == 2
    assert user.FLoss.__module__ == user.__name__ and user.FLoss()._options["m"] == "v"


def test_a_loss_in_a_function():
    def make(power: int):
        @loss
        def f(x: Elem):
            return abs(x) ** power

        return f

    squares, cubes = make(2), make(3)
    assert squares.__qualname__.endswith("make.<locals>.f")
    graphs = [f.spec.trace(f.spec.default_choice()).outputs["loss"] for f in (squares, cubes, make(3))]
    assert graphs[0] is not graphs[1] and graphs[1] is graphs[2]


def test_python_may_calculate_with_values():
    """Operators from either side, with numbers, and Python's own abs and sum of a tuple."""

    @loss
    def f(x: Row, y: Index, p: PerRow):
        e = 2 - x + 1 / (2 + x * x) - -x**2 + 2**x + pi * True
        e = where((x > 0) | (p <= 1) & ~(x == 1), e, abs(e)) + onehot(y) * 3
        return softmax(e)[y] + e[0] + sum(exp(-e)) + x[floor(p)] + (y >= 2) * p

    node = f.spec.trace(f.spec.default_choice()).outputs["loss"]
    assert node.extent is Extent.ITEM and operands({"loss": node}) == {"x", "y", "p"}
