"""Compilers that are there and do not do: one error, which shows the compiler's own lines and what to do."""

from __future__ import annotations

import pytest

from .conftest import trained

pytestmark = [pytest.mark.cpu_only, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]


def test_an_old_compiler(compiler, tmp_path):
    script, _ = compiler("echo \"c++: error: unrecognized command line option '-std=c++17'\" >&2; exit 1")
    message = trained(LOSSZOO_CACHE_DIR=tmp_path / "cache", CXX=script)
    assert message.startswith("CompileError: squared: the kernel did not compile")
    assert "unrecognized command line option '-std=c++17'" in message
    assert "losszoo doctor" in message and "CXX" in message


def test_a_compiler_for_another_kind_of_machine(compiler, tmp_path):
    script, _ = compiler('for last; do [ "$before" = -o ] && printf "\\177ELF of elsewhere" > "$last"; before=$last; done')
    message = trained(LOSSZOO_CACHE_DIR=tmp_path / "cache", CXX=script)
    assert message.startswith("CacheError: ") and "\n" not in message
    assert "does not load" in message and "set CXX to one for this" in message
    assert trained(LOSSZOO_CACHE_DIR=tmp_path / "cache", CXX="") == "right"  # nothing of it stays in the way
