"""Map bytes so that who writes to them by mistake changes a copy of their own, and nobody's else."""

from __future__ import annotations

import mmap

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0)
"""Nearly nobody ever writes: no room is set aside for it."""


class PrivateMap(mmap.mmap):
    """Be memory whose pages become this process's own when they are written to.

    torch has no tensors that are read-only. Over memory that may only be read an update in place would end the process, and over
    memory that is shared it would change a version for all who have it.
    """


def map_private(descriptor: int, size_bytes: int) -> memoryview:
    """Return an open file where it lies, read-only; the object behind the view may be written to. Raises what the system says."""
    flags = mmap.MAP_PRIVATE | _NORESERVE
    return memoryview(PrivateMap(descriptor, size_bytes, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)).toreadonly()
