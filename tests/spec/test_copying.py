"""Functions and modules are copied, pickled and saved as any other of Python's and torch's."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

import losszoo
from losszoo.spec import Elem, Row, Scalar, loss, running_mean, sum
from losszoo.spec.declare import Choice
from losszoo.testing import interpreted


@loss
def followed(x: Elem, t: Elem = 0.0, level: Scalar = 1.0, *, a: float = 2.0):
    """|x - t|**a relative to its running mean."""
    value = abs(x - t) ** a
    return value / level, running_mean(level, value)


@loss
def ratio(x: Row):
    return sum(x * x) / sum(abs(x))


FollowedLoss = followed.module("FollowedLoss", a=3.0)


def pickled(thing):
    return pickle.loads(pickle.dumps(thing))


def saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize("function", [losszoo.cross_entropy, losszoo.ciou_loss, followed, ratio], ids=lambda f: f.__name__)
def test_a_function_is_itself(function, again):
    assert again(function) is function


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled, saved])
def test_a_module_is_as_it_was(again, device):
    first = FollowedLoss(reduction="sum", a=1.5, momentum=0.5).to(device)
    first.level.fill_(4.0)
    first.eval()
    second = again(first)
    assert type(second) is FollowedLoss and repr(second) == repr(first) and second.momentum == 0.5 and not second.training
    assert torch.equal(second.level, first.level) and second.level.device == first.level.device
    x = torch.linspace(-2, 3, 7, device=device)
    assert torch.equal(second(x), first(x))


@pytest.mark.parametrize("again", [copy.deepcopy, pickled, saved])
def test_a_copy_has_its_own_buffers(again):
    first = losszoo.CrossEntropyLoss(torch.rand(5), label_smoothing=0.1)
    second = again(first)
    second.weight.zero_()
    assert first.weight.all() and second._options == first._options


def test_state_dicts():
    first, second = FollowedLoss(), FollowedLoss()
    first.level.fill_(7.0)
    assert list(first.state_dict()) == ["level"]
    second.load_state_dict(first.state_dict())
    assert float(second.level) == 7.0


@pytest.mark.parametrize("again", [copy.deepcopy, pickled])
def test_a_choice_still_finds_its_trace(again):
    """Kinds are compared as values, so that a choice from another process means the same."""
    choice = ratio.spec.default_choice()
    assert again(choice) == choice and hash(again(choice)) == hash(choice)
    assert ratio.spec.trace(again(choice)) is ratio.spec.trace(choice)
    assert Choice((Row,), (), ()) == choice


def test_the_interpreted_twin_shares_the_spec():
    twin = interpreted(ratio)
    assert twin is not ratio and twin.spec is ratio.spec and twin.__doc__ == ratio.__doc__
