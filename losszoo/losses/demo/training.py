"""The training loop of the demo's networks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from tqdm import tqdm


def train(title: str, optimizer: torch.optim.Optimizer, losses: Iterable[Tensor], steps: int) -> list[float]:
    """A step of `optimizer` for each of `steps` losses, drawn lazily since each needs the weights of the step before.

    The learning rate warms up to the optimizer's own and then falls to nothing. Gives the losses' values.
    """
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, optimizer.param_groups[0]["lr"], steps)
    curve = []
    with _one_thread(), tqdm(losses, f"{title:<36}", steps, unit="step", mininterval=0.5) as bar:
        for loss in bar:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            curve.append(loss.item())
            bar.set_postfix(loss=f"{curve[-1]:.4f}", refresh=False)
    return curve


@contextmanager
def _one_thread() -> Iterator[None]:
    """Networks this small are not worth sharing out, and threads that wait for each other crawl on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
