"""The driver and the device that the product sees while kernels run on the CPU."""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import losszoo.jit
from losszoo.jit import toolchains
from losszoo.runtime import cuda_driver
from tests.simt.toolchain import Toolchain, shared_variables, source_lines

# By mode, since the product keeps what it has built by device; no test has so many, so nothing is confused with a real one.
DEVICES = {"races": torch.device("cuda", 98), "address": torch.device("cuda", 99)}
POISON = 0xFF  # a nan in every format, and a large number as an integer
PATIENCE = 60  # seconds of its own time for a launch
DONE = b"done"  # after the buffers
PROGRAMS = 8  # that are kept waiting for their next launch
MOST_THREADS, MOST_SHARED, MOST_STATIC_SHARED = 1024, 227 * 1024, 48 * 1024


class Fault(Exception):
    """A kernel did what a GPU would not forgive."""


@dataclass(frozen=True)
class Launch:
    """What the product asked for."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int


@dataclass
class Setting:
    """How a machine is to behave."""

    mode: str
    multiprocessors: int
    resident: int  # blocks that run at a time, in turns
    seed: int
    read_only: tuple[Tensor, ...]
    launches: list[Launch] = field(default_factory=list)


@contextmanager
def machine(
    mode: str = "races", *, multiprocessors: int = 2, resident: int = 1, seed: int = 0, read_only: Iterable[Tensor] = ()
) -> Iterator[list[Launch]]:
    """Inside, tensors are on a CUDA device and launches run here; gives the list that launches are recorded in.

    mode: "races" looks at each access to memory, "address" runs under the address sanitizer.
    read_only: tensors that no kernel may write.
    """
    setting = Setting(mode, multiprocessors, resident, seed, tuple(read_only))
    device = _Device(setting)
    chosen = Toolchain(mode)

    def find(language: str) -> toolchains.Toolchain:
        return chosen if language == "cuda" else toolchains.find_toolchain(language)

    with ExitStack() as stack:
        for target, name, value in (
            (cuda_driver, "arch", lambda index: "simt"),
            (cuda_driver, "multiprocessors", lambda index: multiprocessors),
            (cuda_driver, "load", lambda path, index: _Module(path)),
            (sys.modules["losszoo.jit.build"], "find_toolchain", find),
            (losszoo.jit, "find_toolchain", find),
            (torch.cuda, "current_stream", lambda device=None: SimpleNamespace(cuda_stream=0)),
            (torch.cuda, "is_current_stream_capturing", lambda: False),
            (torch.cuda, "synchronize", lambda device=None: None),
        ):
            stack.enter_context(mock.patch.object(target, name, value))
        _machines.append(device)
        stack.callback(_machines.pop)
        stack.enter_context(device)
        yield setting.launches


_machines: list[_Device] = []


class _Device(TorchFunctionMode):
    """Lets CPU tensors pass for CUDA ones, and remembers the memory of each that it sees."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.setting, self.device = setting, DEVICES[setting.mode]
        self.storages: dict[int, torch.UntypedStorage] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func == Tensor.device.__get__:
            self._see(args)
            return self.device
        if kwargs.get("device") == self.device:
            kwargs["device"] = "cpu"
        args = tuple("cpu" if isinstance(a, torch.device) and a == self.device else a for a in args)
        result = func(*args, **kwargs)
        if func in (torch.empty, torch.empty_like, Tensor.new_empty):
            _bytes_of(result.untyped_storage())[:] = bytes([POISON]) * result.untyped_storage().nbytes()
        self._see((*args, *kwargs.values(), result))
        return result

    def _see(self, values: Iterable[object]) -> None:
        for value in values:
            if isinstance(value, Tensor) and value.layout is torch.strided:
                storage = value.untyped_storage()
                self.storages[storage.data_ptr()] = storage
            elif isinstance(value, (tuple, list)):
                self._see(value)

    def buffers(self, args: bytes) -> tuple[list[tuple[torch.UntypedStorage, bool]], list[tuple[int, int, int]]]:
        """The memory that the words of a kernel's struct point to, as a garbage collector would find it, and those words.

        Of each buffer: whether it may be written. Of each pointer: where in the struct, to which buffer, how far into it.
        """
        with torch._C.DisableTorchFunction():
            protected = {t.untyped_storage().data_ptr() for t in self.setting.read_only}
            found: dict[int, int] = {}
            buffers, pointers = [], []
            for at in range(0, len(args) - 7, 8):
                (word,) = struct.unpack_from("@Q", args, at)
                for start, storage in self.storages.items():
                    if start <= word < start + storage.nbytes():
                        if start not in found:
                            found[start] = len(buffers)
                            buffers.append((storage, start not in protected))
                        pointers.append((at, found[start], word - start))
            return buffers, pointers


