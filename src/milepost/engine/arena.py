"""Keep one piece of memory for staging, reused by every save: copying into memory already touched is eight times faster."""

from __future__ import annotations

import mmap

ALIGNMENT = 4096
"""What is written to a file of its own starts on a page, as direct writes want it."""


class Arena:
    """Hold one private mapping, in huge pages where there are any. Not thread-safe: one save is staged at a time."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None
        self._view = memoryview(b"")
        self.growths = 0
        """How often memory was asked for: once, where the state does not grow."""

    @property
    def size_bytes(self) -> int:
        """Return how much memory the arena may use. What was never written to is none."""
        return len(self._view)

    @property
    def memory(self) -> memoryview:
        """Return all of it. Views of it must not be in use any more when the arena has to grow."""
        return self._view

    def reserve(self, size_bytes: int) -> None:
        """Make room for ``size_bytes``; where there is room already nothing happens."""
        if size_bytes <= len(self._view):
            return
        self.close()
        self._map = self._allocate(pages(size_bytes))
        self._view = memoryview(self._map)
        self.growths += 1

    def _allocate(self, size_bytes: int) -> mmap.mmap:
        # Private: what is shared gets no huge pages. And not for forked children, env workers mostly: each page would be
        # copied once more when the next save writes to it, while they hold the old one.
        memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
            if hasattr(mmap, advice):
                memory.madvise(getattr(mmap, advice))
        return memory

    def warm(self, size_bytes: int) -> None:
        """Touch the first ``size_bytes``, so that no save waits for memory to be found and cleared."""
        for start in range(0, min(size_bytes, len(self._view)), ALIGNMENT):
            self._view[start] = 0

    def close(self) -> None:
        """Give the memory back, unless pieces are still referenced: then the last reference does."""
        self._view, self._map = memoryview(b""), None


def pages(size_bytes: int) -> int:
    """Return ``size_bytes``, or what is missing to whole pages more."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
