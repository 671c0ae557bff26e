"""The graph evaluated with torch's operations: an oracle, the double-backward path, and the way to work without a compiler.

Values have the shape (rows, classes), with 1 where they do not vary; torch itself is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from losszoo.ir.expr import Node, topological
from losszoo.ir.primitives import TABLE


class Frozen(dict):
    """Values of gradient stops, recorded at one point and replayed at others.

    A numerical derivative must see the function whose derivative is meant: that in which stopped values stay as they are.
    """


def evaluate(torch, roots: Sequence[Node], leaves: Mapping[Node, Any], frozen: Frozen | None = None) -> list:
    """The roots' values. `leaves` gives each leaf's tensor, all of one floating dtype, and `classes` an int tensor."""
    reference = next(iter(leaves.values()))
    real_dtype = next((t.dtype for t in leaves.values() if t.is_floating_point()), torch.float64)
    table = SimpleNamespace(**{name: getattr(torch, name) for name in _USED}, real=real_dtype, inf=float("inf"))
    values: dict[Node, Any] = {}
    for node in topological(roots):
        if node in leaves:
            value = leaves[node]
        elif node.op == "const":
            dtype = {bool: torch.bool, int: torch.int64, float: real_dtype}[type(node.attr)]
            value = torch.full((1, 1), node.attr, dtype=dtype, device=reference.device)
        else:
            value = TABLE[node.op].torch(table, *(values[a] for a in node.args))
        # The shift of a softmax is no stop of the author's: it cancels, and moves with the rest.
        if frozen is not None and node.op == "stop_gradient" and node.args[0].op != "peak":
            value = frozen.setdefault(node, value)
        values[node] = value
    return [values[root] for root in roots]


_USED = (
    "abs pow exp log log1p expm1 sqrt tanh sigmoid clamp_min sin cos asin acos atan atan2 maximum minimum where floor "
    "softmax int64 zeros zeros_like lt le gt ge eq ne"
).split()
