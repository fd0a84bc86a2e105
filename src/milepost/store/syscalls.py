"""Make the system calls that Python has no function for. Those on files are called by `milepost.store.posix` only."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
from typing import Any

_RENAME_NOREPLACE = 1
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_STATX_DIOALIGN, _STATX_BYTES, _DIO_MEMORY_AT, _DIO_OFFSET_AT = 0x2000, 256, 152, 156
_PROT_READ, _MAP_SHARED, _MAP_FAILED = 1, 1, ctypes.c_void_p(-1).value
_CANNOT_PREALLOCATE = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.ENODEV)
_TRIES = 3

_PLACES = 64
_PLACE_BYTES = 1 << 20


def rename_new(path: str, to: str) -> None:
    """Rename unless the new name is taken."""
    if not hasattr(_libc(), "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), path)
    if _libc().renameat2(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(to), _RENAME_NOREPLACE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path, None, to)


def preallocate(descriptor: int, size_bytes: int) -> bool:
    """Set blocks aside for a file and make it as long as that; False where the file system cannot.

    Not by ``posix_fallocate``: where the file system cannot, that writes to every block, which on a network takes longer
    than the save.
    """
    allocate = getattr(_libc(), "fallocate64", None) or getattr(_libc(), "fallocate", None)
    if allocate is None:
        return False
    for _ in range(_TRIES):  # a signal may come each time (tmpfs begins anew after each): it is only a hint
        if allocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size_bytes)) == 0:
            return True
        number = ctypes.get_errno()
        if number in _CANNOT_PREALLOCATE:
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return False


def set_direct(descriptor: int, direct: bool) -> None:
    """Let writes of an open file go past the page cache, or through it again."""
    if not hasattr(os, "O_DIRECT"):
        raise OSError(errno.EINVAL, "this system has no direct writes")
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT)


def direct_alignment(descriptor: int) -> int | None:
    """Return of what the addresses and offsets of direct writes must be multiples; 0: there are none; None: it is not told."""
    status = ctypes.create_string_buffer(_STATX_BYTES)
    if not hasattr(_libc(), "statx") or _libc().statx(descriptor, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, status) != 0:
        return None
    if not _number_at(status, 0) & _STATX_DIOALIGN:
        return None
    memory, offset = _number_at(status, _DIO_MEMORY_AT), _number_at(status, _DIO_OFFSET_AT)
    return max(memory, offset) if memory and offset else 0


def cached_bytes(descriptor: int) -> int:
    """Return about how much of a file this machine holds in memory, in whole pages."""
    size_bytes = os.fstat(descriptor).st_size
    if not size_bytes:
        return 0
    libc = _libc()
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(None, ctypes.c_size_t(size_bytes), _PROT_READ, _MAP_SHARED, descriptor, ctypes.c_long(0))
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), "could not map")
    try:
        return _cached_of(libc, address, size_bytes)
    finally:
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes))


def _cached_of(libc: Any, address: int, size_bytes: int) -> int:
    page = os.sysconf("SC_PAGE_SIZE")
    # To ask for each page of a gigabyte takes as long as to read a third of it: of large files some places tell of the rest.
    part = size_bytes if size_bytes <= _PLACES * _PLACE_BYTES else _PLACE_BYTES
    step = max(size_bytes // _PLACES // page * page, page) if part < size_bytes else size_bytes
    asked = there = 0
    for start in range(0, size_bytes, step):
        length = min(part, size_bytes - start)
        pages = (ctypes.c_char * -(-length // page))()
        if libc.mincore(ctypes.c_void_p(address + start), ctypes.c_size_t(length), pages) != 0:
            raise OSError(ctypes.get_errno(), "could not ask which pages are in memory")
        asked += len(pages)
        there += len(pages) - pages.raw.count(b"\0")
    return there * page if part == size_bytes else size_bytes * there // asked


class _Buffer(ctypes.Structure):
    """Be CPython's ``Py_buffer``."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def address_of(view: memoryview) -> int:
    """Return where in memory the bytes of a contiguous view begin."""
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    try:
        return buffer.buf or 0
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _number_at(buffer: Any, offset: int) -> int:
    return int.from_bytes(buffer.raw[offset : offset + 4], sys.byteorder)
