from __future__ import annotations

import struct
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from losszoo.errors import DriverError
from losszoo.jit import Source, build
from losszoo.runtime import cuda_driver

AXPY = """
struct Args { float* x; long long count; float factor; };
extern "C" __global__ void scale(const Args args) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < args.count) args.x[i] *= args.factor;
}
extern "C" __global__ void reverse(const Args args) {
    extern __shared__ float shared[];
    for (long long i = threadIdx.x; i < args.count; i += blockDim.x) shared[i] = args.x[i];
    __syncthreads();
    for (long long i = threadIdx.x; i < args.count; i += blockDim.x) args.x[i] = shared[args.count - 1 - i];
}
"""


def test_an_old_driver_gives_one_clear_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(code: int, set_to: object = None):
        def function(*arguments: object) -> int:
            if set_to is not None:
                arguments[-1]._obj.value = set_to
            return code

        return function

    driver = SimpleNamespace(
        cuCtxPushCurrent_v2=answer(0),
        cuCtxPopCurrent_v2=answer(0),
        cuModuleLoadData=answer(200),
        cuDriverGetVersion=answer(0, 12040),
        cuGetErrorName=answer(0, b"CUDA_ERROR_INVALID_IMAGE"),
        cuGetErrorString=answer(0, b"device kernel image is invalid"),
    )
    monkeypatch.setattr(cuda_driver, "_driver", lambda: driver)
    monkeypatch.setattr(cuda_driver, "_primary_context", lambda device: None)
    monkeypatch.setattr(cuda_driver, "arch", lambda device: "sm_90")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    (tmp_path / "kernel.cubin").write_bytes(b"")
    with pytest.raises(
        DriverError,
        match="kernel.cubin for sm_90 .CUDA_ERROR_INVALID_IMAGE, device .*supports CUDA 12.4, .*update the driver",
    ):
        cuda_driver.load(tmp_path / "kernel.cubin", 0)


def test_no_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(cuda_driver.ctypes, "CDLL", absent)
    with pytest.raises(DriverError, match="no CUDA driver: libcuda.so.1: cannot open"):
        cuda_driver._driver.__wrapped__()


def load() -> cuda_driver.Module:
    return cuda_driver.load(build(Source("axpy", "cuda", AXPY), cuda_driver.arch(0)), 0)


def pack(x: torch.Tensor, factor: float = 0.0) -> bytes:
    return struct.pack("Pqf4x", x.data_ptr(), x.numel(), factor)


@pytest.mark.cuda_only
def test_launches_on_torch_s_stream() -> None:
    scale = load().function("scale")
    x = torch.ones(1000, device="cuda:0")
    scale.launch(4, (256, 1, 1), 0, torch.cuda.current_stream(0).cuda_stream, pack(x, 3.0))
    assert x.tolist() == [3.0] * 1000
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        y = x + 1
        scale.launch((4, 1, 1), 256, 0, torch.cuda.current_stream(0).cuda_stream, pack(y, 0.5))
        assert y.tolist() == [2.0] * 1000


@pytest.mark.cuda_only
def test_launches_from_a_new_thread() -> None:
    scale, x = load().function("scale"), torch.ones(10, device="cuda:0")
    thread = threading.Thread(target=scale.launch, args=(1, 32, 0, 0, pack(x, 2.0)))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert x.tolist() == [2.0] * 10


@pytest.mark.cuda_only
@pytest.mark.parametrize("count", [1000, 20_000, 24_000])
def test_much_shared_memory(count: int) -> None:
    reverse, x = (load().function("reverse"), torch.arange(count, device="cuda:0", dtype=torch.float32))
    reverse.launch(1, 256, 4 * count, torch.cuda.current_stream(0).cuda_stream, pack(x))
    assert torch.equal(x, torch.arange(count - 1, -1, -1, device="cuda:0", dtype=torch.float32))


@pytest.mark.cuda_only
def test_errors_name_the_kernel() -> None:
    module, x = load(), torch.ones(10, device="cuda:0")
    with pytest.raises(DriverError, match="looking for absent in .*CUDA_ERROR_NOT_FOUND"):
        module.function("absent")
    with pytest.raises(DriverError, match="launching scale on grid 1, block 4096, 0 bytes.*CUDA_ERROR_INVALID_VALUE"):
        module.function("scale").launch(1, 4096, 0, 0, pack(x))
    with pytest.raises(DriverError, match="giving scale 10000000 bytes of shared memory: CUDA_ERROR_INVALID_VALUE"):
        module.function("scale").launch(1, 32, 10_000_000, 0, pack(x))


@pytest.mark.cuda_only
def test_the_device_is_described() -> None:
    assert cuda_driver.arch(0) == "sm_" + "".join(map(str, torch.cuda.get_device_capability(0)))
    assert cuda_driver.multiprocessors(0) > 0
