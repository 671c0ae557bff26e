"""The few CUDA driver calls that load and launch a cubin in the context that torch works in."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from losszoo.errors import DriverError

# From cuda.h.
_STATIC_SHARED_BYTES = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
_MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_SHARED_BYTES_OF_EVERY_DEVICE = 48 * 1024  # more must be asked for, kernel by kernel
_CANNOT_READ_IMAGE = {200, 209, 222, 223, 300}  # INVALID_IMAGE, NO_BINARY_FOR_GPU, UNSUPPORTED_PTX_VERSION and the like

Extent = int | tuple[int, int, int]


class _LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("_padding", ctypes.c_int), ("value", ctypes.c_int), ("_union", ctypes.c_char * 60))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint) for name in "grid_x grid_y grid_z block_x block_y block_z shared_bytes".split()),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_LaunchAttribute)), ("count", ctypes.c_uint),
    )  # fmt: skip


# CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: the kernel is set up while the one before it still runs, for which it waits
# itself (lz::ptx::follow). From architecture 9.0 on.
_FOLLOW = _LaunchAttribute(id=6, value=1)


@cache
def arch(device: int) -> str:
    """The architecture of a CUDA device, such as "sm_90"."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@cache
def multiprocessors(device: int) -> int:
    """How many multiprocessors a CUDA device has."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def stream_handle(device: int, stream_id: int) -> int:
    """The driver's handle of one of torch's streams."""
    cuda = 1  # torch's number for this type of device
    return torch.cuda.Stream(stream_id=stream_id, device_index=device, device_type=cuda).cuda_stream


@cache
def load(path: Path, device: int) -> Module:
    """Load a cubin on a device, once; it stays for the life of the process."""
    return Module(path, device)


class Module:
    """A cubin on a device."""

    def __init__(self, path: Path, device: int) -> None:
        self.path = path
        self.context = _primary_context(device)
        self.follows = torch.cuda.get_device_capability(device) >= (9, 0)
        self._handle = ctypes.c_void_p()
        with _current(self.context):
            code = _driver().cuModuleLoadData(ctypes.byref(self._handle), path.read_bytes())
        if code in _CANNOT_READ_IMAGE:
            raise DriverError(
                f"the CUDA driver cannot load {path} for {arch(device)} ({_explain(code)}): it supports CUDA "
                f"{version()}, and the compiler that made the kernel is of a newer version; update the driver, "
                "or install the nvidia-cuda-nvrtc of the driver's version"
            )
        _check(code, f"loading {path}")

    def function(self, name: str) -> Function:
        """The kernel called `name`."""
        handle = ctypes.c_void_p()
        with _current(self.context):
            code = _driver().cuModuleGetFunction(ctypes.byref(handle), self._handle, name.encode())
            _check(code, f"looking for {name} in {self.path}")
            return Function(name, handle, self.context, follows=self.follows)


class Function:
    """A kernel that takes one struct by value."""

    def __init__(self, name: str, handle: ctypes.c_void_p, context: ctypes.c_void_p, follows: bool) -> None:
        self.name = name
        self._attributes = int(follows)
        self._handle = handle
        self._context = context
        self._driver = _driver()
        static = ctypes.c_int()
        code = self._driver.cuFuncGetAttribute(ctypes.byref(static), _STATIC_SHARED_BYTES, handle)
        _check(code, f"asking for the shared memory of {name}")
        self._shared_limit = _SHARED_BYTES_OF_EVERY_DEVICE - static.value
        self._raising = threading.Lock()

    @property
    def handles(self) -> dict[str, int | None]:
        """What the native runtime launches it by."""
        return {"function": self._handle.value, "context": self._context.value, "follows": bool(self._attributes)}

    def launch(self, grid: Extent, block: Extent, shared_bytes: int, stream: int, args: bytes) -> None:
        """Launch on the stream with handle `stream` (0 is the default stream of the kernel's device).

        `args` are the bytes of the kernel's struct. What the kernel itself does wrong shows later, as in all of CUDA.
        """
        grid_x, grid_y, grid_z = grid if isinstance(grid, tuple) else (grid, 1, 1)
        block_x, block_y, block_z = block if isinstance(block, tuple) else (block, 1, 1)
        driver = self._driver
        if shared_bytes > self._shared_limit:
            self._raise_shared_limit(shared_bytes)
        # A char pointer is a cell that holds the address of the struct: just what the array of parameters has to be.
        params = ctypes.byref(ctypes.c_char_p(args))
        sizes = grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream
        config = _LaunchConfig(*sizes, ctypes.pointer(_FOLLOW), self._attributes)
        # A new thread has no context yet, and torch may be at another device.
        current = ctypes.c_void_p()
        driver.cuCtxGetCurrent(ctypes.byref(current))
        elsewhere = current.value != self._context.value
        if elsewhere:
            _check(driver.cuCtxPushCurrent_v2(self._context), "entering torch's CUDA context")
        code = driver.cuLaunchKernelEx(ctypes.byref(config), self._handle, params, None)
        if elsewhere:
            driver.cuCtxPopCurrent_v2(ctypes.byref(current))
        if code:
            _check(code, f"launching {self.name} on grid {grid}, block {block}, {shared_bytes} bytes of shared memory")

    def _raise_shared_limit(self, shared_bytes: int) -> None:
        with self._raising, _current(self._context):
            if shared_bytes > self._shared_limit:  # still, now that no other thread is at it
                code = self._driver.cuFuncSetAttribute(self._handle, _MAX_DYNAMIC_SHARED_BYTES, shared_bytes)
                _check(code, f"giving {self.name} {shared_bytes} bytes of shared memory")
                self._shared_limit = shared_bytes


@cache
def _driver() -> Any:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError(f"no CUDA driver: {error}") from error
    pointer = ctypes.c_void_p
    driver.cuLaunchKernelEx.argtypes = [pointer, pointer, pointer, pointer]
    driver.cuCtxPushCurrent_v2.argtypes = [pointer]
    driver.cuFuncGetAttribute.argtypes = [pointer, ctypes.c_int, pointer]
    driver.cuFuncSetAttribute.argtypes = [pointer, ctypes.c_int, ctypes.c_int]
    driver.cuModuleLoadData.argtypes = [pointer, ctypes.c_char_p]
    driver.cuModuleGetFunction.argtypes = [pointer, pointer, ctypes.c_char_p]
    _check_with(driver, driver.cuInit(0), "starting the CUDA driver")
    return driver


@cache
def _primary_context(device: int) -> ctypes.c_void_p:
    """The device's context that torch uses too."""
    torch.cuda.init()  # so that torch and not this module decides how the context is made
    driver, handle, context = _driver(), ctypes.c_int(), ctypes.c_void_p()
    _check(driver.cuDeviceGet(ctypes.byref(handle), device), f"looking for CUDA device {device}")
    _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), f"entering CUDA device {device}")
    return context


@contextmanager
def _current(context: ctypes.c_void_p) -> Iterator[None]:
    driver, popped = _driver(), ctypes.c_void_p()
    _check(driver.cuCtxPushCurrent_v2(context), "entering torch's CUDA context")
    try:
        yield
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(popped))


def version() -> str:
    """The latest CUDA version whose programs the driver takes, such as "12.8"."""
    number = ctypes.c_int()
    _driver().cuDriverGetVersion(ctypes.byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def _check(code: int, doing: str) -> None:
    if code:
        _check_with(_driver(), code, doing)


def _check_with(driver: Any, code: int, doing: str) -> None:
    if code:
        raise DriverError(f"{doing}: {_explain(code, driver)}")


def _explain(code: int, driver: Any = None) -> str:
    driver = driver or _driver()
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    if driver.cuGetErrorName(code, ctypes.byref(name)) or driver.cuGetErrorString(code, ctypes.byref(text)):
        return f"CUDA error {code}"
    return f"{(name.value or b'').decode()}, {(text.value or b'').decode()}"
