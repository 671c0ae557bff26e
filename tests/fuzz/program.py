"""A random spec as data: operands, and lines that each compute a value from earlier ones. It becomes text, and text a loss.

Each value carries an interval that it lies in, by which the next function is chosen or guarded, so that specs stay inside their
domains: what happens outside is the interpreter's word against rounding.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace

from losszoo import spec as language
from losszoo.surface import loss

UNIFORM, ITEM, CLASS = range(3)


@dataclass(frozen=True)
class Value:
    name: str
    extent: int
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """`name = text`, with {0}, {1} ... in the text for the names of the arguments."""

    value: Value
    text: str
    args: tuple[str, ...]

    @property
    def rendered(self) -> str:
        return self.text.format(*self.args)


@dataclass(frozen=True)
class Program:
    operands: tuple[tuple[str, str], ...]  # name, annotation with its default
    parameters: tuple[tuple[str, str], ...]
    lines: tuple[Line, ...]
    output: str
    counts: str | None = None

    def text(self, name: str = "fuzzed") -> str:
        arguments = [f"{n}: {kind}" for n, kind in sorted(self.operands, key=lambda operand: "=" in operand[1])]
        if self.parameters:
            arguments += ["*", *(f"{n}: {kind}" for n, kind in self.parameters)]
        body = [f"    {line.value.name} = {line.rendered}" for line in self.lines]
        returned = self.output if self.counts is None else f"{self.output}, counts({self.counts})"
        return "\n".join([f"@loss\ndef {name}({', '.join(arguments)}):", *body, f"    return {returned}", ""])

    def needed(self) -> Program:
        """Without the lines and parameters that the result does not depend on; operands stay where they decide the shape."""
        wanted = {self.output, self.counts}
        kept = []
        for line in reversed(self.lines):
            if line.value.name in wanted:
                kept.append(line)
                wanted |= set(re.findall(r"[a-z]\w*", line.rendered))
        differentiable = next(n for n, kind in self.operands if kind.split()[0] in ("Row", "Elem", "Box") or kind.startswith("Tuple"))
        return replace(
            self,
            lines=tuple(reversed(kept)),
            operands=tuple(o for o in self.operands if o[0] in wanted or o[0] == differentiable),
            parameters=tuple(p for p in self.parameters if p[0] in wanted),
        )


def compiled(text: str):
    """The loss that a spec's text declares."""
    scope = {name: getattr(language, name) for name in language.__all__} | {"loss": loss}
    exec(compile(text, "<fuzz>", "exec"), scope)
    return scope["fuzzed"]


