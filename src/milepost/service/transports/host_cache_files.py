"""Open, lock, list and remove the files that the readers of one host share."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from milepost.service.index import Chunks

DATA, MARKS, ROOM, READERS = ".bytes", ".chunks", "room.lock", "readers.lock"
HERE = b"\1"
"""The mark of a chunk that has come, and was found to be right."""
HEAD_BYTES = 8
"""Before the marks: which file they are about. Those of another one say nothing."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Be one blob of the cache."""

    key: str
    size_bytes: int
    used_ns: int
    """When it was used last, by the wall clock."""


def key_of(chunks: Chunks) -> str:
    """Return the name of what has these bytes, whichever version it is of."""
    return f"{chunks.digest}-{chunks.size_bytes}-{chunks.chunk_bytes}"


def path_of(directory: str, key: str, kind: str) -> str:
    """Return the path of one of an entry's two files."""
    return os.path.join(directory, key + kind)


def open_lock(path: str) -> int | None:
    """Open a file, made if need be, and lock it; None if somebody else has it locked, or it was removed meanwhile."""
    descriptor = open_here(path)
    if _is_locked(descriptor, fcntl.LOCK_EX) and _is_there(descriptor, path):
        return descriptor
    os.close(descriptor)
    return None


def open_here(path: str) -> int:
    """Open a file, made if need be."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def is_alone(present: int) -> bool:
    """Say whether nobody else has this file locked, and have it locked ourselves from then on, together with others."""
    alone = _is_locked(present, fcntl.LOCK_EX)
    # Whoever asks at this very moment has it for himself, and nobody waits for that: it is a hint, and made good the next time.
    _is_locked(present, fcntl.LOCK_SH)
    return alone


def open_there(directory: str, key: str, chunks: Chunks, marks: int) -> int | None:
    """Open what is there of a blob; None if nothing is, or if it is not as it should be. The caller has the marks locked."""
    path = path_of(directory, key, DATA)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    # One who died while he made it has left it without its room, or without its marks.
    status = os.fstat(descriptor)
    if status.st_size == chunks.size_bytes and os.pread(marks, HEAD_BYTES, 0) == _head(status):
        return descriptor
    os.close(descriptor)
    return None


def create(directory: str, key: str) -> int:
    """Make the file for a blob's bytes. One that was there loses its name: somebody may have it mapped."""
    path = path_of(directory, key, DATA)
    with suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def begin_marks(marks: int, data: int, chunks: Chunks) -> None:
    """Say that of this file nothing is there yet."""
    os.pwrite(marks, _head(os.fstat(data)) + bytes(len(chunks)), 0)


def share(descriptor: int) -> None:
    """Say that a blob is in use, for as long as this opening of it, or a mapping made from it, lives."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def unshare(descriptor: int) -> None:
    """Say that a blob is in use no more, though a mapping of it may still live: its memory goes with that."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def evict(directory: str, key: str) -> bool:
    """Remove a blob unless somebody fetches or maps it; return whether it is gone."""
    marks = open_lock(path_of(directory, key, MARKS))
    if marks is None:
        return False
    try:
        data = _open(path_of(directory, key, DATA))
        if data is not None:
            try:
                if not _is_locked(data, fcntl.LOCK_EX):
                    return False
            finally:
                os.close(data)
        remove(directory, key)
        return True
    finally:
        os.close(marks)


def remove(directory: str, key: str) -> None:
    """Remove a blob's files: the bytes first. The caller has the marks locked."""
    for kind in (DATA, MARKS):
        with suppress(FileNotFoundError):
            os.unlink(path_of(directory, key, kind))


def entries(directory: str) -> Iterator[Entry]:
    """Yield all blobs there are, also halves of one that somebody has left."""
    names = os.listdir(directory)
    for key in {name.removesuffix(kind) for kind in (DATA, MARKS) for name in names if name.endswith(kind)}:
        marks = _status(path_of(directory, key, MARKS))
        data = _status(path_of(directory, key, DATA))
        newest = max((each.st_mtime_ns for each in (marks, data) if each is not None), default=0)
        yield Entry(key, 0 if data is None else data.st_blocks * 512, newest)


def movement(directory: str) -> int:
    """Return a number that is another one when anybody has fetched something into this directory."""
    found = [_status(os.path.join(directory, name)) for name in os.listdir(directory)]
    return hash(tuple(sorted((each.st_ino, each.st_mtime_ns) for each in found if each is not None)))


def _is_locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


def _is_there(descriptor: int, path: str) -> bool:
    there = _status(path)
    return there is not None and os.path.samestat(os.fstat(descriptor), there)


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _head(status: os.stat_result) -> bytes:
    return status.st_ino.to_bytes(HEAD_BYTES, "little")
