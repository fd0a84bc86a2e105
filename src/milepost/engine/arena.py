"""Keep one piece of memory for staging, reused by every save: copying into memory already touched is eight times faster."""

from __future__ import annotations

import mmap

ALIGNMENT = 4096
"""Each leaf starts on a page, as direct writes will want it, when it is at least a page long; small ones on 64 bytes."""


class Arena:
    """Hand out aligned pieces of one growing private mapping. Not thread-safe: one save is staged at a time."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None
        self._view = memoryview(b"")
        self._used = 0

    @property
    def size_bytes(self) -> int:
        """Return how much memory the arena holds."""
        return len(self._view)

    def reserve(self, total_bytes: int) -> None:
        """Make room for ``total_bytes``, aligned as `take` will align them, and forget what was staged before.

        Earlier pieces must not be in use any more: when the arena has to grow, their memory is given back.
        """
        self._used = 0
        if total_bytes <= len(self._view):
            return
        self.close()
        # An eighth more than asked for, so that a slowly growing state does not fault in fresh memory at each save.
        size = -(-(total_bytes + total_bytes // 8) // ALIGNMENT) * ALIGNMENT
        self._map = self._allocate(size)
        self._view = memoryview(self._map)

    def _allocate(self, size_bytes: int) -> mmap.mmap:
        memory = mmap.mmap(-1, size_bytes)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory

    def take(self, size_bytes: int) -> memoryview:
        """Return the next ``size_bytes`` of writable memory."""
        start = aligned(self._used, size_bytes)
        self._used = start + size_bytes
        return self._view[start : self._used]

    def close(self) -> None:
        """Give the memory back, unless pieces are still referenced: then the last reference does."""
        self._view, self._map = memoryview(b""), None
        self._used = 0


def aligned(position: int, size_bytes: int) -> int:
    """Return where a piece of ``size_bytes`` may start at or after ``position``."""
    step = ALIGNMENT if size_bytes >= ALIGNMENT else 64
    return -(-position // step) * step
