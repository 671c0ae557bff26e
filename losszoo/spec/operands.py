"""What a spec's signature can say: the kinds of operands, the runtime parameters and the static choices."""

from __future__ import annotations

from dataclasses import dataclass

from losszoo.ir.expr import Extent, Node, Type, leaf


@dataclass(frozen=True)
class Kind:
    """One kind of operand: what it varies along, how many numbers one item of it has, whether it gets a gradient."""

    name: str
    extent: Extent
    components: int | None = None  # None: a single value, with no axis for it
    type: Type = Type.REAL
    differentiable: bool = False
    meaning: str = ""

    def __or__(self, other: Kind) -> Union:
        return Union((self,)) | other

    def __repr__(self) -> str:
        return self.name

    def leaves(self, operand: str) -> tuple[Node, ...]:
        """The operand's values in the graph."""
        if self is Scalar:
            return (leaf("scalar", operand, Type.REAL, Extent.UNIFORM),)
        components = [None] if self.components is None else range(self.components)
        return tuple(leaf("operand", (operand, c), self.type, self.extent) for c in components)


@dataclass(frozen=True)
class Union:
    """`Index | Row`: an operand that comes as one kind or another."""

    kinds: tuple[Kind, ...]

    def __or__(self, other: Kind) -> Union:
        if not isinstance(other, Kind):
            raise TypeError(f"an operand is of one kind or another, not of {other!r}")
        return Union((*self.kinds, other))


Row = Kind("Row", Extent.CLASS, differentiable=True, meaning="a vector along the class axis")
Index = Kind("Index", Extent.ITEM, type=Type.INT, meaning="one class label a row")
ClassWeight = Kind("ClassWeight", Extent.CLASS, meaning="one value a class")
Elem = Kind("Elem", Extent.ITEM, differentiable=True, meaning="one value an element")
Box = Kind("Box", Extent.ITEM, components=4, differentiable=True, meaning="four numbers a box")
PerRow = Kind("PerRow", Extent.ITEM, meaning="one value a row")
Scalar = Kind("Scalar", Extent.UNIFORM, meaning="one number on the device")


class Tuple:
    """`Tuple[k]`: k numbers an item."""

    def __class_getitem__(cls, k: int) -> Kind:
        if not isinstance(k, int) or k < 1:
            raise TypeError(f"Tuple[k] takes a whole number of at least 1, got {k!r}")
        return Kind(f"Tuple[{k}]", Extent.ITEM, components=k, differentiable=True, meaning=f"{k} numbers an item")


@dataclass(frozen=True)
class Choices:
    """The values that a static argument may take."""

    values: tuple[object, ...]


class Static:
    """`Static[1, 2, 3]` or `Static["a", "b"]`: an argument that specialises the kernel, one of the values listed."""

    def __class_getitem__(cls, values: object) -> Choices:
        return Choices(values if isinstance(values, tuple) else (values,))


@dataclass(frozen=True)
class Operand:
    """A tensor argument. Where it may be left out, `default` is the number that stands for it."""

    name: str
    kinds: tuple[Kind, ...]
    default: float | None = None

    @property
    def optional(self) -> bool:
        return self.default is not None


@dataclass(frozen=True)
class Usual:
    """`float | Usual[2.0]`: a runtime number with a kernel of its own for one value, which is a plain number to the spec there."""

    value: float

    def __class_getitem__(cls, value: float) -> Usual:
        return cls(float(value))

    def __ror__(self, other: object) -> OwnKernel:
        if other is not float:
            raise TypeError(f"only float can stand before | {self}, not {other!r}")
        return OwnKernel((self.value,))


Zero = Usual(0.0)  # `float | Zero`: at 0 a part of the loss is switched off, and its kernel is built without it


@dataclass(frozen=True)
class OwnKernel:
    """The annotation of a runtime number: the values with kernels of their own."""

    values: tuple[None | float, ...]


@dataclass(frozen=True)
class Parameter:
    """A runtime number. Its value does not specialise the kernel, except for those fixed: None, or what Usual names."""

    name: str
    default: float | None
    required: bool = False
    fixed: tuple[None | float, ...] = ()

    def free(self, value: object) -> bool:
        return not any(value is fixed or value == fixed for fixed in self.fixed)


@dataclass(frozen=True)
class StaticArgument:
    name: str
    choices: tuple[object, ...]
    default: object
