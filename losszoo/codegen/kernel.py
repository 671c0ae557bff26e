"""A kernel to be: the choice of loss, what its operands are stored as, and how its loops are laid out."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache, cached_property

from losszoo.codegen.context import context
from losszoo.codegen.render import Rendered
from losszoo.codegen.storage import STORAGE
from losszoo.ir.expr import Extent, Type
from losszoo.ir.schedule import Program, program
from losszoo.jit import Buildable, Language
from losszoo.spec.declare import Choice, Spec, Traced
from losszoo.spec.operands import Row


@dataclass(frozen=True)
class Tiling:
    """How the threads of a CUDA kernel share its work, as far as that is compiled in. losszoo.runtime.tiling chooses it."""

    width: int = 1  # neighbours that a thread reads at once: classes of a row, positions of columns, items
    vectors: int = 1  # how many such reads a thread has in flight; of columns: from how many classes
    group: int = 0  # rows: threads that share a row, 0 for a whole block
    held: bool = False  # rows: a row fits in what its threads have in flight; columns: there are so many classes, no more and no less
    full: int = 0  # rows that are held: of those reads, how many lie within the row in every thread (of a skewed row: but for the first)
    skipping: bool = False  # rows that are held: look at a label before its row is read, which may be ignored
    skewed: bool = False  # rows: they may begin and end within a vector, all operands' alike
    ahead: bool = True  # rows and columns: the next reads are on their way while the last ones are computed on
    threads: int = 256  # of a block, at most
    wide: bool = False  # rows: so many classes that 32 bits do not count them
    lines: bool = False  # parts: the backward reads and writes from where a line of memory begins


@dataclass(frozen=True)
class Form:
    """What specialises a kernel beside the choice of loss."""

    lowering: str  # rows: classes side by side; parts: some of those; columns: classes a stride apart; items: no class axis
    dtypes: tuple[str, ...]  # of the operands that are given, in the order of the traced leaves
    real: str  # float32 or float64: what is computed and accumulated in
    wrt: tuple[str, ...]  # operands that get a gradient
    dense: bool = False  # items: every operand is packed
    tiling: Tiling = Tiling()  # CUDA
    reduced: bool = True  # CUDA: the losses are summed up; else they are written one by one
    wanted: tuple[str, ...] = ()  # CUDA: the functions to compile, which share a tiling; all, if none is named


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
        return scheduled(self.spec, self.choice, self.form.wrt, self.form.lowering == "parts")

    @cached_property
    def entries(self) -> tuple[str, ...]:
        """The functions that are launched. In parts, a pass folds its states, and all but the last merge them for the next to read."""
        if self.form.wanted:
            return self.form.wanted
        if self.form.lowering != "parts":
            return ("forward", "backward")
        passes = range(len(self.program.forward.passes))
        return (*(f"fold{i}" for i in passes), *(f"merge{i}" for i in passes[:-1]), "forward", "backward")

    @cached_property
    def states(self) -> tuple[int, ...]:
        """In parts: how many numbers a row has in the states of each pass."""
        return tuple(sum(acc.numbers for acc in run) for run in self.program.forward.passes)

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
            pointers.append((f"g_{name}", f"{STORAGE[self.storage[name]]}*"))
            if self.kinds[name] is Row:
                numbers += [f"sg_{name}_outer", f"sg_{name}_class"]
        for name in ("loss", "total", "denominator", "state"):
            pointers.append((name, f"{real}*"))
        pointers += [("normalizer", f"const {real}*"), ("grad_output", f"const {real}*")]
        pointers += [("partial", "double*"), ("status", "lz::int64*"), ("counter", "unsigned*")]
        if self.form.lowering == "parts":
            pointers += [("folded", f"{real}*"), ("gathered", f"const {real}*"), ("merged", f"{real}*")]
            numbers += ["offset", "local", "join", "parts"]
        code = "d" if real == "double" else "f"
        return (
            *(Field(n, c, "P") for n, c in pointers),
            *(Field(n, "lz::int64", "q") for n in numbers),
            *(Field(f"u_{n}", real, code) for n in self.parameters),
        )

    @cached_property
    def packer(self) -> struct.Struct:
        return struct.Struct("@" + "".join(f.code for f in self.fields) + "0q")

    def source(self, language: Language) -> Buildable:
        """The source in a language. The same kernel gives the same bytes in every process."""
        return Rendered(self.spec.name, language, context(self, language))


@cache
def scheduled(spec: Spec, choice: Choice, wrt: tuple[str, ...], parts: bool = False) -> Program:
    """The forward and backward plans of a loss, shared by all its forms (but those that see a part of the classes, which have others)."""
    traced = spec.trace(choice)
    return program(traced.outputs, [leaf for name in wrt for leaf in traced.leaves[name]], traced.absent, parts)
