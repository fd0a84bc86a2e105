"""Read, write and map blobs that are files of one directory, ``PLACE/NAME``: memory on tmpfs, or a disk that several see."""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import suppress
from dataclasses import dataclass

from milepost.encode.digest import Buffer
from milepost.errors import StoreError
from milepost.service.index import INDEX_NAME
from milepost.service.tiers.names import is_plain as is_plain_name
from milepost.service.transports.base import Blob
from milepost.service.transports.failures import no_such_blob
from milepost.service.transports.private_map import map_private
from milepost.store.plain_files import open_regular
from milepost.store.posix import failures_of
from milepost.store.syscalls import preallocate

_NOT_THERE = (FileNotFoundError, NotADirectoryError)


def is_plain(blob: Blob) -> bool:
    """Return whether this can be a blob: nothing else is looked for, whoever asks for it. No path leads anywhere."""
    return is_plain_name(blob.place) and is_plain_name(blob.name)


@dataclass(frozen=True, slots=True)
class Folder:
    """Be the blobs below a directory. From any thread. Raises `StoreError` where the file system fails."""

    directory: str

    def open_file(self, blob: Blob) -> int:
        """Return a descriptor to read a blob from, the caller's to close. Raises `NotFoundError` (kind ``no-such-blob``)."""
        if not is_plain(blob):
            raise no_such_blob(blob)
        path = self.path(blob)
        try:
            with failures_of("open", path):
                return open_regular(path)
        except StoreError as error:
            if isinstance(error.__cause__, _NOT_THERE):
                raise no_such_blob(blob) from error
            raise

    def size(self, blob: Blob) -> int:
        """Return how many bytes a blob has."""
        descriptor = self.open_file(blob)
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def read_into(self, blob: Blob, start: int, into: memoryview) -> None:
        """Fill ``into`` from ``start``. Raises `NotFoundError` if it ends early."""
        descriptor = self.open_file(blob)
        try:
            read_file(descriptor, blob, start, into)
        finally:
            os.close(descriptor)

    def map(self, blob: Blob) -> memoryview:
        """Return a blob where it lies, read-only. It stays for as long as the view, also once its name is gone."""
        descriptor = self.open_file(blob)
        try:
            return map_file(descriptor, blob)
        finally:
            os.close(descriptor)

    def map_new(self, blob: Blob, size_bytes: int) -> memoryview:
        """Return new memory for a blob; one of this name, of a try before, loses its name and stays what it is for who maps it.

        Raises `StoreError` (kind ``disk-full``) where there is no room: memory that is only promised would kill who writes to it;
        and where a version is whole already.
        """
        path = self._made(blob)
        with failures_of("create", path):
            if os.path.exists(os.path.join(os.path.dirname(path), INDEX_NAME)):
                # Who was stopped for long, and goes on now: others have it mapped by its name, and do not look at its bytes.
                raise FileExistsError(errno.EEXIST, "a version is whole there", path)
            with suppress(FileNotFoundError):
                os.unlink(path)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                return room_in(descriptor, size_bytes)
            except BaseException:
                os.unlink(path)
                raise
            finally:
                os.close(descriptor)

    def write(self, blob: Blob, start: int, data: Buffer) -> None:
        """Write bytes of a blob, which is made by the first. Not durable."""
        path = self._made(blob)
        with failures_of("write", path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            try:
                write_file(descriptor, start, data)
            finally:
                os.close(descriptor)

    def path(self, blob: Blob) -> str:
        """Return where a blob lies."""
        return os.path.join(self.directory, blob.place, blob.name)

    def _made(self, blob: Blob) -> str:
        if not is_plain(blob):
            raise no_such_blob(blob)
        path = self.path(blob)
        with failures_of("create", path), suppress(FileExistsError):
            # Not the directory itself: one that was erased, with its service, is not made anew by a client that comes late.
            os.mkdir(os.path.dirname(path), 0o700)
        return path


def read_file(descriptor: int, blob: Blob, start: int, into: memoryview) -> None:
    """Fill ``into`` from an open blob."""
    view, at = into.cast("B"), start
    while view:
        with failures_of("read", str(blob)):
            count = os.preadv(descriptor, [view], at)
        if not count:
            raise no_such_blob(blob, ends_at=at)
        view, at = view[count:], at + count


def write_file(descriptor: int, start: int, data: Buffer) -> None:
    """Write all of ``data``. Raises what the system says."""
    view, at = memoryview(data).cast("B"), start
    while view:
        count = os.pwrite(descriptor, view, at)
        view, at = view[count:], at + count


def map_file(descriptor: int, blob: Blob) -> memoryview:
    """Return an open blob where it lies, read-only."""
    with failures_of("map", str(blob)):
        size_bytes = os.fstat(descriptor).st_size
        if not size_bytes:
            return memoryview(b"")
        return map_private(descriptor, size_bytes)


def room_in(descriptor: int, size_bytes: int) -> memoryview:
    """Make an open file of this size, with all the memory that it takes, and map it to be written. Raises `OSError`."""
    if not size_bytes:
        return memoryview(bytearray())
    if not preallocate(descriptor, size_bytes):
        raise OSError(errno.EOPNOTSUPP, "this file system sets no room aside")
    return memoryview(mmap.mmap(descriptor, size_bytes, flags=mmap.MAP_SHARED))
