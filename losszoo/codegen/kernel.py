"""A kernel to be: the choice of loss, what its operands are stored as, and how its loops are laid out. Rendered to source text."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from losszoo.codegen.printer import Scope, needed
from losszoo.codegen.render import template
from losszoo.ir.expr import CLASSES, POSITION, UPSTREAM, Extent, Node, Type
from losszoo.ir.schedule import Plan, Program, program
from losszoo.jit import Source
from losszoo.spec.declare import Choice, Spec, Traced
from losszoo.spec.operands import ClassWeight, Row, Scalar

STORAGE = {"float64": "double", "float32": "float", "float16": "lz::half", "bfloat16": "lz::bfloat16", "int64": "lz::int64"}
SIZE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8}


@dataclass(frozen=True)
class Form:
    """What specialises a kernel beside the choice of loss."""

    lowering: str  # rows: classes side by side; columns: classes a stride apart; items: no class axis
    dtypes: tuple[str, ...]  # of the operands that are given, in the order of the traced leaves
    real: str  # float32 or float64: what is computed and accumulated in
    wrt: tuple[str, ...]  # operands that get a gradient
    dense: bool  # items: every operand is packed; CUDA rows: every row begins at a multiple of 16 bytes


@dataclass(frozen=True)
class Field:
    """One member of the argument struct."""

    name: str
    c: str
    code: str  # of the struct module


@dataclass(frozen=True, eq=False)
class Kernel:
    """The forward and the backward of one loss in one form: its program, its arguments, its source in either language."""

    spec: Spec
    choice: Choice
    form: Form

    @cached_property
    def traced(self) -> Traced:
        return self.spec.trace(self.choice)

    @cached_property
    def program(self) -> Program:
        return scheduled(self.spec, self.choice, self.form.wrt)

    @cached_property
    def kinds(self) -> dict[str, object]:
        given = zip(self.spec.operands, self.choice.kinds, strict=True)
        return {operand.name: kind for operand, kind in given if kind is not None}

    def names(self, *kinds: object) -> list[str]:
        return [name for name, kind in self.kinds.items() if kind in kinds]

    @cached_property
    def storage(self) -> dict[str, str]:
        return dict(zip(self.traced.leaves, self.form.dtypes, strict=True))

    @cached_property
    def item_operands(self) -> list[str]:
        return [n for n, leaves in self.traced.leaves.items() if leaves[0].extent is Extent.ITEM]

    @cached_property
    def labels(self) -> list[str]:
        return [n for n in self.item_operands if self.traced.leaves[n][0].type is Type.INT]

    @cached_property
    def parameters(self) -> list[str]:
        return [p.name for p, present in zip(self.spec.parameters, self.choice.present, strict=True) if present]

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The argument struct, the same for both directions and both languages."""
        real = STORAGE[self.form.real]
        pointers: list[tuple[str, str]] = []
        numbers = ["rows", "classes", "inner", "grain", "mean", "ignore_index", "grad_output_item"]
        for name, dtype in self.storage.items():
            pointers.append((f"p_{name}", f"const {STORAGE[dtype]}*"))
        for name in self.names(Row):
            numbers += [f"s_{name}_outer", f"s_{name}_class"]
        for name in self.item_operands:
            numbers += [f"s_{name}_item", f"s_{name}_component"]
        for name in self.form.wrt:
            pointers.append((f"p_grad_{name}", f"{STORAGE[self.storage[name]]}*"))
            if self.kinds[name] is Row:
                numbers += [f"s_grad_{name}_outer", f"s_grad_{name}_class"]
        for name in ("loss", "total", "denominator", "state"):
            pointers.append((name, f"{real}*"))
        pointers += [("normalizer", f"const {real}*"), ("grad_output", f"const {real}*")]
        pointers += [("partial", "double*"), ("status", "lz::int64*"), ("counter", "unsigned*")]
        code = "d" if real == "double" else "f"
        return (
            *(Field(n, c, "P") for n, c in pointers),
            *(Field(n, "lz::int64", "q") for n in numbers),
            *(Field(f"u_{n}", real, code) for n in self.parameters),
        )

    @cached_property
    def packer(self) -> struct.Struct:
        return struct.Struct("@" + "".join(f.code for f in self.fields) + "0q")

    def source(self, language: str) -> Source:
        """The rendered text. The same kernel gives the same bytes in every process."""
        suffix = {"cpp": "cpu/{}.cpp.j2", "cuda": "cuda/{}.cu.j2"}[language]
        text = template(suffix.format(self.form.lowering)).render(k=_Context(self, language))
        return Source(self.spec.name, language, "\n".join(line for line in text.splitlines() if line.strip()) + "\n")