class Writer:
    """Writes one random program."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.operands: list[tuple[str, str]] = []
        self.parameters: list[tuple[str, str]] = []
        self.values: list[Value] = []
        self.lines: list[Line] = []
        self.label: str | None = None
        self.row: str | None = None

    def write(self) -> Program:
        self.row_operands() if self.rng.random() < 0.7 else self.item_operands()
        for _ in range(self.rng.randint(2, 12)):
            self.step()
        items = [v for v in self.values if v.extent == ITEM and any(line.value is v for line in self.lines)]
        classes = [v for v in self.values if v.extent == CLASS and any(line.value is v for line in self.lines)]
        if not items or (classes and self.rng.random() < 0.3):
            source = (classes or [v for v in self.values if v.extent >= ITEM])[-1]
            items.append(self.reduced(source) if source.extent == CLASS else self.add("-{0}", source, low=-source.high, high=-source.low))
        output = items[-1]
        for other in items[-3:-1]:
            if self.rng.random() < 0.6:
                output = self.add("{0} + {1}", output, other, low=output.low + other.low, high=output.high + other.high)
        counts = self.rng.choice(items).name if self.rng.random() < 0.1 else None
        return Program(tuple(self.operands), tuple(self.parameters), tuple(self.lines), output.name, counts).needed()

    # --- operands ----------------------------------------------------------------------------------------------------

    def row_operands(self) -> None:
        for i in range(self.rng.choice((1, 1, 1, 2, 2, 3))):
            self.operand(f"x{i}", "Row", CLASS, -5, 5)
        self.row = "x0"
        if self.rng.random() < 0.6:
            self.operands.append(("y", "Index"))
            self.label = "y"
        if self.rng.random() < 0.25:
            self.operand("w", "ClassWeight", CLASS, 0.1, 2)
        if self.rng.random() < 0.25:
            self.operand("r", "PerRow", ITEM, 0, 1)
        self.uniforms()

    def item_operands(self) -> None:
        if self.rng.random() < 0.6:
            for i in range(self.rng.choice((1, 2, 2, 3))):
                self.operand(f"e{i}", "Elem", ITEM, -5, 5)
            if self.rng.random() < 0.3:
                self.operand("r", "PerRow", ITEM, 0, 1)
        elif self.rng.random() < 0.6:
            self.operands += [("p", "Box"), ("q", "Box")]
            for box in "pq":
                for part in ("x1", "y1", "x2", "y2", "w", "h", "cx", "cy", "area"):
                    self.values.append(Value(f"{box}.{part}", ITEM, -4, 16))
            for measure in ("intersection", "union", "center_distance2", "hull_diagonal2"):
                self.values.append(Value(f"{measure}(p, q)", ITEM, 0, 80))
        else:
            k = self.rng.randint(1, 5)
            self.operands.append(("u", f"Tuple[{k}]"))
            self.values += [Value(f"u[{i}]", ITEM, -5, 5) for i in range(k)]
        self.uniforms()

    def uniforms(self) -> None:
        if self.rng.random() < 0.2:
            self.operand("s", "Scalar = 1.0", UNIFORM, 0.5, 2)
        for i in range(self.rng.choice((0, 0, 1, 2))):
            kind = self.rng.choice(("float = 0.7", "float = 1.3", "float | Zero = 0.0", "float | Usual[2.0] = 2.0"))
            self.parameters.append((f"a{i}", kind))
            self.values.append(Value(f"a{i}", UNIFORM, 0, 2))

    def operand(self, name: str, kind: str, extent: int, low: float, high: float) -> None:
        self.operands.append((name, kind))
        self.values.append(Value(name, extent, low, high))

    # --- lines -------------------------------------------------------------------------------------------------------

    def add(self, text: str, *args: Value, low: float, high: float, extent: int | None = None) -> Value:
        extent = max(a.extent for a in args) if extent is None else extent
        value = Value(f"t{len(self.lines)}", extent, low, high)
        self.lines.append(Line(value, text, tuple(a.name for a in args)))
        self.values.append(value)
        return value

    def some(self, least: int = UNIFORM) -> Value:
        """A value, recent ones more likely."""
        fit = [v for v in self.values if v.extent >= least]
        return fit[max(self.rng.randrange(len(fit)), self.rng.randrange(len(fit)))]

    def step(self) -> None:
        kind = self.rng.random()
        along = [v for v in self.values if v.extent == CLASS]
        if along and kind < 0.3:
            self.over_the_row(self.some(CLASS))
        elif kind < 0.65:
            self.unary(self.some())
        else:
            self.binary(self.some(), self.some())

    def over_the_row(self, v: Value) -> None:
        if self.rng.random() < 0.5:
            self.reduced(v)
            return
        spread = v.high - v.low + 7
        text, low, high = self.rng.choice(
            (("log_softmax({0})", -spread, 0), ("softmax({0})", 0, 1), (f"position({self.row}) / classes({self.row})", 0, 1))
        )
        self.add(text, v, low=low, high=high)

    def reduced(self, v: Value) -> Value:
        mean = (f"sum({{0}}) / classes({self.row})", v.low, v.high)
        choices = [mean, mean, ("max({0})", v.low, v.high), ("logsumexp({0})", v.low, v.high + 7), ("{0}[0]", v.low, v.high)]
        choices.append((f"{{0}}[floor(0.99 * classes({self.row}))]", v.low, v.high))
        if self.label:
            choices += [(f"{{0}}[{self.label}]", min(v.low, 0), max(v.high, 0))] * 2
            choices.append((f"expectation({{0}}, {self.label})", min(v.low, 0), max(v.high, 0)))
        if any(n == "r" for n, _ in self.operands):
            choices.append((f"{{0}}[floor(r * 0.9 * classes({self.row}))]", min(v.low, 0), max(v.high, 0)))
        other = self.some(CLASS)
        reach = max(abs(v.low), abs(v.high)) * max(abs(other.low), abs(other.high))
        if reach < 500:
            choices.append((f"sum({{0}} * {{1}}) / classes({self.row})", -reach, reach))
            choices.append(("sum(softmax({1}) * {0})", min(v.low, 0), max(v.high, 0)))
            choices.append(("sum(share(softmax({1}), {0} - log_softmax({1})))", -abs(v.low) - 30, abs(v.high) + 30))
        text, low, high = self.rng.choice(choices)
        args = (v, other) if "{1}" in text else (v,)
        return self.add(text, *args, low=low, high=high, extent=ITEM)

    def unary(self, v: Value) -> Value:
        low, high = v.low, v.high
        reach = max(abs(low), abs(high))
        c = round(self.rng.uniform(-2, 2), 1)
        choices = [
            ("-{0}", -high, -low), ("abs({0})", 0, reach), ("tanh({0})", -1, 1), ("sigmoid({0})", 0, 1), ("atan({0})", -1.6, 1.6),
            ("softplus({0})", 0, max(high, 0) + 0.7), ("stop_gradient({0})", low, high),
            (f"clamp({{0}}, min={c})", max(low, c), max(high, c)), (f"clamp({{0}}, max={c})", min(low, c), min(high, c)),
            (f"where({{0}} > {c}, {{0}}, {c})", min(low, c), max(high, c)),
            ("exp({0})", 0, 403) if high < 6 else ("exp(-abs({0}))", 0, 1),
            ("expm1({0})", -1, 403) if high < 6 else ("expm1(-abs({0}))", -1, 0),
            ("log({0})", -4, 9) if low > 0.02 else ("log(abs({0}) + 0.5)", -0.7, 9),
            ("log1p({0})", -3, 9) if low > -0.9 else ("log1p(abs({0}))", 0, 9),
            ("sqrt({0})", 0.1, reach**0.5 + 1) if low > 0.02 else ("sqrt({0} * {0} + 0.1)", 0.3, reach + 1),
            ("asin(0.9 * tanh({0}))", -1.2, 1.2), ("acos(0.9 * tanh({0}))", 0.4, 2.7), (f"{{0}} * {c}", -2 * reach, 2 * reach),
        ]  # fmt: skip
        if reach < 30:
            choices += [("sin({0})", -1, 1), ("cos({0})", -1, 1), ("{0} ** 2", 0, reach**2), ("floor({0})", low - 1, high)]
        if low > 0.05 and high < 50:
            choices += [("{0} ** 0.7", 0, reach), ("1 / {0}", 0, 20), ("{0} ** -1.5", 0, 90)]
        if self.label and v.extent == CLASS:
            choices.append((f"where(onehot({self.label}), {{0}} + {c}, {{0}})", low - 2, high + 2))
        text, low, high = self.rng.choice(choices)
        return self.add(text, v, low=low, high=high)

    def binary(self, v: Value, u: Value) -> Value:
        a, b = max(abs(v.low), abs(v.high)), max(abs(u.low), abs(u.high))
        low, high = min(v.low, u.low), max(v.high, u.high)
        c, d = (round(self.rng.uniform(-2, 2), 1) for _ in range(2))
        choices = [
            ("{0} + {1}", v.low + u.low, v.high + u.high), ("{0} - {1}", v.low - u.high, v.high - u.low),
            ("maximum({0}, {1})", low, high), ("minimum({0}, {1})", low, high),
            ("where({0} > {1}, {0}, {1})", low, high), ("where({0} <= {1}, {0}, 0.5 * {1})", low - b, high + b),
            (f"where(({{0}} < {c}) & ({{1}} > {d}), {{0}}, {{1}})", low, high),
            (f"where(({{0}} > {c}) | ~({{1}} > {d}), {{0}}, {c})", low - 2, high + 2),
            ("atan2({0}, abs({1}) + 0.5)", -1.6, 1.6),
        ]  # fmt: skip
        if a * b < 1000:
            choices += [("{0} * {1}", -a * b, a * b)] * 3 + [("share({0}, {1})", -a * b, a * b)]
        if u.low > 0.2 or u.high < -0.2:
            choices += [("{0} / {1}", -5 * a, 5 * a)] * 2
        else:
            choices.append(("{0} / (1 + {1} * {1})", -a, a))
        if v.low > 0.1 and a < 20 and b < 3:
            choices += [("{0} ** {1}", 0, 8000)] * 2
        if self.label and max(v.extent, u.extent) == CLASS:
            choices.append((f"where(onehot({self.label}), {{0}}, {{1}})", low, high))
        text, low, high = self.rng.choice(choices)
        return self.add(text, v, u, low=low, high=high)


def random_program(seed: int) -> Program:
    return Writer(random.Random(seed)).write()
