"""How a CUDA launch shares out its work, chosen by shape. Every threshold is here, with its reason; figures in benchmarks/RESULTS.md."""

from __future__ import annotations

from dataclasses import dataclass, replace

from losszoo.codegen.kernel import Tiling

WARP = 32
SHORT = 16  # vectors of a row: several rows then share a warp, and few threads a row leave few of them idle
LARGEST = 512  # threads of a block that has a row
LONG = 2048  # vectors of a row that a block writes faster than a warp
LONGER = 16384  # of a row that a block also reads faster, as not every warp would have as much to read
SINGLE = 512  # threads that a single block may have
FEW = 128  # rows: about one a multiprocessor
COLUMNS = 8  # bytes of a class that a thread of columns reads at once: more would leave too few threads, as each position has a state
HELD = 192  # bytes of all classes that a thread of columns can hold
LONGEST = 65536  # vectors of a part's row that are so long on their way that the others' blocks wait for the last one
FLOATS = 48  # as many of them fit a thread's registers where three quarters of the threads are resident
WIDE = 1 << 30  # classes that 32 bits do not count, with what may be added to them
RESIDENT = 1024  # threads a multiprocessor: with their vectors in flight they hide the way to memory, and leave 64 registers each


@dataclass(frozen=True)
class Launch:
    tiling: Tiling
    grid: int
    threads: int


@dataclass(frozen=True)
class Shape:
    """How either direction is launched. Where their tilings are the same, so is their kernel."""

    forward: Launch
    backward: Launch


@dataclass(frozen=True)
class PartsShape:
    """The same of kernels that see a part of the classes."""

    fold: Launch
    forward: Launch  # of what has the states of rows alone
    backward: Launch


