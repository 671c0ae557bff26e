"""A program run plan by plan as a kernel would, with torch's operations: what it may read is checked at every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from losszoo.ir.expr import REDUCTIONS, UPSTREAM, Extent, Node
from losszoo.ir.interpreter import evaluate
from losszoo.ir.monoid import Accumulator
from losszoo.ir.primitives import TABLE
from losszoo.ir.schedule import Plan, Program


def behind(roots: Iterable[Node], known: Iterable[Node]) -> set[Node]:
    """The nodes that the roots need, without what lies only behind known ones (which are among them)."""
    known, seen, stack = set(known), set(), list(roots)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(() if node in known else node.args)
    return seen


def waits_for(roots: Iterable[Node], known: Iterable[Node]) -> set[Node]:
    """The reductions that the roots need and that are not known."""
    known = set(known)
    return {n for n in behind(roots, known) if n.op in REDUCTIONS and n not in known}


def _fold(acc: Accumulator, known: Mapping[Node, Tensor]) -> dict[Node, Tensor]:
    """An accumulator's results, from its inputs alone."""
    if acc.found is not None:
        return {acc.found: evaluate(torch, [acc.found], known)[0]}
    classes = next(v.shape[-1] for n, v in known.items() if n.op == "position")
    inputs = evaluate(torch, acc.inputs, known)
    inputs = [v.expand(v.shape[0], classes) for v in inputs]
    by_node = dict(zip(acc.inputs, inputs, strict=True))
    results = {}
    for node, _ in acc.results:
        stand_ins = {arg: by_node[arg] for arg in node.args}
        results[node] = evaluate(torch, [node], {**known, **stand_ins})[0]
    return results


def run(plan: Plan, leaves: Mapping[Node, Tensor], state: Mapping[Node, Tensor]) -> tuple[dict[str, Tensor], dict[Node, Tensor]]:
    """The plan's outputs, and every reduction known at its end."""
    known = {**leaves, **state}
    for number, accumulators in enumerate(plan.passes):
        results: dict[Node, Tensor] = {}
        for acc in accumulators:
            assert not waits_for(acc.roots, known), f"pass {number} reads what it or a later pass computes"
            results |= _fold(acc, known)
        assert not set(results) & set(known), "a reduction is computed twice"
        known |= results
    assert not waits_for(plan.outputs.values(), known)
    outputs = dict(zip(plan.outputs, evaluate(torch, list(plan.outputs.values()), known), strict=True))
    return outputs, {n: v for n, v in known.items() if n.op in REDUCTIONS}


def execute(program: Program, leaves: Mapping[Node, Tensor], upstream: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The outputs and the gradients. The backward sees the operands, the upstream gradient and the saved state, and no more."""
    outputs, reductions = run(program.forward, leaves, {})
    state = {node: reductions[node] for node in program.forward.state}
    gradients, _ = run(program.backward, {**leaves, UPSTREAM: upstream}, state)
    return outputs, gradients


def hold(program: Program) -> None:
    """What every program promises, whatever its values."""
    forward, backward = program.forward, program.backward
    assert forward.state == backward.state
    assert len(set(forward.state)) == len(forward.state)
    computed = {node for accumulators in forward.passes for acc in accumulators for node, _ in acc.results}
    assert set(forward.state) <= computed, "the state is more than the forward's reductions"
    assert all(node.op in REDUCTIONS and node.extent is Extent.ITEM for node in forward.state), "more than a value a row"
    inputs = [n for accumulators in backward.passes for acc in accumulators for n in acc.roots]
    assert set(forward.state) <= behind([*inputs, *backward.outputs.values()], forward.state), "saved, and not read"
    for plan in (forward, backward):
        kept, known = (plan.state, ()) if plan is forward else ((), plan.state)
        folded = {node for accumulators in plan.passes for acc in accumulators for node, _ in acc.results}
        assert folded <= behind([*plan.outputs.values(), *kept], known), "folded, and not read"
        for node in plan.nodes():
            spelled = TABLE[node.op].c if node.args else "a leaf"
            assert spelled or node.op in REDUCTIONS or node.op == "pick" and node.args[0].op == "operand", f"no C for {node.op}"
            assert node.op != "stop_gradient"
