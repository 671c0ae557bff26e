"""Builds a rendered CUDA kernel as a program for this machine, under sanitizers."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from losszoo import paths
from losszoo.jit.cache import fetch

HERE = Path(__file__).parent
MODES = {
    # The compiler reports loads and stores to host/races.cpp, in the place of the thread sanitizer.
    "races": (
        *("-fsanitize=thread,undefined", "-fno-sanitize=null,object-size,pointer-overflow"),
        *("--param=tsan-distinguish-volatile=1", "--param=tsan-instrument-func-entry-exit=0"),
    ),
    # By calls, as the other: the checks themselves in the kernel would take twice as long to compile.
    "address": ("-fsanitize=address,undefined", "--param=asan-instrumentation-with-call-threshold=0"),
}
KERNEL_FLAGS = (
    *("-std=c++17", "-O1", "-g1", "-fno-pie", "-fno-exceptions", "-fno-sanitize-recover=all", "-Wno-unknown-pragmas"),
    "-fno-extern-tls-init",
    "-fno-thread-jumps",  # it makes two barriers of one
)


class Toolchain:
    """A compiler as losszoo.jit knows them: it turns kernel.cu into the program kernel.simt, which runs launches."""

    source_suffix = "cu"
    suffix = "simt"

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.flags = (*KERNEL_FLAGS, *MODES[mode])
        found = shutil.which("g++")
        assert found, "the harness needs g++, whose sanitizers it builds on"
        self.compiler = found

    @property
    def identity(self) -> str:
        return f"{_version(self.compiler)} {_digest()}"

    def compile(self, name: str, directory: Path, arch: str | None) -> None:
        runtime = self._runtime()
        _run(directory, self.compiler, *self.flags, *self._include(), "-x", "c++", "-S", "kernel.cu", "-o", "kernel.s")
        text = (directory / "kernel.s").read_text()
        (directory / "kernel.s").write_text(_with_gaps(text))
        _run(directory, self.compiler, "-c", "kernel.s", "-o", "kernel.o")
        for array in _symbols(directory / "kernel.o", defined=False):
            _run(directory, "objcopy", f"--redefine-sym={array.name}=simt_dynamic", "kernel.o")
        sanitizers = "-fsanitize=undefined" if self.mode == "races" else "-fsanitize=address,undefined"
        files = ("kernel.o", str(runtime), "-ldl", "-lm", "-o", "kernel.simt")
        _run(directory, self.compiler, *_linker(), "-no-pie", "-rdynamic", sanitizers, *files)

    def _include(self) -> list[str]:
        device = HERE / "device"
        return ["-include", str(device / "simt.h"), "-I", str(device), "-I", str(paths.csrc())]

    def _runtime(self) -> Path:
        """The machine itself, compiled once: an object that every kernel is linked with."""
        files = [str(HERE / "host" / f"{part}.cpp") for part in ("machine", "races", "main")]
        flags = ("-std=c++17", "-O2", "-g1", "-fno-pie", "-Wall", "-Wextra", f"-DSIMT_ADDRESS={int(self.mode == 'address')}")

        def make(workspace: Path) -> None:
            _run(workspace, self.compiler, *flags, "-r", "-o", "runtime.o", *files)

        key = hashlib.sha256(f"{self.identity} {flags}".encode()).hexdigest()
        return fetch("simt_machine", key, "runtime.o", make)


def _with_gaps(assembly: str) -> str:
    """The same with a gap after each variable (those in shared memory are meant), so that what runs over one does not land in the next."""
    return re.sub(r"^\t\.size\t(\S+), \d+\n\1:\n\t\.zero\t\d+\n", r"\g<0>\t.zero\t64\n", assembly, flags=re.MULTILINE)


class Symbol:
    """A variable in the thread-local segment."""

    def __init__(self, offset: str, size: str, name: str) -> None:
        self.offset, self.size, self.name = int(offset, 16), int(size), name


def shared_variables(program: Path) -> list[Symbol]:
    """What a kernel's program keeps in shared memory, beside the dynamic array."""
    return [s for s in _symbols(program, defined=True, demangled=True) if s.name != "simt_dynamic"]


def _symbols(file: Path, defined: bool, demangled: bool = False) -> list[Symbol]:
    table = subprocess.run(
        ["readelf", "--syms", "--wide", *["--demangle"] * demangled, str(file)], capture_output=True, text=True, check=True
    ).stdout
    tables = table.split("Symbol table")  # a program has its dynamic symbols too
    found = re.findall(r"^ *\d+: (\w+) +(\d+) TLS +\w+ +\w+ +(\w+) (.+)$", tables[-1], re.MULTILINE)
    return [Symbol(offset, size, name.strip()) for offset, size, section, name in found if (section != "UND") == defined]


def source_lines(program: Path, text: str) -> str:
    """The text with the code addresses in it followed by file and line."""
    addresses = sorted(set(re.findall(r"0x[0-9a-f]{5,8}\b", text)))
    for address in addresses:
        # A call's return address may belong to the next line.
        before = hex(int(address, 16) - 1)
        done = subprocess.run(["addr2line", "-i", "-e", str(program), before], capture_output=True, text=True, check=False)
        frames = [line.rpartition("/")[2] for line in done.stdout.splitlines() if "?" not in line]
        text = text.replace(address, f"{address} ({' < '.join(frames)})") if frames else text
    return text


def _run(directory: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)} in {directory}:\n{done.stderr[:8000]}"


@cache
def _linker() -> tuple[str, ...]:
    """The one that takes a third of the time, where there is one."""
    return ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()


@cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout


@cache
def _digest() -> str:
    """Of what decides a program beside its kernel: this file too."""
    files = [Path(__file__), *sorted(path for folder in ("device", "host") for path in (HERE / folder).rglob("*.*"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
