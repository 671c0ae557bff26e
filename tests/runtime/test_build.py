"""The native runtime on a machine that has not built it yet, or cannot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from losszoo.errors import CompileError
from losszoo.jit import extension
from losszoo.runtime import native

pytestmark = pytest.mark.cpu_only

ROOT = Path(__file__).parent.parent.parent
SCRIPT = """
import sys, torch, losszoo
from losszoo.runtime import native
x = torch.randn(4, 8, requires_grad=True)
loss = losszoo.cross_entropy(x, torch.zeros(4, dtype=torch.long))
loss.backward()
print(loss.grad_fn.name(), native.settled())
"""


def run(cache: Path, **environment: str | Path) -> str:
    kept = {k: v for k, v in os.environ.items() if k != "LOSSZOO_RUNTIME"}
    environment = {**kept, "PYTHONPATH": str(ROOT), "LOSSZOO_CACHE_DIR": str(cache), **{k: str(v) for k, v in environment.items()}}
    result = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], env=environment, capture_output=True, text=True, cwd=cache)
    assert result.returncode == 0 and not result.stderr, result.stderr
    return result.stdout.strip()


@pytest.fixture
def unsettled(monkeypatch):
    """This process as one that has not asked for the runtime yet."""
    for name, value in ("_settled", False), ("_runtime", None), ("_building", None):
        monkeypatch.setattr(native, name, value)
    monkeypatch.delenv("LOSSZOO_RUNTIME")


def test_the_first_call_returns_at_once_and_the_build_outlives_its_process(tmp_path):
    """With a compiler that knows the runtime's units by heart: each takes half a minute, and was compiled when the tests began."""
    compiler, go, built = tmp_path / "c++", tmp_path / "go", extension.find()
    compiler.write_text(f"""#!/bin/sh
case "$*" in
  *-std=c++20*) while [ ! -e '{go}' ]; do sleep 0.1; done; for last; do :; done; touch "$last" ;;
  *{extension.ARTEFACT}*) cp '{built}' {extension.ARTEFACT} ;;
  *) exec c++ "$@" ;;
esac
""")
    compiler.chmod(0o755)
    assert run(tmp_path, CXX=compiler) == "_FunctionBackward False"
    go.touch()
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob(f"{extension.NAME}-*/{extension.ARTEFACT}")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert run(tmp_path, CXX=compiler) == "CrossEntropyBackward True"


def test_the_build_leaves_the_cores_to_others(monkeypatch, tmp_path):
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", str(tmp_path))
    patient = min(19, os.getpriority(os.PRIO_PROCESS, 0) + extension.PATIENCE)
    build = extension.start_building()
    try:
        while os.getpriority(os.PRIO_PROCESS, build.pid) != patient:
            assert build.poll() is None
            time.sleep(0.01)
    finally:
        os.killpg(build.pid, signal.SIGTERM)
        build.wait()


def test_python_alone_if_that_is_wanted(tmp_path):
    assert run(tmp_path, LOSSZOO_RUNTIME="python") == "_FunctionBackward True"
    assert not list(tmp_path.glob(f"{extension.NAME}*"))


def test_a_build_that_fails_is_not_tried_again(monkeypatch, tmp_path, unsettled):
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(extension, "FLAGS", ("-no-such-flag",))
    with pytest.raises(CompileError, match="no-such-flag"):
        extension.build()
    monkeypatch.setattr(extension, "start_building", lambda: pytest.fail("tried again"))
    assert native.runtime() is None and native.settled()
    with pytest.raises(CompileError, match="no-such-flag"):
        extension.find()


@pytest.mark.parametrize("missing", ["Python.h", "ninja", "compiler"])
def test_what_it_needs_and_is_not_there_leaves_the_work_to_python(missing, monkeypatch, tmp_path, unsettled):
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", str(tmp_path))
    if missing == "compiler":
        monkeypatch.setenv("CXX", "/nowhere/c++")
    elif missing == "Python.h":
        monkeypatch.setattr(extension.sysconfig, "get_path", lambda name: str(tmp_path))
    else:
        monkeypatch.setitem(sys.modules, "ninja", None)
        monkeypatch.setattr(extension.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(extension.subprocess, "Popen", lambda *_, **__: pytest.fail("cannot succeed"))
    assert native.runtime() is None and native.settled()


def test_the_runtime_is_taken_when_its_build_ends(monkeypatch, unsettled):
    ends = iter([None, None, 0])
    built = extension.find()
    found = iter([None, built])

    class Build:
        def poll(self):
            return next(ends)

    monkeypatch.setattr(extension, "find", lambda: next(found))
    monkeypatch.setattr(extension, "start_building", Build)
    assert [native.runtime() is None for _ in range(4)] == [True, True, True, False]
    assert native.settled() and native.runtime().Entry
