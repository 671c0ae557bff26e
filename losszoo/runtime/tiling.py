"""How a CUDA launch shares out its work, chosen by shape. Every threshold is here, with its reason; figures in benchmarks/RESULTS.md."""

from __future__ import annotations

from dataclasses import dataclass, replace

from losszoo.codegen.kernel import Tiling

WARP = 32
SHORT = 16  # vectors of a row
BLOCK = 256  # threads for a row that no block can hold
LARGEST = 512  # threads of a block that holds a row
SINGLE = 512  # threads that a single block may have
FEW = 128  # rows: about one a multiprocessor
WIDE = 1 << 30  # classes that 32 bits do not count, with what may be added to them
HELD = 48  # values of columns that a thread can hold, and as many of the next ones
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
    # A short row is held by few threads, so that many rows share an instruction; a longer one by as few as have the registers for it.
    in_flight = max(1, (2 if vectors <= SHORT else 8) // operands)
    team = max(2, power_of_two(-(-vectors // in_flight)))
    if team <= WARP:
        full = min(in_flight, classes // (width * team))
        single = count * team <= SINGLE  # one block needs no other to finish the sum; a backward has none to finish
        threads = max(WARP, power_of_two(count * team)) if single else 128
        tiling = Tiling(width, in_flight, team, True, full, False, skewed, max(threads, 128))
        if single:
            return Shape(Launch(tiling, 1, threads), Launch(tiling, max(1, -(-count * team // WARP)), WARP))
        resident = RESIDENT if vectors <= SHORT or skewed else RESIDENT // 2
        return _both(tiling, -(-count * team // 128), 128, resident, multiprocessors)
    if count >= multiprocessors * RESIDENT // 2 // WARP:
        return Shape(
            _stepping(count, classes, Tiling(width, max(1, 2 // operands), WARP, skewed=skewed, threads=128), RESIDENT, multiprocessors),
            _stepping(count, classes, Tiling(width, max(1, 4 // operands), WARP, skewed=skewed, threads=256), RESIDENT // 2, multiprocessors),
        )
    in_flight = max(1, 4 // operands)
    threads = power_of_two(-(-vectors // in_flight))
    if threads <= LARGEST:
        full = min(in_flight, classes // (width * threads))
        # Where rows are few they are sooner read than their labels looked at.
        tiling = Tiling(width, in_flight, 0, True, full, count > FEW, skewed, threads)
        return _both(tiling, count, threads, RESIDENT, multiprocessors)
    launch = _stepping(count, classes, Tiling(width, max(1, 2 // operands), skewed=skewed, threads=BLOCK), RESIDENT * 3 // 4, multiprocessors)
    return Shape(launch, launch)


def _stepping(count: int, classes: int, tiling: Tiling, resident: int, multiprocessors: int) -> Launch:
    tiling = replace(tiling, wide=classes >= WIDE)
    return _launch(tiling, -(-count * (tiling.group or tiling.threads) // tiling.threads), tiling.threads, resident, multiprocessors)


def columns(count: int, classes: int, width: int, operands: int, multiprocessors: int) -> Shape:
    """Rows whose classes lie a stride apart, `width` neighbouring positions at a time."""
    width = min(width, max(1, 4 // operands))  # the state of each is in registers
    # Few classes are all held, of two or more positions: half of the threads then have twice as much in flight.
    held = [w for w in (4, 2) if w <= width and w * classes * operands <= HELD]
    if held:
        tiling = Tiling(held[0], max(1, classes), held=True)
        return _both(tiling, -(-count // (256 * held[0])), 256, RESIDENT // 2, multiprocessors)
    return _both(Tiling(width, 5), -(-count // (256 * width)), 256, RESIDENT, multiprocessors)


def parts(count: int, local: int, width: int, skewed: bool, operands: int, multiprocessors: int) -> PartsShape:
    """Rows of which so many classes are here, read `width` at a time. What has states alone: a thread a row."""
    vectors = -(-local // width) + skewed
    if vectors <= WARP or count >= multiprocessors * RESIDENT // 2 // WARP:
        fold = Tiling(width, max(1, 2 // operands), WARP, skewed=skewed, threads=128)
        backward, resident = Tiling(width, max(1, 4 // operands), WARP, skewed=skewed, threads=256), (RESIDENT, RESIDENT // 2)
    else:
        fold = backward = Tiling(width, max(1, 2 // operands), skewed=skewed, threads=BLOCK)
        resident = (RESIDENT * 3 // 4,) * 2
    launches = [_stepping(count, local, t, r, multiprocessors) for t, r in zip((fold, backward), resident, strict=True)]
    by_rows = _launch(launches[0].tiling, -(-count // fold.threads), fold.threads, RESIDENT, multiprocessors)
    return PartsShape(launches[0], by_rows, launches[1])


def items(count: int, width: int, operands: int, multiprocessors: int) -> Shape:
    """Items without a class axis, `width` neighbours at a time."""
    in_flight = 4 if width > 1 else 1
    return _both(Tiling(width, in_flight), -(-count // (256 * width * in_flight)), 256, 2 * RESIDENT, multiprocessors)


def _both(tiling: Tiling, blocks: int, threads: int, resident: int, multiprocessors: int) -> Shape:
    launch = _launch(tiling, blocks, threads, resident, multiprocessors)
    return Shape(launch, launch)


def _launch(tiling: Tiling, blocks: int, threads: int, resident: int, multiprocessors: int) -> Launch:
    """As many blocks as there is work for, and no more than are resident at once: each strides over the rest."""
    return Launch(tiling, max(1, min(blocks, multiprocessors * (resident // threads))), threads)


def power_of_two(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()
