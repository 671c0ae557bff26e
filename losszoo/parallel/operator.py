"""What torch.compile and its like see of a sharded loss."""

from __future__ import annotations

from torch import Tensor

from losszoo.parallel.shards import Shards
from losszoo.runtime import ops
from losszoo.runtime.arguments import Call


class Engine(ops.Engine):
    """One operator, collectives and all."""

    suffix, parts = "_sharded", True

    def __init__(self, shards: Shards) -> None:
        self.shards = shards

    @property
    def whole(self) -> int:
        if self.shards.sizes is None:
            raise RuntimeError("sharded: call the loss once before torch.compile traces it, or give sizes=")
        return self.shards.whole

    def forward(self, call: Call, wrt: tuple[str, ...], interpreted: bool) -> tuple[Tensor, Tensor]:
        return self.shards.forward(call, wrt, keep=True)

    def backward(self, call: Call, wrt: tuple[str, ...], grad: Tensor, kept: Tensor, interpreted: bool) -> list[Tensor]:
        return self.shards.backward(call, wrt, grad, kept)
