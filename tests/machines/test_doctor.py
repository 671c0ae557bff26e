"""`losszoo doctor` finds what is there, compiles for real, and says what to do where that fails."""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch

from losszoo import cli
from losszoo.errors import CompileError, DriverError, ToolchainMissing
from losszoo.jit import Nvrtc, cache, extension, toolchains
from losszoo.runtime import cuda_driver, native, threads

doctor = importlib.import_module("losszoo.cli.doctor")  # the package has the function under this name


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty cache, and no place found bad by an earlier test."""
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_warned", set())
    return tmp_path / "cache"


@pytest.fixture
def examined(capsys):
    """Run it, and give what it says of each subject: the mark and the text."""

    def run(status: int = 0) -> dict[str, tuple[str, str]]:
        assert cli.main(["doctor"]) == status
        text, said = capsys.readouterr()
        assert said == "" and text.count("losszoo cannot compile here") == status
        found = re.findall(r"^(ok|note|problem) +(\S.{13}) (.*(?:\n {24}.*)*)", text, re.MULTILINE)
        assert len(found) == len(text.split("\n\n")[0].splitlines()) - text.count("\n" + 24 * " ")
        return {subject.strip(): (mark, words) for mark, subject, words in found}

    return run


def test_what_is_found(examined, place):
    found = examined()
    assert found["torch"][1].startswith(f"{torch.__version__}, built for ")
    assert sys.executable in found["Python"][1]
    assert found["kernel cache"] == ("ok", f"{place}, not made yet")
    assert found["C++ compiler"][0] == "ok" and "compiled in" in found["CPU kernels"][1]
    assert found["threads"] == ("ok", f"torch uses {torch.get_num_threads()} on {os.cpu_count()} processors")
    assert not list(place.glob("doctor*"))


def test_the_cache_is_measured(examined, place):
    (place / "loss-1").mkdir(parents=True, mode=0o700)
    place.chmod(0o755)
    (place / "loss-1" / "kernel.so").write_bytes(bytes(2_500_000))
    (place / ".tmp-1").mkdir()
    assert examined()["kernel cache"] == ("ok", f"{place}, 1 entries, 2.5 MB, mode 755")


def test_no_compiler(examined, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/c++")
    mark, text = examined(1)["C++ compiler"]
    assert mark == "problem" and "/nowhere/c++" in text and "apt install g++" in text and "interpreter" in text


def test_a_compiler_that_fails(examined, tmp_path, monkeypatch):
    script = tmp_path / "c++"
    script.write_text("#!/bin/sh\necho 'licence expired' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    found = examined(1)
    assert found["C++ compiler"] == ("ok", f"says no version ({script})")
    assert found["CPU kernels"][0] == "problem" and "licence expired" in found["CPU kernels"][1]


def test_a_compiler_that_computes_wrongly(examined, monkeypatch):
    monkeypatch.setattr(doctor, "CPU", doctor.CPU.replace("42", "41"))
    assert examined(1)["CPU kernels"] == (
        "problem", "the kernel was compiled but answered 41 for 42: another compiler may do better",
    )  # fmt: skip


def test_a_cache_in_a_bad_place(examined, place, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", "/proc/self/losszoo")
    mark, text = examined()["kernel cache"]  # the later of two findings
    assert mark == "note" and "cannot write its kernel cache at /proc/self/losszoo" in text
    place.touch()
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", str(place))
    mark, text = examined(1)["CPU kernels"]
    assert mark == "problem" and f"{place} is not a directory" in text


def test_threads_that_cannot_be_shared(examined, monkeypatch):
    monkeypatch.setattr(threads, "launcher", lambda: None)
    mark, text = examined()["threads"]
    assert mark == "note" and "CPU kernels use one" in text


def test_the_native_runtime(examined, monkeypatch):
    assert examined()["native runtime"] == ("note", "LOSSZOO_RUNTIME=python keeps it from being used")  # as all of the tests' children
    monkeypatch.delenv("LOSSZOO_RUNTIME")
    mark, text = examined()["native runtime"]
    assert mark == "note" and text.startswith("not built yet") and "losszoo prebuild" in text
    monkeypatch.setattr(extension, "find", lambda: Path("/cache/losszoo_runtime-1/losszoo_runtime.so"))
    assert examined()["native runtime"] == ("ok", "/cache/losszoo_runtime-1/losszoo_runtime.so")
    monkeypatch.setattr(native, "_runtime", None)
    mark, text = examined()["native runtime"]
    assert mark == "note" and "does not load; `rm -r /cache/losszoo_runtime-1`" in text

    def failed():
        raise CompileError("the native runtime: the kernel did not compile")

    monkeypatch.setattr(extension, "find", failed)
    assert examined()["native runtime"] == ("note", "the native runtime: the kernel did not compile")


@pytest.mark.cpu_only
def test_no_cuda_compiler_matters_only_with_a_gpu(examined, monkeypatch):
    def find():
        raise ToolchainMissing("no libnvrtc; pip install nvidia-cuda-nvrtc")

    monkeypatch.setattr(Nvrtc, "find", find)
    monkeypatch.setattr(toolchains.Nvcc, "find", find)
    toolchains._find.cache_clear()
    found = examined()
    assert found["NVRTC"] == found["nvcc"] == ("ok", "not found")
    assert found["CUDA kernels"] == ("note", "no libnvrtc; pip install nvidia-cuda-nvrtc")
    pretend_gpu(monkeypatch)
    assert examined(1)["CUDA kernels"] == ("problem", "no libnvrtc; pip install nvidia-cuda-nvrtc")


@pytest.mark.cpu_only
def test_a_gpu_whose_driver_is_too_old(examined, monkeypatch):
    """All but the driver is real: the kernel is compiled for the GPU's architecture."""
    pretend_gpu(monkeypatch)
    seen = []

    def launch(path, device):
        seen.append((path.read_bytes()[:4], device))
        raise DriverError("the CUDA driver cannot load it; update the driver")

    monkeypatch.setattr(doctor, "_launch", launch)
    found = examined(1)
    assert found["GPU 0"] == ("ok", "Tesla Zoo, sm_80") and found["CUDA driver"] == ("ok", "for programs up to CUDA 12.4")
    assert found["CUDA kernels"] == ("problem", "the CUDA driver cannot load it; update the driver")
    assert seen == [(b"\x7fELF", 0)]
    monkeypatch.setattr(doctor, "_launch", lambda path, device: 42)
    mark, text = examined()["GPU 0 kernels"]
    assert mark == "ok" and text.startswith("one was compiled in ")


@pytest.mark.cpu_only
def test_a_torch_for_cuda_that_finds_no_gpu(examined, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    mark, text = examined()["GPU"]
    assert mark == "note" and "CUDA_VISIBLE_DEVICES" in text
    monkeypatch.setattr(torch.cuda, "is_available", lambda: warnings.warn("the NVIDIA driver is too old", stacklevel=2))
    mark, text = examined()["GPU"]
    assert mark == "note" and text == "torch finds none: the NVIDIA driver is too old"


@pytest.mark.cuda_only
def test_the_gpu_is_tried(examined):
    found = examined()
    assert found["GPU 0"] == ("ok", f"{torch.cuda.get_device_name(0)}, {cuda_driver.arch(0)}")
    assert found["CUDA driver"] == ("ok", f"for programs up to CUDA {cuda_driver.version()}")
    assert found["GPU 0 kernels"][0] == "ok"


def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla Zoo")
    monkeypatch.setattr(cuda_driver, "arch", lambda device: "sm_80")
    monkeypatch.setattr(cuda_driver, "version", lambda: "12.4")
