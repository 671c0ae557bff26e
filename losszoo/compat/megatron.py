"""Megatron-core's loss of logits that are split over its tensor-parallel ranks."""

from __future__ import annotations

import sys
from functools import cache

import torch.distributed as dist
from torch import Tensor

from losszoo.losses import cross_entropy
from losszoo.parallel import sharded
from losszoo.surface import LossFunction


def vocab_parallel_cross_entropy(
    vocab_parallel_logits: Tensor, target: Tensor, label_smoothing: float = 0.0, tp_group: dist.ProcessGroup | None = None,
    *, smoothing: str = "others",
) -> Tensor:  # fmt: skip
    """-log softmax(x)[y] for each token, of logits whose vocabulary is split evenly over the ranks of a group.

        from losszoo.compat.megatron import vocab_parallel_cross_entropy  # for megatron.core.tensor_parallel's

    Arguments:
        vocab_parallel_logits: this rank's, (sequence, batch, vocabulary / ranks); they are not written, as Megatron's are.
        target: the tokens, (sequence, batch), the same on every rank; -100 has loss and gradient 0.
        label_smoothing: the probability a, in [0, 1), that the target gives away.
        tp_group: the ranks; without it Megatron's tensor-parallel group if Megatron is loaded, else all ranks.
        smoothing: to whom it is given. "others": to the K - 1 other tokens alike, by Megatron's formula; of the whole vocabulary, where
            Megatron's code averages over each rank's own part, so that its ranks differ. "all": to all K tokens alike, as in torch.
    Gives the losses, (sequence, batch), in float32 (float64 of float64 logits), the same bits on every rank.
    Raises ValueError for shapes that do not match, and what `losszoo.parallel.sharded` does.
    """
    if smoothing not in ("others", "all"):
        raise ValueError(f"smoothing: got {smoothing!r}, expected 'others' or 'all'")
    if vocab_parallel_logits.shape[:-1] != target.shape:
        raise ValueError(
            f"target: got shape {tuple(target.shape)}, expected {tuple(vocab_parallel_logits.shape[:-1])}, one token for each row of logits"
        )
    local = vocab_parallel_logits.shape[-1]
    loss, ranks = _loss(_tensor_parallel_group() if tp_group is None else tp_group, local)
    if smoothing == "others":
        label_smoothing = label_smoothing * local * ranks / max(1, local * ranks - 1)
    return loss(
        vocab_parallel_logits.reshape(-1, local), target.reshape(-1), label_smoothing=label_smoothing, reduction="none"
    ).view(target.shape)


@cache
def _loss(group: dist.ProcessGroup | None, local: int) -> tuple[LossFunction, int]:
    ranks = dist.get_world_size(group)
    return sharded(cross_entropy, group, sizes=[local] * ranks), ranks


def _tensor_parallel_group() -> dist.ProcessGroup | None:
    state = sys.modules.get("megatron.core.parallel_state")
    return state.get_tensor_model_parallel_group() if state else None
