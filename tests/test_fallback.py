"""Without a compiler: one warning that says how to get one, then the interpreter, and the same results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, warnings
sys.path.insert(0, sys.argv[1])
import torch, losszoo
from losszoo.errors import FallbackWarning
from tests.losses import oracle
from tests.losses.samples import sample

with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for name in sys.argv[2].split(","):
        for dtype in torch.float32, torch.bfloat16, torch.float64:
            for reduction in "mean", "none":
                oracle.check(name, getattr(losszoo, name), sample(name, dtype, reduction=reduction), "cpu")
fallbacks = [w for w in seen if issubclass(w.category, FallbackWarning)]
others = [str(w.message) for w in seen if w not in fallbacks and "losszoo" in w.filename + str(w.message)]
assert not others, others
assert len(fallbacks) == 1, [str(w.message) for w in fallbacks]
print(fallbacks[0].message)
"""
NAMES = ("cross_entropy", "softmax_focal_loss", "sigmoid_focal_loss", "ciou_loss", "wiou_loss")


def run(names: str, cache: Path, **environment: str) -> str:
    kept = {k: v for k, v in os.environ.items() if k not in ("CXX", "CC", "CUDA_HOME", "CUDA_PATH")}
    root = str(Path(__file__).parent.parent)
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, root, names],
        env={**kept, "PATH": "", "LOSSZOO_CACHE_DIR": str(cache), **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.cpu_only
def test_no_compiler(tmp_path):
    said = run(",".join(NAMES), tmp_path)
    for part in "compiler", "g++", "interpreter":
        assert part in said, said


@pytest.mark.cpu_only
def test_a_compiler_that_is_not_there(tmp_path):
    said = run("cross_entropy", tmp_path, CXX="/nowhere/c++")
    assert "/nowhere/c++" in said
