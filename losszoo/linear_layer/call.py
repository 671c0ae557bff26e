"""From a public function's arguments to its loss."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from losszoo.linear_layer.function import compute
from losszoo.linear_layer.problem import make
from losszoo.linear_layer.surface import STRATEGIES
from losszoo.runtime.arguments import describe
from losszoo.spec.declare import WEIGHT, Spec


def run(spec: Spec, logits: str, given: dict[str, Any]) -> Tensor:
    strategy, memory = given["strategy"], given["chunk_bytes"]
    if strategy is not None and strategy not in STRATEGIES:
        raise ValueError(f"strategy: got {strategy!r}, expected None, 'rows' or 'classes'")
    if not isinstance(memory, int) or isinstance(memory, bool) or memory < 1:
        raise ValueError(f"chunk_bytes: got {describe(memory)}, expected a whole number of at least 1")
    parameters, statics = (tuple(given[a.name] for a in group) for group in (spec.parameters, spec.statics))
    operands = {o.name: given[o.name] for o in spec.operands if o.name != logits}
    problem, shape = make(
        spec, logits, given["input"], given["linear_weight"], given["linear_bias"], operands, parameters, statics,
        given.get("ignore_index"), given["reduction"], None if spec.own_weight else given[WEIGHT], given["normalizer"],
    )  # fmt: skip
    loss = compute(problem, strategy, memory)
    return loss.reshape(shape) if loss.ndim else loss
