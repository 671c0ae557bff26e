from __future__ import annotations

import fcntl
import json
import os
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from losszoo.errors import CacheError
from losszoo.jit import cache
from losszoo.jit.cache import fetch

from .conftest import in_children

NOBODY = 65534
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def maker(log: Path | None = None, text: str = "artefact") -> Callable[[Path], None]:
    """A stand-in for a compiler, slow enough that those who start together overlap."""

    def make(directory: Path) -> None:
        (directory / "kernel.so").write_text(text)
        if log:
            with log.open("a") as file:
                file.write("made\n")
            time.sleep(0.05)

    return make


def forget() -> None:
    """Look at the disk again, as a new process would."""
    cache._known.clear()


def unwanted(directory: Path) -> None:
    raise AssertionError("made an entry that the cache holds")


def test_an_entry_is_made_once_and_then_found(cache_dir: Path) -> None:
    path = fetch("a/loss é", "k" * 64, "kernel.so", maker())
    assert path.read_text() == "artefact"
    assert path.parent.parent == cache_dir
    forget()
    assert fetch("a/loss é", "k" * 64, "kernel.so", unwanted) == path
    assert not list(cache_dir.glob(".tmp-*"))


def test_another_key_is_another_entry(cache_dir: Path) -> None:
    first = fetch("loss", "a" * 64, "kernel.so", maker(text="1"))
    second = fetch("loss", "b" * 64, "kernel.so", maker(text="2"))
    assert (first.read_text(), second.read_text()) == ("1", "2")