def _bytes_of(storage: torch.UntypedStorage) -> ctypes.Array:
    return (ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr() or 1)


class _Module:
    """Stands for cuda_driver.Module."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def function(self, name: str) -> _Function:
        return _Function(self.path, name)


class _Function:
    """Stands for cuda_driver.Function."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        text = (path.parent / "kernel.cu").read_text()
        bound = re.search(rf"__launch_bounds__\((\d+)[^)]*\)\s+{name}\b", text)
        self.most_threads = int(bound[1]) if bound else MOST_THREADS

    def launch(self, grid, block, shared_bytes: int, stream: int, args: bytes) -> None:
        grid, block = (extent if isinstance(extent, tuple) else (extent, 1, 1) for extent in (grid, block))
        threads = block[0] * block[1] * block[2]
        if not 0 < threads <= self.most_threads or not all(0 < n < limit for n, limit in zip(grid, (2**31, 2**16, 2**16))):
            raise Fault(f"{self.name}: a launch of grid {grid}, block {block}, where a block may have {self.most_threads} threads")
        launch = Launch(self.name, grid, block, shared_bytes)
        device = _machines[-1]
        device.setting.launches.append(launch)
        _program(self.path).run(launch, args, device)


class _Program:
    """The process that runs a kernel's launches."""

    def __init__(self, path: Path) -> None:
        variables = shared_variables(path)
        self.static_shared = sum(v.size for v in variables)
        self.path, self.errors = path, tempfile.TemporaryFile()  # noqa: SIM115
        words = [str(word) for v in variables for word in (v.offset, v.size, v.name)]
        environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0"}
        self.process = subprocess.Popen(
            [str(path), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, env=environment
        )

    def run(self, launch: Launch, args: bytes, device: _Device) -> None:
        if self.static_shared > MOST_STATIC_SHARED or self.static_shared + launch.shared_bytes > MOST_SHARED:
            raise Fault(f"{launch.entry}: {self.static_shared} + {launch.shared_bytes} bytes of shared memory are too many")
        setting, (buffers, pointers) = device.setting, device.buffers(args)
        header = struct.pack(
            "@64s3I3IIIQ4I", launch.entry.encode(), *launch.grid, *launch.block, launch.shared_bytes, setting.resident,
            setting.seed + len(setting.launches), len(args), len(buffers), len(pointers), PATIENCE,
        )  # fmt: skip
        message = [header, args]
        for storage, writable in buffers:
            message += [struct.pack("@3Q", storage.nbytes(), storage.data_ptr() % 64, writable), bytes(_bytes_of(storage))]
        message += [struct.pack("@3Q", *pointer) for pointer in pointers]
        changed = [storage for storage, writable in buffers if writable]
        try:
            output = self._exchange(b"".join(message), sum(s.nbytes() for s in changed))
        except BaseException:
            _programs.pop(self.path, None)
            self.close()
            raise
        at = 0
        for storage in changed:
            _bytes_of(storage)[:] = output[at : at + storage.nbytes()]
            at += storage.nbytes()

    def _exchange(self, message: bytes, expected: int) -> bytes:
        try:
            self.process.stdin.write(message)
            self.process.stdin.flush()
            output = self.process.stdout.read(expected + len(DONE))
        except BrokenPipeError:
            output = b""
        if output.endswith(DONE):
            return output
        code = self.process.wait()
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").strip()
        if code == -signal.SIGVTALRM:
            said += f"\nthe launch took more than {PATIENCE} seconds"
        raise Fault(source_lines(self.path, said) or f"the process ended with status {code}")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.errors.close()


_programs: OrderedDict[Path, _Program] = OrderedDict()


@atexit.register
def _close_all() -> None:
    while _programs:
        _programs.popitem()[1].close()


def _program(path: Path) -> _Program:
    if path not in _programs:
        _programs[path] = _Program(path)
        while len(_programs) > PROGRAMS:
            _programs.popitem(last=False)[1].close()
    _programs.move_to_end(path)
    return _programs[path]
