"""The harness runs right kernels as a GPU would, and stops each faulty one: what it cannot see, no other test would miss."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import pytest
import torch

from losszoo.jit import Source, build
from losszoo.runtime import cuda_driver
from tests import simt

pytestmark = pytest.mark.cpu_only
SOURCE = Source("samples", "cuda", (Path(__file__).parent / "samples.cu").read_text())
modes = pytest.mark.parametrize("mode", ["races", "address"])


def launch(name, mode="races", *, x=None, out=None, ints=None, n=0, grid=1, block=64, shared=0, read_only=(), **setting):
    """Run a sample; gives what it wrote: floats, whole numbers, the counter."""
    x = torch.randn(grid * block) if x is None else x
    out = torch.full((grid * block,), torch.nan) if out is None else out
    ints = torch.zeros(6 * grid * block, dtype=torch.int32) if ints is None else ints
    counter = torch.zeros(1, dtype=torch.int32)
    with simt.machine(mode, read_only=(x, *read_only), **setting):
        function = cuda_driver.load(build(SOURCE, "simt"), 0).function(name)
        args = struct.pack("@4Pq", *(t.data_ptr() for t in (x, out, counter, ints)), n)
        function.launch(grid, block, shared, 0, args)
    return out, ints, counter


@modes
def test_shuffles(mode):
    x = torch.randn(64)
    got, _, _ = launch("shuffles", mode, x=x, out=torch.zeros(6 * 64))
    t = torch.arange(64)
    lane, warp = t % 32, t // 32 * 32
    sources = [
        t // 8 * 8 + (lane + 3) % 8, t ^ 5, torch.where(lane % 16 + 3 < 16, t + 3, t), torch.where(lane >= 2, t - 2, t), t ^ 1,
        torch.where((lane ^ 4) < lane // 4 * 4 + 4, warp + (lane ^ 4), t),
    ]  # fmt: skip
    for column, source in zip(got.view(64, 6).T, sources):
        torch.testing.assert_close(column, x[source], rtol=0, atol=2e-7)


@modes
def test_votes(mode):
    x = torch.randn(64)
    _, got, _ = launch("votes", mode, x=x)
    t = torch.arange(64)
    for w in range(2):
        part, lanes = x.view(2, 32)[w], t.view(2, 32)[w]
        ballot = sum(1 << i for i in range(32) if part[i] > 0)
        expected = [ctypes.c_int32(ballot).value, int((part > 3).any()), 1, int(lanes.sum()), int(lanes.max()), 32]
        assert (got.view(2, 32, 6)[w] == torch.tensor(expected)).all()


@modes
@pytest.mark.parametrize("seed", range(3))
def test_groups_of_lanes_go_their_own_ways(mode, seed):
    x = torch.randn(64)
    got, _, _ = launch("groups", mode, x=x, seed=seed)
    expected, t = x.clone(), torch.arange(64)
    for turn in range(8):
        expected = torch.where(turn <= t % 32 // 4, expected + expected[t ^ (1 + turn % 3)], expected)
    torch.testing.assert_close(got, expected)


@modes
@pytest.mark.parametrize("block", [64, 50, 33])
def test_threads_that_left_hold_up_no_barrier(mode, block):
    x = torch.randn(block)
    got, _, _ = launch("early_exit", mode, x=x, block=block)
    t = torch.arange(block)
    expected = torch.where(t % 3 == 0, torch.nan, x[(t + 1) % block])
    torch.testing.assert_close(got, expected, equal_nan=True)


@modes
@pytest.mark.parametrize("resident", [1, 3])
def test_dynamic_shared_memory_is_a_block_s_own(mode, resident):
    x = torch.randn(32 * 5)
    got, _, _ = launch("dynamic", mode, x=x, grid=5, block=32, shared=128, resident=resident)
    expected = torch.cat([x[:32].flip(0) * (b + 1) for b in range(5)])
    torch.testing.assert_close(got, expected)


@modes
@pytest.mark.parametrize("resident, seed", [(1, 0), (1, 1), (2, 2), (4, 3), (4, 4)])
def test_the_last_block_finishes_in_any_order(mode, resident, seed):
    x = torch.randn(6 * 64)
    got, _, counter = launch("last_block", mode, x=x, grid=6, out=torch.zeros(7), resident=resident, seed=seed)
    torch.testing.assert_close(got[0], x.sum())
    assert counter == 0


def test_seeds_change_the_order_of_blocks_and_threads():
    first = {seed: int(launch("atomics", ints=torch.tensor([0, 0, -1, 0], dtype=torch.int32), seed=seed)[1][2]) for seed in range(6)}
    assert len(set(first.values())) > 2, "which thread comes first"


@modes
def test_a_warp_orders_its_own_memory(mode):
    x = torch.randn(64)
    got, _, _ = launch("warp_exchange", mode, x=x)
    assert torch.equal(got, x[torch.arange(64) ^ 1])


@modes
def test_atomics(mode):
    _, got, _ = launch("atomics", mode, ints=torch.tensor([0, 5, -1, 0], dtype=torch.int32))
    assert got[0] == 63 * 32 and got[1] == 63 and 0 <= got[2] < 64 and got[3] == -128


def test_conversions_are_those_of_torch():
    every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16)
    values = torch.cat([every.view(torch.float16).float(), every.view(torch.bfloat16).float()])
    ties = values + torch.cat([(values[1:] - values[:-1]) / 2, torch.zeros(1)])  # halfway to the next
    x = torch.cat([values, ties, 1e-3 * torch.randn(5000), torch.tensor([65519.0, 65520.0, 3.3e38, -3.4e38, 1e-45])])
    out, ints, _ = launch("halves", x=x, out=torch.zeros(len(x)), ints=torch.zeros(len(x), dtype=torch.int32), n=len(x), grid=2)
    shorts = ints.view(torch.int16).view(-1, 2)
    for column, dtype in zip(shorts.T, (torch.float16, torch.bfloat16)):
        got, want = column.contiguous().view(dtype), x.to(dtype)
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got.view(torch.int16)[~want.isnan()], want.view(torch.int16)[~want.isnan()])
    assert torch.equal(out[: 2**16].nan_to_num(3.0), every.view(torch.float16).float().nan_to_num(3.0))


@modes
def test_what_is_not_written_stays_nan(mode):
    with simt.machine(mode):
        out = torch.empty(64)
    got, _, _ = launch("unwritten", mode, out=out)
    assert got[0] == 1 and got[1:].isnan().all()


def test_shared_memory_starts_as_nan():
    out, _, _ = launch("unwritten_shared", "address")
    assert out[7].isnan() and (out[torch.arange(64) != 7] == 1).all()


EVERYWHERE = ("races", "address")
UNORDERED = "race|nothing was written"  # whichever of the two comes first
FAULTS = {
    # name: what the message says, the builds that see it, what it is launched with
    "missing_barrier": (UNORDERED, ("races",), {}),
    "missing_second_barrier": ("race", ("races",), {"out": torch.zeros(128)}),
    "missing_syncwarp": (UNORDERED, ("races",), {}),
    "shuffle_orders_nothing": (UNORDERED, ("races",), {}),
    "syncwarp_across_warps": (UNORDERED, ("races",), {}),
    "two_writers": ("race", ("races",), {}),
    "two_blocks": ("race", ("races",), {"grid": 2, "block": 1}),
    "missing_fences": ("race", ("races",), {"grid": 3}),
    "plain_counter": ("race", ("races",), {"grid": 3}),
    "two_barriers": ("divergent barrier", EVERYWHERE, {}),
    "barrier_without_some": ("deadlock.*__shfl_xor_sync.*__syncthreads", EVERYWHERE, {}),
    "lane_that_never_comes": ("deadlock", EVERYWHERE, {}),
    "lane_outside_the_mask": ("takes no part", EVERYWHERE, {}),
    "lane_not_in_its_own_mask": ("own mask", EVERYWHERE, {}),
    "lanes_that_do_not_exist": ("takes no part", EVERYWHERE, {"block": 40}),
    "width_of_five": ("a shuffle of width 5", EVERYWHERE, {}),
    "reads_past_the_end": ("read of 4 bytes.* 0 bytes past the end|heap-buffer-overflow", EVERYWHERE, {}),
    "reads_before_the_start": ("read of 4 bytes.* 4 bytes before the start|heap-buffer-overflow", EVERYWHERE, {}),
    "writes_past_the_end": ("write of 4 bytes.* 0 bytes past the end|heap-buffer-overflow", EVERYWHERE, {}),
    "reads_no_buffer": ("outside of every buffer|SEGV", EVERYWHERE, {"n": 4096}),
    "writes_an_input": ("an input", ("races",), {}),
    "shared_overrun": ("between the variables", ("races",), {}),
    "dynamic_overrun": ("past|outside|poison", EVERYWHERE, {"shared": 256}),
    "unwritten_shared": ("nothing was written", ("races",), {}),
    "local_overrun": ("stack-buffer-overflow", ("address",), {"block": 1}),
    "misaligned_vector": ("misaligned", EVERYWHERE, {"block": 4, "x": torch.zeros(20), "out": torch.zeros(16)}),
    "integer_overflow": ("signed integer overflow", EVERYWHERE, {"n": 1 << 20}),
    "bounded": ("65 threads|64 threads", EVERYWHERE, {"block": 65}),
    "dynamic": ("shared memory", EVERYWHERE, {"shared": 232_400}),
}


@pytest.mark.parametrize("name, mode", [(name, mode) for name, fault in FAULTS.items() for mode in fault[1]])
def test_fault_is_stopped(name, mode):
    says, _, given = FAULTS[name]
    with pytest.raises(simt.Fault, match=f"(?s){says}"):
        launch(name, mode, **given)


@pytest.mark.parametrize("name", ["missing_barrier", "two_writers", "missing_fences"])
@pytest.mark.parametrize("resident, seed", [(1, 1), (2, 2), (3, 3)])
def test_a_race_is_found_in_any_order(name, resident, seed):
    with pytest.raises(simt.Fault, match=UNORDERED):
        launch(name, resident=resident, seed=seed, **FAULTS[name][2])


def test_a_fault_names_the_line():
    with pytest.raises(simt.Fault, match=r"kernel\.cu:\d+"):
        launch("writes_past_the_end")


def test_an_endless_kernel_is_ended(monkeypatch):
    monkeypatch.setattr("tests.simt.driver.PATIENCE", 1)
    with pytest.raises(simt.Fault, match="more than 1 seconds"):
        launch("endless", x=torch.zeros(64))


def test_a_fault_leaves_the_next_launch_alone():
    with pytest.raises(simt.Fault):
        launch("two_writers")
    x = torch.randn(64)
    got, _, _ = launch("warp_exchange", x=x)
    assert torch.equal(got, x[torch.arange(64) ^ 1])


def test_the_samples_are_cuda():
    assert build(SOURCE, "sm_90").read_bytes()[:4] == b"\x7fELF"
