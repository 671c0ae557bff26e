"""How a CUDA launch shares out its work, chosen by shape. Every threshold is here, with its reason; figures in benchmarks/RESULTS.md."""

from __future__ import annotations

from dataclasses import dataclass

from losszoo.codegen.kernel import Tiling

WARP = 32
SHORT = 16  # vectors of a row
BLOCK = 256  # threads for a row that no block can hold: four such blocks a multiprocessor take turns at waiting
LARGEST = 512  # threads of a block that holds a row
SINGLE = 512  # threads that a single block may have
RESIDENT = 1024  # threads a multiprocessor: with their vectors in flight they hide the way to memory, and leave 64 registers each


@dataclass(frozen=True)
class Launch:
    grid: int
    threads: int


@dataclass(frozen=True)
class Shape:
    """A kernel's tiling and its launches."""

    tiling: Tiling
    forward: Launch
    backward: Launch


def rows(count: int, classes: int, width: int, skewed: bool, operands: int, multiprocessors: int) -> Shape:
    """Rows of so many classes, read `width` at a time, of so many operands with a class axis."""
    vectors = -(-classes // width) + skewed
    # A short row is held by few threads, so that many rows share an instruction; a long one by as few as have the registers for it.
    in_flight = max(1, (4 if vectors <= SHORT else 8) // operands)
    team = max(2, power_of_two(-(-vectors // in_flight)))
    full = 0 if skewed else min(in_flight, classes // (width * team))
    if team <= WARP:
        skipping = team == WARP and count > multiprocessors  # a few rows are sooner read than their labels looked at
        single = count * team <= SINGLE  # one block needs no other to finish the sum; a backward has none to finish
        threads = max(WARP, power_of_two(count * team)) if single else 128
        tiling = Tiling(width, in_flight, team, True, full, skipping, skewed, max(threads, 128))
        several = _launch(-(-count * team // 128), 128, multiprocessors)
        if single:
            return Shape(tiling, Launch(1, threads), Launch(-(-count * team // WARP), WARP))
        return Shape(tiling, several, several)
    in_flight = max(1, 4 // operands)
    team = max(64, power_of_two(-(-vectors // in_flight)))
    held = team <= LARGEST
    threads = team if held else BLOCK
    full = 0 if skewed or not held else min(in_flight, classes // (width * team))
    tiling = Tiling(width, in_flight if held else 3, 0, held, full, held and count > multiprocessors, skewed, threads)
    launch = _launch(count, threads, multiprocessors)
    return Shape(tiling, launch, launch)


def columns(count: int, classes: int, width: int, operands: int, multiprocessors: int) -> Shape:
    """Rows whose classes lie a stride apart, `width` neighbouring positions at a time."""
    in_flight = 16 if classes > 32 else 10
    while width * in_flight * operands > 64 and width > 1:
        width //= 2
    launch = _launch(-(-count // (256 * width)), 256, multiprocessors)
    return Shape(Tiling(width, in_flight), launch, launch)


def items(count: int, width: int, operands: int, multiprocessors: int) -> Shape:
    """Items without a class axis, `width` neighbours at a time."""
    in_flight = 2 if width > 1 else 1
    launch = _launch(-(-count // (256 * width * in_flight)), 256, multiprocessors)
    return Shape(Tiling(width, in_flight), launch, launch)


def _launch(blocks: int, threads: int, multiprocessors: int) -> Launch:
    """As many blocks as there is work for, and no more than are resident at once: each strides over the rest."""
    return Launch(max(1, min(blocks, multiprocessors * (RESIDENT // threads))), threads)


def power_of_two(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()
