"""The states that fold a row: which monoid computes which reductions, and what its padding is.

A monoid has an identity, folds (lifts and merges) values, merges with another state, and projects its state to results. The code
is csrc/losszoo/monoid.h, generic over lanes; here is what the scheduler and the printer need to know of it. Reductions that share
a state (the peak, the log-sum, every softmax-weighted and every shifted sum of the same logits) share one accumulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from losszoo.ir.expr import Node

ONLINE = frozenset({"peak", "logsum", "expsum", "shifted"})  # of the same logits, these share a state


@dataclass(frozen=True)
class Accumulator:
    """One running state of a pass: `monoid` is its C++ type, `inputs` what is folded for each class."""

    monoid: str
    inputs: tuple[Node, ...]
    padding: tuple[str, ...]  # C text of the values that leave the state unchanged, one an input
    results: tuple[tuple[Node, str], ...]  # (reduction, member function that projects it: a lane is its last argument)
    numbers: int = 1  # of a lane's state
    found: Node | None = None  # the x[y] that the state is, once a row: nothing is folded

    @property
    def roots(self) -> tuple[Node, ...]:
        """The values that have to be computed for it."""
        return self.inputs if self.found is None else self.found.args[1:]


def accumulators(reductions: Sequence[Node]) -> tuple[Accumulator, ...]:
    """The accumulators that compute these reductions in one pass, in the order of their first use."""
    online: dict[Node, list[Node]] = {}
    plain: list[Accumulator] = []
    for node in reductions:
        if node.op == "sum":
            plain.append(Accumulator("lz::Sum<R, L>", node.args, ("R(0)",), ((node, "sum("),)))
        elif node.op == "max":
            plain.append(Accumulator("lz::Max<R, L>", node.args, ("-lz::infinity<R>()",), ((node, "max("),)))
        elif node.op == "found":
            plain.append(Accumulator("lz::Sum<R, L>", (), (), ((node, "sum("),), found=node))
        else:
            online.setdefault(node.args[0], []).append(node)
    return tuple(_online(logits, nodes) for logits, nodes in online.items()) + tuple(plain)


def _online(logits: Node, nodes: list[Node]) -> Accumulator:
    means = [n for n in nodes if n.op == "expsum"]
    shifted = [n for n in nodes if n.op == "shifted"]
    results = [(n, f"{n.op}(") for n in nodes if n.op in ("peak", "logsum")]
    results += [(n, f"mean({i}, ") for i, n in enumerate(means)] + [(n, f"shifted({i}, ") for i, n in enumerate(shifted)]
    weights = [n.args[1] for n in means + shifted]
    padding = ("-lz::infinity<R>()", *("R(0)" for _ in weights))
    monoid, numbers = f"lz::Online<R, L, {len(means)}, {len(shifted)}>", 2 + len(means) + 2 * len(shifted)
    return Accumulator(monoid, (logits, *weights), padding, tuple(results), numbers)
