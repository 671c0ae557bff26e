from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from losszoo import paths
from losszoo.errors import CompileError, ToolchainMissing
from losszoo.jit import Cpp, Nvcc, Nvrtc, Source, Toolchain, build, find_toolchain, toolchains

from .conftest import in_children

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

COMPILER = sys.executable  # any program that exists will do for a key
EXPORT = 'extern "C" __attribute__((visibility("default")))'
TWICE = Source("twice", "cpp", f"{EXPORT} int twice(int x) {{ return 2 * x; }}\n")
KERNEL = Source("scale", "cuda", 'extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= 2; }\n')


def call_twice(path: Path) -> int:
    return ctypes.CDLL(str(path)).twice(21)


@pytest.fixture(params=[Nvrtc, Nvcc], ids=["nvrtc", "nvcc"])
def cuda_toolchain(request: pytest.FixtureRequest) -> Toolchain:
    try:
        return request.param.find()
    except ToolchainMissing as error:
        pytest.skip(str(error))


def test_builds_a_shared_library_with_what_people_want_to_read(cache_dir: Path) -> None:
    path = build(TWICE)
    assert call_twice(path) == 42
    assert (path.parent / "kernel.cpp").read_text() == TWICE.text
    assert " -O3 " in (path.parent / "command.txt").read_text()
    assert path.parent.name.startswith("twice-")


def test_the_same_source_compiles_once_and_another_again(cache_dir: Path, compiler: Callable[..., Path]) -> None:
    log = compiler()
    assert build(TWICE) == build(TWICE)
    assert log.read_text() == "compile\n"
    build(Source("twice", "cpp", TWICE.text + "// changed\n"))
    assert log.read_text() == "compile\n" * 2


