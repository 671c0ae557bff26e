"""The three reductions, with the two numbers that may replace what the mean divides by."""

from __future__ import annotations

from torch import Tensor


def reduce(rows: Tensor, reduction: str, denominator: Tensor | float, normalizer: Tensor | float | None) -> Tensor:
    if reduction == "none":
        return rows
    if reduction == "sum":
        return rows.sum()
    return rows.sum() / (denominator if normalizer is None else normalizer)
