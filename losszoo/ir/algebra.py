"""Algebra on row sums, so that fewer passes over the row are needed.

`sum(a * (x - lse))` needs the whole row's lse before it can start: two passes. With m = max(x) it equals
`sum(a * (x - m)) - (lse - m) * sum(a)`: one, since the online softmax carries `sum(a * (x - m))` along as the reduction
`shifted(x, a)`, and a row of logits with a large common offset keeps its precision. So every sum whose terms are linear in values
that are constant along the row is split, and `sum(softmax(x) * f)` becomes the reduction `expsum(x, f)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from losszoo.ir import build as b
from losszoo.ir.expand import SPELLED, is_magnitude
from losszoo.ir.expr import ONE, REDUCTIONS, ZERO, Extent, Node, const, rebuild, topological

FAR = 1e3  # an x[0] beyond this may be a mask, see Rewriter.sum


@dataclass(frozen=True)
class Term:
    """One addend: a factor that is constant along the row, times softmax(logits) and (shifted - max(shifted)) if there, times a rest."""

    factor: Node
    rest: Node
    logits: Node | None = None
    shifted: Node | None = None


def canonical(roots: Iterable[Node], parts: bool = False) -> dict[Node, Node]:
    """Each node below the roots as a kernel computes it: gradient stops dropped, sigmoid and softplus spelled out, sums split.

    parts: for kernels that see a part of the classes. To them x[y] is a sum like others, of which other parts may have the term.
    """
    rewriter = _Rewriter(parts)
    return {node: rewriter.visit(node) for node in topological(roots)}


def row_softmax(node: Node) -> Node | None:
    """The logits x, if the node is softmax(x) = exp((x - peak(x)) - logsum(x))."""
    if node.op in ("exp", "exp_falling") and node.args[0].op == "sub":
        shifted, logsum = node.args[0].args
        if logsum.op == "logsum" and shifted.op == "sub" and shifted.args[1].op == "peak":
            x = shifted.args[0]
            if shifted.args[1].args[0] is x and logsum.args[0] is x:
                return x
    return None


class _Rewriter:
    def __init__(self, parts: bool) -> None:
        self.parts = parts
        self.done: dict[Node, Node] = {}
        self.needs_row: dict[Node, bool] = {}

    def visit(self, node: Node) -> Node:
        """Rewrite a node whose arguments were visited before."""
        args = tuple(self.done[a] for a in node.args)
        if node.op == "stop_gradient":
            new = args[0]
        elif node.op in SPELLED:
            new = SPELLED[node.op](*args)
        elif node.op == "sum":
            new = self.sum(args[0]) if args[0].extent is Extent.CLASS else b.sum(args[0])
        elif node.op == "max":
            new = b.max_(args[0])
        elif node.op == "where" and is_magnitude(*args):
            new = b.apply("abs", args[2])
        elif node.op == "pick" and self.parts:
            new = b.apply("found", *args)
        else:
            new = rebuild(node, args)
            if new.op == "exp" and row_softmax(new) is not None:
                new = b.apply("exp_falling", new.args[0])
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
            term = self.factor(e)
            return b.mul(term.factor, b.sum(term.rest))
        total = ZERO
        for term in terms:
            if term.factor is not ZERO and term.rest is not ZERO:
                total = b.add(total, b.mul(term.factor, self.folded(term)))
        return total

    def folded(self, term: Term) -> Node:
        """The sum of a term's part that varies along the row."""
        x = term.shifted
        if x is None:
            return b.sum(term.rest) if term.logits is None else b.apply("expsum", term.logits, term.rest)
        if term.logits is None:
            return b.apply("shifted", x, term.rest)
        # Under a softmax, shift by x[0] instead: sum(p f (x - x[0])) + (x[0] - max(x)) sum(p f). A large x[0] is no such shift: it
        # may be a mask; and in parts it would take a pass to find it.
        first = ZERO if self.parts else b.pick(x, const(0))
        pivot = b.where(b.apply("lt", b.apply("abs", first), const(FAR)), first, ZERO)
        near = b.apply("expsum", term.logits, b.mul(term.rest, b.sub(x, pivot)))
        return b.add(near, b.mul(b.sub(pivot, b.apply("peak", x)), b.apply("expsum", term.logits, term.rest)))

    def factor(self, e: Node) -> Term:
        """Take out what is constant along the row."""
        if e.extent < Extent.CLASS:
            return Term(e, ONE)
        if e.op == "mul":
            x, y = (self.factor(a) for a in e.args)
            return Term(b.mul(x.factor, y.factor), b.mul(x.rest, y.rest))
        if e.op == "share" and e.args[0].extent < Extent.CLASS:
            term = self.factor(e.args[1])
            return replace(term, factor=b.apply("share", e.args[0], term.factor))
        if e.op == "div" and e.args[1].extent < Extent.CLASS:
            term = self.factor(e.args[0])
            return replace(term, factor=b.div(term.factor, e.args[1]))
        if e.op == "neg":
            term = self.factor(e.args[0])
            return replace(term, factor=b.neg(term.factor))
        if e.op == "where" and ZERO in e.args[1:]:
            c, left, right = e.args
            term = self.factor(right if left is ZERO else left)
            side = "factor" if c.extent < Extent.CLASS else "rest"
            value = getattr(term, side)
            return replace(term, **{side: b.where(c, ZERO, value) if left is ZERO else b.where(c, value, ZERO)})
        return Term(ONE, e)

    def split(self, e: Node) -> list[Term] | None:
        """The terms that add up to e, or None where e is not linear in what it waits for."""
        if e.extent < Extent.CLASS:
            return [Term(e, ONE)]
        if not self.reductive(e):
            return [self.factor(e)]
        if (logits := row_softmax(e)) is not None and not self.reductive(logits):
            return [Term(ONE, ONE, logits=logits)]
        if e.op in ("add", "sub"):
            x, y = e.args
            if e.op == "sub" and y.op == "peak" and y.args[0] is x and not self.reductive(x):
                return [Term(ONE, ONE, shifted=x)]
            left, right = self.split(x), self.split(y)
            if left is None or right is None:
                return None
            return left + (right if e.op == "add" else [replace(t, factor=b.neg(t.factor)) for t in right])
        if e.op == "neg":
            terms = self.split(e.args[0])
            return terms and [replace(t, factor=b.neg(t.factor)) for t in terms]
        if e.op in ("mul", "share"):
            return self.product(*e.args)
        if e.op == "div":
            return self.quotient(*e.args)
        if e.op == "where":
            return self.selection(*e.args)
        return None

    def quotient(self, x: Node, y: Node) -> list[Term] | None:
        terms = self.split(x)
        if terms is None or (self.reductive(y) and y.extent is Extent.CLASS):
            return None
        side = "factor" if y.extent < Extent.CLASS else "rest"
        return [replace(t, **{side: b.div(getattr(t, side), y)}) for t in terms]

    def selection(self, c: Node, x: Node, y: Node) -> list[Term] | None:
        left, right = self.split(x), self.split(y)
        if left is None or right is None or (self.reductive(c) and c.extent is Extent.CLASS):
            return None
        side = "factor" if c.extent < Extent.CLASS else "rest"
        return [replace(t, **{side: b.where(c, getattr(t, side), ZERO)}) for t in left] + [
            replace(t, **{side: b.where(c, ZERO, getattr(t, side))}) for t in right
        ]

    def product(self, x: Node, y: Node) -> list[Term] | None:
        left, right = self.split(x), self.split(y)
        if left is None or right is None:
            return None
        terms = []
        for s in left:
            for t in right:
                if (s.logits is not None and t.logits is not None) or (s.shifted is not None and t.shifted is not None):
                    return None
                logits, shifted = s.logits or t.logits, s.shifted or t.shifted
                terms.append(Term(b.mul(s.factor, t.factor), b.mul(s.rest, t.rest), logits, shifted))
        return terms
