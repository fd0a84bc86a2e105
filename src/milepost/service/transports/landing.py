"""Be where the bytes of a blob land: memory of this process, or memory that all readers of this host share."""

from __future__ import annotations

import mmap
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from milepost.errors import UsageError
from milepost.service.index import Chunks
from milepost.service.transports.private_map import PrivateMap

_HUGE_FROM_BYTES = 4 << 20


class Landing(Protocol):
    """Take the chunks of one blob, each whole and once. From several threads at once."""

    @property
    def memory(self) -> memoryview:
        """Return where they are to lie, writable: as many bytes as the blob has."""

    def missing(self) -> list[int]:
        """Return the numbers of the chunks that are not there yet, rising."""

    def landed(self, number: int) -> None:
        """Say that a chunk is there and is what it should be."""

    def finish(self) -> memoryview:
        """Return the blob, read-only, once nothing is missing."""

    def close(self) -> None:
        """Give up what is not finished: what has landed is there for who comes next, where somebody else can see it."""


class PrivateLanding:
    """Land in ``into``, or in memory made for it. What is in it is not looked at: all is missing."""

    def __init__(self, chunks: Chunks, into: memoryview | None = None) -> None:
        if into is not None and into.nbytes != chunks.size_bytes:
            raise UsageError(
                "the memory for a part is not as large as the part",
                kind="wrong-size",
                hint="pass as many bytes as its chunks say, or none",
                memory_bytes=into.nbytes,
                part_bytes=chunks.size_bytes,
            )
        self.memory = new_memory(chunks.size_bytes) if into is None else into.cast("B")
        self._missing = set(range(len(chunks)))
        self._changing = threading.Lock()

    def missing(self) -> list[int]:
        with self._changing:
            return sorted(self._missing)

    def landed(self, number: int) -> None:
        with self._changing:
            self._missing.discard(number)

    def finish(self) -> memoryview:
        return self.memory.toreadonly()

    def close(self) -> None:
        pass


Land = Callable[[Chunks], Landing]


def new_memory(size_bytes: int) -> memoryview:
    """Return memory of this process, in huge pages where there are any: finding small ones takes as long as a transfer."""
    if not size_bytes:
        return memoryview(bytearray())
    if sys.platform != "linux":
        return memoryview(PrivateMap(-1, size_bytes))
    memory = PrivateMap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size_bytes >= _HUGE_FROM_BYTES:
        with suppress(OSError):  # an older kernel: it costs time, and nothing else
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)
