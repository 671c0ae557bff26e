"""Boxes in the language of specs: a symbolic box, and the measures that box losses are made of."""

from __future__ import annotations

from collections.abc import Sequence

from losszoo.errors import SpecError
from losszoo.ir.expr import Node
from losszoo.spec.maths import Expr, clamp, maximum, minimum, where

FORMATS = ("xyxy", "xywh", "cxcywh")


class BoxExpr:
    """A box. Corners `x1 y1 x2 y2`, centre `cx cy`, sides `w h` and `area`, whatever format its numbers came in."""

    def __init__(self, numbers: Sequence[Node], format: str) -> None:
        a, b, c, d = (Expr(n) for n in numbers)
        if format == "xyxy":
            self.x1, self.y1, self.x2, self.y2, self.w, self.h = a, b, c, d, c - a, d - b
            self.cx, self.cy = (a + c) / 2, (b + d) / 2
        elif format == "xywh":
            self.x1, self.y1, self.x2, self.y2, self.w, self.h = a, b, a + c, b + d, c, d
            self.cx, self.cy = a + c / 2, b + d / 2
        else:
            self.x1, self.y1, self.x2, self.y2, self.w, self.h = a - c / 2, b - d / 2, a + c / 2, b + d / 2, c, d
            self.cx, self.cy = a, b

    @property
    def area(self) -> Expr:
        return self.w * self.h

    def __getattr__(self, name: str) -> Expr:
        raise SpecError(f"a Box has x1, y1, x2, y2, cx, cy, w, h and area, not {name!r}")


def ratio(a: Expr, b: Expr, eps: object) -> Expr:
    """a / b, with eps in the place of b where b is 0: eps shifts nothing that needs no help."""
    return a / where(b > 0, b, eps)


def intersection(p: BoxExpr, t: BoxExpr) -> Expr:
    """The area that two boxes share."""
    w = minimum(p.x2, t.x2) - maximum(p.x1, t.x1)
    h = minimum(p.y2, t.y2) - maximum(p.y1, t.y1)
    return clamp(w, min=0) * clamp(h, min=0)


def union(p: BoxExpr, t: BoxExpr) -> Expr:
    """The area that two boxes cover together."""
    return p.area + t.area - intersection(p, t)


def hull(p: BoxExpr, t: BoxExpr) -> tuple[Expr, Expr]:
    """Width and height of the smallest box around both."""
    return maximum(p.x2, t.x2) - minimum(p.x1, t.x1), maximum(p.y2, t.y2) - minimum(p.y1, t.y1)


def hull_diagonal2(p: BoxExpr, t: BoxExpr) -> Expr:
    """The squared diagonal of the smallest box around both."""
    w, h = hull(p, t)
    return w * w + h * h


def center_distance2(p: BoxExpr, t: BoxExpr) -> Expr:
    """The squared distance of the centres."""
    dx, dy = p.cx - t.cx, p.cy - t.cy
    return dx * dx + dy * dy
