"""Reach memory of this host: a version is mapped where it lies, and costs nothing, whatever its size."""

from __future__ import annotations

import os

from milepost.encode.digest import Buffer
from milepost.errors import StoreError
from milepost.service.transports.base import Blob, Link, Source, Transport
from milepost.service.transports.failures import failed
from milepost.service.transports.folder import Folder
from milepost.service.transports.host import host_id

NAME = "shm"


class ShmTransport(Transport):
    """Reach the memory tier of a service on this host; ``host`` says which one this is (default: `host_id`)."""

    name = NAME
    is_local = True

    def __init__(self, host: str | None = None) -> None:
        self._host = host_id() if host is None else host

    def reach(self, source: Source) -> Link | None:
        # An empty name is nobody's. The directory may be there and not ours to read: another user's service, or root's.
        if source.transport != NAME or not self._host or source.host != self._host:
            return None
        return ShmLink(source.address) if os.access(source.address, os.R_OK | os.X_OK) else None


class ShmLink(Link):
    """Map blobs below a directory of ``/dev/shm``."""

    def __init__(self, directory: str) -> None:
        self._folder = Folder(directory)

    def read_into(self, blob: Blob, start: int, into: memoryview) -> None:
        with _failing(self._folder):
            self._folder.read_into(blob, start, into)

    def write(self, blob: Blob, start: int, data: Buffer) -> None:
        with _failing(self._folder):
            self._folder.write(blob, start, data)

    def map(self, blob: Blob) -> memoryview:
        with _failing(self._folder):
            return self._folder.map(blob)

    def map_new(self, blob: Blob, size_bytes: int) -> memoryview:
        """Return new memory for a blob of a commit. Raises `ServiceError` (``transport-failed``) where there is no room."""
        with _failing(self._folder):
            return self._folder.map_new(blob, size_bytes)

    def close(self) -> None:
        pass


class _failing:  # noqa: N801 - read where it is used
    """Turn what the file system refuses into what a transport says."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreError):
            raise failed("could not use shared memory", NAME, self._folder.directory, error.message) from error