def test_threads_and_processes_that_build_at_once_compile_once(cache_dir: Path, compiler: Callable[..., Path]) -> None:
    log = compiler()
    answers = in_children([lambda: str(call_twice(build(TWICE)))] * 8)
    assert answers == ["42"] * 8
    assert log.read_text() == "compile\n"
    other = Source("other", "cpp", TWICE.text)
    threads = [threading.Thread(target=build, args=(other,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.read_text() == "compile\n" * 2


def test_a_warm_cache_starts_no_process(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(TWICE)

    def new_process() -> str:
        from losszoo.jit import cache

        cache._known.clear()
        toolchains._find.cache_clear()
        started = []
        run = toolchains.subprocess.run
        toolchains.subprocess = SimpleNamespace(
            DEVNULL=subprocess.DEVNULL, run=lambda command, **options: started.append(command) or run(command, **options)
        )
        return f"{call_twice(build(TWICE))} after {[command[-1] for command in started]}"

    # A compiler that is a script may change its mind, so it is asked for its version, once.
    script = Path(find_toolchain("cpp").compiler[0]).read_bytes()[:2] == b"#!"
    assert in_children([new_process]) == ["42 after ['--version']" if script else "42 after []"]


def test_what_decides_the_artefact_is_in_the_key(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from losszoo.jit.build import _digest, _headers_digest

    cpp = Cpp([COMPILER])
    first = _digest(TWICE, None, cpp)
    assert _digest(TWICE, None, Cpp([COMPILER])) == first
    assert _digest(TWICE, "sm_90", cpp) != _digest(TWICE, "sm_80", cpp)
    for change in (
        lambda patch: patch.setattr(Cpp, "flags", (*Cpp.flags, "-g")),
        lambda patch: patch.setattr(toolchains, "_stat", lambda path: "newer compiler"),
        lambda patch: patch.setattr(toolchains, "_processor", lambda: "flags: sse2"),
        lambda patch: patch.setattr(paths, "headers", lambda: {"losszoo/math.h": b"changed"}),
    ):
        with monkeypatch.context() as patch:
            _headers_digest.cache_clear()
            change(patch)
            assert _digest(TWICE, None, Cpp([COMPILER])) != first
    _headers_digest.cache_clear()
    assert _digest(TWICE, None, Cpp([COMPILER])) == first


def test_the_parts_of_the_key_are_told_apart() -> None:
    """However the same text is divided into flags, compiler and architecture, each division has a key of its own."""
    from losszoo.jit.build import _digest

    text = "abcd"
    cuts = [(i, j, k) for i in range(5) for j in range(i, 5) for k in range(j, 5)]
    divisions = {((text[:i], text[i:j]), text[j:k], text[k:]) for i, j, k in cuts}
    divisions |= {((text[:j],), text[j:k], text[k:]) for _, j, k in cuts}
    keys = {_digest(TWICE, arch, SimpleNamespace(flags=flags, identity=identity)) for flags, identity, arch in divisions}
    assert len(keys) == len(divisions)


def test_a_script_is_asked_which_compiler_it_stands_for(tmp_path: Path) -> None:
    script, version = tmp_path / "g++", tmp_path / "version"
    script.write_text(f"#!/bin/sh\ncat '{version}'\n")
    script.chmod(0o755)
    version.write_text("12")
    before = Cpp([str(script)]).identity
    version.write_text("13")
    assert Cpp([str(script)]).identity != before


def test_spaces_and_accents_in_every_path(tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "un été 'à' $HOME \"x\""
    shutil.copytree(paths.csrc(), odd / "csrc")
    (odd / "csrc" / "losszoo").mkdir(exist_ok=True)
    (odd / "csrc" / "losszoo" / "only_here.h").write_text("const int two = 2;\n")
    wrapper = odd / "c++"
    wrapper.write_text('#!/bin/sh\nexec c++ "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setattr(paths, "csrc", lambda: odd / "csrc")
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", str(odd / "cache"))
    monkeypatch.setenv("CXX", str(wrapper))
    text = f"#include <losszoo/only_here.h>\n{EXPORT} int twice(int x) {{ return two * x; }}  // é\n"
    path = build(Source("deux fois é", "cpp", text))
    assert call_twice(path) == 42
    assert odd in path.parents


def test_cuda_paths_with_spaces_and_accents(
    cuda_toolchain: Toolchain, tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", str(tmp_path / "un été" / "cache"))
    assert build(KERNEL, "sm_80", cuda_toolchain).read_bytes()[:4] == b"\x7fELF"


def test_verbose_prints_each_command(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    build(TWICE)
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("LOSSZOO_VERBOSE", "1")
    path = build(Source("loud", "cpp", TWICE.text))
    assert capfd.readouterr().err == "losszoo: " + (path.parent / "command.txt").read_text()
    build(Source("loud", "cpp", TWICE.text))
    assert capfd.readouterr().err == ""


def test_a_compile_error_shows_name_command_and_the_compiler_s_lines(cache_dir: Path) -> None:
    with pytest.raises(CompileError) as caught:
        build(Source("my_loss", "cpp", "int f() {\n    return nonsense;\n}\n"))
    message = str(caught.value)
    assert message.startswith("my_loss: the kernel did not compile\ncommand: ")
    assert "-std=c++17" in message
    assert "kernel.cpp:2:" in message
    assert "nonsense" in message
    folder = message.partition("run in: ")[2].partition("\n")[0]
    assert "nonsense" in Path(folder, "kernel.cpp").read_text()


def test_a_cuda_compile_error_too(cuda_toolchain: Toolchain, cache_dir: Path) -> None:
    text = 'extern "C" __global__ void f() {\n    nonsense();\n}\n'
    with pytest.raises(CompileError, match=r"my_loss: (?s:.*)command: .*sm_90(?s:.*)kernel.cu\(2\)(?s:.*)nonsense"):
        build(Source("my_loss", "cuda", text), "sm_90", cuda_toolchain)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo 'licence expired' >&2; exit 3", "licence expired"),
        ("exit 3", "exit status 3"),
        ("kill -9 $$", "exit status -9"),
        ("echo all fine", "all fine"),
        ("true", "wrote no kernel.so"),
        ("i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done; exit 1", "line 79\n... 120 more lines"),
    ],
)
def test_a_compiler_that_fails(cache_dir: Path, compiler: Callable[..., Path], body: str, message: str) -> None:
    compiler(body)
    with pytest.raises(CompileError) as caught:
        build(TWICE)
    assert message in str(caught.value)
    compiler()
    assert call_twice(build(TWICE)) == 42


def test_a_compiler_that_cannot_be_started(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("g++", "compiler"):  # taken for a binary, and asked for its version
        (tmp_path / name).write_bytes(b"\0garbage")
        (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("CXX", str(tmp_path / name))
        with pytest.raises(CompileError, match="Exec format error"):
            build(TWICE)


def test_a_compiler_without_native_is_asked_again_without(cache_dir: Path, compiler: Callable[..., Path]) -> None:
    refusal = "error: unsupported argument 'native' to option '-march='"
    log = compiler(f"""case "$*" in *-march=native*) echo "{refusal}" >&2; exit 1;; esac; exec c++ "$@" """)
    path = build(TWICE)
    assert call_twice(path) == 42
    assert "-march" not in (path.parent / "command.txt").read_text()
    assert log.read_text() == "compile\n" * 2


def test_a_missing_compiler(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++ -m64")
    with pytest.raises(ToolchainMissing, match="CXX names '/nowhere/g.. -m64', which cannot be run; install"):
        build(TWICE)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainMissing, match="none of c.., g.., clang.. is on the PATH; install one .apt install"):
        find_toolchain("cpp")
    monkeypatch.undo()
    assert isinstance(find_toolchain("cpp"), Cpp)


def test_cxx_may_be_relative(
    cache_dir: Path, tmp_path: Path, compiler: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CXX", "./compiler")
    assert call_twice(build(TWICE)) == 42


def test_cxx_may_be_several_words(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "env TWICE=1 c++ -DTWO=2")
    assert call_twice(build(Source("twice", "cpp", f"{EXPORT} int twice(int x) {{ return TWO * x; }}"))) == 42


def test_no_cuda_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchains, "_nvrtc_libraries", list)
    monkeypatch.setattr(toolchains.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    monkeypatch.setattr(toolchains.shutil, "which", lambda name: None)
    toolchains._find.cache_clear()
    with pytest.raises(ToolchainMissing, match="neither NVRTC .* nor nvcc was found; pip install nvidia-cuda-nvrtc"):
        find_toolchain("cuda")


def test_nvcc_is_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "nvcc").chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    try:
        assert isinstance(find_toolchain("cuda"), Nvrtc)
    except ToolchainMissing:
        pytest.skip("no NVRTC")
    monkeypatch.setattr(toolchains, "_nvrtc_libraries", list)
    monkeypatch.setattr(toolchains.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    toolchains._find.cache_clear()
    found = find_toolchain("cuda")
    toolchains._find.cache_clear()
    assert isinstance(found, Nvcc)
    assert found.compiler == str(tmp_path / "bin" / "nvcc")


def test_an_nvrtc_that_only_the_loader_finds(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        build(KERNEL, "sm_90", Nvrtc.find())  # from here on the loader knows it by its bare name
    except ToolchainMissing as error:
        pytest.skip(str(error))
    monkeypatch.setattr(toolchains, "_nvrtc_libraries", list)
    found = Nvrtc.find()
    assert found.library.startswith("libnvrtc.so.")
    assert found.identity.startswith(f"{found.library} {found.library.rpartition('.')[2]}.")
    assert build(KERNEL, "sm_90", found).read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize("broken", ["libnvrtc.so.13", "libnvrtc-builtins.so.13.0"])
def test_a_broken_nvrtc_says_so(cache_dir: Path, tmp_path: Path, broken: str) -> None:
    (tmp_path / "libnvrtc.so.13").write_text("no library")
    (tmp_path / broken).write_text("no library")
    with pytest.raises(
        ToolchainMissing, match="libnvrtc.so.13 does not load: .*; reinstall nvidia-cuda-nvrtc"
    ) as caught:
        build(KERNEL, "sm_90", Nvrtc(str(tmp_path / "libnvrtc.so.13")))
    assert str(tmp_path / broken) in str(caught.value).partition("load: ")[2]


def test_the_nvrtc_of_torch_s_cuda_version_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    names = ["libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.alt.so.13", "libnvrtc-builtins.so.13.0"]
    for name in names:
        (tmp_path / name).touch()
    monkeypatch.setattr(toolchains, "_nvrtc_folders", lambda: iter([tmp_path]))
    for version, expected in (("12.8", "12 13"), ("13.0", "13 12"), (None, "13 12")):
        monkeypatch.setattr(torch.version, "cuda", version)
        assert [Path(path).name for path in toolchains._nvrtc_libraries()] == [
            f"libnvrtc.so.{major}" for major in expected.split()
        ]


def test_arch_goes_with_the_language(cache_dir: Path) -> None:
    with pytest.raises(
        ValueError, match='arch: a cuda source was given None, expected an architecture such as "sm_90"'
    ):
        build(KERNEL)
    with pytest.raises(ValueError, match="arch: a cpp source was given 'sm_90', expected None"):
        build(TWICE, "sm_90")


@pytest.mark.parametrize("arch", ["sm_80", "sm_87", "sm_90", "sm_100"])
def test_nvrtc_compiles_for_every_generation(cache_dir: Path, arch: str) -> None:
    try:
        toolchain = Nvrtc.find()
    except ToolchainMissing as error:
        pytest.skip(str(error))
    cubin = build(KERNEL, arch, toolchain).read_bytes()
    assert cubin[:4] == b"\x7fELF"
    assert b"scale" in cubin
    assert f"--gpu-architecture={arch}" in (build(KERNEL, arch, toolchain).parent / "command.txt").read_text()


def test_cuda_kernels_include_the_shipped_headers(
    cuda_toolchain: Toolchain, tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "csrc" / "losszoo").mkdir(parents=True)
    (tmp_path / "csrc" / "losszoo" / "inner.h").write_text("#pragma once\n__device__ const int marker = 3;\n")
    (tmp_path / "csrc" / "losszoo" / "outer.h").write_text("#pragma once\n#include <losszoo/inner.h>\n")
    monkeypatch.setattr(paths, "csrc", lambda: tmp_path / "csrc")
    paths.headers.cache_clear()
    try:
        includes = "#include <losszoo/outer.h>\n#include <losszoo/inner.h>\n"
        text = includes + 'extern "C" __global__ void f(int* x) { *x = marker; }\n'
        assert b"ELF" in build(Source("f", "cuda", text), "sm_90", cuda_toolchain).read_bytes()[:4]
    finally:
        paths.headers.cache_clear()


def test_shipped_files_are_found() -> None:
    assert (paths.csrc() / "parallel.cpp").is_file()
    assert all(name.startswith("losszoo/") for name in paths.headers())


def test_a_compile_leaves_the_environment_and_the_folder_alone(cache_dir: Path, tmp_path: Path) -> None:
    before, folder = dict(os.environ), os.getcwd()
    build(TWICE)
    assert (dict(os.environ), os.getcwd()) == (before, folder)
