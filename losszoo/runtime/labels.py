"""The error for a label that names no class."""

from __future__ import annotations

from typing import NoReturn

import torch

from losszoo.runtime.arguments import Call
from losszoo.spec.operands import Index


def raise_stray(call: Call, row: int) -> NoReturn:
    """Raise the IndexError for a row known to have a label out of range."""
    for name, kind in call.kinds.items():
        if kind is Index:
            label = int(call.operands[name].reshape(-1)[row])
            if label != call.ignore_index and not 0 <= label < call.classes:
                raise IndexError(
                    f"{name}: row {row} has label {label}, expected 0 <= label < {call.classes} (the classes) or ignore_index "
                    f"{call.ignore_index}"
                )
    raise AssertionError(f"row {row} has no stray label")


def check_labels(call: Call) -> None:
    """Read the labels back and raise for the first stray one; this waits for the device, so only LOSSZOO_CHECK=1 asks for it."""
    for name, kind in call.kinds.items():
        if kind is Index:
            label = call.operands[name].reshape(-1)
            stray = (label != call.ignore_index) & ((label < 0) | (label >= call.classes))
            if bool(stray.any()):
                raise_stray(call, int(torch.nonzero(stray)[0, 0]))
