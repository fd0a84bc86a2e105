"""Stage into memory that a writer process sees, too: what was copied there outlives the trainer."""

from __future__ import annotations

import mmap
import os
import weakref
from contextlib import suppress

from milepost.engine import forks
from milepost.engine.arena import Arena


class MemoryFile:
    """Hold a memory file (memfd). It has no name, no forked child gets it, and it is gone with the last process that has it."""

    def __init__(self, name: str) -> None:
        with forks.no_fork():
            self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
            forks.withhold(self.descriptor)
        self.close = weakref.finalize(self, _close, self.descriptor)
        """Give it up; a second call does nothing."""

    def put(self, data: bytes) -> None:
        """Hold ``data`` and nothing else; whoever writes on, writes behind it."""
        os.ftruncate(self.descriptor, len(data))
        os.lseek(self.descriptor, len(data), os.SEEK_SET)
        written = 0
        while written < len(data):
            written += os.pwrite(self.descriptor, memoryview(data)[written:], written)

    def end(self, most_bytes: int = 4096) -> bytes:
        """Return the last bytes of it; none once it was given up."""
        if not self.close.alive:
            return b""
        return os.pread(self.descriptor, most_bytes, max(0, os.fstat(self.descriptor).st_size - most_bytes))


class SharedArena(Arena):
    """Be an `Arena` in a memory file."""

    def __init__(self) -> None:
        super().__init__()
        self._file = MemoryFile("milepost-arena")
        self.give_back = self._file.close

    @property
    def descriptor(self) -> int:
        """Return the file, to be handed to a writer."""
        return self._file.descriptor

    def _allocate(self, size_bytes: int) -> mmap.mmap:
        with forks.no_fork():
            os.ftruncate(self.descriptor, size_bytes)
            before = _open_as(self.descriptor)
            memory = mmap.mmap(self.descriptor, size_bytes, flags=mmap.MAP_SHARED)
            # The mapping holds a descriptor of its own, which would keep the file alive in a forked child.
            own = _open_as(self.descriptor) - before
            forks.withhold(*own)
            address = forks.withhold_memory(memory)
        weakref.finalize(memory, forks.release, *own, memory=address)
        return memory


def _open_as(descriptor: int) -> set[int]:
    """Return all descriptors of this process for the same file."""
    there = os.fstat(descriptor)
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself
            if os.path.samestat(os.fstat(int(name)), there):
                found.add(int(name))
    return found


def _close(descriptor: int) -> None:
    forks.release(descriptor)
    os.close(descriptor)
