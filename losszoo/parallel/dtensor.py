"""A loss of DTensors: rows sharded along their classes over one axis of the mesh, all else the same on every rank."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from losszoo.parallel.sharded import compute
from losszoo.parallel.shards import Shards
from losszoo.runtime import autograd
from losszoo.runtime.dispatch import checker
from losszoo.runtime.layout import class_axis
from losszoo.spec.declare import Spec
from losszoo.spec.operands import ClassWeight, Row


def compute_distributed(spec: Spec, output: str, arguments: tuple[Any, ...]) -> Tensor:
    """The loss of all arguments in a row, some of them DTensors, as a DTensor that is the same on every rank."""
    names = [o.name for o in spec.operands]
    rows = [i for i, o in enumerate(spec.operands) if Row in o.kinds]
    leader = arguments[rows[0]] if rows else None
    if not isinstance(leader, DTensor):
        name = names[rows[0]] if rows else names[0]
        raise TypeError(f"{spec.name}: of DTensors losszoo takes rows sharded along their classes, and {name} is none; pass .to_local()")
    mesh, axis = leader.device_mesh, class_axis(leader.ndim)
    split = [i for i, p in enumerate(leader.placements) if not isinstance(p, Replicate)]
    if len(split) > 1 or any(leader.placements[i] != Shard(axis) for i in split):
        raise ValueError(
            f"{names[rows[0]]}: got a DTensor with placements {leader.placements}, expected Shard({axis}) (its classes) on one axis of the "
            f"mesh and Replicate() on the others"
        )
    given = list(arguments)
    for i, x in enumerate(given):
        if not isinstance(x, Tensor):
            continue
        kinds = spec.operands[i].kinds if i < len(names) else ()
        if Row in kinds and x.ndim == leader.ndim and x.is_floating_point():
            if not isinstance(x, DTensor):
                raise ValueError(f"{names[i]}: got a tensor beside DTensors, expected a DTensor sharded like {names[rows[0]]}")
            given[i] = x.redistribute(mesh, leader.placements).to_local()
        elif isinstance(x, DTensor):
            whole = [Replicate()] * mesh.ndim
            wanted = [Shard(0) if i in split else Replicate() for i in range(mesh.ndim)]
            kept = ClassWeight in kinds and tuple(x.placements) == tuple(wanted)
            given[i] = (x if kept else x.redistribute(mesh, whole)).to_local()
    checked = checker(spec, output)
    if split:
        shards = Shards(mesh.get_group(split[0]), _chunks(leader.shape[axis], mesh.size(split[0])))
        shards.settle(given[rows[0]])
        loss = compute(checked(*given, whole=shards.whole), shards)
    else:
        loss = autograd.compute(checked(*given))
    return DTensor.from_local(loss, mesh, [Replicate()] * mesh.ndim, run_check=False)


def _chunks(classes: int, ranks: int) -> list[int]:
    """How many classes each rank has, by torch.chunk's rule, which is DTensor's."""
    most = -(-classes // ranks)
    return [min(most, max(0, classes - i * most)) for i in range(ranks)]
