"""Read versions from a file system that this host shares with the service: the directory of its disk tier."""

from __future__ import annotations

import os

from milepost.errors import StoreError
from milepost.service.transports.base import Blob, Link, Source, Transport
from milepost.service.transports.failures import failed
from milepost.service.transports.folder import Folder, read_file

NAME = "files"


class FilesTransport(Transport):
    """Reach a directory that is here as it is there: on the same host, or mounted.

    That one of this name is here does not mean that it is the same. What is read is checked, as always.
    """

    name = NAME

    def reach(self, source: Source) -> Link | None:
        if source.transport != NAME or not os.path.isabs(source.address):
            return None
        return FilesLink(source.address) if os.access(source.address, os.R_OK | os.X_OK) else None


class FilesLink(Link):
    """Read blobs below a directory.

    None is mapped: a disk or a file server that fails would kill who looks at it, and what comes from a disk is checked anyway.
    """

    def __init__(self, directory: str) -> None:
        self._folder = Folder(directory)
        self._blob: Blob | None = None
        self._descriptor = -1

    def read_into(self, blob: Blob, start: int, into: memoryview) -> None:
        try:
            if blob != self._blob:
                self.close()
                self._descriptor = self._folder.open_file(blob)
                self._blob = blob
            read_file(self._descriptor, blob, start, into)
        except StoreError as error:
            raise failed("could not read", NAME, self._folder.directory, error.message) from error

    def close(self) -> None:
        if self._blob is not None:
            os.close(self._descriptor)
        self._blob = None
