"""Kernels keep to the memory of their operands and gradients; those of CUDA are watched by tests/simt."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.cpu_only
@pytest.mark.skipif(sys.platform != "linux", reason="pages are guarded by mprotect")
def test_nothing_beyond_the_last_value_is_touched():
    done = subprocess.run([sys.executable, "-m", "tests.losses.guarded"], capture_output=True, text=True, check=False)
    assert done.stdout == "stayed within\n", f"status {done.returncode}: {done.stderr}"
