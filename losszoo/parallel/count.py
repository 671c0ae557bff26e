"""The mean over the items of all ranks, in data-parallel training."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def global_count(count: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """What a loss divides by on each rank, so that the average of the ranks' losses is the mean over the items of all ranks.

        count = losszoo.parallel.global_count((labels != -100).sum())
        loss = my_loss(logits, labels, normalizer=count)

    `count` is this rank's number of items (or their sum of weights), a tensor of one number. The result is the sum over the ranks,
    divided by the number of ranks, since DistributedDataParallel averages the ranks' gradients. It stays on the device; nothing waits.
    Without torch.distributed it is the count itself.
    """
    total = count.detach().to(torch.float64, copy=True).reshape(())
    if not dist.is_available() or not dist.is_initialized():
        return total
    dist.all_reduce(total, group=group)
    return total / dist.get_world_size(group)
