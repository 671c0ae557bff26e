"""The compilers behind one interface: the C++ compiler for CPU kernels, NVRTC or else nvcc for CUDA kernels."""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import itertools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal, Protocol

from losszoo import paths
from losszoo.errors import CompileError, ToolchainMissing

Language = Literal["cpp", "cuda"]


@dataclass(frozen=True)
class Source:
    """A rendered kernel: the loss's name, for people; the language; the text."""

    name: str
    language: Language
    text: str

    @property
    def identity(self) -> str:
        """What decides the text: the text itself, unless a subclass knows something that is quicker to come by."""
        return self.text


class Buildable(Protocol):
    """What can be built: a Source, or what has its text only when it is asked for."""

    @property
    def name(self) -> str: ...

    @property
    def language(self) -> Language: ...

    @property
    def identity(self) -> str: ...

    @property
    def text(self) -> str: ...


class Toolchain(Protocol):
    """A compiler. It turns `kernel.<source_suffix>` in a directory into `kernel.<suffix>` beside it.

    `flags` and `identity` go into the cache key: `identity` is what else decides the artefact, which is the compiler
    and, where it compiles for this very machine, the machine. Both are cheap, since a warm cache is asked for them too.
    """

    source_suffix: str
    suffix: str

    @property
    def flags(self) -> Sequence[str]: ...

    @property
    def identity(self) -> str: ...

    @property
    def description(self) -> str:
        """What people call it: its name, version and place."""

    def compile(self, name: str, directory: Path, arch: str | None) -> None: ...


def find_toolchain(language: Language) -> Toolchain:
    """The compiler for `language` ("cpp" or "cuda"); ToolchainMissing, saying how to get one, where there is none."""
    return _find(language, *(os.environ.get(name) for name in ("CXX", "PATH", "CUDA_HOME", "CUDA_PATH")))


@cache
def _find(language: Language, *environment: str | None) -> Toolchain:
    # Cached by what the search reads, so that a changed environment is searched again.
    if language == "cpp":
        return Cpp.find()
    try:
        return Nvrtc.find()
    except ToolchainMissing:
        return Nvcc.find()


class Cpp:
    """The C++ compiler: $CXX, else c++, g++ or clang++."""

    source_suffix = "cpp"
    suffix = "so"
    # Not -ffast-math: nan and infinities must survive. GCC vectorises no exp while it honours traps or errno.
    flags = (
        *("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-fvisibility=hidden"),
        *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fopenmp-simd"),
    )

    def __init__(self, compiler: Sequence[str]) -> None:
        self.compiler = tuple(compiler)

    @classmethod
    def find(cls) -> Cpp:
        chosen = os.environ.get("CXX", "").strip()
        for command in [chosen] if chosen else ["c++", "g++", "clang++"]:
            words = [command] if shutil.which(command) else shlex.split(command)  # a path may hold spaces
            if found := shutil.which(words[0]):
                return cls([os.path.abspath(found), *words[1:]])
        where = f"CXX names {chosen!r}, which cannot be run" if chosen else "none of c++, g++, clang++ is on the PATH"
        raise ToolchainMissing(
            f"no C++ compiler: {where}; install one (apt install g++, dnf install gcc-c++, xcode-select --install, "
            "or conda install gxx) or set CXX to it"
        )

    @cached_property
    def identity(self) -> str:
        return f"{identify(self.compiler)} {_processor()}"

    @property
    def description(self) -> str:
        first, _, _ = _version(self.compiler).partition("\n")
        return f"{first or 'says no version'} ({shlex.join(self.compiler)})"

    def compile(self, name: str, directory: Path, arch: str | None = None) -> None:
        # Relative names: what is compiled says nothing of the private directory that it is compiled in.
        files = ("-I", str(paths.csrc()), "-o", "kernel.so", "kernel.cpp")
        try:
            run_compiler(name, (*self.compiler, *self.flags, *files), directory, "kernel.so")
        except CompileError as error:
            if "march" not in str(error).partition(_OUTPUT)[2]:
                raise
            # Some compilers know no native architecture on some machines.
            portable = (flag for flag in self.flags if flag != "-march=native")
            run_compiler(name, (*self.compiler, *portable, *files), directory, "kernel.so")


