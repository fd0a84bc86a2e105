"""Record every call that changes files, in one order across threads and processes. `milepost.testing.power` tells what for."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import msgspec

from milepost.store.posix import CHANGES, Posix

P = ParamSpec("P")
T = TypeVar("T")

_LENGTH = struct.Struct(">I")
_OPENS = ("open_new", "open_append", "open_lock")
_ON_DESCRIPTORS = ("write", "write_at", "preallocate", "truncate", "fsync")


@dataclass(frozen=True, slots=True)
class Record:
    """Hold one call that succeeded, with what it really did: a short write has the bytes that were taken, and no others."""

    name: str
    """The method of `Posix`; ``found`` for what lay there at the start, ``note`` for a marker."""
    inode: int = 0
    """The kernel's own number of the file or directory that was acted upon: a descriptor's number is used again too soon."""
    path: str = ""
    to: str = ""
    data: bytes | None = None
    offset: int = 0
    """Where the bytes went; of a truncate or a preallocation, the new size."""
    facts: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        what = " ".join(filter(None, [self.path, self.to and f"-> {self.to}", f"#{self.inode}" if self.inode else ""]))
        size = f" {len(self.data)} bytes at {self.offset}" if self.data is not None else ""
        return f"{self.name} {what or self.facts}{size}"


class Recorder(Posix):
    """Do each call for real and append it to a journal file, if it succeeded and changed something below ``place``.

    Several recorders, also of child processes (forked or spawned), may share one journal: a call and its record are one
    step under an OS lock. What lay below ``place`` when the journal was begun counts as durable. ``inner`` may drop, fail
    or cut short any call: what it lets through is recorded, and nothing else.
    """

    def __init__(self, place: str | os.PathLike[str], journal: str | os.PathLike[str], inner: Posix | None = None) -> None:
        self.place = os.path.abspath(place)
        self.journal = os.path.abspath(journal)
        self._inner = inner or Posix()
        self._elsewhere: set[tuple[int, int]] = set()
        if self._inside(self.journal) is not None:
            raise ValueError("the journal must lie outside of what it records")
        with _appending(self.journal) as descriptor:
            if os.fstat(descriptor).st_size == 0:
                _append(descriptor, *found(self.place))

    def note(self, name: str, /, **facts: object) -> None:
        """Add a marker: what was promised by now (``note("acknowledged", number=3, step=30)``), of JSON-like facts."""
        with _appending(self.journal) as journal:
            _append(journal, Record("note", path=name, facts=facts))

    def perform(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if name == "close":
            self._elsewhere.discard((os.getpid(), args[0]))
        if name not in CHANGES:
            return self._inner.perform(name, function, *args, **kwargs)

        def recorded(*args: P.args, **kwargs: P.kwargs) -> T:
            # The call within the lock: two processes that race for a name are recorded in the order in which they won.
            with _appending(self.journal) as journal:
                before = self._before(name, args)
                result = function(*args, **kwargs)
                record = self._record(name, args, result, before)
                if record is not None:
                    _append(journal, record)
                return result

        return self._inner.perform(name, recorded, *args, **kwargs)

    def _inside(self, path: str) -> str | None:
        path = os.path.abspath(path)
        if path == self.place:
            return ""
        return path[len(self.place) + 1 :] if path.startswith(self.place + os.sep) else None

    def _before(self, name: str, args: tuple[Any, ...]) -> bool | int:
        """Return what can be told only before the call: whether a name is there, or which directory is going to be synced."""
        if name in _OPENS:
            return os.path.lexists(args[0])
        return os.stat(args[0]).st_ino if name == "sync_directory" else 0

    def _record(self, name: str, args: tuple[Any, ...], result: Any, before: bool | int) -> Record | None:
        if name in _ON_DESCRIPTORS:
            return self._on_descriptor(name, args, result)
        path = self._inside(args[0])
        if name in _OPENS:
            if path is None:
                self._elsewhere.add((os.getpid(), result))
            return None if path is None or before else Record(name, os.fstat(result).st_ino, path)
        if name in ("link", "rename_new", "replace"):
            to = self._inside(args[1])
            return None if path is None and to is None else Record(name, path=path or "", to=to or "")
        if path is None:
            return None
        if name == "mkdir":
            return Record(name, os.stat(args[0]).st_ino, path)
        return Record(name, int(before), path)

    def _on_descriptor(self, name: str, args: tuple[Any, ...], result: Any) -> Record | None:
        descriptor = args[0]
        if (os.getpid(), descriptor) in self._elsewhere:
            return None
        # Asked of the kernel each time: the number 7 that was a blob a moment ago may be a directory by now, or have been
        # opened by a parent before it forked. A sync must never be credited to the file that had the number before.
        status = os.fstat(descriptor)
        if name == "write":
            end = os.lseek(descriptor, 0, os.SEEK_CUR)
            return Record(name, status.st_ino, data=bytes(args[1][:result]), offset=end - result)
        if name == "write_at":
            return Record(name, status.st_ino, data=bytes(args[1][:result]), offset=args[2])
        if name in ("preallocate", "truncate"):
            return Record(name, status.st_ino, offset=status.st_size)
        return Record("sync_directory" if stat.S_ISDIR(status.st_mode) else "fsync", status.st_ino)


def read_journal(journal: str | os.PathLike[str]) -> list[Record]:
    """Return what was recorded, in order."""
    with _appending(os.path.abspath(journal)) as descriptor:
        data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    records, position, decoder = [], 0, msgspec.msgpack.Decoder(Record)
    while position < len(data):
        (size,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        records.append(decoder.decode(data[position : position + size]))
        position += size
    return records


def found(place: str) -> Iterator[Record]:
    """Yield a record for every directory (``data`` is None) and every file below ``place``, parents first."""
    yield Record("found", os.stat(place).st_ino)
    for directory, names, files in os.walk(place):
        for name in sorted(names):
            path = os.path.join(directory, name)
            yield Record("found", os.lstat(path).st_ino, os.path.relpath(path, place))
        for name in sorted(files):
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                yield Record("found", os.fstat(file.fileno()).st_ino, os.path.relpath(path, place), data=file.read())


def _append(journal: int, *records: Record) -> None:
    encoded = [msgspec.msgpack.encode(record) for record in records]
    data = b"".join(_LENGTH.pack(len(each)) + each for each in encoded)
    if os.write(journal, data) != len(data):
        raise OSError("the journal could not be written: is its disk full?")


class _Threads:
    """Keep this process's other threads out; made anew in a forked child, where they are not."""

    lock = threading.RLock()


def _made_anew() -> None:
    _Threads.lock = threading.RLock()


os.register_at_fork(after_in_child=_made_anew)


@contextmanager
def _appending(path: str) -> Iterator[int]:
    """Open a journal for one step that no other thread and no other process comes between."""
    with _Threads.lock:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX)  # of the process, and not of the open file: a forked child has none
            yield descriptor
        finally:
            os.close(descriptor)
