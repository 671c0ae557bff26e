"""What a template is given: the statements of each scope as text, the operands, the argument struct. Plain data, no nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from losszoo.codegen.printer import C_TYPE, Scope, needed
from losszoo.codegen.storage import STORAGE
from losszoo.ir.expr import CLASSES, POSITION, SMALLEST, UPSTREAM, Extent, Node, topological
from losszoo.ir.monoid import Accumulator
from losszoo.ir.schedule import Plan
from losszoo.spec.operands import ClassWeight, Row, Scalar

SLOW = frozenset("exp exp_falling log log1p log1p_unit expm1 pow reciprocal div tanh sin cos asin acos atan atan2".split())

if TYPE_CHECKING:
    from losszoo.codegen.kernel import Kernel


def context(kernel: Kernel, language: str) -> dict:
    """The data that a kernel's template is rendered with, in a language."""
    form = kernel.form
    tiled, stepped = form.lowering == "columns", form.lowering == "items" and language == "cpp"
    data = {
        "name": kernel.spec.name,
        "lowering": form.lowering,
        "headers": ["math", "item", "monoid", "device" if language == "cuda" else "host", *["parts"] * (form.lowering == "parts")],
        "real": STORAGE[form.real],
        "dense": form.dense,
        "tiling": asdict(form.tiling),
        "entries": kernel.entries,
        "reduced": form.reduced if language == "cuda" and form.lowering != "parts" else None,  # None: known at run time
        "fields": [{"c": f.c, "name": f.name} for f in kernel.fields],
        "rows": [{"name": n, "c": STORAGE[kernel.storage[n]]} for n in kernel.names(Row)],
        "class_weights": kernel.names(ClassWeight),
        "row_types": {n: STORAGE[kernel.storage[n]] for n in kernel.names(Row)},
        "per_item": [_item(kernel, n) for n in kernel.item_operands],
        "labels": kernel.labels,
        "scalars": kernel.names(Scalar),
        "parameters": kernel.parameters,
    }
    forward, backward = (_Printed(kernel, plan, tiled, stepped) for plan in (kernel.program.forward, kernel.program.backward))
    return data | {"forward": forward.loss(), "backward": backward.gradients(), "grads": backward.grads}


def _item(kernel: Kernel, name: str) -> dict:
    """An operand with one value (or a few components) an item, and where they lie."""
    leaves = kernel.traced.leaves[name]
    packed = kernel.form.lowering == "items" and kernel.form.dense
    components = []
    for i, leaf in enumerate(leaves):
        place = f"* {len(leaves)} + {i}" if packed else f"* a.s_{name}_item + {i} * a.s_{name}_component"
        components.append({"name": _name(leaf), "place": place})
    return {"name": name, "components": components, "c": STORAGE[kernel.storage[name]], "value": C_TYPE[leaves[0].type]}