class Nvcc:
    """The CUDA toolkit's compiler: $CUDA_HOME/bin/nvcc, else nvcc on the PATH, else where toolkits are installed."""

    source_suffix = "cu"
    suffix = "cubin"
    flags = ("nvcc", "-std=c++17", "-O3", "-cubin")

    def __init__(self, compiler: str) -> None:
        self.compiler = compiler

    @classmethod
    def find(cls) -> Nvcc:
        homes = [home for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")) if home]
        for command in (*(f"{home}/bin/nvcc" for home in homes), "nvcc", "/usr/local/cuda/bin/nvcc"):
            if found := shutil.which(command):
                return cls(os.path.abspath(found))
        raise ToolchainMissing(
            "no CUDA compiler: neither NVRTC (libnvrtc) nor nvcc was found; pip install nvidia-cuda-nvrtc "
            "(nvidia-cuda-nvrtc-cu12 for CUDA 12), or set CUDA_HOME to a CUDA toolkit"
        )

    @cached_property
    def identity(self) -> str:
        return identify((self.compiler,))

    @property
    def description(self) -> str:
        lines = _version((self.compiler,)).splitlines()
        return f"{next((line for line in lines if 'release' in line), 'says no version')} ({self.compiler})"

    def compile(self, name: str, directory: Path, arch: str | None) -> None:
        files = ("-I", str(paths.csrc()), "-o", "kernel.cubin", "kernel.cu")
        run_compiler(name, (self.compiler, *self.flags[1:], f"-arch={arch}", *files), directory, "kernel.cubin")


class Nvrtc:
    """NVIDIA's runtime compiler, a library that every CUDA build of torch brings; it needs neither toolkit nor GPU."""

    source_suffix = "cu"
    suffix = "cubin"
    flags = ("nvrtc", "-std=c++17")

    def __init__(self, library: str) -> None:
        self.library = library

    @classmethod
    def find(cls) -> Nvrtc:
        for library in _nvrtc_libraries():
            return cls(library)
        for library in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"):  # wherever else the system's loader looks
            try:
                ctypes.CDLL(library)
            except OSError:
                continue
            return cls(library)
        raise ToolchainMissing("no libnvrtc; pip install nvidia-cuda-nvrtc (nvidia-cuda-nvrtc-cu12 for CUDA 12)")

    @cached_property
    def identity(self) -> str:
        if os.path.isabs(self.library):
            return _stat(self.library)
        return self.description

    @property
    def description(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"{self.library} {major.value}.{minor.value}"

    def compile(self, name: str, directory: Path, arch: str | None) -> None:
        options = (*self.flags[1:], f"--gpu-architecture={arch}")
        command = f"{shlex.join(('nvrtc', *options, 'kernel.cu'))}  # {self.library}"
        _announce(command, directory)
        headers = paths.headers()
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            (directory / "kernel.cu").read_bytes(),
            b"kernel.cu",
            len(headers),
            _strings(headers.values()),
            _strings(header.encode() for header in headers),
        )
        try:
            arguments = _strings(option.encode() for option in options)
            failed = self._library.nvrtcCompileProgram(program, len(options), arguments)
            if failed:
                log = self._fetch("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
                raise _failure(name, command, log or self._explain(failed), directory)
            (directory / "kernel.cubin").write_bytes(self._fetch("CUBIN", program))
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    @cached_property
    def _library(self) -> ctypes.CDLL:
        # NVRTC opens its builtins by bare name, which finds nothing in site-packages unless they are loaded already.
        folder = os.path.dirname(self.library)
        try:
            for builtins in Path(folder).glob("libnvrtc-builtins.so*") if folder else ():
                ctypes.CDLL(str(builtins))
            library = ctypes.CDLL(self.library)
        except OSError as error:
            raise ToolchainMissing(f"{self.library} does not load: {error}; reinstall nvidia-cuda-nvrtc") from error
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return library

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            raise ToolchainMissing(f"{self.library} does not work: {function} says {self._explain(code)}")

    def _explain(self, code: int) -> str:
        return self._library.nvrtcGetErrorString(code).decode()

    def _fetch(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw


def _nvrtc_libraries() -> list[str]:
    """The libnvrtc files at hand, first those of the CUDA version that torch was built for, which the driver suits."""
    torch = sys.modules.get("torch")
    version = torch.version.cuda if torch else None
    preferred = f".so.{version.partition('.')[0]}" if version else ".so"
    found = (str(path) for folder in _nvrtc_folders() for path in sorted(folder.glob("libnvrtc.so.*"), reverse=True))
    return sorted(found, key=lambda path: preferred not in path)


def _nvrtc_folders() -> Iterator[Path]:
    package = importlib.util.find_spec("nvidia")
    for location in package.submodule_search_locations or () if package else ():
        yield from Path(location).glob("*/lib")
    yield Path(sys.prefix, "lib")  # conda
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    yield from (Path(home, "lib64") for home in homes if home)


def _strings(values) -> ctypes.Array:
    values = list(values)
    return (ctypes.c_char_p * len(values))(*values)


_OUTPUT = "\nthe compiler said:\n"
_DISK_FULL = "No space left on device"
_COMPILER_ADVICE = "`losszoo doctor` tells whether the compiler works at all; CXX names another one for the CPU"


def run_compiler(name: str, command: Sequence[str], directory: Path, product: str) -> None:
    _announce(shlex.join(command), directory)
    # English messages; temporary files on the disk that is known to be writable.
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(directory)}
    try:
        done = subprocess.run(
            command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError as error:
        raise _failure(name, shlex.join(command), str(error), directory) from error
    output = (done.stdout + done.stderr).decode(errors="replace").strip()
    if done.returncode and _DISK_FULL in output:  # no fault of the kernel, nor of the compiler
        raise OSError(errno.ENOSPC, f"{command[0]} says: {_DISK_FULL}")
    if done.returncode:
        raise _failure(name, shlex.join(command), output or f"(nothing; exit status {done.returncode})", directory)
    if not (directory / product).exists():
        raise _failure(name, shlex.join(command), output or f"(nothing, and wrote no {product})", directory)


def _announce(command: str, directory: Path) -> None:
    (directory / "command.txt").write_text(command + "\n", encoding="utf-8", errors="surrogateescape")
    if os.environ.get("LOSSZOO_VERBOSE") == "1":
        print(f"losszoo: {command}", file=sys.stderr)


def _failure(name: str, command: str, output: str, directory: Path) -> CompileError:
    lines = output.splitlines()
    shown = "\n".join(lines[:80]) + (f"\n... {len(lines) - 80} more lines" if len(lines) > 80 else "")
    return CompileError(f"{name}: the kernel did not compile\ncommand: {command}\nrun in: {directory}{_OUTPUT}{shown}\n{_COMPILER_ADVICE}")


def identify(command: Sequence[str]) -> str:
    """Which compiler a command is: its words, and the file behind it.

    A binary is known by its file's size and time. A script, ccache and the like stand for another program, which can
    change beneath them: only those are run, to ask for the version.
    """
    identity = f"{' '.join(command)} {_stat(command[0])}"
    if len(command) == 1 and _is_compiler(os.path.realpath(command[0])):
        return identity
    return identity + _version(command)


def _version(command: Sequence[str]) -> str:
    try:
        done = subprocess.run((*command, "--version"), stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError:  # what cannot be run cannot compile either, and will say so then
        return ""
    return done.stdout.decode(errors="replace")


def _is_compiler(path: str) -> bool:
    if not any(kind in os.path.basename(path) for kind in ("++", "gcc", "clang", "nvcc")):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(2) != b"#!"
    except OSError:  # it may be run but not read
        return False


def _stat(path: str) -> str:
    real = os.path.realpath(path)
    status = os.stat(real)
    return f"{real} {status.st_size} {status.st_mtime_ns}"


@cache
def _processor() -> str:
    """What -march=native depends on, as the kernel lists it for the first processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            first = itertools.takewhile(str.strip, file)
            return "".join(line for line in first if line.startswith(_PROCESSOR_LINES))
    except OSError:
        import platform  # its processor() may start a process

        return f"{platform.machine()} {platform.processor()}"


_PROCESSOR_LINES = ("vendor_id", "cpu family", "model\t", "flags", "Features", "CPU implementer", "CPU part", "isa")
