"""Join what lies side by side in memory, so that a hundred thousand small leaves are written as one piece, without a copy."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.lib.stride_tricks import as_strided


def runs(views: Iterable[memoryview], most_bytes: int) -> Iterator[memoryview]:
    """Yield the same bytes in fewer views of at most ``most_bytes``; ``views`` are one-dimensional, of bytes, and not empty.

    Slices of one memory that follow each other without a hole become one run. It is cut at multiples of ``most_bytes`` from
    its beginning, as it grows: memory that begins on a page is handed on in pieces that do.
    """
    origin: np.ndarray = np.empty(0, np.uint8)
    owner: object = None
    end = done = size = 0
    for view in views:
        array = np.frombuffer(view, np.uint8)
        start = array.__array_interface__["data"][0]
        if start != end or view.obj is not owner:
            if size > done:
                yield _part(origin, done, size)
            origin, owner, done, size = array, view.obj, 0, 0
        size += len(view)
        end = start + len(view)
        while size - done >= most_bytes:
            yield _part(origin, done, done + most_bytes)
            done += most_bytes
    if size > done:
        yield _part(origin, done, size)


def _part(origin: np.ndarray, start: int, stop: int) -> memoryview:
    # Beyond the end of the view that the run began with: the memory it is a slice of holds the others, too.
    return as_strided(origin, (stop,))[start:].data


def address_of(view: memoryview) -> int:
    """Return where in memory the bytes of a one-dimensional view begin."""
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


class Pool:
    """Keep buffers that were used, for the next who needs one: as many exist as were ever in use at once. Any thread.

    With ``pages`` each begins on a page of memory, as direct writes ask for.
    """

    def __init__(self, size_bytes: int, *, pages: bool = False) -> None:
        self._size_bytes = size_bytes
        self._pages = pages
        self._free: list[bytearray | mmap.mmap] = []
        self._mine: dict[int, bytearray | mmap.mmap] = {}

    def __len__(self) -> int:
        """Return how many buffers there are."""
        return len(self._mine)

    def take(self) -> memoryview:
        """Return memory that nobody uses, of whatever content."""
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = mmap.mmap(-1, self._size_bytes) if self._pages else bytearray(self._size_bytes)
            self._mine[id(buffer)] = buffer
        return memoryview(buffer)

    def give(self, view: memoryview) -> None:
        """Take back what `take` returned, or a part of it. Whatever else is left alone."""
        buffer = self._mine.get(id(view.obj))
        if buffer is not None:
            self._free.append(buffer)
