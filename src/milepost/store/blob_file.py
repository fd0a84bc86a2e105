"""Write one blob of a local store: many large pieces, then bytes and name made durable in that order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from milepost.errors import UsageError
from milepost.store.base import BlobWriter, Buffer
from milepost.store.blob_bytes import BlobBytes, WayToDisk
from milepost.store.posix import Posix, as_bytes, discard, failures_of


class BlobFile(BlobWriter):
    """Write ``<path>.part``, and rename it when it is whole. ``size_bytes`` is a guess that the file may fall short of."""

    def __init__(
        self, posix: Posix, name: str, path: str, descriptor: int, way: WayToDisk, size_bytes: int | None = None
    ) -> None:
        self._posix = posix
        self._name = name
        self._path = path
        self._part = path + ".part"
        self._renamed = False
        self._descriptor: int | None = descriptor
        self._bytes = BlobBytes(posix, descriptor, way)
        if size_bytes:
            with self._aborting("set blocks aside for"):
                self._bytes.allocate(size_bytes)

    def write(self, data: Buffer) -> None:
        self._check_open()
        with self._aborting("write"):
            self._bytes.write(as_bytes(data))

    def commit(self) -> None:
        """Make the blob durable under its name, in the one order that a power cut between any two lines cannot spoil."""
        descriptor = self._check_open()
        with self._aborting("commit"):
            self._bytes.finish()
            # Bytes before the name: the manifest that will name this blob promises every one of them. Direct writes need it
            # no less: they pass by the page cache, but not by the drive's own, and what says where they lie is not yet down.
            self._posix.fsync(descriptor)
            self._bytes.forget_pages()
            self._descriptor = None
            self._posix.close(descriptor)
            self._renamed = True
            self._posix.replace(self._part, self._path)
            # The name itself: a durable manifest must not name a blob which a power cut takes back.
            self._posix.sync_directory(os.path.dirname(self._path))
        self._part = ""
        self._bytes.release()

    def abort(self) -> None:
        if not self._part:
            return
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with suppress(OSError):  # the bytes are being dropped: nothing is lost by not writing them
                self._posix.close(descriptor)
        # A commit may have failed after the rename. The final name was never handed on, and is never used again.
        discard(self._posix, self._part)
        if self._renamed:
            discard(self._posix, self._path)
        self._part = ""
        self._bytes.release()

    def _check_open(self) -> int:
        if self._descriptor is None:
            raise UsageError(
                "the blob was committed, aborted or condemned before",
                kind="blob-closed",
                hint="write the bytes anew under another name: store.open_blob(...)",
                name=self._name,
            )
        return self._descriptor

    @contextmanager
    def _aborting(self, operation: str) -> Iterator[None]:
        try:
            with failures_of(operation, self._path, name=self._name, unknown=True):
                yield
        except BaseException:
            self.abort()
            raise
