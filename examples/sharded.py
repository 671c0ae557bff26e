"""A classifier whose classes are split over processes: `torchrun --nproc-per-node 2 examples/sharded.py`.

Each rank has the rows of the last layer's weight for its own classes, and only the logits of these.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

import losszoo

CLASSES, FEATURES, ROWS, STEPS = 1001, 16, 64, 40


def train(group: dist.ProcessGroup | None = None) -> list[float]:
    """The losses of a few steps; every rank gets the same."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    sizes = [CLASSES // ranks + (i < CLASSES % ranks) for i in range(ranks)]
    first = sum(sizes[:rank])
    torch.manual_seed(0)  # the same data and the same weights everywhere, of which this rank takes its own
    features, labels = torch.randn(ROWS, FEATURES), torch.randint(CLASSES, (ROWS,))
    head = nn.Parameter(0.1 * torch.randn(CLASSES, FEATURES)[first : first + sizes[rank]])
    optimizer = torch.optim.SGD([head], lr=5.0)
    loss_of_shard = losszoo.parallel.sharded(losszoo.cross_entropy, group, sizes=sizes)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of_shard(features @ head.T, labels, label_smoothing=0.05)
        loss.backward()  # no collective: the gradient of this rank's logits, and so of its weights
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    dist.init_process_group("gloo")
    losses = train()
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    dist.destroy_process_group()
