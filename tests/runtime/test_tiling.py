"""Whatever the shape, a launch covers its work: what is compiled into a kernel holds for the rows that it is chosen for."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from losszoo.runtime import tiling

counts = st.integers(0, 300) | st.integers(0, 1 << 22)
widths = st.sampled_from((1, 2, 4, 8))
processors = st.integers(1, 200)
# As many classes as some threads hold exactly, or nearly.
edges = st.tuples(st.integers(0, 15), st.integers(-9, 9)).map(lambda at: max(1, (1 << at[0]) + at[1]))


def launched(shape: tiling.Shape) -> None:
    for launch in (shape.forward, shape.backward):
        assert launch.grid >= 1 and 32 <= launch.threads <= launch.tiling.threads <= 1024
        assert launch.threads & (launch.threads - 1) == 0


@settings(max_examples=300)
@given(counts, edges | st.integers(1, 5000) | st.integers(1, 1 << 31), widths, st.booleans(), st.integers(1, 4), processors)
def test_rows(count, classes, width, skewed, operands, multiprocessors):
    if not skewed:
        classes = -(-classes // width) * width  # else the rows would not all begin at a vector
    shape = tiling.rows(count, classes, width, skewed, operands, multiprocessors)
    launched(shape)
    for launch in (shape.forward, shape.backward):
        chosen = launch.tiling
        assert chosen.group in (0, 2, 4, 8, 16, 32)
        team = chosen.group or launch.threads
        assert launch.threads % team == 0
        if chosen.held:
            reach = team * chosen.vectors * width
            assert reach >= classes + (width - 1) * skewed  # from wherever in its first vector a row begins
            assert chosen.full * team * width <= classes  # but for the first, which may begin before a skewed row
        else:
            assert chosen.full == 0
        assert chosen.wide or classes < 1 << 30
        assert chosen.vectors * operands <= 8  # vectors in a thread's registers, and as many on their way


@given(counts, st.integers(0, 5000), widths, st.sampled_from((2, 4, 8)), st.integers(1, 4), processors)
def test_columns(count, classes, width, size, operands, multiprocessors):
    shape = tiling.columns(count * width, classes, width, size, operands, multiprocessors)
    launched(shape)
    for launch in (shape.forward, shape.backward):
        assert width % launch.tiling.width == 0 and launch.tiling.vectors >= 1
        assert not launch.tiling.held or launch.tiling.vectors == classes


@given(counts, widths, processors)
def test_items(count, width, multiprocessors):
    shape = tiling.items(count, width, multiprocessors)
    launched(shape)
    assert shape.forward.tiling.width == width


@given(st.integers(1, 1 << 40))
def test_power_of_two(n):
    power = tiling.power_of_two(n)
    assert power & (power - 1) == 0 and power // 2 < n <= power
