"""Take from a forked child what only its parent is to hold: one end of a channel, a shared memory, a process to look after.

Environment workers are forked, and outlive a trainer that is killed. One that kept the trainer's end of a socket open would
keep its writer waiting for a trainer that is gone; one that kept the shared arena mapped would keep gigabytes for nobody.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000

_forking = threading.RLock()
_descriptors: set[int] = set()
_mappings: dict[int, int] = {}
_told: set[Callable[[], object]] = set()


def no_fork() -> AbstractContextManager[bool]:
    """Keep other threads from forking: what is opened within is withheld before a child could have it.

    The lock itself and no generator around it: a Ctrl-C between two lines of that would leave it locked for a while.
    """
    return _forking


def withhold(*descriptors: int) -> None:
    """Have these taken from every child forked from now on."""
    with _forking:
        _descriptors.update(descriptors)


def withhold_memory(memory: mmap.mmap) -> int:
    """Have a mapping replaced by an empty one in every child forked from now on; return its address."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    with _forking:
        _mappings[address] = len(memory)
    return address


def release(*descriptors: int, memory: int | None = None) -> None:
    """Forget descriptors, or memory by its address, just before they are given back."""
    with _forking:
        _descriptors.difference_update(descriptors)
        if memory is not None:
            _mappings.pop(memory, None)


def tell(child: Callable[[], object]) -> None:
    """Have ``child`` called in every forked child from now on."""
    with _forking:
        _told.add(child)


def untell(child: Callable[[], object]) -> None:
    """Call it no more."""
    with _forking:
        _told.discard(child)


def _let_go_in_the_child() -> None:
    try:
        for child in _told:
            child()
        _empty_descriptors()
        _empty_mappings()
        for each in (_told, _descriptors, _mappings):
            each.clear()
    finally:
        _forking.release()


def _empty_descriptors() -> None:
    if not _descriptors:
        return
    # Replaced and not closed: whoever owns such a number in this child closes it once more, and by then it may be another's.
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in _descriptors:
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _empty_mappings() -> None:
    if not _mappings:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    for address, size_bytes in _mappings.items():
        # Over the old one and not only without it: whoever owns it in this child unmaps it once more, and by then something
        # else might lie there.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE
        libc.mmap(address, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)


os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_let_go_in_the_child)
