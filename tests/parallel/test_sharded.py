"""Every loss of rows, split over one to four processes, is the loss unsplit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from losszoo import testing
from losszoo.codegen.kernel import scheduled
from losszoo.runtime.layout import class_axis
from losszoo.spec.operands import ClassWeight, Row
from tests.parallel.cases import case_of, found, job, same_bits, together
from tests.parallel.pool import pool

pytestmark = pytest.mark.cpu_only

CE, FOCAL = "losszoo:cross_entropy", "losszoo:softmax_focal_loss"
F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
# What specialises a kernel: the loss, its dtype, the operands that are not of their first kind, the parameters that are free.
FORMS = [
    (CE, F32, {}, ()),
    (CE, BF16, {"weight": ClassWeight}, ("label_smoothing", "z_loss", "softcap")),
    (CE, F64, {"target": Row, "weight": ClassWeight}, ("label_smoothing", "z_loss", "softcap")),
    (CE, F16, {"target": Row}, ()),
    (FOCAL, F32, {"weight": ClassWeight}, ("gamma", "label_smoothing")),
    (FOCAL, BF16, {}, ()),
    ("examples.arcface:arcface_loss", F32, {}, None),
    ("examples.dfl:distribution_focal_loss", F32, {}, None),
    ("examples.dice:dice_loss", F32, {}, None),
    ("examples.distillation:kl_distillation_loss", F32, {}, None),
    ("examples.jsd:jsd_distillation_loss", F64, {}, None),
    ("examples.jsd:jsd_distillation_loss", F32, {}, None),
    ("examples.poly1:poly1_loss", BF16, {}, None),
]
RANGES = {"cosine": (-0.95, 0.95), "epsilon": (1.0, 1.0)}


def choice_of(where, kinds, free):
    spec = found(where).spec
    wanted = tuple(kinds.get(o.name, None if o.optional else o.kinds[0]) for o in spec.operands)
    return next(
        c for c in spec.choices()
        if c.kinds == wanted and (free is None or tuple(p.name for p, on in zip(spec.parameters, c.present, strict=True) if on) == free)
    )  # fmt: skip


def hold(where, call, sizes, split_weights, told, upstream_seed, ranks):
    """The results of the ranks, processes of a pool, against the whole rows in the interpreter."""
    torch.manual_seed(upstream_seed)
    upstream = torch.randn(call.shape if call.reduction == "none" else (), dtype=call.real)
    wrt = tuple(call.differentiable)
    case = case_of(where, call, sizes, split_weights, told, upstream)
    results = ranks.run(len(sizes), job, case)
    passes = len(scheduled(call.spec, call.choice, wrt, True).forward.passes)
    expected = 0 if len(sizes) == 1 else passes * (call.rows > 0) + (not told)
    for result in results:
        assert len(result.collectives) == expected, result.collectives
        assert same_bits(result.loss, results[0].loss), "the ranks' losses differ"
    got = [results[0].loss, *(together(case, results, n) for n in wrt)]
    exact = testing._reference(call, F64, upstream, wrt)
    eager = exact if call.real is F64 else testing._reference(call, F32, upstream, wrt)
    unit = 32 * torch.finfo(call.real).eps
    forward, gradient = (unit * size for size in testing._sizes(call, upstream, wrt))
    for name, x, want, plain in zip(("the loss", *wrt), got, exact, eager, strict=True):
        testing._assert_close(name, x, want, plain, forward if name == "the loss" else gradient)
    for name, grad in zip(wrt, got[1:], strict=True):
        assert grad.dtype == call.operands[name].dtype and grad.shape == call.operands[name].shape


@st.composite
def shapes(draw):
    classes = draw(st.sampled_from((1, 2, 3, 5, 16, 33, 257, 700)))
    rows = draw(st.integers(0, 6))
    return draw(st.sampled_from(((classes,), (rows, classes), (rows, classes), (rows, classes, 3))))


@st.composite
def splits(draw, classes):
    """Sizes of one to four shards: anything from all classes to none."""
    cuts = draw(st.lists(st.integers(0, classes), max_size=3).map(sorted))
    return tuple(b - a for a, b in zip([0, *cuts], [*cuts, classes], strict=True))


@pytest.mark.parametrize("where, dtype, kinds, free", FORMS, ids=[f"{w.split(':')[1]}-{str(d)[6:]}" for w, d, *_ in FORMS])
def test_sharded_is_unsharded(where, dtype, kinds, free):
    spec, choice = found(where).spec, choice_of(where, kinds, free)

    @settings(max_examples=20, deadline=None)
    @given(st.data())
    def holds(data):
        shape = data.draw(shapes(), "shape")
        sizes = data.draw(splits(shape[class_axis(len(shape))]), "sizes")
        layout = data.draw(st.sampled_from(testing.LAYOUTS), "layout")
        reduction = data.draw(st.sampled_from(("none", "mean", "sum")), "reduction")
        seed = data.draw(st.integers(0, 2**31), "seed")
        call = testing._draw(spec, choice, dtype, layout, shape, reduction, seed, RANGES, "cpu")
        hold(where, call, sizes, data.draw(st.booleans(), "split weights"), data.draw(st.booleans(), "sizes told"), seed % 1000, pool())

    holds()
