"""Mount a small file system that only this process and its children see, and let it be really full: the kernel refuses then.

It needs no root where the system lets users make name spaces. It ends with the last process that sees it, however that ends.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from milepost.errors import StoreError, UsageError

_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000
_REMOUNT, _RECURSIVE, _PRIVATE, _DETACH = 32, 16384, 1 << 18, 2
_LEAST_BYTES = 64 << 20
_TRIES = 50


def enter() -> None:
    """Give this process mounts of its own, for good. To be called while it has one thread.

    Raises `UsageError` (kind ``no-name-spaces``) where the system does not allow it: nothing is changed then.
    """
    hint = "run it as root, in a container with CAP_SYS_ADMIN, or where users may make name spaces (unshare -Urm true)"
    if sys.platform != "linux":
        raise UsageError("a full disk can be made on Linux only", kind="no-name-spaces", hint="milepost drill --list has others")
    try:
        user, group, is_root = os.geteuid(), os.getegid(), os.geteuid() == 0
        _call("unshare", _NEW_MOUNTS if is_root else _NEW_MOUNTS | _NEW_USERS)
        if not is_root:
            # The same user as before: a command must not find itself root, and write files as somebody else.
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        _call("mount", None, b"/", None, _RECURSIVE | _PRIVATE, None)
    except OSError as error:
        raise UsageError(
            f"no file system can be made that is really full: {error.strerror}", kind="no-name-spaces", hint=hint
        ) from error


class SmallDisk:
    """Be a file system in memory at ``path``, with room for ``holds_bytes`` and as much again, until it is filled."""

    def __init__(self, path: Path, holds_bytes: int) -> None:
        self.path = path
        self._size_bytes = max(2 * holds_bytes, _LEAST_BYTES)
        if self._size_bytes > _memory_bytes() // 2:
            hint = "drill a run with a smaller replay buffer: a full disk is made in memory"
            raise StoreError(
                "the run does not fit into memory",
                kind="out-of-memory",
                retryable=False,
                hint=hint,
                needed_bytes=self._size_bytes,
                memory_bytes=_memory_bytes(),
            )
        path.mkdir()
        self._mount(0, self._size_bytes)

    def fill(self) -> None:
        """Leave no space at all. What is deleted after that is free again, for whoever takes it."""
        for _ in range(_TRIES):
            status = os.statvfs(self.path)
            try:
                self._mount(_REMOUNT, max((status.f_blocks - status.f_bfree) * status.f_frsize, 4096))
                return
            except OSError:
                continue  # something was written since it was asked
        raise StoreError("the disk does not stand still to be filled", kind="unstable", retryable=True, hint="try again")

    def free(self) -> None:
        """Give all of its space back."""
        self._mount(_REMOUNT, self._size_bytes)

    def close(self) -> None:
        """Unmount it: what was on it is gone."""
        _call("umount2", os.fsencode(self.path), _DETACH)

    def _mount(self, flags: int, size_bytes: int) -> None:
        _call("mount", b"milepost", os.fsencode(self.path), b"tmpfs", flags, f"size={size_bytes}".encode())


def _memory_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        found = next((line for line in file if line.startswith("MemAvailable:")), "x 0")
    return int(found.split()[1]) << 10


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*(ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
