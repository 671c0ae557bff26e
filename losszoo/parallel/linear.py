"""A loss behind a linear layer whose weight is split over the ranks of a process group by classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import Tensor

from losszoo.linear_layer.surface import fused
from losszoo.parallel.shards import Shards
from losszoo.surface import LossFunction


def linear(loss: LossFunction, group: dist.ProcessGroup | None = None, *, sizes: Sequence[int] | None = None) -> Callable[..., Tensor]:
    """`losszoo.linear` of a weight whose classes are split over ranks: no rank has a whole row of logits, nor all of its own at one time.

        vocab_loss = losszoo.parallel.linear(losszoo.my_loss, group)
        loss = vocab_loss(hidden, weight_shard, labels)               # the same bits on every rank
        loss.backward()                                               # of hidden, whole on every rank, and of weight_shard

    Ranks hold neighbouring classes in the order of their ranks; how many may differ, and be none. Each rank goes through its logits by
    chunks of classes. One collective for each pass of the loss gathers a few numbers a row, and one sums the gradient of `input`, in
    float32 for 16 bits, when it is formed: in the forward for a loss that is one number. Memory: chunk_bytes and 4 N F bytes.

    sizes: how many classes each rank has. Without them they are gathered in the first call, and hold for all later ones.

    Raises as the function of `losszoo.linear` does, and ValueError where a shard is not of the size that it was.
    """
    return fused(loss, Shards(group, sizes))
