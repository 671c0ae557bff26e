"""An on-disk cache of compiled artefacts that survives races, crashes, damage and places it may not write.

An entry is a directory, made privately, synced, renamed into place and never changed again. `losszoo.json` in it holds
the artefact's hash, so a truncated file is a miss. Locks only spare double work: without them every process would still
end up with a good entry. Since the artefacts are code that will be loaded, the cache is refused where anyone else (the
administrator excepted) could have put them there.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from losszoo.errors import CacheError

SCHEMA = 1
RECORD = "losszoo.json"
LOCK_PATIENCE = 60.0  # seconds; a lock's holder may be stopped for good, and then double work is the lesser evil
ABANDONED = 86400.0  # seconds after which a private directory belongs to a process that died, or a failed compile

_known: dict[tuple[Path, str], Path] = {}
_warned: set[Path] = set()


def fetch(name: str, key: str, artefact: str, make: Callable[[Path], None]) -> Path:
    """The file `artefact` of entry `key`. On a miss `make(directory)` writes it.

    `make` may leave other files beside it, for people to read. Raises CacheError, and whatever `make` raises.
    """
    entry = _entry(name, key)
    tried: list[str] = []
    for where in (place, fallback_place):  # the second is not even looked for unless it is needed
        root = where()
        hit = _found(root, entry, artefact)
        if hit is not None:
            return hit
        try:
            _prepare(root)
        except OSError as error:
            tried.append(str(root))
            _warn_once(root, error)
            continue
        try:
            path = _known[root, entry] = _make_entry(root, entry, artefact, make)
        except OSError as error:  # a full disk, say
            raise CacheError(f"the kernel cache {root} could not take {entry}: {error}; {_ADVICE}") from error
        return path
    raise CacheError(f"the kernel cache can be written neither at {' nor at '.join(tried)}; {_ADVICE}")


def find(name: str, key: str, artefact: str) -> Path | None:
    """The file `artefact` of entry `key` if it has been made. Raises CacheError where the cache must not be trusted."""
    entry = _entry(name, key)
    return next((hit for where in (place, fallback_place) if (hit := _found(where(), entry, artefact)) is not None), None)


_ADVICE = "set LOSSZOO_CACHE_DIR to a directory of your own"


def place() -> Path:
    """Where the cache belongs: LOSSZOO_CACHE_DIR, else the user's cache directory, else a temporary one."""
    if chosen := os.environ.get("LOSSZOO_CACHE_DIR"):
        return Path(os.path.abspath(os.path.expanduser(chosen)))
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    base = xdg if os.path.isabs(xdg) else os.path.expanduser("~/.cache")
    return Path(base, "losszoo") if os.path.isabs(base) else fallback_place()


def fallback_place() -> Path:
    """A directory of this user's for when the cache's own place cannot be written."""
    return Path(tempfile.gettempdir(), f"losszoo-{os.geteuid()}")


def _entry(name: str, key: str) -> str:
    readable = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name[:60])
    return f"{readable}-{key[:40]}"


def _found(root: Path, entry: str, artefact: str) -> Path | None:
    known = _known.get((root, entry))
    if known is not None and known.exists():
        return known
    if not _exists(root):
        return None
    _refuse_unsafe(root)
    hit = _lookup(root / entry, artefact)
    return None if hit is None else _known.setdefault((root, entry), hit)


def _exists(root: Path) -> bool:
    try:
        return root.exists()
    except OSError:  # such as a parent that may not be searched
        return False


def _refuse_unsafe(root: Path) -> None:
    status = root.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise CacheError(f"the kernel cache {root} is not a directory; {_ADVICE}")
    if root.is_symlink() and root.parent.stat().st_mode & stat.S_IWOTH:
        raise CacheError(f"the kernel cache {root} is a link in a directory that anyone can write; {_ADVICE}")
    if status.st_uid not in (os.geteuid(), 0):
        raise CacheError(f"the kernel cache {root} belongs to another user (uid {status.st_uid}); {_ADVICE}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        raise CacheError(f"others can write the kernel cache {root} (mode {mode:o}); run chmod 700 on it, or {_ADVICE}")


def _prepare(root: Path) -> None:
    """Create `root`, or learn by an OSError that nothing can be written there."""
    with suppress(FileExistsError):
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700)
    _refuse_unsafe(root)
    os.rmdir(tempfile.mkdtemp(prefix=".tmp-", dir=root))


def _warn_once(root: Path, error: OSError) -> None:
    if root not in _warned:
        _warned.add(root)
        warnings.warn(
            f"losszoo cannot write its kernel cache at {root} ({error.strerror}): kernels go to {fallback_place()}, "
            f"which may not outlive this machine's next start; {_ADVICE}",
            stacklevel=2,
        )


def _lookup(entry: Path, artefact: str) -> Path | None:
    """The entry's artefact if it is whole; anything missing, damaged or unreadable is a miss."""
    try:
        recorded = json.loads((entry / RECORD).read_bytes())
        whole = recorded[artefact] == hashlib.sha256((entry / artefact).read_bytes()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return entry / artefact if whole else None


def _make_entry(root: Path, entry: str, artefact: str, make: Callable[[Path], None]) -> Path:
    with _lock(root / f".lock-{artefact}-{entry[-2:]}"):
        hit = _lookup(root / entry, artefact)
        if hit is not None:  # another process or thread made it while this one waited
            return hit
        _sweep(root)
        workspace = Path(tempfile.mkdtemp(prefix=".tmp-", dir=root))
        try:
            make(workspace)  # a workspace whose make failed stays for people to look at, until it is swept
            record = {artefact: hashlib.sha256((workspace / artefact).read_bytes()).hexdigest()}
            (workspace / RECORD).write_text(json.dumps(record))
            for path in (*workspace.iterdir(), workspace):
                _sync(path)
        except OSError:  # a full disk, which what is left here would keep full
            shutil.rmtree(workspace, ignore_errors=True)
            raise
        return _publish(workspace, root / entry, artefact)


def _publish(workspace: Path, entry: Path, artefact: str) -> Path:
    """Rename the finished workspace to `entry`; the winner of a race stays, a damaged entry goes."""
    for _ in range(3):
        try:
            workspace.rename(entry)
        except OSError:
            if _lookup(entry, artefact):
                shutil.rmtree(workspace, ignore_errors=True)
                return entry / artefact
            # Out of the way by a rename, since a process that has the old file mapped must keep it.
            grave = Path(tempfile.mkdtemp(prefix=".tmp-", dir=entry.parent))
            with suppress(OSError):
                entry.rename(grave / "damaged")
            shutil.rmtree(grave, ignore_errors=True)
        else:
            _sync(entry.parent)
            return entry / artefact
    return workspace / artefact  # it cannot be published, but it is whole


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # which some file systems answer for a directory
            raise
    finally:
        os.close(descriptor)


def _sweep(root: Path) -> None:
    for path in root.glob(".tmp-*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED:
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the operating system's lock on `path`, which keeps out threads too, since each opens the file for itself.

    It dies with its process. Where it cannot be had (some network file systems, a stuck holder), go on without.
    """
    import fcntl  # POSIX only: importing losszoo elsewhere must still reach the interpreter

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + LOCK_PATIENCE
        while time.monotonic() < deadline:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.002)
            except OSError:
                break
            else:
                break
        yield
    finally:
        # A fork meanwhile shares the descriptor, so closing alone would leave the lock with the child.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
