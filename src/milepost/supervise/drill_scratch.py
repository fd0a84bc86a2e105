"""Make the directory that a drill works in, and remove what drills that were killed have left behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from milepost.store.posix import Posix
from milepost.store.resolve import REDIRECT
from milepost.supervise.group import kill, started_with

_PREFIX, _LOCK = "milepost-drill-", "drill.lock"


@contextmanager
def scratch(*, keep: bool) -> Iterator[Path]:
    """Make a directory for as long as the block lasts, or for good. What is linked there holds space on the run's disk.

    A lock that ends with this process says that it is in use; the next drill removes those that are not.
    """
    remove_left_over(Path(tempfile.gettempdir()))
    path, posix = Path(tempfile.mkdtemp(prefix=_PREFIX)), Posix()
    lock = posix.open_lock(str(path / _LOCK))
    try:
        posix.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield path
    finally:
        os.close(lock)
        if keep:
            # Nobody sweeps what is to be kept.
            (path / _LOCK).unlink()
        else:
            shutil.rmtree(path, ignore_errors=True)


def remove_left_over(place: Path) -> list[Path]:
    """Remove the directories of drills that have ended without removing them, and end what still trains there. Return them."""
    found = [path for path in sorted(place.glob(f"{_PREFIX}*")) if _is_left_over(path)]
    for path in found:
        # A kill of a drill ends its commands, and not what these have started: nobody else would ever end that.
        kill(started_with(REDIRECT, path))
        shutil.rmtree(path, ignore_errors=True)
    return found


def _is_left_over(path: Path) -> bool:
    posix = Posix()
    try:
        if path.is_symlink() or path.lstat().st_uid != os.geteuid():
            return False
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        posix.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(lock)
