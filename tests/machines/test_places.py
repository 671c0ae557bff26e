"""Where kernels are kept: places that cannot be written, are full, damaged, shared, or oddly named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .conftest import FORKS, ONCE, ROOT, TRAIN, trained

pytestmark = [pytest.mark.cpu_only, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]


def one_cache_error(message: str) -> bool:
    return message.startswith("CacheError: ") and "\n" not in message and "set LOSSZOO_CACHE_DIR to a directory" in message


def test_a_home_that_cannot_be_written(python, tmp_path):
    (tmp_path / "tmp").mkdir()
    done = python(ONCE, LOSSZOO_CACHE_DIR="", HOME="/proc/self", TMPDIR=tmp_path / "tmp")
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
    assert done.stderr.count("Warning") == 1 and "cannot write its kernel cache at /proc/self/.cache/losszoo" in done.stderr
    assert list((tmp_path / "tmp").glob("losszoo-*/*/kernel.so"))


def test_a_cache_on_a_file(tmp_path):
    (tmp_path / "file").touch()
    message = trained(LOSSZOO_CACHE_DIR=tmp_path / "file")
    assert one_cache_error(message) and f"{tmp_path}/file is not a directory; set LOSSZOO_CACHE_DIR to" in message


@pytest.mark.parametrize("size", ["4k", "24k"], ids=["for the source", "for the library"])
def test_a_full_disk(mount, size):
    disk = mount(f"size={size}")
    message = trained(LOSSZOO_CACHE_DIR=disk / "cache")
    assert one_cache_error(message) and "No space left on device" in message
    assert not list(disk.rglob("kernel*"))  # which would keep the disk full


def test_a_disk_that_is_full_for_the_compiler(compiler, tmp_path):
    script, _ = compiler("echo 'as: kernel.o: No space left on device' >&2; exit 1")
    message = trained(LOSSZOO_CACHE_DIR=tmp_path / "cache", CXX=script)
    assert one_cache_error(message) and "No space left on device" in message
    assert not list(tmp_path.rglob("kernel*"))


def test_a_file_system_without_exec(mount):
    message = trained(LOSSZOO_CACHE_DIR=mount("noexec") / "cache")
    assert one_cache_error(message) and "does not load" in message and "noexec" in message


def test_a_cache_shared_by_versions_and_machines(python, compiler):
    """Each adds kernels of its own, and finds them again."""
    visits = """
from losszoo import paths
from losszoo.jit import toolchains

def here(): train()

def of_another_version():
    headers = paths.headers()
    paths.headers = lambda: headers | {"new.h": b""}
    train()

def on_another_machine():
    toolchains._processor = lambda: "flags: none of these"
    train()

for visit in 2 * [here, of_another_version, on_another_machine]:
    in_children(1, visit)
    print(len(open(os.environ["LOG"]).readlines()))
"""
    script, log = compiler()
    done = python(TRAIN + FORKS + visits, CXX=script, LOG=log)
    compiles = [int(count) for count in done.stdout.split()]
    assert done.stderr == "" and compiles[0] > 0 and compiles == [compiles[0] * times for times in (1, 2, 3, 3, 3, 3)]


def test_a_damaged_cache_is_mended(tmp_path):
    assert trained(LOSSZOO_CACHE_DIR=tmp_path / "cache") == "right"
    libraries = list((tmp_path / "cache").glob("*/kernel.so"))
    whole = [library.read_bytes() for library in libraries]
    for library, content in zip(libraries, whole):
        library.unlink()  # a process may have the old file mapped
        library.write_bytes(content[: len(content) // 2])
    assert trained(LOSSZOO_CACHE_DIR=tmp_path / "cache") == "right"
    assert libraries and all(library.stat().st_size > len(content) // 2 for library, content in zip(libraries, whole))


def test_spaces_and_accents_everywhere(python, tmp_path):
    """Also where the locale knows ASCII alone."""
    odd = tmp_path / "un été 'à' $HOME \"x\""
    for folder in ("losszoo", "templates", "csrc"):
        shutil.copytree(ROOT / folder, odd / "code" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (odd / "tmp").mkdir()
    script = f"import losszoo, sys; assert losszoo.__file__.startswith(sys.argv[1])\n{ONCE}"
    place = {"PYTHONPATH": odd / "code", "LOSSZOO_CACHE_DIR": "", "HOME": odd / "home", "TMPDIR": odd / "tmp"}
    done = python(script, arguments=(odd,), **place, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (done.stdout, done.stderr) == ("right\n", "")
    assert list(Path(odd, "home/.cache/losszoo").glob("*/kernel.so"))
