"""torch's own samples for nn.functional.linear_cross_entropy: loss and gradients, every sample, none skipped, `options=` aside."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import losszoo
from tests.linear.cases import close
from tests.opinfo import infos

there = pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason=f"torch {torch.__version__} has no such function")


def in_double(value: object) -> object:
    return value.detach().double().requires_grad_(value.requires_grad) if isinstance(value, Tensor) and value.is_floating_point() else value


@there
def test_samples(device):
    dtype = torch.float32
    samples = [sample for info in infos("linear_cross_entropy") for sample in info.sample_inputs(device, dtype, requires_grad=True)]
    assert len(samples) >= 100
    assert {len(sample.args[0].shape) for sample in samples} > {2}  # linear_weight (C, d1, ..., F) too
    for sample in samples:
        options = {k: v for k, v in sample.kwargs.items() if k != "options"}
        loss = losszoo.linear_cross_entropy(sample.input, *sample.args, **options)
        doubles = [in_double(sample.input), *map(in_double, sample.args)]
        wide = {k: in_double(v) for k, v in options.items()}
        expected = F.linear_cross_entropy(*doubles, **wide)
        rtol = 32 * torch.finfo(dtype).eps
        close(loss.detach().cpu(), expected.detach().cpu(), rtol, "loss")
        leaves = [x for x in (sample.input, *sample.args, *options.values()) if isinstance(x, Tensor) and x.requires_grad]
        exact = [x for x in (*doubles, *wide.values()) if isinstance(x, Tensor) and x.requires_grad]
        upstream = torch.linspace(-1, 2, max(1, loss.numel()), dtype=torch.float64, device=device).reshape(loss.shape)
        found = torch.autograd.grad(loss, leaves, upstream.to(loss.dtype))
        for got, leaf, want in zip(found, leaves, torch.autograd.grad(expected, exact, upstream), strict=True):
            assert got.dtype is leaf.dtype
            close(got.cpu(), want.cpu(), rtol, f"gradient of a {tuple(leaf.shape)}")


@there
def test_errors(device):
    for error in (e for info in infos("linear_cross_entropy")[:1] for e in info.error_inputs(device)):
        sample = error.sample_input
        with pytest.raises((TypeError, ValueError)):
            losszoo.linear_cross_entropy(sample.input, *sample.args, **sample.kwargs)


@there
def test_the_signature_is_torchs():
    ours, torchs = (inspect.signature(f).parameters for f in (losszoo.linear_cross_entropy, F.linear_cross_entropy))
    for name, parameter in torchs.items():
        if name != "options":
            assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name
    positional = [[n for n, p in f.items() if p.kind is p.POSITIONAL_OR_KEYWORD] for f in (ours, torchs)]
    assert positional[0] == positional[1]
