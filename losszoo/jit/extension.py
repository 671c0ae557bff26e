"""The native runtime: an extension module for the torch at hand, of several units that ninja compiles side by side."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from losszoo import paths
from losszoo.errors import CompileError, ToolchainMissing
from losszoo.jit import cache as store
from losszoo.jit.toolchains import Cpp, find_toolchain, identify, run_compiler

NAME = "losszoo_runtime"
ARTEFACT = f"{NAME}.so"
UNITS = ("runtime/python.cpp", "runtime/node.cpp", "runtime/launch.cpp", "parallel.cpp")
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden")
LIBRARIES = ("c10", "torch_cpu", "torch_python")
PATIENCE = 15  # by how much the niceness of a build in the background is above that of who asked for it


def find() -> Path | None:
    """The module, if it has been built. Raises ToolchainMissing where it cannot be, CompileError where that was tried."""
    if found := store.find(NAME, _digest(), ARTEFACT):
        return found
    _headers()
    if said := store.find(NAME, _digest("failure"), "failure.txt"):
        text = said.read_text(encoding="utf-8", errors="replace")
        raise CompileError(f"{text}\nit is not tried again until {said.parent} is removed")
    return None


def build() -> Path:
    """Build the module, or find it. A failure is kept too, so that no later process tries the same again."""
    try:
        return store.fetch(NAME, _digest(), ARTEFACT, _make)
    except CompileError as error:
        said = str(error)
        store.fetch(NAME, _digest("failure"), "failure.txt", lambda folder: _write(folder / "failure.txt", said))
        raise


class Building(subprocess.Popen):
    """A build in a process of its own. It may outlive this one, which other processes are warned of as they are forgotten."""

    def __del__(self, *_: object) -> None:
        pass


def start_building() -> Building:
    """Build in another process, which exits when it is done. It works in this one's folder, where the environment may name paths.

    It leaves nearly all of a core to what else wants it: the compilation that a caller waits for, or the training itself.
    Raises ToolchainMissing.
    """
    _ninja()
    begin = f"import os, sys; os.nice({PATIENCE}); sys.path[:] = {[os.path.abspath(p) for p in sys.path]!r}"
    program = f"{begin}; from losszoo.jit import extension; extension.build()"
    nothing = subprocess.DEVNULL
    return Building([sys.executable, "-c", program], stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)


def _make(folder: Path) -> None:
    import torch

    compiler, python, ninja = find_toolchain("cpp"), _headers(), _ninja()
    assert isinstance(compiler, Cpp)
    root = Path(torch.__file__).parent
    includes = (paths.csrc() / "runtime", root / "include", root / "include/torch/csrc/api/include", python)
    flags = [*FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    flags += [word for include in includes for word in ("-isystem", str(include))]
    link = [f"-L{root / 'lib'}", *(f"-l{library}" for library in LIBRARIES)]
    objects = {f"{Path(unit).stem}.o": paths.csrc() / unit for unit in UNITS}
    lines = [
        f"cxx = {_escaped(shlex.join(compiler.compiler))}",
        f"rule compile\n  command = $cxx {_escaped(shlex.join(flags))} -c $in -o $out",
        f"rule link\n  command = $cxx -shared $in {_escaped(shlex.join(link))} -o $out",
        *(f"build {name}: compile {_escaped(str(path), ' :')}" for name, path in objects.items()),
        f"build {ARTEFACT}: link {' '.join(objects)}",
    ]
    _write(folder / "build.ninja", "\n".join(lines) + "\n")
    run_compiler("the native runtime", (ninja, "-v"), folder, ARTEFACT)
    for name in objects:
        (folder / name).unlink()


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="surrogateescape")


def _escaped(text: str, letters: str = "") -> str:
    """The text as ninja reads it."""
    return "".join("$" + letter if letter in "$" + letters else letter for letter in text)


def _headers() -> str:
    """The folder of this Python's headers."""
    folder = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(folder, "Python.h")):
        raise ToolchainMissing("no Python.h: install the headers of this Python (apt install python3-dev)")
    return folder


def _ninja() -> str:
    """The ninja of this environment, or else of the PATH."""
    try:
        import ninja

        folder = ninja.BIN_DIR
    except (ImportError, AttributeError):
        folder = None
    found = (folder and shutil.which("ninja", path=folder)) or shutil.which("ninja")
    if not found:
        raise ToolchainMissing("no ninja: pip install ninja")
    return found


def _digest(of: str = "module") -> str:
    """Everything that decides the module: sources, flags, compiler, torch, the interpreter's binary interface."""
    import torch

    digest = hashlib.sha256()
    torchs = (torch.__version__, str(torch.version.git_version), str(torch.compiled_with_cxx11_abi()))
    sources = (*UNITS, "runtime/plan.h")
    texts = ((paths.csrc() / source).read_text(encoding="utf-8") for source in sources)
    interpreter = (EXTENSION_SUFFIXES[0], sys.version, sys.base_prefix)  # sysconfig knows more, and takes its time
    compiler = find_toolchain("cpp")
    assert isinstance(compiler, Cpp)
    for part in (of, str(store.SCHEMA), *FLAGS, *torchs, torch.__file__, *interpreter, identify(compiler.compiler), *texts):
        data = part.encode(errors="surrogateescape")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
