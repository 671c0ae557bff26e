"""Bug reports on other loss libraries: their inputs, with the right answer. Their format is told in README.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import losszoo

CASES = json.loads((Path(__file__).parent / "reported.json").read_text())
OURS = [case for case in CASES if hasattr(losszoo, case["call"])]


def tensor(value: Any, dtype: torch.dtype, device: str) -> torch.Tensor:
    if isinstance(value, dict):
        return torch.zeros(value["zeros"], dtype=getattr(torch, value.get("dtype", "none"), dtype), device=device)

    def numbers(x: Any) -> Any:
        return [numbers(item) for item in x] if isinstance(x, list) else float(x) if isinstance(x, str) else x

    raw = torch.tensor(numbers(value), device=device)
    return raw.to(dtype) if raw.is_floating_point() else raw


def test_no_case_of_our_losses_is_lost():
    """A misspelt or missing loss would silently take its cases along."""
    counts = {name: sum(case["call"] == name for case in OURS) for name in {case["call"] for case in OURS}}
    assert len(CASES) == 34
    expected = {"cross_entropy": 11, "softmax_focal_loss": 2, "sigmoid_focal_loss": 4, "ciou_loss": 4, "wiou_loss": 3}
    assert {name: counts.get(name, 0) for name in expected} == expected


@pytest.mark.parametrize("case", OURS, ids=[case["id"] for case in OURS])
def test_reported(case, device, monkeypatch):
    dtype = getattr(torch, case["dtype"])
    args = [tensor(value, dtype, device) for value in case["args"].values()]
    kwargs = {k: tensor(v, dtype, device) if isinstance(v, list) else v for k, v in case["kwargs"].items()}
    args[0].requires_grad_()
    fn = getattr(losszoo, case["call"])
    if case["expect"] == "raises":
        monkeypatch.setenv("LOSSZOO_CHECK", "1")  # a GPU looks at labels only if asked to
        with pytest.raises((IndexError, ValueError)):
            fn(*args, **kwargs)
        return

    def close(actual: torch.Tensor, expected: Any) -> None:
        wanted = tensor(expected, torch.float64, "cpu")
        torch.testing.assert_close(
            actual.detach().double().cpu(), wanted.double(), rtol=case["rtol"], atol=case["atol"], equal_nan=True
        )

    loss = fn(*args, **kwargs)
    upstream = torch.ones_like(loss) if case["upstream"] is None else tensor(case["upstream"], loss.dtype, device)
    (grad,) = torch.autograd.grad(loss, args[0], upstream)
    assert grad.dtype == dtype
    if case["loss"] is not None:
        close(loss, case["loss"])
    if case["grad"] is not None:
        close(grad, case["grad"])
    if case["expect"] == "finite-grad":
        assert loss.isfinite().all() and grad.isfinite().all()
        assert (grad.abs() < 1e3).all()
