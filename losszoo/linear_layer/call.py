"""From a public function's arguments to its loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from losszoo.linear_layer.function import compute
from losszoo.linear_layer.problem import make
from losszoo.runtime.arguments import describe
from losszoo.spec.declare import WEIGHT, Spec

if TYPE_CHECKING:
    from losszoo.parallel.shards import Shards

STRATEGIES = ("rows", "classes")


def outside_of_graphs() -> Callable[..., Tensor]:
    """`run` for torch.compile, which does not look into it: its loops end with the data's sizes, and its kernels are no operators."""
    return torch.compiler.disable(run, reason="a loss behind a linear layer goes through its logits in chunks")


def run(
    spec: Spec, logits: str, signature: inspect.Signature, shards: Shards | None, args: tuple, kwargs: dict[str, Any]
) -> Tensor:
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    strategy, memory = given.get("strategy"), given["chunk_bytes"]
    if strategy is not None and strategy not in STRATEGIES:
        raise ValueError(f"strategy: got {strategy!r}, expected None, 'rows' or 'classes'")
    if memory is not None and (not isinstance(memory, int) or isinstance(memory, bool) or memory < 1):
        raise ValueError(f"chunk_bytes: got {describe(memory)}, expected None or a whole number of at least 1")
    parameters, statics = (tuple(given[a.name] for a in group) for group in (spec.parameters, spec.statics))
    operands = {o.name: given[o.name] for o in spec.operands if o.name != logits}
    whole = None
    if shards is not None:
        weight = given["linear_weight"]
        shards.settle(weight.t() if isinstance(weight, Tensor) and weight.ndim == 2 else None)
        whole = shards.whole if shards.sizes is not None else 0  # of what is no shard, which the checks will say
    problem, shape = make(
        spec, logits, given["input"], given["linear_weight"], given["linear_bias"], operands, parameters, statics,
        given.get("ignore_index"), given["reduction"], None if spec.own_weight else given[WEIGHT], given["normalizer"], whole,
    )  # fmt: skip
    loss = compute(problem, strategy, memory, shards)
    return loss.reshape(shape) if loss.ndim else loss
