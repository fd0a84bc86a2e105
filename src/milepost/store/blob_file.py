"""Write one blob of a local store: many large pieces, then bytes and name made durable in that order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from milepost.errors import UsageError
from milepost.store.base import BlobWriter, Buffer
from milepost.store.posix import Posix, as_bytes, discard, failures_of, write_all

BLOCK_BYTES = 8 << 20
"""How much is written between two requests for early write-back. Without them gigabytes of dirty pages pile up, and the
speed of the final fsync swings tenfold."""
GATHER_BYTES = 1 << 20
"""Pieces are gathered up to this size before they are written."""


class BlobFile(BlobWriter):
    """Write ``<path>.part``, and rename it when it is whole."""

    def __init__(self, posix: Posix, name: str, path: str, descriptor: int) -> None:
        self._posix = posix
        self._name = name
        self._path = path
        self._part = path + ".part"
        self._renamed = False
        self._descriptor: int | None = descriptor
        self._gathered = bytearray()
        self._written_bytes = 0
        self._given_bytes = 0

    def write(self, data: Buffer) -> None:
        self._check_open()
        piece = as_bytes(data)
        with self._aborting("write"):
            # Each system call lets go of the GIL, and getting it back from a busy training thread may take milliseconds:
            # thousands of small leaves are written together.
            if len(self._gathered) + len(piece) < GATHER_BYTES:
                self._gathered += piece
                return
            self._flush()
            for start in range(0, len(piece), BLOCK_BYTES):
                self._write_block(piece[start : start + BLOCK_BYTES])

    def commit(self) -> None:
        """Make the blob durable under its name, in the one order that a power cut between any two lines cannot spoil."""
        descriptor = self._check_open()
        with self._aborting("commit"):
            self._flush()
            # Bytes before the name: the manifest that will name this blob promises every one of them.
            self._posix.fsync(descriptor)
            self._descriptor = None
            self._posix.close(descriptor)
            self._renamed = True
            self._posix.replace(self._part, self._path)
            # The name itself: a durable manifest must not name a blob which a power cut takes back.
            self._posix.sync_directory(os.path.dirname(self._path))
        self._part = ""

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
        self._gathered = bytearray()

    def _check_open(self) -> int:
        if self._descriptor is None:
            raise UsageError("the blob was committed, aborted or condemned before", kind="blob-closed", name=self._name)
        return self._descriptor

    @contextmanager
    def _aborting(self, operation: str) -> Iterator[None]:
        try:
            with failures_of(operation, self._path, name=self._name, unknown=True):
                yield
        except BaseException:
            self.abort()
            raise

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, bytearray()
        self._write_block(memoryview(gathered))

    def _write_block(self, block: memoryview) -> None:
        descriptor = self._check_open()
        write_all(self._posix, descriptor, block)
        self._written_bytes += len(block)
        if self._written_bytes - self._given_bytes >= BLOCK_BYTES:
            self._posix.start_write_back(descriptor, self._given_bytes, self._written_bytes - self._given_bytes)
            self._given_bytes = self._written_bytes
