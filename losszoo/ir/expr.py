"""Nodes of the expression graph: hash-consed, so that one value is one object and is computed once."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any


class Extent(IntEnum):
    """What a value varies along. A value of a lower extent broadcasts to a higher one."""

    UNIFORM = 0  # one value for the whole call
    ITEM = 1  # one value a row (or element, or box)
    CLASS = 2  # one value a row and class


class Type(Enum):
    REAL = "real"
    INT = "int"
    BOOL = "bool"


@dataclass(frozen=True, eq=False)
class Node:
    """One value: the primitive `op` of `args`, or a leaf that `attr` names. Made by `intern` only; equal nodes are identical."""

    op: str
    args: tuple[Node, ...]
    attr: Any  # of a constant its value; of a leaf its name, or what the leaf is of
    type: Type
    extent: Extent

    def __repr__(self) -> str:
        if not self.args:
            return str(self.attr if self.attr is not None else self.op)
        return f"{self.op}({', '.join(map(repr, self.args))})"


_nodes: weakref.WeakValueDictionary[tuple, Node] = weakref.WeakValueDictionary()


def intern(op: str, args: tuple[Node, ...], attr: object, type: Type, extent: Extent) -> Node:
    # -0.0 == 0.0 and nan != nan, so numbers are told apart by their text.
    key = (op, args, repr(attr) if isinstance(attr, (int, float)) else attr, type, extent)
    node = _nodes.get(key)
    if node is None:
        node = _nodes[key] = Node(op, args, attr, type, extent)
    return node


def const(value: float | int | bool) -> Node:
    type = Type.BOOL if isinstance(value, bool) else Type.INT if isinstance(value, int) else Type.REAL
    return intern("const", (), value, type, Extent.UNIFORM)


def leaf(op: str, attr: object, type: Type, extent: Extent) -> Node:
    """An input: `operand` (attr: name and component), `param`, `scalar`, `upstream`, `classes`, `smallest` or `position`."""
    return intern(op, (), attr, type, extent)


ZERO, ONE, TWO = const(0.0), const(1.0), const(2.0)
CLASSES = leaf("classes", None, Type.INT, Extent.UNIFORM)
SMALLEST = leaf("smallest", None, Type.REAL, Extent.UNIFORM)  # the smallest normal number of the precision computed in
POSITION = leaf("position", None, Type.INT, Extent.CLASS)
UPSTREAM = leaf("upstream", None, Type.REAL, Extent.ITEM)

REDUCTIONS = frozenset({"sum", "max", "peak", "logsum", "expsum", "shifted", "found"})


def is_const(node: Node, value: float | None = None) -> bool:
    return node.op == "const" and (value is None or node.attr == value)


def topological(roots: Iterable[Node], known: Iterable[Node] = ()) -> Iterator[Node]:
    """Every node below the roots once, arguments before users, in an order that depends on the graph alone.

    Known nodes are left out, and what lies only behind them.
    """
    done = set(known)
    for root in roots:
        stack = [(root, False)]
        while stack:
            node, expanded = stack.pop()
            if node in done:
                continue
            if expanded:
                done.add(node)
                yield node
            else:
                stack.append((node, True))
                stack.extend((arg, False) for arg in reversed(node.args) if arg not in done)


def rebuild(node: Node, args: tuple[Node, ...]) -> Node:
    """The same primitive over other arguments, typed and simplified anew."""
    from losszoo.ir.build import apply

    return node if args == node.args else apply(node.op, *args, attr=node.attr)
