"""The rules of the house that a machine can hold us to."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import losszoo

ROOT = Path(__file__).parent.parent
NAMING = (
    "losszoo/losses/",
    "losszoo/compat/",
    "examples/",
    "tests/",
    "benchmarks/",
    "docs/",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
)


def sources() -> list[Path]:
    """Files that git tracks or would; all files but hidden and built ones where there is no git."""
    git = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    names = git.stdout.split("\n") if git.returncode == 0 else [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")]
    hidden = re.compile(r"(^|/)(\.|__pycache__)")
    return [ROOT / name for name in names if name and not hidden.search(name) and (ROOT / name).is_file()]


def loss_names() -> re.Pattern[str]:
    """`foo_bar_loss` and `FooBarLoss` name foo bar: however spaced or capitalised, but not inside a word."""
    stems = set()
    for name in losszoo.losses.__all__:
        words = name.split("_") if name == name.lower() else re.findall(r"[A-Z]+[a-z]*(?:[A-Z](?![a-z]))*", name)
        words = [word for word in words if word.lower() != "loss"]
        if words:
            stems.add("[-_ ]?".join(words).lower())
    return re.compile(rf"(?<![a-z])(?:{'|'.join(sorted(stems))})(?:[-_ ]?loss)?(?![a-z])", re.IGNORECASE)


def test_the_names_are_found():
    names = loss_names()
    for text in (
        "ciou",
        "CIoULoss(",
        "wiou_loss",
        "cross-entropy",
        "F.cross_entropy",
        "CrossEntropyLoss",
        "softmax focal",
    ):
        assert names.search(text), text
    for text in "precious", "gracious", "entropy of a cross":
        assert not names.search(text), text


def test_no_file_names_a_loss():
    names, found = loss_names(), []
    for path in sources():
        where = path.relative_to(ROOT).as_posix()
        if where.startswith((*NAMING, ".git/")):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{where}:{i}: {m[0]}" for i, line in enumerate(text.splitlines(), 1) if (m := names.search(line))]
    assert not found, "\n".join(found)


IMPORT_WITHOUT = """
import importlib, pkgutil, sys, types

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "jinja2"):
            raise ImportError(f"{name} is not for this package")

sys.meta_path.insert(0, Refuse())
package = types.ModuleType("losszoo")
package.__path__ = [sys.argv[1]]
sys.modules["losszoo"] = package
ir = importlib.import_module("losszoo.ir")
modules = [module.name for module in pkgutil.iter_modules(ir.__path__, "losszoo.ir.")]
assert len(modules) > 3
for module in modules:
    importlib.import_module(module)
assert not {"torch", "jinja2"} & set(sys.modules)
print(*modules)
"""


def test_ir_needs_neither_torch_nor_jinja2():
    package = Path(losszoo.__file__).parent
    result = subprocess.run([sys.executable, "-c", IMPORT_WITHOUT, str(package)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "path", [p for p in sources() if p.suffix == ".py"], ids=lambda p: p.relative_to(ROOT).as_posix()
)
def test_modules_are_small(path):
    assert len(path.read_text().splitlines()) < 450


def test_every_loss_has_a_function_and_a_module_under_the_package():
    for name in losszoo.losses.__all__:
        assert getattr(losszoo, name) is getattr(losszoo.losses, name)


def test_every_loss_is_documented():
    """One formula, its arguments, its source."""
    for name in losszoo.losses.__all__:
        text = getattr(losszoo, name).__doc__ or ""
        assert "Source:" in text and len(text) > 200, name


def test_inline_assembly_is_in_one_header():
    """Whoever runs kernels on something else than a GPU has only that file to replace."""
    folders = (ROOT / "csrc", ROOT / "templates")
    found = {p.name for folder in folders for p in folder.rglob("*.*") if re.search(r"\basm\b", p.read_text())}
    assert found == {"ptx.h"}
