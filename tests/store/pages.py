"""Ask the kernel which pages of a file it holds, in a way that the product does not use."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np

from milepost.store.syscalls import cached_bytes

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(path: Path) -> int:
    """Return how many bytes of a file are in memory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return cached_bytes(descriptor)
    finally:
        os.close(descriptor)


def aligned(size_bytes: int, offset: int = 0) -> memoryview:
    """Return writable memory which begins so many bytes after a page does, of random content."""
    held = mmap.mmap(-1, size_bytes + offset + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = memoryview(held)[offset : offset + size_bytes]
    np.frombuffer(view, np.uint8)[:] = np.random.default_rng(size_bytes + offset).integers(0, 256, size_bytes, np.uint8)
    return view


def keeps_pages(path: Path) -> bool:
    """Say whether a file system has a page cache apart from its files: one that lives in memory has not."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, bytes(PAGE))
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return cached_bytes(descriptor) == 0
    finally:
        os.close(descriptor)
        path.unlink()
