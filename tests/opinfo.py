"""torch's own samples of its functions."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def infos(name: str) -> list[Any]:
    """The OpInfos of a function. Their import takes seconds, so only a test that wants them has it."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = [op for op in op_db if op.name == f"nn.functional.{name}"]
    assert found, f"torch has no samples of {name}"
    return found
