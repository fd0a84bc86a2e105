"""Keep versions in memory that outlives the service and every trainer: ordinary files of a memory file system, mapped by readers.

A file is never used again. What is erased only loses its name, so that whoever has mapped it keeps what it has; what is brought
anew gets a new one. Room is set aside when a blob is begun: to write through a mapping for which there is none ends the process.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from milepost.encode.digest import Buffer
from milepost.errors import ConflictError, NotFoundError, StoreError
from milepost.service.index import INDEX_NAME, Chunks, Index, blob_of
from milepost.service.tiers.names import checked, checked_range, is_plain
from milepost.service.transports.base import Blob
from milepost.store.posix import Posix, as_bytes, closing, discard, failures_of, read_all, write_all

OWNER_NAME = "owner.json"
_WRITE = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class MemoryTier:
    """Be the directory ``directory`` of a memory file system, made by `make`. May be used from many threads.

    All raise `StoreError`: kind ``disk-full`` where the file system's memory is used up. `NotFoundError` (kind ``no-such-blob``)
    for what is not there, or ends early. `UsageError` (kinds ``bad-name``, ``out-of-range``) for what a peer must not ask.
    """

    def __init__(self, directory: str, posix: Posix | None = None) -> None:
        self.directory = directory
        self._posix = posix or Posix()

    def make(self) -> None:
        """Make the directory, for this user alone. Raises `ConflictError` (kind ``not-ours``) where somebody else has made it."""
        with failures_of("make the directory", self.directory):
            with suppress(FileExistsError):
                self._posix.mkdir(self.directory)
                os.chmod(self.directory, 0o700)
            status = os.lstat(self.directory)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise ConflictError(
                "what is to hold the weights in memory is not this user's, or others may write to it",
                kind="not-ours",
                hint="look at it (ls -ld), and remove it if it is nobody's; or choose another: memory_directory",
                path=self.directory,
            )

    def places(self) -> list[str]:
        """Return all places, also those without an index, in order."""
        with failures_of("list", self.directory):
            return sorted(name for name in self._posix.scan(self.directory)[0] if is_plain(name))

    def index(self, place: str) -> Index | None:
        """Return what lies there; None if nothing whole does. Raises `CorruptError` (kind ``damaged-record``)."""
        try:
            size_bytes = self.size(Blob(place, INDEX_NAME))
        except NotFoundError:
            return None
        record = bytearray(size_bytes)
        self.read_into(Blob(place, INDEX_NAME), 0, memoryview(record))
        return Index.decode(bytes(record), self.path_of(Blob(place, INDEX_NAME)))

    def write_index(self, index: Index) -> None:
        """Say that all parts are there. One that was there before goes."""
        record = index.encode()
        self._new(Blob(index.place, INDEX_NAME), record)

    def new_blob(self, blob: Blob, size_bytes: int) -> None:
        """Make a blob of this size, zeros so far, with room for all of it. One of this name that was there before goes."""
        self._new(blob, b"", size_bytes)

    def write(self, blob: Blob, start: int, data: Buffer) -> None:
        """Write bytes of a blob that `new_blob` has made. In any order, also twice."""
        view, path = as_bytes(data), self.path_of(blob)
        with self._opened(blob, to_write=True) as descriptor, failures_of("write", path):
            checked_range(blob, self._posix.size(descriptor), start, start + len(view))
            while view:
                count = self._posix.write_at(descriptor, view, start)
                view, start = view[count:], start + count

    def finish(self, blob: Blob) -> None:
        """Do what makes the bytes of a blob outlive what they outlive here: nothing. See `DiskTier.finish`."""

    def size(self, blob: Blob) -> int:
        """Return how many bytes a blob has."""
        with self._opened(blob) as descriptor, failures_of("look at", self.path_of(blob)):
            return self._posix.size(descriptor)

    def read_into(self, blob: Blob, start: int, into: memoryview) -> None:
        """Fill ``into`` from ``start``."""
        with self._opened(blob) as descriptor, failures_of("read", self.path_of(blob)):
            if read_all(self._posix, descriptor, as_bytes(into), start) < into.nbytes:
                raise no_such_blob(blob, self.directory)

    def map(self, blob: Blob) -> memoryview:
        """Return the blob itself, read-only. It stays for as long as anything refers to it, also once it is erased."""
        with self._opened(blob) as descriptor, failures_of("map", self.path_of(blob)):
            if not self._posix.size(descriptor):
                return memoryview(b"")
            return memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))

    def verify(self, index: Index) -> dict[str, tuple[int, ...]]:
        """Read all of a version; return the numbers of the chunks that are not as they should be, by slot. Empty: it is whole."""
        found = {slot: self.wrong(Blob(index.place, blob_of(slot)), chunks) for slot, chunks in index.chunks.items()}
        return {slot: wrong for slot, wrong in found.items() if wrong}

    def wrong(self, blob: Blob, chunks: Chunks) -> tuple[int, ...]:
        """Return the numbers of the chunks of one blob that are not as they should be; all of them where its size is another."""
        try:
            view = self.map(blob)
        except NotFoundError:
            return tuple(range(len(chunks))) or (0,)
        if len(view) != chunks.size_bytes:
            return tuple(range(len(chunks))) or (0,)
        return tuple(chunks.wrong(view))

    def erase(self, place: str) -> None:
        """Remove a place, the index first. One that is not there is no error."""
        path = os.path.dirname(self.path_of(Blob(place, INDEX_NAME)))
        with failures_of("erase", path), suppress(FileNotFoundError):
            # Bytes without an index are no version; an index without all bytes would be a damaged one.
            for name in sorted(self._posix.perform("scan", os.listdir, path), key=lambda name: name != INDEX_NAME):
                with suppress(FileNotFoundError):
                    self._posix.unlink(os.path.join(path, name))
            try:
                self._posix.rmdir(path)
            except OSError as error:
                # Who still brings a commit that was given up has just made another file here: the next start removes it.
                if error.errno != errno.ENOTEMPTY:
                    raise

    def names(self, place: str) -> list[str]:
        """Return the names of all blobs in a place, in order; none where there is no such place."""
        path = os.path.dirname(self.path_of(Blob(place, INDEX_NAME)))
        with failures_of("list", path):
            return sorted(name for name, _ in self._posix.scan(path)[1])

    def drop(self, blob: Blob) -> None:
        """Remove one blob that no index names. One that is not there is no error."""
        path = self.path_of(blob)
        with failures_of("erase", path), suppress(FileNotFoundError, NotADirectoryError):
            self._posix.unlink(path)

    def used_bytes(self) -> int:
        """Return how many bytes all files here have."""
        with failures_of("list", self.directory):
            places = [os.path.join(self.directory, place) for place in self._posix.scan(self.directory)[0]]
            return sum(size for place in places for _, size in self._posix.scan(place)[1])

    def free_bytes(self) -> int:
        """Return how much the file system has left."""
        with failures_of("ask for the space of", self.directory):
            return self._posix.free_bytes(self.directory)

    def path_of(self, blob: Blob) -> str:
        """Return the path of a blob. Raises `UsageError` (kind ``bad-name``) for one that leads elsewhere."""
        checked(blob)
        return os.path.join(self.directory, blob.place, blob.name)

    def _new(self, blob: Blob, data: bytes, size_bytes: int = 0) -> None:
        path = self.path_of(blob)
        with failures_of("make", path):
            with suppress(FileExistsError):
                self._posix.mkdir(os.path.dirname(path))
            with suppress(FileNotFoundError):
                self._posix.unlink(path)  # not emptied: somebody may have it mapped
            descriptor = self._posix.open_new(path)
        try:
            with failures_of("set memory aside for", path), closing(self._posix, descriptor):
                if size_bytes and not self._posix.preallocate(descriptor, size_bytes):
                    self._posix.truncate(descriptor, size_bytes)
                write_all(self._posix, descriptor, as_bytes(data))
        except BaseException as error:
            discard(self._posix, path)
            if isinstance(error, StoreError) and error.kind == "disk-full":
                error.hint = "the machine's shared memory is used up (df /dev/shm): free some, or give the container more"
            raise

    @contextmanager
    def _opened(self, blob: Blob, *, to_write: bool = False) -> Iterator[int]:
        path = self.path_of(blob)
        with failures_of("open", path):
            try:
                descriptor = self._posix.perform("open_write", os.open, path, _WRITE) if to_write else self._posix.open_read(path)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise no_such_blob(blob, self.directory) from error
        with failures_of("close", path), closing(self._posix, descriptor):
            yield descriptor


def no_such_blob(blob: Blob, where: str) -> NotFoundError:
    """Say that there are no such bytes."""
    return NotFoundError(
        "there are no such bytes, or fewer than were asked for",
        kind="no-such-blob",
        hint="it was let go of meanwhile: fetch again",
        blob=str(blob),
        where=where,
    )
