"""Rendered kernels: the same bytes as those kept, and the same in every process."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import losszoo
from tests.codegen.regenerate import COMMAND, FOLDER, GOLDEN, render

ROOT = Path(losszoo.__file__).parent.parent


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_text(name):
    kept, now = (FOLDER / name).read_text(encoding="utf-8"), render(name)
    difference = "\n".join(difflib.unified_diff(kept.splitlines(), now.splitlines(), "kept", "rendered now", lineterm="", n=1))
    assert kept == now, f"{name} has changed; if that is meant, run `{COMMAND}` and commit the difference:\n{difference}"


def test_nothing_else_is_kept():
    assert {path.name for path in FOLDER.iterdir()} == set(GOLDEN)


DIGEST = """
import hashlib, losszoo
from examples.jsd import jsd_distillation_loss
from losszoo.codegen import sources

digest = hashlib.sha256()
functions = [f for f in map(losszoo.__dict__.get, losszoo.losses.__all__) if not isinstance(f, type)]
for function in [*functions, jsd_distillation_loss]:
    for language in "cpp", "cuda":
        for source in sources(function.spec, language):
            digest.update(source.identity.encode() + source.text.encode())
print(digest.hexdigest(), hash("a text"))
"""


def test_the_same_bytes_in_every_process():
    """Text and cache key depend on no order of a set or of addresses: two processes that hash differently agree."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", DIGEST], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True
        )
        for seed in ("1", "2")
    ]
    (first, hash1), (second, hash2) = (process.communicate()[0].split() for process in processes)
    assert hash1 != hash2 and first == second
