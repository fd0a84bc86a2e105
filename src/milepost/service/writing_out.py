"""Write a version into a directory as files that need no milepost: whole, or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from milepost.clock import Clock
from milepost.errors import ConflictError, CorruptError, UsageError
from milepost.service.index import Chunks, blob_of
from milepost.store.local import LocalStore
from milepost.store.posix import Posix, closing, failures_of

RECORD = "version.json"
"""What lies beside the parts, and says what they are. It comes last: where it is missing a kill came between."""
_PART = ".part"


@dataclass(frozen=True, slots=True)
class Part:
    """Be one part to write: its slot, what its bytes have to be, and what fills memory with those from an offset on."""

    slot: str
    chunks: Chunks
    read_into: Callable[[int, memoryview], None]


def write_out(
    to: str,
    parts: Sequence[Part],
    record: bytes,
    clock: Clock,
    *,
    force: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> list[str]:
    """Write each part, and ``record`` as `RECORD`, into the directory ``to``; return the names, in their order.

    A new directory appears at once, with everything in it, durable. In one that is there (empty, or ``force``) files of these
    names are replaced when all bytes are there, `RECORD` last; others stay. What fails before leaves all as it was. Raises
    `UsageError` (kind ``not-empty``), `ConflictError` (``held``) where another process writes there, `CorruptError`
    (``damaged-shard``) for bytes that are not those of the version, `StoreError`.
    """
    target, posix = os.path.abspath(to), Posix()
    with failures_of("look at", target):
        is_there = posix.exists(target)
        if is_there and not force and (names := _names(target)):
            raise _not_empty(to, names)
    stage = os.path.join(target, _PART) if is_there else target + _PART
    with _staging(stage, posix):
        store = LocalStore(stage, clock, posix=posix)
        for part in parts:
            _write(store, part, progress)
        with store.open_blob(RECORD) as blob:
            blob.write(record)
            blob.commit()
        names = [*(blob_of(part.slot) for part in parts), RECORD]
        with failures_of("put into place", target, unknown=True):
            if is_there:
                _move_in(stage, target, names, posix)
            else:
                posix.rename_new(stage, target)
            posix.sync_directory(os.path.dirname(target))
    return names


def _names(target: str) -> list[str]:
    return sorted(name for name in os.listdir(target) if name != _PART)


def _not_empty(to: str, names: Sequence[str]) -> UsageError:
    return UsageError(
        "there is something in this directory already",
        kind="not-empty",
        hint="choose a new one; or --force: files of the same names are replaced, and others stay",
        directory=to,
        holds=", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else ""),
    )


@contextmanager
def _staging(stage: str, posix: Posix) -> Iterator[None]:
    """Make an empty directory that no other process writes to, and leave none. What a killed one has left is removed."""
    with failures_of("make", stage):
        os.makedirs(stage, exist_ok=True)
        descriptor = os.open(stage, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with closing(posix, descriptor):
        try:
            posix.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            hint = "wait for it, or choose another directory"
            raise ConflictError("another process is writing there", kind="held", hint=hint, directory=stage) from error
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.EINVAL, errno.ENOLCK):
                raise
        try:
            with failures_of("empty", stage):
                _empty(stage)
            yield
        finally:
            if _is_same(stage, descriptor):  # else it has its name by now
                shutil.rmtree(stage, ignore_errors=True)


def _is_same(stage: str, descriptor: int) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.lstat(stage), os.fstat(descriptor))
    return False


def _empty(directory: str) -> None:
    with os.scandir(directory) as entries:
        for entry in [*entries]:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


def _write(store: LocalStore, part: Part, progress: Callable[[int], None]) -> None:
    """Write one part, each chunk checked before it is written."""
    chunks = part.chunks
    memory = memoryview(bytearray(min(chunks.chunk_bytes, chunks.size_bytes)))
    with store.open_blob(blob_of(part.slot), size_bytes=chunks.size_bytes) as blob:
        for number in range(len(chunks)):
            start, stop = chunks.range_of(number)
            piece = memory[: stop - start]
            part.read_into(start, piece)
            if not chunks.matches(number, piece):
                raise CorruptError(
                    "a part of this version is damaged; nothing was written",
                    kind="damaged-shard",
                    hint="take another version: milepost status shows which there are",
                    slot=part.slot,
                    chunk=number,
                )
            blob.write(piece)
            progress(len(piece))
        blob.commit()


def _move_in(stage: str, target: str, names: Sequence[str], posix: Posix) -> None:
    with suppress(FileNotFoundError):
        posix.unlink(os.path.join(target, RECORD))  # else a kill from here on would leave it beside parts that it does not mean
        posix.sync_directory(target)
    for name in names:
        posix.replace(os.path.join(stage, name), os.path.join(target, name))
    posix.sync_directory(target)
