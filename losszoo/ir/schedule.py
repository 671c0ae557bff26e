"""From a graph to plans: how many passes over the row, what each folds, what is kept for the backward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from losszoo.ir import build as b
from losszoo.ir.algebra import canonical
from losszoo.ir.autodiff import gradient
from losszoo.ir.expr import ONE, REDUCTIONS, UPSTREAM, ZERO, Node, rebuild, topological
from losszoo.ir.monoid import ONLINE, Accumulator, accumulators


@dataclass(frozen=True)
class Plan:
    """One kernel: passes that fold the row, then values an item, then (backward) values a class."""

    passes: tuple[tuple[Accumulator, ...], ...]
    outputs: Mapping[Any, Node]  # by name; the backward's by the leaf whose gradient it is
    state: tuple[Node, ...]  # reductions written by the forward, read by the backward

    def nodes(self) -> list[Node]:
        roots = [node for run in self.passes for acc in run for node in acc.roots]
        return list(topological([*roots, *self.outputs.values()]))


@dataclass(frozen=True)
class Program:
    """A loss's forward and backward. `gradients` is the backward's mathematics before scheduling (for the interpreter)."""

    outputs: Mapping[str, Node]
    gradients: Mapping[Node, Node]
    forward: Plan
    backward: Plan


def program(outputs: Mapping[str, Node], wrt: Sequence[Node], absent: Node | None = None, parts: bool = False) -> Program:
    """Differentiate the output `loss` with respect to the leaves `wrt`, and schedule both directions.

    Items of which `absent` holds have gradient 0, even where their operands are nan. parts: for kernels that see a part of the
    classes; the backward then has no passes, as each would have to gather from all parts: the forward computes what they would.
    """
    gradients = gradient(outputs["loss"], wrt)
    if absent is not None:
        gradients = {leaf: b.where(absent, ZERO, g) for leaf, g in gradients.items()}
    if parts:
        gradients = _reducing_without_upstream(gradients)
    rewritten = canonical([*outputs.values(), *gradients.values()], parts)
    forward_outputs = {name: rewritten[node] for name, node in outputs.items()}
    backward_outputs = {leaf: rewritten[node] for leaf, node in gradients.items()}
    computed = _reductions(forward_outputs.values())
    _, missing = _reached(backward_outputs.values(), computed)
    # What the forward's online states hold besides costs nothing to keep, and spares the backward a pass.
    online = {node.args[0] for node in computed if node.op in ONLINE}
    computed += [node for node in missing if parts or node.op in ("peak", "logsum") and node.args[0] in online]
    state, missing = _reached(backward_outputs.values(), computed)
    forward = Plan(_passes(computed, frozenset()), forward_outputs, state)
    backward = Plan(_passes(missing, frozenset(state)), backward_outputs, state)
    return Program(outputs, gradients, forward, backward)


def _reducing_without_upstream(gradients: dict[Node, Node]) -> dict[Node, Node]:
    """The same gradients, of sums that the forward can compute: a gradient is linear in the upstream one, so that can come after."""
    new: dict[Node, Node] = {UPSTREAM: UPSTREAM}
    unit: dict[Node, Node] = {UPSTREAM: ONE}  # the values where the upstream gradient is 1
    for node in topological(gradients.values()):
        if node not in new:
            new[node], unit[node] = (rebuild(node, tuple(values[a] for a in node.args)) for values in (new, unit))
            if node.op in REDUCTIONS and new[node] is not unit[node]:
                new[node] = b.mul(UPSTREAM, unit[node])
    return {leaf: new[g] for leaf, g in gradients.items()}


def _reductions(roots: Iterable[Node]) -> list[Node]:
    return [node for node in topological(roots) if node.op in REDUCTIONS]


def _reached(roots: Iterable[Node], computed: Sequence[Node]) -> tuple[tuple[Node, ...], list[Node]]:
    """The reductions met from the roots without looking behind a computed one: those computed, and those still to compute."""
    known, seen, found = set(computed), set(), []
    stack = list(roots)[::-1]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in known:
            found.append(node)
        else:
            stack.extend(reversed(node.args))
    return tuple(found), [node for node in _reductions(roots) if node in seen and node not in known]


def _passes(reductions: Sequence[Node], available: frozenset[Node]) -> tuple[tuple[Accumulator, ...], ...]:
    """Group reductions by their depth: a pass can fold what needs only the passes before it."""
    depth: dict[Node, int] = {}
    for node in topological(reductions):
        below = max((depth[a] for a in node.args), default=0) if node not in available else 0
        depth[node] = below + (node.op in REDUCTIONS and node not in available)
    count = max((depth[n] for n in reductions), default=0)
    return tuple(accumulators([n for n in reductions if depth[n] == level]) for level in range(1, count + 1))


__all__ = ["Plan", "Program", "program"]
