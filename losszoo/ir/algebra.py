"""Algebra on row sums, so that fewer passes over the row are needed.

`sum(a * (x - lse))` needs the whole row's lse before it can start: two passes. It equals `sum(a * x) - lse * sum(a)`: one. Here
every sum whose terms are linear in values that are constant along the row is split so, and `sum(softmax(x) * f)` becomes the
reduction `expsum(x, f)`, which an online softmax computes in its one pass.

`x - max(x)` splits as `(x - x[0]) + (x[0] - max(x))`: a row of logits with a large common offset keeps its precision.
"""

from __future__ import annotations

from collections.abc import Iterable

from losszoo.ir import build as b
from losszoo.ir.expand import SPELLED
from losszoo.ir.expr import ONE, REDUCTIONS, ZERO, Extent, Node, const, rebuild, topological

# factor (constant along the row), logits of a softmax or None, the rest (free of reductions)
Term = tuple[Node, Node | None, Node]


def canonical(roots: Iterable[Node]) -> dict[Node, Node]:
    """Each node below the roots as a kernel computes it: gradient stops dropped, sigmoid and softplus spelled out, sums split."""
    rewriter = _Rewriter()
    return {node: rewriter.visit(node) for node in topological(roots)}


def row_softmax(node: Node) -> Node | None:
    """The logits x, if the node is softmax(x) = exp((x - peak(x)) - logsum(x))."""
    if node.op == "exp" and node.args[0].op == "sub":
        shifted, logsum = node.args[0].args
        if logsum.op == "logsum" and shifted.op == "sub" and shifted.args[1].op == "peak":
            x = shifted.args[0]
            if shifted.args[1].args[0] is x and logsum.args[0] is x:
                return x
    return None


class _Rewriter:
    def __init__(self) -> None:
        self.done: dict[Node, Node] = {}
        self.needs_row: dict[Node, bool] = {}

    def visit(self, node: Node) -> Node:
        """Rewrite a node whose arguments were visited before."""
        args = tuple(self.done[a] for a in node.args)
        if node.op == "stop_gradient":
            new = args[0]
        elif node.op in SPELLED:
            new = SPELLED[node.op](*args)
        elif node.op == "sum" and args[0].extent is Extent.CLASS:
            new = self.sum(args[0])
        else:
            new = rebuild(node, args)
        self.done[node] = new
        return new

    def reductive(self, node: Node) -> bool:
        """Whether the value waits for a reduction over the row."""
        if node not in self.needs_row:
            for n in topological([node]):
                if n not in self.needs_row:
                    self.needs_row[n] = n.op in REDUCTIONS or any(self.needs_row[a] for a in n.args)
        return self.needs_row[node]

    def sum(self, e: Node) -> Node:
        terms = self.split(e) if self.reductive(e) else [self.factor(e)]
        if terms is None:
            k, _, f = self.factor(e)
            return b.mul(k, b.sum(f))
        total = ZERO
        for k, logits, f in terms:
            if k is ZERO or f is ZERO:
                continue
            part = b.sum(f) if logits is None else b.apply("expsum", logits, f)
            total = b.add(total, b.mul(k, part))
        return total

    def factor(self, e: Node) -> Term:
        """Take out what is constant along the row."""
        if e.op == "mul":
            for x, y in (e.args, e.args[::-1]):
                if x.extent < Extent.CLASS:
                    k, _, f = self.factor(y)
                    return b.mul(k, x), None, f
        if e.op == "div" and e.args[1].extent < Extent.CLASS:
            k, _, f = self.factor(e.args[0])
            return b.div(k, e.args[1]), None, f
        if e.op == "neg":
            k, _, f = self.factor(e.args[0])
            return b.neg(k), None, f
        if e.op == "where" and e.args[0].extent < Extent.CLASS and ZERO in e.args[1:]:
            c, left, right = e.args
            k, _, f = self.factor(right if left is ZERO else left)
            return (b.where(c, ZERO, k) if left is ZERO else b.where(c, k, ZERO)), None, f
        return ONE, None, e

    def split(self, e: Node) -> list[Term] | None:
        """The terms that add up to e, or None where e is not linear in what it waits for."""
        if not self.reductive(e):
            return [self.factor(e)] if e.extent is Extent.CLASS else [(e, None, ONE)]
        if e.extent < Extent.CLASS:
            return [(e, None, ONE)]
        if (logits := row_softmax(e)) is not None and not self.reductive(logits):
            return [(ONE, logits, ONE)]
        if e.op in ("add", "sub"):
            x, y = e.args
            if e.op == "sub" and y.op == "peak" and y.args[0] is x and not self.reductive(x):
                first = b.pick(x, const(0))
                pivot = b.where(b.apply("lt", b.apply("abs", first), const(float("inf"))), first, ZERO)
                return [(ONE, None, b.sub(x, pivot)), (b.sub(pivot, y), None, ONE)]
            left, right = self.split(x), self.split(y)
            if left is None or right is None:
                return None
            return left + (right if e.op == "add" else [(b.neg(k), l, f) for k, l, f in right])
        if e.op == "neg":
            inner = self.split(e.args[0])
            return inner and [(b.neg(k), l, f) for k, l, f in inner]
        if e.op == "mul":
            return self.product(*e.args)
        if e.op == "div" and not (self.reductive(e.args[1]) and e.args[1].extent is Extent.CLASS):
            inner = self.split(e.args[0])
            if e.args[1].extent < Extent.CLASS:
                return inner and [(b.div(k, e.args[1]), l, f) for k, l, f in inner]
            return inner and [(k, l, b.div(f, e.args[1])) for k, l, f in inner]
        if e.op == "where":
            return self.selection(*e.args)
        return None

    def selection(self, c: Node, x: Node, y: Node) -> list[Term] | None:
        left, right = self.split(x), self.split(y)
        if left is None or right is None:
            return None
        if c.extent < Extent.CLASS:  # which side is taken is a matter of the factors
            return [(b.where(c, k, ZERO), l, f) for k, l, f in left] + [(b.where(c, ZERO, k), l, f) for k, l, f in right]
        if self.reductive(c):
            return None
        return [(k, l, b.where(c, f, ZERO)) for k, l, f in left] + [(k, l, b.where(c, ZERO, f)) for k, l, f in right]

    def product(self, x: Node, y: Node) -> list[Term] | None:
        left, right = self.split(x), self.split(y)
        if left is None or right is None:
            return None
        terms = []
        for k1, l1, f1 in left:
            for k2, l2, f2 in right:
                if l1 is not None and l2 is not None:
                    return None
                terms.append((b.mul(k1, k2), l1 if l1 is not None else l2, b.mul(f1, f2)))
        return terms
