"""What a person installs: the sdist, the wheel built from it, and a loss that runs from that wheel alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu_only

ROOT = Path(__file__).parent.parent
BUILD = "import setuptools.build_meta as backend, sys; print(getattr(backend, sys.argv[1])(sys.argv[2]))"
RUN = """
import sys, warnings
from pathlib import Path

warnings.simplefilter("error")  # falling back to the interpreter would be one
import torch, losszoo
import torch.nn.functional as F

assert Path(losszoo.__file__).is_relative_to(sys.argv[1]), losszoo.__file__
x, y = torch.randn(64, 10, requires_grad=True), torch.randint(10, (64,))
got, want = losszoo.cross_entropy(x, y), F.cross_entropy(x, y)
torch.testing.assert_close(got, want)
torch.testing.assert_close(torch.autograd.grad(got, x), torch.autograd.grad(want, x))
print("ran")
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    result = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.strip()


def shipped() -> set[str]:
    """The files that must be in both archives, by their place in the checkout."""
    files = [p for top in ("csrc", "templates") for p in (ROOT / top).rglob("*")]
    files += (ROOT / "losszoo").rglob("*.py")
    return {p.relative_to(ROOT).as_posix() for p in files if p.is_file() and "__pycache__" not in p.parts}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built, without the network, from a copy of the checkout free of what earlier builds left."""
    folder = tmp_path_factory.mktemp("sdist")
    leave = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder / "checkout", ignore=leave)
    name = run(sys.executable, "-c", BUILD, "build_sdist", folder, cwd=folder / "checkout").splitlines()[-1]
    return folder / name


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, so that nothing which the sdist lacks can be in it."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    name = run(sys.executable, "-c", BUILD, "build_wheel", folder, cwd=source).splitlines()[-1]
    return folder / name


def test_the_sdist_has_all_that_the_project_is_made_of(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert shipped() - names == set()
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "setup.py", "tests/conftest.py"} - names == set()


def test_the_wheel_has_headers_and_templates_inside_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    inside = {"csrc": "losszoo/_csrc", "templates": "losszoo/_templates", "losszoo": "losszoo"}
    expected = {inside[top] + "/" + rest for top, _, rest in (name.partition("/") for name in shipped())}
    assert {"losszoo/_csrc/losszoo/math.h", "losszoo/_templates/common.j2"} <= expected
    assert names == expected


def test_a_loss_runs_from_the_wheel_in_a_clean_folder(wheel, tmp_path):
    place = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", place, wheel]
    run(*pip, cwd=tmp_path)
    environment = {"PYTHONPATH": str(place), "LOSSZOO_CACHE_DIR": str(tmp_path / "cache")}
    assert run(sys.executable, "-c", RUN, place, cwd=tmp_path, **environment) == "ran"
    assert run(place / "bin" / "losszoo", "--version", cwd=tmp_path, **environment).startswith("losszoo ")
