"""What a rank does with a linear layer of which it has some classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import losszoo.parallel
from losszoo.spec.operands import Row
from tests.linear.cases import BY_NAME, Case
from tests.losses.oracle import upstream_for

COLLECTIVES = ("allgather", "_allgather_base_", "allreduce_", "all_gather_into_tensor", "all_reduce")


class Collectives(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func).split(".")[1]
        if name in COLLECTIVES:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def split(case: Case, sizes: Sequence[int], rank: int) -> dict[str, Tensor]:
    """What a rank is given of the operands of all."""
    begin = sum(sizes[:rank])
    at = slice(begin, begin + sizes[rank])
    rows = {o.name for o in BY_NAME[case.name].spec.operands[1:] if o.kinds == (Row,)}
    layer = {"linear_weight", "linear_bias"}
    return {n: t[at] if n in layer else t[:, at] if n in rows else t for n, t in case.tensors.items()}


def run(group: dist.ProcessGroup, case: Case, sizes: Sequence[int], device: str, options: dict[str, Any]) -> tuple[Any, ...]:
    """The loss, this rank's gradients by name, and the collectives of forward and backward."""
    rank = dist.get_rank(group)
    tensors = {n: t.to(device, copy=True) for n, t in split(case, sizes, rank).items()}
    for name in case.wanted:
        tensors[name].requires_grad_()
    function = losszoo.parallel.linear(BY_NAME[case.name], group, sizes=sizes)
    with Collectives() as forward:
        loss = function(**tensors, **case.options, **options)
    with Collectives() as backward:
        grads = torch.autograd.grad(loss, [tensors[n] for n in case.wanted], upstream_for(loss))
    return loss.detach().cpu(), dict(zip(case.wanted, (g.cpu() for g in grads), strict=True)), forward.seen, backward.seen


def twice(group: dist.ProcessGroup, case: Case, sizes: Sequence[int]) -> str:
    """A second derivative is refused."""
    tensors = split(case, sizes, dist.get_rank(group))
    weight = tensors["linear_weight"].requires_grad_()
    loss = losszoo.parallel.linear(BY_NAME[case.name], group)(**tensors)
    try:
        torch.autograd.grad(loss, weight, create_graph=True)
    except NotImplementedError as error:
        return str(error)
    return "nothing was said"


def mistakes(group: dist.ProcessGroup, case: Case, sizes: Sequence[int]) -> list[str]:
    """What is said to class weights of a rank's classes alone, to a label out of range, and to a shard of another size."""
    tensors = split(case, sizes, dist.get_rank(group))
    function = losszoo.parallel.linear(BY_NAME[case.name], group)
    function(**tensors)
    said = []
    for changes in (
        {"weight": torch.ones(tensors["linear_weight"].shape[0], dtype=torch.float64)},
        {"target": tensors["target"].clamp(min=0) + sum(sizes)},
        {"linear_weight": tensors["linear_weight"][1:], "linear_bias": tensors["linear_bias"][1:]},
    ):
        try:
            function(**{**tensors, **changes})
        except (ValueError, IndexError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said