def test_the_cache_is_for_its_owner_alone(cache_dir: Path) -> None:
    umask = os.umask(0)
    try:
        path = fetch("loss", "a" * 64, "kernel.so", maker())
    finally:
        os.umask(umask)
    assert cache_dir.stat().st_mode & 0o777 == 0o700
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_eight_processes_share_one_build(cache_dir: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    paths = in_children([lambda: str(fetch("loss", "a" * 64, "kernel.so", maker(log)))] * 8)
    assert len(set(paths)) == 1
    assert Path(paths[0]).read_text() == "artefact"
    assert log.read_text() == "made\n"


def test_eight_threads_share_one_build(cache_dir: Path, tmp_path: Path) -> None:
    log, barrier, paths = tmp_path / "log", threading.Barrier(8), []

    def work() -> None:
        barrier.wait()
        paths.append(fetch("loss", "a" * 64, "kernel.so", maker(log)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 8
    assert len(set(paths)) == 1
    assert log.read_text() == "made\n"


def test_without_locks_every_racer_still_gets_a_whole_artefact(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    log = tmp_path / "log"
    read = [lambda: fetch("loss", "a" * 64, "kernel.so", maker(log)).read_text()] * 8
    assert in_children(read) == ["artefact"] * 8
    assert len(log.read_text().split()) > 1  # or nobody raced
    forget()
    assert fetch("loss", "a" * 64, "kernel.so", unwanted).read_text() == "artefact"
    assert not list(cache_dir.glob(".tmp-*"))


def test_a_lock_whose_holder_is_stuck_is_not_waited_for_for_ever(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "LOCK_PATIENCE", 0.05)
    cache_dir.mkdir(mode=0o700)
    with (cache_dir / ".lock-kernel.so-aa").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert fetch("loss", "a" * 64, "kernel.so", maker()).read_text() == "artefact"


def test_a_lock_ends_with_the_build_though_a_fork_holds_its_file(cache_dir: Path) -> None:
    def make_and_fork(directory: Path) -> None:
        maker()(directory)
        children.append(os.fork())
        if children[-1] == 0:
            signal.pause()

    children: list[int] = []
    fetch("loss", "a" * 64, "kernel.so", make_and_fork)
    try:
        with (cache_dir / ".lock-kernel.so-aa").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)


def test_a_killed_build_leaves_no_entry_and_is_swept_later(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(directory: Path) -> None:
        (directory / "kernel.so").write_text("arte")
        os._exit(9)

    child = os.fork()
    if child == 0:
        try:
            fetch("loss", "a" * 64, "kernel.so", die)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    (left,) = cache_dir.glob(".tmp-*")
    assert fetch("loss", "a" * 64, "kernel.so", maker()).read_text() == "artefact"
    assert left.exists()  # for all we know, someone is still at it
    os.utime(left, (0, 0))
    fetch("loss", "b" * 64, "kernel.so", maker())
    assert not left.exists()


def test_what_is_published_is_on_the_disk(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the power fails, there is a whole entry or none; and one that was returned stays."""
    synced: set[int] = set()
    fsync, rename = os.fsync, Path.rename

    def sync(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def publish(workspace: Path, entry: Path) -> Path:
        assert {path.stat().st_ino for path in (workspace, *workspace.rglob("*"))} <= synced
        synced.clear()
        return rename(workspace, entry)

    def make(directory: Path) -> None:
        maker()(directory)
        (directory / "beside.txt").write_text("for people")

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "rename", publish)
    assert fetch("loss", "a" * 64, "kernel.so", make).read_text() == "artefact"
    assert cache_dir.stat().st_ino in synced


def truncate(entry: Path) -> None:
    os.truncate(entry / "kernel.so", 3)


def empty(entry: Path) -> None:
    for path in entry.iterdir():
        path.unlink()


def flip(entry: Path) -> None:
    (entry / "kernel.so").write_text("artefacT")


def replace_by_a_file(entry: Path) -> None:
    empty(entry)
    entry.rmdir()
    entry.write_text("")


def record(text: str) -> Callable[[Path], None]:
    return lambda entry: (entry / cache.RECORD).write_text(text) and None


DAMAGE = {
    "truncated": truncate,
    "emptied": empty,
    "altered": flip,
    "a file": replace_by_a_file,
    "record is no JSON": record('{"kernel.so": "12'),
    "record is binary": lambda entry: (entry / cache.RECORD).write_bytes(b"\xff\xfe\x00") and None,
    "record is a list": record("[]"),
    "record of something else": record(json.dumps({"kernel.cubin": "12"})),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_entry_is_a_miss_and_is_mended(cache_dir: Path, damage: Callable[[Path], None]) -> None:
    path = fetch("loss", "a" * 64, "kernel.so", maker())
    damage(path.parent)
    forget()
    assert fetch("loss", "a" * 64, "kernel.so", maker()) == path
    forget()
    assert fetch("loss", "a" * 64, "kernel.so", unwanted).read_text() == "artefact"
    assert not list(cache_dir.glob(".tmp-*"))


def test_a_cache_removed_during_the_process_is_made_again(cache_dir: Path) -> None:
    path = fetch("loss", "a" * 64, "kernel.so", maker())
    empty(path.parent)
    assert fetch("loss", "a" * 64, "kernel.so", maker()).read_text() == "artefact"


def test_a_failing_build_leaves_no_entry(cache_dir: Path) -> None:
    def fail(directory: Path) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fetch("loss", "a" * 64, "kernel.so", fail)
    assert fetch("loss", "a" * 64, "kernel.so", maker()).read_text() == "artefact"


@pytest.fixture
def read_only(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds entry a and that a plain user can read but not write."""
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", str(open_path / "cache"))
    entry = fetch("loss", "a" * 64, "kernel.so", maker()).parent
    forget()
    for directory in (entry, open_path / "cache"):
        directory.chmod(0o555)
    monkeypatch.setattr("tempfile.tempdir", str(open_path / "tmp"))
    (open_path / "tmp").mkdir()
    (open_path / "tmp").chmod(0o1777)
    yield open_path
    (open_path / "cache").chmod(0o700)
    entry.chmod(0o700)


def test_a_read_only_cache_serves_what_it_holds(read_only: Path) -> None:
    (path,) = in_children([lambda: str(fetch("loss", "a" * 64, "kernel.so", unwanted))], uid=NOBODY)
    assert Path(path).parent.parent == read_only / "cache"


def test_what_a_read_only_cache_lacks_goes_to_a_temporary_place_with_one_warning(read_only: Path) -> None:
    def fetch_three() -> str:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            first = fetch("loss", "b" * 64, "kernel.so", maker())
            assert fetch("loss", "b" * 64, "kernel.so", unwanted) == first
            second = fetch("loss", "c" * 64, "kernel.so", maker())
            assert first.parent.parent == second.parent.parent
        return f"{len(caught)} {caught[0].message} {first}"

    (answer,) = in_children([fetch_three], uid=NOBODY)
    assert answer.startswith("1 losszoo cannot write its kernel cache at")
    assert "Permission denied" in answer
    assert "LOSSZOO_CACHE_DIR" in answer
    assert Path(answer.split()[-1]).parent.parent.parent == read_only / "tmp"


@pytest.mark.parametrize("place", ["/proc/self/losszoo", "{file}/cache"])
def test_an_impossible_place_means_a_temporary_one(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", place.format(file=tmp_path / "file"))
    cache._warned.clear()
    with pytest.warns(UserWarning, match="cannot write its kernel cache"):
        path = fetch("loss", "a" * 64, "kernel.so", maker())
    assert path.parent.parent == tmp_path / "tmp" / f"losszoo-{os.geteuid()}"
    forget()
    assert fetch("loss", "a" * 64, "kernel.so", unwanted) == path


def test_nowhere_to_write_is_one_clear_error(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", "/proc/self/losszoo")
    monkeypatch.setattr("tempfile.tempdir", "/proc/self")
    with (
        pytest.warns(UserWarning, match="cannot write"),
        pytest.raises(CacheError, match="neither at /proc/self/losszoo"),
    ):
        fetch("loss", "a" * 64, "kernel.so", maker())


def test_a_file_in_the_cache_s_place_is_refused(cache_dir: Path) -> None:
    cache_dir.touch()
    with pytest.raises(CacheError, match=f"{cache_dir} is not a directory"):
        fetch("loss", "a" * 64, "kernel.so", maker())


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_cache_that_others_can_write_is_refused(cache_dir: Path, mode: int) -> None:
    fetch("loss", "a" * 64, "kernel.so", maker())
    forget()
    cache_dir.chmod(mode)
    with pytest.raises(CacheError, match=f"others can write the kernel cache .*mode {mode:o}"):
        fetch("loss", "a" * 64, "kernel.so", maker())


def test_a_cache_of_another_user_is_refused(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only the administrator can give a directory away")
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", str(open_path / "cache"))
    (open_path / "cache").mkdir(mode=0o755)
    os.chown(open_path / "cache", 12345, 12345)
    with pytest.raises(CacheError, match="belongs to another user .uid 12345"):
        fetch("loss", "a" * 64, "kernel.so", maker())


def test_a_planted_link_in_the_temporary_place_is_refused(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", "/proc/self/losszoo")
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "tmp").chmod(0o1777)
    cache.fallback_place().symlink_to(tmp_path / "target")
    cache._warned.clear()
    with (
        pytest.warns(UserWarning, match="cannot write"),
        pytest.raises(CacheError, match="is a link in a directory that anyone"),
    ):
        fetch("loss", "a" * 64, "kernel.so", maker())


def test_a_link_of_one_s_own_is_followed(cache_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "big disk").mkdir(mode=0o700)
    cache_dir.symlink_to(tmp_path / "big disk")
    fetch("loss", "a" * 64, "kernel.so", maker())
    assert list((tmp_path / "big disk").glob("loss-*/kernel.so"))


def test_a_full_disk_is_a_cache_error(cache_dir: Path) -> None:
    def fill(directory: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CacheError, match="No space left on device"):
        fetch("loss", "a" * 64, "kernel.so", fill)


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("LOSSZOO_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.place() == Path("/home/someone/.cache/losszoo")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the XDG specification says to ignore
    assert cache.place() == Path("/home/someone/.cache/losszoo")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache.place() == Path("/xdg/losszoo")
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", "~/kernels")
    assert cache.place() == Path("/home/someone/kernels")
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", "")
    assert cache.place() == Path("/xdg/losszoo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOSSZOO_CACHE_DIR", "here")
    assert cache.place() == tmp_path / "here"


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a number which no account has."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "LOSSZOO_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert cache.place() == cache.fallback_place() == Path(tempfile.gettempdir(), f"losszoo-{os.geteuid()}")
