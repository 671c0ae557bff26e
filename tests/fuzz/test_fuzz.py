"""A few random specs on every run, what the fuzzer once found, and that it can find something."""

from __future__ import annotations

import dataclasses

import pytest

from losszoo.ir import build as b
from losszoo.ir import primitives
from losszoo.ir.expr import ONE
from tests.fuzz.__main__ import failure
from tests.fuzz.compare import random_setting
from tests.fuzz.program import random_program
from tests.fuzz.shrink import shrink

pytestmark = pytest.mark.cpu_only


def case(seed: int):
    program = random_program(seed)
    return program, random_setting(seed, row=any(kind.startswith("Row") for _, kind in program.operands))


@pytest.mark.parametrize("seed", range(10**6, 10**6 + 12))
def test_kernels_match_the_interpreter(seed):
    backend = ("simt", "parts", "cpu")[seed % 3]
    said = failure(*case(seed), backend)
    assert said is None, f"{case(seed)[0].text()}\n{said}"


def test_a_wrong_derivative_is_found_and_shrunk(monkeypatch):
    wrong = dataclasses.replace(primitives.TABLE["tanh"], vjp=lambda n, g: (b.mul(g, b.add(ONE, b.mul(n, n))),))
    monkeypatch.setitem(primitives.TABLE, "tanh", wrong)
    found = next((c for c in map(case, range(200)) if "tanh" in c[0].text() and failure(*c, "cpu")), None)
    assert found, "no spec failed"
    program, setting = shrink(found, lambda c: failure(*c, "cpu"), budget=30)
    assert "tanh" in program.text() and len(program.lines) <= len(found[0].lines)
