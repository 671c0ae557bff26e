"""How a CUDA launch shares out its work, chosen by shape. Every threshold is here, with its reason; figures in benchmarks/RESULTS.md."""

from __future__ import annotations

from dataclasses import dataclass

from losszoo.codegen.kernel import Tiling

WARP = 32
SHORT = 16  # vectors of a row
BLOCK = 256  # threads for a row that no block can hold
LARGEST = 512  # threads of a block that holds a row
SINGLE = 512  # threads that a single block may have
FEW = 128  # rows: about one a multiprocessor
WIDE = 1 << 30  # classes that 32 bits do not count, with what may be added to them
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


@dataclass(frozen=True)
class PartsShape:
    """The same of kernels that see a part of the classes."""

    tiling: Tiling
    reading: Launch  # of those functions that read the part
    forward: Launch  # of those that have the states of rows alone


def rows(count: int, classes: int, width: int, skewed: bool, operands: int, multiprocessors: int) -> Shape:
    """Rows of so many classes, read `width` at a time, of so many operands with a class axis."""
    vectors = -(-classes // width) + skewed
    # A short row is held by few threads, so that many rows share an instruction; a longer one by as few as have the registers for it.
    in_flight = max(1, (2 if vectors <= SHORT else 8) // operands)
    team = max(2, power_of_two(-(-vectors // in_flight)))
    if team <= WARP:
        full = 0 if skewed else min(in_flight, classes // (width * team))
        single = count * team <= SINGLE  # one block needs no other to finish the sum; a backward has none to finish
        threads = max(WARP, power_of_two(count * team)) if single else 128
        tiling = Tiling(width, in_flight, team, True, full, False, skewed, max(threads, 128))
        if single:
            return Shape(tiling, Launch(1, threads), Launch(max(1, -(-count * team // WARP)), WARP))
        return _shape(tiling, -(-count * team // 128), 128, RESIDENT if vectors <= SHORT else RESIDENT // 2, multiprocessors)
    in_flight = max(1, 4 // operands)
    threads = power_of_two(-(-vectors // in_flight))
    if threads <= LARGEST:
        full = 0 if skewed else min(in_flight, classes // (width * threads))
        # Where rows are few they are sooner read than their labels looked at.
        tiling = Tiling(width, in_flight, 0, True, full, count > FEW, skewed, threads)
        return _shape(tiling, count, threads, RESIDENT, multiprocessors)
    tiling = Tiling(width, max(1, 2 // operands), skewed=skewed, threads=BLOCK, wide=classes >= WIDE)
    return _shape(tiling, count, BLOCK, RESIDENT * 3 // 4, multiprocessors)


def columns(count: int, classes: int, width: int, operands: int, multiprocessors: int) -> Shape:
    """Rows whose classes lie a stride apart, `width` neighbouring positions at a time."""
    width = min(width, max(1, 4 // operands))  # the state of each is in registers
    return _shape(Tiling(width, 5), -(-count // (256 * width)), 256, RESIDENT, multiprocessors)


def parts(count: int, local: int, width: int, skewed: bool, operands: int, multiprocessors: int) -> PartsShape:
    """Rows of which so many classes are here, read `width` at a time: a block a row. What has states alone: a thread a row."""
    in_flight = max(1, 2 // operands)
    threads = min(BLOCK, max(WARP, power_of_two(-(-local // (width * in_flight)))))
    tiling = Tiling(width, in_flight, skewed=skewed, threads=BLOCK, wide=local >= WIDE)
    by_rows = _shape(tiling, -(-count // BLOCK), BLOCK, RESIDENT, multiprocessors).forward
    return PartsShape(tiling, _shape(tiling, count, threads, RESIDENT * 3 // 4, multiprocessors).forward, by_rows)


def items(count: int, width: int, operands: int, multiprocessors: int) -> Shape:
    """Items without a class axis, `width` neighbours at a time."""
    in_flight = 2 if width > 1 else 1
    return _shape(Tiling(width, in_flight), -(-count // (256 * width * in_flight)), 256, RESIDENT, multiprocessors)


def _shape(tiling: Tiling, blocks: int, threads: int, resident: int, multiprocessors: int) -> Shape:
    """As many blocks as there is work for, and no more than are resident at once: each strides over the rest."""
    launch = Launch(max(1, min(blocks, multiprocessors * (resident // threads))), threads)
    return Shape(tiling, launch, launch)


def power_of_two(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()
