"""Losses over the ranks of torch.distributed: rows whose classes are split, and the mean over the items of all ranks."""

from losszoo.parallel.count import global_count
from losszoo.parallel.linear import linear
from losszoo.parallel.sharded import sharded

__all__ = ["global_count", "linear", "sharded"]