def rows(count: int, classes: int, width: int, skewed: bool, operands: int, multiprocessors: int) -> Shape:
    """Rows of so many classes, read `width` at a time, of so many operands with a class axis."""
    vectors = -(-classes // width) + skewed
    if vectors <= WARP * max(1, 8 // operands):
        return _held(count, classes, vectors, width, skewed, operands, multiprocessors)
    if count < multiprocessors * 8 and vectors <= LARGEST * max(1, 4 // operands):
        # A block a row. Where rows are few they are sooner read than their labels looked at.
        in_flight = max(1, 4 // operands)
        threads = power_of_two(-(-vectors // in_flight))
        tiling = Tiling(width, in_flight, 0, True, min(in_flight, classes // (width * threads)), count > FEW, skewed, threads=threads)
        return _both(tiling, count, threads, RESIDENT, multiprocessors)
    return _stepping(count, classes, vectors, width, skewed, operands, multiprocessors)


def _stepping(count: int, classes: int, vectors: int, width: int, skewed: bool, operands: int, multiprocessors: int) -> Shape:
    """A warp a row spends the fewest instructions where a row ends. A block a row writes long rows faster, and shares out few of them."""
    wide = classes >= WIDE
    many = Tiling(width, max(1, 4 // operands), WARP, skewed=skewed, threads=256, wide=wide)
    few = Tiling(width, max(1, 2 // operands), skewed=skewed, threads=LARGEST, wide=wide)
    long = replace(few, vectors=many.vectors)
    by_warps = launch(many, -(-count * WARP // 256), 256, RESIDENT // 2, multiprocessors)
    enough = count >= multiprocessors * 8
    return Shape(
        by_warps if enough and vectors <= LONGER else launch(few, count, LARGEST, RESIDENT, multiprocessors),
        by_warps if enough and vectors <= LONG else launch(long, count, LARGEST, RESIDENT, multiprocessors),
    )


def _held(count: int, classes: int, vectors: int, width: int, skewed: bool, operands: int, multiprocessors: int) -> Shape:
    """A team of a warp or less holds a row: as few threads as have the registers for it, so that many rows share an instruction."""

    def held(in_flight: int) -> Tiling:
        team = max(2, power_of_two(-(-vectors // in_flight)))
        full = min(in_flight, classes // (width * team))
        return Tiling(width, in_flight, team, True, full, False, skewed, threads=128)

    tiling = held(max(1, (2 if vectors <= SHORT else 8) // operands))
    needed = count * tiling.group
    if needed <= SINGLE:  # one block needs no other to finish the sum; a backward has none to finish
        threads = max(WARP, power_of_two(needed))
        tiling = replace(tiling, threads=max(threads, 128))
        return Shape(Launch(tiling, 1, threads), Launch(tiling, max(1, -(-needed // WARP)), WARP))
    if vectors > SHORT and needed <= multiprocessors * RESIDENT:  # every row has its threads at once: there is no next one to read
        threads = 256 if needed > multiprocessors * 256 else 128
        return _both(replace(tiling, ahead=False, threads=threads), -(-needed // threads), threads, RESIDENT, multiprocessors)
    if vectors > SHORT:
        return _both(tiling, -(-needed // 128), 128, RESIDENT if skewed else RESIDENT // 2, multiprocessors)
    # A forward of short rows has less to do a row than a backward, and wants fewer threads for it.
    forward, backward = held(max(1, 4 // operands)), replace(tiling, threads=256)
    return Shape(
        launch(forward, -(-count * forward.group // 128), 128, RESIDENT * 3 // 4, multiprocessors),
        launch(backward, -(-needed // 256), 256, RESIDENT, multiprocessors),
    )


def columns(count: int, classes: int, width: int, size: int, operands: int, multiprocessors: int) -> Shape:
    """Rows whose classes lie a stride apart, up to `width` neighbouring positions at a time, of operands of `size` bytes or more."""
    wide = min(width, max(1, COLUMNS // (size * operands)))
    if 0 < wide * size * classes * operands <= HELD:  # all reads of a tile are in flight at once, and need no others ahead of them
        tiling = Tiling(wide, classes, held=True, ahead=False)
        resident = RESIDENT * 3 // 4 if wide * classes * operands <= FLOATS else RESIDENT // 2
        return _both(tiling, -(-count // (256 * wide)), 256, resident, multiprocessors)
    forward = Tiling(wide, max(1, 10 // operands))
    backward = Tiling(min(width, max(1, 4 // operands)), max(1, 5 // operands))  # which has no state, but writes
    return Shape(*(launch(t, -(-count // (256 * t.width)), 256, RESIDENT, multiprocessors) for t in (forward, backward)))


def parts(count: int, local: int, width: int, skewed: bool, operands: int, multiprocessors: int) -> PartsShape:
    """Rows of which so many classes are here, read `width` at a time. What has states alone: a thread a row."""
    vectors = -(-local // width) + skewed
    reading = _stepping(count, local, vectors, width, skewed, operands, multiprocessors)
    tiling, backward = reading.forward.tiling, reading.backward
    by_threads = launch(tiling, -(-count // tiling.threads), tiling.threads, RESIDENT, multiprocessors)
    if vectors > LONGEST:  # a block a row: the next one begins wherever one ends; and lines that are written whole are not read first
        backward = Launch(replace(backward.tiling, lines=True), max(1, count), backward.threads)
    return PartsShape(reading.forward, by_threads, backward)


def items(count: int, width: int, multiprocessors: int) -> Shape:
    """Items without a class axis, `width` neighbours at a time."""
    # A forward has registers for more of them at once; a backward, which writes as well, is faster with more threads.
    in_flight, resident = (4, RESIDENT) if width > 1 else (1, 2 * RESIDENT)
    forward, backward = Tiling(width, in_flight), Tiling(width, 1)
    return Shape(
        launch(forward, -(-count // (256 * width * in_flight)), 256, resident, multiprocessors),
        launch(backward, -(-count // (256 * width)), 256, 2 * RESIDENT, multiprocessors),
    )


def _both(tiling: Tiling, blocks: int, threads: int, resident: int, multiprocessors: int) -> Shape:
    both = launch(tiling, blocks, threads, resident, multiprocessors)
    return Shape(both, both)


def launch(tiling: Tiling, blocks: int, threads: int, resident: int, multiprocessors: int) -> Launch:
    """As many blocks as there is work for, and no more than are resident at once: each strides over the rest, all equally often."""
    turns = -(-blocks // (multiprocessors * (resident // threads)))
    return Launch(tiling, max(1, -(-blocks // max(1, turns))), threads)


def power_of_two(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()