@lru_cache(maxsize=None)
def scheduled(spec: Spec, choice: Choice, wrt: tuple[str, ...]) -> Program:
    """The forward and backward plans of a loss, shared by all its forms."""
    traced = spec.trace(choice)
    return program(traced.outputs, [leaf for name in wrt for leaf in traced.leaves[name]], spec.row)


@dataclass(frozen=True)
class Section:
    """Statements of one scope, and the values that they define."""

    lines: list[str]
    defines: list[dict]


class _Context:
    """What a template sees as `k`."""

    def __init__(self, kernel: Kernel, language: str) -> None:
        self.kernel, self.language = kernel, language
        form = kernel.form
        self.name, self.lowering, self.fields, self.labels = kernel.spec.name, form.lowering, kernel.fields, kernel.labels
        self.real, self.dense = STORAGE[form.real], form.dense
        self.headers = ["math", "item", "monoid", "device" if language == "cuda" else "host"]
        self.rows = [{"name": n, "c": STORAGE[kernel.storage[n]]} for n in kernel.names(Row)]
        self.class_weights = kernel.names(ClassWeight)
        self.scalars, self.parameters = kernel.names(Scalar), kernel.parameters
        self.items = [self._item(n) for n in kernel.item_operands]
        self.chunk = self._chunk()
        self.forward = self._plan(kernel.program.forward, backward=False)
        self.backward = self._plan(kernel.program.backward, backward=True)

    def _item(self, name: str) -> dict:
        leaves = self.kernel.traced.leaves[name]
        packed = self.form_is_packed
        components = []
        for i, leaf in enumerate(leaves):
            place = f"* {len(leaves)} + {i}" if packed else f"* a.s_{name}_item + {i} * a.s_{name}_component"
            components.append({"suffix": _suffix(leaf), "address": f"a.p_{name} + row {place}", "at_first": f"a.p_{name} + first {place}"})
        return {"name": name, "components": components, "value": "lz::int64" if leaves[0].type is Type.INT else "R"}

    @property
    def form_is_packed(self) -> bool:
        return self.lowering == "items" and self.dense

    def _chunk(self) -> int:
        """Classes or items that a CUDA thread takes at once: sixteen bytes of the narrowest operand, one if they are scattered."""
        storage = self.kernel.storage
        if self.lowering == "columns":
            return 4
        if not self.dense:
            return 1
        if self.lowering == "rows":
            return 16 // min(SIZE[storage[r["name"]]] for r in self.rows)
        widest = max(SIZE[storage[i["name"]]] * len(i["components"]) for i in self.items)
        return max(1, 16 // widest)

    def selected(self, text: str) -> str:
        """A gradient where rows are not skipped but computed side by side: 0 for an ignored row, nan for a stray label."""
        return f"ignored ? R(0) : stray ? lz::nan<R>() : {text}" if self.labels else text

    def _names(self, plan: Plan, backward: bool) -> dict[Node, str]:
        names: dict[Node, str] = {CLASSES: "classes", POSITION: "(base + k)"}
        for name, leaves in self.kernel.traced.leaves.items():
            for leaf in leaves:
                names[leaf] = f"u_{name}" if leaf.op == "scalar" else f"v_{name}{_suffix(leaf)}"
        for node in plan.nodes():
            if node.op == "param":
                names[node] = f"u_{node.attr}"
        if backward:
            names[UPSTREAM] = "upstream"
            names |= {node: f"s{i}" for i, node in enumerate(plan.state)}
        return names

    def _plan(self, plan: Plan, backward: bool) -> dict:
        tiled = self.language == "cpp" and self.lowering == "columns"
        names = self._names(plan, backward)
        roots = [*(n for run in plan.passes for acc in run for n in acc.inputs), *plan.outputs.values(), *plan.state]
        uniform = Scope(names, Extent.UNIFORM)
        lines = uniform.emit(roots)
        item = uniform.inner(Extent.ITEM)
        # A tile keeps what a loop over its lanes computes for the loops after it.
        kept: list[dict] = []
        loaded = [{"c": "R", "name": n} for n in ("upstream", *(f"s{i}" for i in range(len(plan.state))))] if backward else []
        results: list[str] = []
        stages = []
        for number, run in enumerate(plan.passes):
            before = list(kept)
            section = self._section(item, roots, results if tiled else [], loaded if tiled and number == 0 else [])
            kept += section.defines
            body = item.inner(Extent.CLASS)
            stage = {
                "item": section, "kept": before, "body_kept": list(kept), "first": number == 0,
                "loads": self._loads(acc_input for acc in run for acc_input in acc.inputs)(body),
                "body": body.emit(n for acc in run for n in acc.inputs),
            }  # fmt: skip
            stage["accumulators"], results = [], []
            lane = "l" if tiled else "0"
            for i, acc in enumerate(run):
                name = f"acc{number}_{i}"
                stage["accumulators"].append(
                    {"name": name, "type": acc.monoid, "inputs": [body.text(n) for n in acc.inputs], "padding": acc.padding}
                )
                for node, projection in acc.results:
                    result = f"r{len(item.names)}"
                    results.append(f"const R {result} = {name}.{projection}{lane});")
                    item.names[node] = result
            stage["results"] = results
            stages.append(stage)
        before = list(kept)
        section = self._section(item, roots, results if tiled else [], loaded if tiled and not plan.passes else [])
        kept += section.defines
        context = {"uniform": lines, "stages": stages, "item": section, "kept": before, "final_kept": kept, "first": not plan.passes}
        if not backward:
            context |= {"loss": item.text(plan.outputs["loss"]), "counts": item.text(plan.outputs["counts"])}
            return context | {"state": [item.text(n) for n in plan.state]}
        body = item.inner(Extent.CLASS)
        along = [g for leaf, g in zip(self.kernel.program.gradients, plan.outputs.values(), strict=True) if leaf.extent is Extent.CLASS]
        context |= {"loads": self._loads(along)(item), "body": body.emit(along), "state": plan.state}
        self.grads = []
        outputs = iter(plan.outputs.values())
        for name in self.kernel.form.wrt:
            leaves = self.kernel.traced.leaves[name]
            row = leaves[0].extent is Extent.CLASS
            scope = body if row else item
            components = [{"text": scope.text(next(outputs))} for _ in leaves]
            self.grads.append({"name": name, "row": row, "c": STORAGE[self.kernel.storage[name]], "components": components})
        return context | {"stores": bool(along), "scalars": any(not g["row"] for g in self.grads)}

    def _section(self, item: Scope, roots: list[Node], results: list[str], loaded: list[dict]) -> Section:
        before = set(item.names)
        lines = results + item.emit(roots)
        defines = loaded + [_defined(line) for line in results]
        for node, name in item.names.items():
            if node not in before:
                defines.append({"c": {Type.REAL: "R", Type.INT: "lz::int64", Type.BOOL: "bool"}[node.type], "name": name})
        return Section(lines, defines)

    def _loads(self, roots: Iterable[Node]):
        """Which operands with a class axis the roots read, given what a scope knows besides."""
        roots = list(roots)

        def loads(scope: Scope) -> list[str]:
            known = {n: t for n, t in scope.names.items() if n.extent < Extent.CLASS}
            return [n.attr[0] for n in needed(roots, known) if n.op == "operand"]

        return loads


def _suffix(leaf: Node) -> str:
    component = leaf.attr[1] if leaf.op == "operand" else None
    return "" if component is None else f"_{component}"


def _defined(line: str) -> dict:
    _, c, name, *_ = line.split()
    return {"c": c, "name": name}
