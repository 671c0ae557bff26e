"""A source knows what decides its text, and so its place in the cache, without being rendered."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace

import pytest

import losszoo
from losszoo import paths
from losszoo.codegen import Form, Kernel, render, sources
from losszoo.codegen.render import Rendered
from losszoo.spec import Elem, loss
from losszoo.spec.declare import Choice
from losszoo.spec.operands import ClassWeight, Index, Row

CE = losszoo.cross_entropy.spec
PLAIN = CE.default_choice()
ROWS = Form("rows", ("float32", "int64"), "float32", ("input",), True)


@pytest.fixture
def templates(tmp_path, monkeypatch):
    """A copy of the templates that a test may change."""
    caches = render._templates_text, render._environment
    copy = shutil.copytree(paths.templates(), tmp_path / "templates")
    monkeypatch.setattr(paths, "templates", lambda: copy)
    for cache in caches:
        cache.cache_clear()
    yield copy
    for cache in caches:
        cache.cache_clear()


def test_equal_kernels_have_one_identity():
    first, second = (Kernel(CE, CE.default_choice(), replace(ROWS)).source("cpp") for _ in range(2))
    assert first is not second and first.identity == second.identity and first.text == second.text


def test_every_difference_changes_it():
    """The choice of loss, each part of the form, and the language; where the text differs, so does the identity."""
    kernels = [
        Kernel(CE, PLAIN, ROWS),
        Kernel(CE, PLAIN, replace(ROWS, lowering="columns")),
        Kernel(CE, PLAIN, replace(ROWS, dtypes=("bfloat16", "int64"))),
        Kernel(CE, PLAIN, replace(ROWS, dtypes=("float64", "int64"), real="float64")),
        Kernel(CE, Choice((Row, Index, ClassWeight), (), PLAIN.present), replace(ROWS, dtypes=("float32", "int64", "float32"))),
        Kernel(CE, Choice((Row, Row, None), (), PLAIN.present), replace(ROWS, dtypes=("float32", "float32"))),
        Kernel(CE, Choice((Row, Row, None), (), PLAIN.present), replace(ROWS, dtypes=("float32",) * 2, wrt=("input", "target"))),
        *(Kernel(CE, replace(PLAIN, present=p), ROWS) for p in itertools.product((False, True), repeat=3) if any(p)),
    ]
    found = [kernel.source(language) for kernel in kernels for language in ("cpp", "cuda")]
    assert len({s.identity for s in found}) == len({s.text for s in found}) == len(found)
    scattered = [Kernel(CE, PLAIN, replace(ROWS, dense=False)).source(language) for language in ("cpp", "cuda")]
    for a, b in itertools.combinations(found + scattered, 2):
        assert a.text == b.text or a.identity != b.identity


def test_the_maths_changes_it():
    def made(power: int) -> Rendered:
        @loss
        def f(x: Elem):
            return abs(x) ** power

        return sources(f.spec, "cpp")[0]

    assert made(3).identity == made(3).identity != made(4).identity


def test_a_changed_template_changes_it(templates):
    source = Kernel(CE, PLAIN, ROWS).source("cpp")
    before = source.identity, source.text
    for path in sorted(templates.rglob("*.j2")):
        old = render._templates_text()
        path.write_text("// another\n" + path.read_text())
        render._templates_text.cache_clear()
        assert render._templates_text() != old, path.name
    again = Rendered(source.name, source.language, source.context)
    render._environment.cache_clear()
    assert again.identity != before[0] and again.text != before[1]


def test_a_warm_start_renders_nothing(monkeypatch):
    """Whoever only asks for the identity neither renders nor loads the template engine."""

    def refuse():
        raise AssertionError("rendered")

    source = Kernel(CE, PLAIN, ROWS).source("cuda")
    monkeypatch.setattr(render, "_environment", refuse)
    assert len(source.identity) > 1000
    with pytest.raises(AssertionError, match="rendered"):
        _ = source.text


@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_the_text_says_what_it_is(language):
    for source in sources(CE, language):
        head = source.text.splitlines()[0]
        assert CE.name in head and source.context["lowering"] in head and "generated" in head
        assert (source.name, source.language) == (CE.name, language) and source.text.endswith("}\n")
