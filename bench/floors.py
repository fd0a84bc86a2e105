"""Do what cannot be done with less: copy the bytes, write the bytes, read the bytes, make the same system calls."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from bench.states import Bytes
from milepost.store.posix import Posix

PIECE_BYTES = 8 << 20
_PAGE = 4096
_PER_ARRAY_S = 10e-6


def allowance_s(count: int) -> float:
    """Return what a floor is granted on top of its copying: finding an array, naming it and describing it is work, too."""
    return count * _PER_ARRAY_S


class Touched:
    """Hold memory that was written to before, in huge pages: what copying costs where no page has to be found first.

    With ``window_bytes`` it is only as large as that and filled over and over: for copying alone, where the state is so
    large that another copy of it would not fit. It has to be many times what the processor's caches hold.
    """

    def __init__(self, views: Sequence[Bytes], *, window_bytes: int | None = None) -> None:
        total = sum(len(view) for view in views)
        self.size_bytes = -(-max(window_bytes or total, 1) // _PAGE) * _PAGE
        self._map = mmap.mmap(-1, self.size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(self._map, np.uint8)
        whole[:] = 0
        self._pairs: list[tuple[Bytes, Bytes]] = []
        at = 0
        for piece in (view[start : start + len(whole)] for view in views for start in range(0, len(view), len(whole))):
            at = at if at + len(piece) <= len(whole) else 0
            self._pairs.append((whole[at : at + len(piece)], piece))
            at += len(piece)

    def copy(self) -> None:
        """Copy every array in."""
        for into, view in self._pairs:
            np.copyto(into, view)

    def write(self, path: Path) -> None:
        """Write all of it past the page cache, where the file system can, and wait until the disk has it."""
        descriptor = _open_direct(path)
        try:
            view = memoryview(self._map)
            done = 0
            while done < len(view):
                done += os.write(descriptor, view[done : done + PIECE_BYTES])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _open_direct(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:
        return os.open(path, flags, 0o600)  # a file system without direct writes: its floor is a buffered one


def read_and_digest(path: Path, into: Sequence[Bytes]) -> None:
    """Read a file of these arrays, one behind the other, to where they belong, and digest each."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        at = 0
        for array in into:
            for start in range(0, len(array), PIECE_BYTES):
                at += os.preadv(descriptor, [array[start : start + PIECE_BYTES]], at)
            xxhash.xxh3_128_digest(array)
    finally:
        os.close(descriptor)


Call = tuple[str, Callable[..., Any], tuple[Any, ...], Any]


class Recording(Posix):
    """Note every system call of a store, to be made once more without milepost around it."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def perform(self, name: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Make the call, then note it with its result."""
        result = function(*args, **kwargs)
        self.calls.append((name, function, args, result))
        return result

    def take(self) -> list[Call]:
        """Return what was noted since the last time."""
        calls, self.calls = self.calls, []
        return calls


def acknowledged(calls: Sequence[Call]) -> int:
    """Return how many of a save's calls there are until it is acknowledged: the last of them closes the event log."""
    names = [name for name, *_ in calls]
    return names.index("close", names.index("open_append")) + 1


def elsewhere(calls: Sequence[Call], root: str, mirror: str) -> Callable[[], None]:
    """Return what makes the same calls below ``mirror``, a tree that has gone through all earlier ones.

    Names and bytes are the same. Open files are told apart by the number that they had when they were noted.
    """
    moved = [(name, do, tuple(_moved(arg, root, mirror) for arg in args), result) for name, do, args, result in calls]

    def replay() -> None:
        opened: dict[int, int] = {}
        for name, function, args, result in moved:
            if name.startswith("open"):
                opened[result] = function(*args)
            elif args and type(args[0]) is int:
                function(opened[args[0]], *args[1:])
            else:
                function(*args)

    return replay


def _moved(argument: Any, root: str, mirror: str) -> Any:
    return mirror + argument[len(root) :] if isinstance(argument, str) and argument.startswith(root) else argument


class Counting(Posix):
    """Count the bytes that a store writes."""

    def __init__(self) -> None:
        self.written_bytes = 0

    def perform(self, name: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Make the call, and count what it wrote."""
        result = function(*args, **kwargs)
        if name in ("write", "write_at"):
            self.written_bytes += int(result)
        return result

    def take(self) -> int:
        """Return how many bytes were written since the last time."""
        written, self.written_bytes = self.written_bytes, 0
        return written