class _Printed:
    """One direction of a kernel as text: what is computed once, once an item, and once a class in each pass."""

    def __init__(self, kernel: Kernel, plan: Plan, tiled: bool, stepped: bool) -> None:
        self.kernel, self.plan = kernel, plan
        self.singles = [_item(kernel, n) for n in kernel.item_operands]
        self.backward = plan is kernel.program.backward
        self.lane = "l" if tiled else "0"
        self.tiled = tiled
        self.roots = [*(n for run in plan.passes for acc in run for n in acc.roots), *plan.outputs.values(), *plan.state]
        uniform = Scope(self._leaves(), Extent.UNIFORM)
        stored = [kernel.storage[n] for n in kernel.form.wrt]
        rough = self.backward and all(s in ("float16", "bfloat16") for s in stored)  # only what is rounded to 16 bits comes of it
        self.text: dict = {"uniform": uniform.emit(self.roots), "rough": rough, "state": [f"s{i}" for i in range(len(plan.state))]}
        self.item = uniform.inner(Extent.ITEM)
        # A tile (columns) keeps what a loop over its lanes computes for the loops after it.
        self.kept: list[dict] = []
        self.text["stages"] = stages = []
        results: list[dict] = []
        for number, run in enumerate(plan.passes):
            stage = self._section(results, first=number == 0) | {"body_kept": list(self.kept)}
            body = self.item.inner(Extent.CLASS)
            inputs = [n for acc in run for n in acc.inputs]
            stage |= {"loads": self._loads(inputs, body), "body": body.emit(inputs), "accumulators": []}
            results = []
            for i, acc in enumerate(run):
                name = f"acc{number}_{i}"
                stage["accumulators"].append(self._accumulator(name, acc, body))
                results += self._results(name, acc)
            stage["results"] = [line["line"] for line in results]
            stages.append(stage)
        if stepped:
            self.text["steps"] = self._steps()
        self.text |= self._section(results, first=not stages) | {"final_kept": self.kept}

    def _steps(self) -> list[dict]:
        """Split the work on an item where a long function waits for another, one loop a step: within a loop they overlap.

        A processor looks some 250 instructions ahead, which is no more than one or two items of a loss with three exponentials.
        Each step says which values it reads that earlier ones kept, and keeps what later ones read.
        """
        level: dict[Node, int] = {}
        for node in topological(self.roots):
            level[node] = max((level[a] for a in node.args), default=0) + (node.op in SLOW and node.extent is Extent.ITEM)
        defined = [{"c": i["value"], "name": c["name"]} for i in self.singles for c in i["components"]]
        steps: list[dict[str, Any]] = []
        for step in range(1, max(1, *level.values()) + 1):
            known = set(self.item.names)
            lines = self.item.emit(self.roots, lambda node, step=step: level[node] <= step)  # type: ignore[misc]
            defined += [{"c": C_TYPE[n.type], "name": t} for n, t in self.item.names.items() if n not in known]
            steps.append({"lines": lines, "defines": defined})
            defined = []
        for i, printed in enumerate(steps):
            outputs = [self.item.text(n) for n in self.plan.outputs.values()] if i == len(steps) - 1 else []
            earlier = [d for s in steps[:i] for d in s["defines"]] + [{"c": "R", "name": "upstream"}] * self.backward
            printed["reads"] = _used(earlier, [*printed["lines"], *outputs])
        for i, printed in enumerate(steps):
            later = {d["name"] for s in steps[i + 1 :] for d in s["reads"]}
            printed["keeps"] = [d for d in printed.pop("defines") if d["name"] in later]
        return steps

    def _first_loads(self, last: Iterable[str] = ()) -> list[str]:
        """The rows that are read ahead: those of the first loop over a row, or of all of them where the row is held."""
        if not self.kernel.form.tiling.ahead:
            return []
        loops = [*(stage["loads"] for stage in self.text["stages"]), last]
        loops = [names for names in loops if names]
        read = {n for names in (loops if self.kernel.form.tiling.held else loops[:1]) for n in names}
        return [n for n in self.kernel.names(Row) if n in read]

    def loss(self) -> dict:
        outputs = self.plan.outputs
        self.text["first_loads"] = self._first_loads()
        self.text |= {
            "loss": self.item.text(outputs["loss"]),
            "counts": self.item.text(outputs["counts"]),
            "state": [self.item.text(n) for n in self.plan.state],
        }
        self._forget([self.text["loss"], self.text["counts"], *self.text["state"]])
        return self.text

    def gradients(self) -> dict:
        body = self.item.inner(Extent.CLASS)
        leaves = self.kernel.program.gradients
        along = [g for leaf, g in zip(leaves, self.plan.outputs.values(), strict=True) if leaf.extent is Extent.CLASS]
        self.text |= {"loads": self._loads(along, body), "body": body.emit(along), "stores": bool(along)}
        self.text["places"] = sorted(set(body.places))
        self.text["first_loads"] = self._first_loads(self.text["loads"])
        self.grads: list[dict[str, Any]] = []
        outputs = iter(self.plan.outputs.values())
        for name in self.kernel.form.wrt:
            row = self.kernel.traced.leaves[name][0].extent is Extent.CLASS
            scope = body if row else self.item
            components = [self._selected(scope.text(next(outputs))) for _ in self.kernel.traced.leaves[name]]
            self.grads.append({"name": name, "row": row, "c": STORAGE[self.kernel.storage[name]], "components": components})
        self.text["per_item"] = any(not g["row"] for g in self.grads)
        self._forget([*self.text["body"], *(c["text"] for g in self.grads for c in g["components"])])
        return self.text

    def _selected(self, text: str) -> dict:
        """A gradient, and what it is where rows are not skipped: 0 for an ignored row, nan for a stray label."""
        selected = f"ignored ? R(0) : stray ? lz::nan<R>() : {text}" if self.kernel.labels else text
        return {"text": text, "selected": selected}

    def _leaves(self) -> dict[Node, str]:
        names: dict[Node, str] = {CLASSES: "classes", POSITION: "(base + k)", SMALLEST: "lz::smallest<R>()"}
        for leaves in self.kernel.traced.leaves.values():
            for leaf in leaves:
                names[leaf] = _name(leaf)
        for node in self.plan.nodes():
            if node.op == "param":
                names[node] = f"u_{node.attr}"
        if self.backward:
            names[UPSTREAM] = "upstream"
            names |= {node: f"s{i}" for i, node in enumerate(self.plan.state)}
        return names

    def _section(self, results: list[dict], first: bool) -> dict:
        """The statements of the item scope that can be computed by now, after the results of the pass before."""
        before, known = list(self.kept), set(self.item.names)
        lines = self.item.emit(self.roots)
        if self.tiled:
            lines = [r["line"] for r in results] + lines
            self.kept += results
            if first and self.backward:
                self.kept += [{"c": "R", "name": n} for n in ("upstream", *self.text["state"])]
            self.kept += [{"c": C_TYPE[n.type], "name": t} for n, t in self.item.names.items() if n not in known]
        return {"item": {"lines": lines, "defines": self.kept[len(before) :]}, "kept": before, "first": first}

    def _forget(self, last: list[str]) -> None:
        """Of what a tile keeps, leave what the loops after it use. `last` is the text of the last of them."""
        sections = [*self.text["stages"], self.text]
        for stage in self.text["stages"]:
            inputs = [i for acc in stage["accumulators"] for i in acc["inputs"]]
            stage["body_kept"] = _used(stage["body_kept"], [*stage["body"], *inputs])
        for section in sections:
            section["kept"] = _used(section["kept"], section["item"]["lines"])
        self.text["final_kept"] = _used(self.text["final_kept"], last)
        kept = {d["name"] for s in sections for k in ("kept", "body_kept", "final_kept") for d in s.get(k, ())}
        for section in sections:
            section["item"]["defines"] = [d for d in section["item"]["defines"] if d["name"] in kept]

    def _accumulator(self, name: str, acc: Accumulator, body: Scope) -> dict:
        inputs = [body.text(n) for n in acc.inputs]
        real = STORAGE[self.kernel.form.real]
        lies = [n.op == "operand" and n.extent is Extent.CLASS and STORAGE[self.kernel.storage[n.attr[0]]] == real for n in acc.inputs]
        printed: dict[str, Any] = {"name": name, "type": acc.monoid, "inputs": inputs, "padding": list(acc.padding)}
        printed["operands"] = [n.attr[0] for n in acc.inputs] if all(lies) else []  # where the inputs lie as they are folded
        if self.kernel.form.lowering == "parts":
            found = acc.found and {"operand": acc.found.args[0].attr[0], "index": body.text(acc.found.args[1])}
            printed |= {"numbers": acc.numbers, "found": found}
        return printed

    def _results(self, name: str, acc: Accumulator) -> list[dict]:
        results = []
        for node, projection in acc.results:
            result = f"r{len(self.item.names)}"
            self.item.names[node] = result
            results.append({"c": "R", "name": result, "line": f"const R {result} = {name}.{projection}{self.lane});"})
        return results

    def _loads(self, roots: Iterable[Node], scope: Scope) -> list[str]:
        """The operands with a class axis that the roots read, beside what the scope knows."""
        known = {n: t for n, t in scope.names.items() if n.extent < Extent.CLASS}
        return [n.attr[0] for n in needed(roots, known) if n.op == "operand"]


def _used(values: list[dict], lines: Iterable[str]) -> list[dict]:
    """The values whose names occur in the text."""
    words = set(re.findall(r"\w+", " ".join(lines)))
    return [v for v in values if v["name"] in words]


def _name(leaf: Node) -> str:
    """An operand's value in C. The part before the first underscore is ours, so no name that a user gives can clash."""
    if leaf.op == "scalar":
        return f"u_{leaf.attr}"
    name, component = leaf.attr
    return f"v{'' if component is None else component}_{name}"
