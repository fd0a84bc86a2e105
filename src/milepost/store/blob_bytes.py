"""Carry a blob's bytes into an open file: straight from the caller's memory to the disk where that can be.

Direct writes take an eighth of the processor's time of buffered ones and swing less. The kernel takes them only if address,
file offset and length are all multiples of the *grid* (a page, mostly). What does not lie on the grid goes through one
aligned buffer; the tail, which need not fill a page, is written after the file was switched back to buffered writes. A tail
padded to the grid and cut off again would do as well, but for a moment the file would be longer than the blob.

Where the file system refuses direct writes, the grid is 1: everything is written as it comes, and write-back started early.
"""

from __future__ import annotations

import errno
import mmap
from contextlib import suppress

from milepost.store.base import LARGE_BYTES
from milepost.store.posix import Posix

BUFFER_BYTES = 4 << 20
CALL_BYTES = 8 << 20
"""How much one call writes. Smaller ones cost a fifth of the speed of direct writes."""
BLOCK_BYTES = 8 << 20
"""How much is written through the page cache between two requests for early write-back. Without them gigabytes of dirty
pages pile up, and the speed of the final fsync swings tenfold."""

_PAGE_BYTES = 4096
_REFUSALS = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


class WayToDisk:
    """Know what the blobs of one store have in common: whether its file system takes direct writes, and a buffer for them.

    One buffer is kept from blob to blob; blobs that are written at the same time have others.
    """

    def __init__(self) -> None:
        self.direct = True
        """False once the file system has refused a direct write."""
        self._kept: list[mmap.mmap] = []

    def take_buffer(self) -> mmap.mmap:
        """Return memory that begins on a page. Of this process alone: a forked child has a copy."""
        with suppress(IndexError):
            return self._kept.pop()
        return mmap.mmap(-1, BUFFER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)

    def give_back(self, buffer: mmap.mmap) -> None:
        """Take a buffer for the next blob."""
        if not self._kept:
            self._kept.append(buffer)

    def open_direct(self, posix: Posix, descriptor: int) -> int:
        """Let an open file be written directly, and return the grid; 1 where it cannot be."""
        if not self.direct:
            return 1
        try:
            asked = posix.direct_alignment(descriptor)
            grid = asked and max(asked, _PAGE_BYTES) if asked is not None else _PAGE_BYTES
            if not grid or BUFFER_BYTES % grid:
                raise OSError(errno.EINVAL, f"direct writes would have to be multiples of {grid} bytes")
            posix.set_direct(descriptor, True)
        except OSError as error:  # nothing was written yet: whatever it is, an ordinary write shows it, too
            self.refuse(error)
            return 1
        return grid

    def refuse(self, error: OSError) -> None:
        """Try no direct writes any more."""
        if self.direct:
            self.direct = False
            import logging  # not at the top: looking at a run does without, and without ctypes, too

            logging.getLogger("milepost").debug("blobs are written through the page cache: no direct writes here (%s)", error)


class BlobBytes:
    """Write one blob's bytes in order at the file's own position. Not for two threads at once."""

    def __init__(self, posix: Posix, descriptor: int, way: WayToDisk) -> None:
        self._posix = posix
        self._descriptor = descriptor
        self._way = way
        self._little = bytearray()
        self._memory: mmap.mmap | None = None
        self._buffer = memoryview(b"")
        self._filled = 0
        self._grid = 1
        self._written_bytes = 0
        self._handed_bytes = 0
        self._allocated_bytes = 0

    def allocate(self, size_bytes: int) -> None:
        """Set blocks aside, so that a full disk says so before the first byte is written, and the file lies in few pieces."""
        if size_bytes >= LARGE_BYTES and self._posix.preallocate(self._descriptor, size_bytes):
            self._allocated_bytes = size_bytes

    def write(self, piece: memoryview) -> None:
        """Append bytes, and be done with them when it returns."""
        if self._memory is None:
            # Each system call lets go of the GIL, and getting it back from a busy training thread may take milliseconds:
            # thousands of small leaves are written together.
            if len(self._little) + len(piece) < LARGE_BYTES:
                self._little += piece
                return
            self._begin()
        self._put(piece)

    def finish(self) -> None:
        """Hand all that is left to the kernel, and cut off what was set aside in vain."""
        if self._memory is None:
            self._write_out(memoryview(self._little))
        self._flush()
        if self._allocated_bytes > self._written_bytes:
            self._posix.truncate(self._descriptor, self._written_bytes)

    def forget_pages(self) -> None:
        """Leave nothing of a large blob in the page cache: nobody reads it soon, and others need the memory. After an fsync."""
        if self._memory is not None:
            with suppress(OSError):
                self._posix.drop_cached(self._descriptor)

    def release(self) -> None:
        """Give the buffer back."""
        memory, self._memory = self._memory, None
        self._little, self._buffer = bytearray(), memoryview(b"")
        if memory is not None:
            self._way.give_back(memory)

    def _begin(self) -> None:
        self._memory = self._way.take_buffer()
        self._buffer = memoryview(self._memory)
        self._grid = self._way.open_direct(self._posix, self._descriptor)
        little, self._little = self._little, bytearray()
        self._gather(memoryview(little))

    def _put(self, piece: memoryview) -> None:
        if len(piece) >= LARGE_BYTES and self._falls_on_the_grid(piece):
            head = -(self._written_bytes + self._filled) % self._grid
            self._gather(piece[:head])
            self._flush()
            straight = len(piece) - (len(piece) - head) % self._grid
            self._write_out(piece[head:straight])
            piece = piece[straight:]
        self._gather(piece)

    def _falls_on_the_grid(self, piece: memoryview) -> bool:
        """Say whether the piece has a byte whose address and whose place in the file are both on the grid."""
        from milepost.store.syscalls import address_of

        return self._grid == 1 or (address_of(piece) - self._written_bytes - self._filled) % self._grid == 0

    def _gather(self, piece: memoryview) -> None:
        while piece:
            count = min(len(piece), len(self._buffer) - self._filled)
            self._buffer[self._filled : self._filled + count] = piece[:count]
            self._filled += count
            piece = piece[count:]
            if self._filled == len(self._buffer):
                self._flush()

    def _flush(self) -> None:
        gathered, self._filled = self._buffer[: self._filled], 0
        whole = len(gathered) - len(gathered) % self._grid
        self._write_out(gathered[:whole])
        if whole < len(gathered):
            self._go_buffered()
            self._write_out(gathered[whole:])

    def _write_out(self, data: memoryview) -> None:
        while data:
            try:
                count = self._posix.write(self._descriptor, data[:CALL_BYTES])
            except OSError as error:
                if self._grid == 1 or error.errno not in _REFUSALS:
                    raise
                # Some file systems take the flag and refuse the write. What is down already stays as it is.
                self._way.refuse(error)
                self._go_buffered()
                continue
            data = data[count:]
            self._written_bytes += count
            if self._written_bytes % self._grid:  # cut short: from here the next direct write would be refused
                self._go_buffered()
            self._start_write_back()

    def _go_buffered(self) -> None:
        if self._grid > 1:
            self._posix.set_direct(self._descriptor, False)
            self._grid, self._handed_bytes = 1, self._written_bytes

    def _start_write_back(self) -> None:
        waiting = self._written_bytes - self._handed_bytes
        if self._grid == 1 and waiting >= BLOCK_BYTES:
            with suppress(OSError):  # a hint
                self._posix.start_write_back(self._descriptor, self._handed_bytes, waiting)
            self._handed_bytes = self._written_bytes
