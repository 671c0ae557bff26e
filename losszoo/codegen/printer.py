"""Scalar maths as C text: statements for the values of one scope, each value once. No loops, no memory: those are the templates'."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from losszoo.ir.expr import POSITION, REDUCTIONS, Extent, Node, Type, topological
from losszoo.ir.primitives import TABLE

C_TYPE = {Type.REAL: "R", Type.INT: "lz::int64", Type.BOOL: "bool"}


class Scope:
    """The values known at a place in a kernel. `names` gives the C text of leaves and of reductions already computed."""

    def __init__(self, names: Mapping[Node, str], extent: Extent, parent: Scope | None = None) -> None:
        self.names: dict[Node, str] = dict(parent.names if parent else {}) | dict(names)
        self.extent = extent
        self.places: list[str] = []  # the classes that positions are compared with
        self.count: int = parent.count if parent else 0

    def inner(self, extent: Extent, names: Mapping[Node, str] | None = None) -> Scope:
        return Scope(names or {}, extent, self)

    def emit(self, roots: Iterable[Node], admitted: Callable[[Node], bool] = lambda node: True) -> list[str]:
        """Statements that compute whatever the roots need at this scope's extent or below and that is not yet known."""
        lines = []
        for node in needed(roots, self.names):
            if node.extent > self.extent or node.op == "const" or not admitted(node):
                continue
            if any(a.op != "const" and a not in self.names for a in node.args):
                continue  # waits for a later pass
            if node.op in REDUCTIONS or not node.args:
                continue
            name = f"t{self.count}"
            self.count += 1
            lines.append(f"const {C_TYPE[node.type]} {name} = {self._expression(node)};")
            self.names[node] = name
        return lines

    def text(self, node: Node) -> str:
        """The C text of a value that is known here."""
        return literal(node) if node.op == "const" else self.names[node]

    def _expression(self, node: Node) -> str:
        if node.op == "pick":
            name, index = node.args[0].attr[0], self.text(node.args[1])
            return f"lz::pick<R>(at_{name}, step_{name}, {index}, classes)"
        if node.op == "eq" and node.args[0] is POSITION and node.args[1].extent < Extent.CLASS:
            self.places.append(self.text(node.args[1]))
            return f"k == lz::within<NEAR>({self.places[-1]}, base)"
        return TABLE[node.op].c.format(*(self.text(a) for a in node.args))


def needed(roots: Iterable[Node], known: Mapping[Node, str]) -> list[Node]:
    """Nodes below the roots, without what lies only behind known ones."""
    return list(topological(roots, known))


def literal(node: Node) -> str:
    value = node.attr
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"lz::int64({value})"
    if math.isnan(value):
        return "lz::nan<R>()"
    if math.isinf(value):
        return "lz::infinity<R>()" if value > 0 else "-lz::infinity<R>()"
    return f"R({value!r})"
