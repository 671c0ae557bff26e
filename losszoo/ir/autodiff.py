"""Reverse-mode differentiation: from the loss to an expression for the gradient of each operand."""

from __future__ import annotations

from collections.abc import Sequence

from losszoo.ir import build as b
from losszoo.ir.expr import UPSTREAM, ZERO, Extent, Node, Type, topological
from losszoo.ir.primitives import TABLE


def gradient(loss: Node, wrt: Sequence[Node]) -> dict[Node, Node]:
    """The adjoint of each leaf of `wrt`, as an expression in the operands and the loss's upstream gradient.

    A leaf that varies along the class axis gets an expression that does; the others get one value an item, summed over classes
    where the leaf was broadcast along them.
    """
    order = list(topological([loss]))
    active = set(wrt)
    for node in order:
        if node.op != "stop_gradient" and any(arg in active for arg in node.args):
            active.add(node)
    adjoints: dict[Node, Node] = {loss: UPSTREAM} if loss in active else {}
    for node in reversed(order):
        g = adjoints.get(node)
        if g is None or not node.args:
            continue
        for arg, contribution in zip(node.args, TABLE[node.op].vjp(node, g), strict=True):
            if contribution is None or arg not in active or arg.type is not Type.REAL or contribution is ZERO:
                continue
            if node.extent is Extent.CLASS and arg.extent is Extent.ITEM:
                contribution = b.sum(contribution)  # the argument was broadcast along the classes
            adjoints[arg] = b.add(adjoints[arg], contribution) if arg in adjoints else contribution
    return {node: adjoints.get(node, ZERO) for node in wrt}
