"""Keep one piece of memory for staging, reused by every save: copying into memory already touched is eight times faster."""

from __future__ import annotations

import _thread
import ctypes
import mmap
import sys
from contextlib import suppress

from milepost.store.syscalls import address_of

ALIGNMENT = 4096
"""What is written to a file of its own starts on a page, as direct writes want it."""

_AT_ONCE_BYTES = 32 << 20
_MADV_WIPEONFORK, _MADV_POPULATE_WRITE = 18, 23
_ADVICE = (mmap.MADV_HUGEPAGE, _MADV_WIPEONFORK) if sys.platform == "linux" else ()


class Arena:
    """Hold one private mapping, in huge pages where there are any. Not thread-safe: one save is staged at a time."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None
        self._over: list[bool] = []
        """Not empty once nobody needs the pages any more that are being found."""
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
        # Private: what is shared gets no huge pages. A forked child, an env worker mostly, finds it empty: else each page would
        # be copied once more when the next save writes to it, while the child holds the old one. Empty, and not absent: the
        # child unmaps it with the engine that it inherited, and by then something else would lie there.
        memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for advice in _ADVICE:
            with suppress(OSError):  # an older kernel: it costs time and memory, and nothing else
                memory.madvise(advice)
        return memory

    def warm(self, size_bytes: int) -> None:
        """Have the first ``size_bytes`` be found and cleared, so that no save waits for that; much of it beside training."""
        part = self._view[: min(pages(size_bytes), len(self._view))]
        if not part:
            return
        if not _populate(part, 0, ALIGNMENT):
            for start in range(0, len(part), ALIGNMENT):
                part[start] = 0
        elif len(part) <= _AT_ONCE_BYTES:
            _populate(part, 0, len(part))
        else:
            # It asks for pages and writes nothing: a save may copy into them meanwhile. Nobody has to wait for it, since it
            # holds the memory itself. Not by `threading`: a Ctrl-C in there could leave the thread stuck in its first line.
            over: list[bool] = []
            self._over = over
            _thread.start_new_thread(_populate_all, (part, over))

    def close(self) -> None:
        """Give the memory back, unless pieces are still referenced: then the last reference does."""
        self._over.append(True)
        self._view, self._map = memoryview(b""), None


def _populate_all(part: memoryview, over: list[bool]) -> None:
    for start in range(0, len(part), _AT_ONCE_BYTES):
        if over:
            return
        _populate(part, start, min(_AT_ONCE_BYTES, len(part) - start))


def _populate(part: memoryview, start: int, size_bytes: int) -> bool:
    """Ask the system for pages (Linux 5.14 and newer, see madvise(2)); return whether it gives them so."""
    if sys.platform != "linux":
        return False
    address = ctypes.c_void_p(address_of(part) + start)
    return bool(ctypes.CDLL(None).madvise(address, ctypes.c_size_t(size_bytes), _MADV_POPULATE_WRITE) == 0)


def pages(size_bytes: int) -> int:
    """Return ``size_bytes``, or what is missing to whole pages more."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
