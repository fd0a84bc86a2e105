"""Let a small file system be really full: the kernel refuses then, and nothing is simulated.

`SmallDisk` mounts one that only this process and its children see. It needs no root where the system lets users make name
spaces, and ends with the last process that sees it, however that ends. `GivenDisk` is one that somebody has mounted for it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from pathlib import Path
from typing import Protocol

from milepost.errors import StoreError, UsageError

_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000
_REMOUNT, _RECURSIVE, _PRIVATE, _DETACH = 32, 16384, 1 << 18, 2
_SPARE_BYTES = 128 << 20
_TRIES = 50
_NAME, _FILLER = "milepost-drill", "milepost-drill.filler"


def enter() -> None:
    """Give this process mounts of its own, for good. To be called while it has one thread.

    Raises `UsageError` (kind ``no-name-spaces``) where the system does not allow it: nothing is changed then.
    """
    hint = "mount one for it, say docker run --tmpfs /small:size=1g, and pass --disk /small; or run it as root"
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


class Disk(Protocol):
    """Be a small file system; its ``path`` is a directory to work in."""

    path: Path

    def fill(self) -> None:
        """Leave no space at all. What is deleted after that is free again, for whoever takes it."""

    def free(self) -> None:
        """Give all of its space back."""

    def close(self) -> None:
        """Leave nothing on it."""


class SmallDisk:
    """Be a file system in memory at ``path``, with room for ``holds_bytes`` and as much again, until it is filled."""

    def __init__(self, path: Path, holds_bytes: int) -> None:
        self.path = path
        # And what a copy wants to be free when it is made.
        self._size_bytes = 2 * holds_bytes + _SPARE_BYTES
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
            except OSError as error:
                if error.errno != errno.EINVAL:  # else something was written since it was asked
                    raise _not_filled(error, self.path) from error
        raise StoreError("the disk does not stand still to be filled", kind="unstable", retryable=True, hint="try again")

    def free(self) -> None:
        """Give all of its space back."""
        self._mount(_REMOUNT, self._size_bytes)

    def close(self) -> None:
        """Unmount it: what was on it is gone."""
        _call("umount2", os.fsencode(self.path), _DETACH)

    def _mount(self, flags: int, size_bytes: int) -> None:
        _call("mount", b"milepost", os.fsencode(self.path), b"tmpfs", flags, f"size={size_bytes}".encode())


def check_disk(mounted: Path) -> None:
    """Raise `UsageError` (kind ``no-disk-of-its-own``) for anything but a file system on which nothing lies."""
    try:
        lies_there = {*os.listdir(mounted)} - {_NAME, _FILLER, "lost+found"}
        what = "something lies on it" if lies_there else None
        what = what if mounted.is_mount() else "it is a directory of a file system that holds more"
    except OSError as error:
        what = error.strerror
    if what:
        raise UsageError(
            f"this is no empty file system of its own, which may be filled: {what}",
            kind="no-disk-of-its-own",
            hint="mount one, say docker run --tmpfs /small:size=1g, or mount -t tmpfs -o size=1g small /small",
            path=mounted,
        )


class GivenDisk:
    """Be a file system that somebody has mounted for it, and on which nothing lies: all of it is filled by a file.

    Raises `UsageError` (kind ``no-disk-of-its-own``) for anything else: what others need is never filled.
    """

    def __init__(self, mounted: Path) -> None:
        self.path, self._filler = mounted / _NAME, mounted / _FILLER
        check_disk(mounted)
        self.close()  # what a drill that was killed has left
        self.path.mkdir()

    def fill(self) -> None:
        """Leave no space at all. What is deleted after that is free again, for whoever takes it."""
        descriptor, end = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), 0
        try:
            for size_bytes in (64 << 20, 1 << 20, 4096):
                end = self._take(descriptor, end, size_bytes)
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int, end: int, size_bytes: int) -> int:
        """Make the filler longer by so much until there is no space for that; return where it ends."""
        while True:
            try:
                os.posix_fallocate(descriptor, end, size_bytes)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise _not_filled(error, self.path) from error
                return end
            end += size_bytes

    def free(self) -> None:
        """Give all of its space back."""
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave nothing on it."""
        self.free()
        shutil.rmtree(self.path, ignore_errors=True)


def _not_filled(error: OSError, path: Path) -> StoreError:
    hint = "a limit on the size of files (ulimit -f), or a disk that is ill, is in the way: pass another with --disk"
    return StoreError(f"the disk cannot be filled: {error.strerror}", kind="not-filled", retryable=False, hint=hint, path=path)


def _memory_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        found = next((line for line in file if line.startswith("MemAvailable:")), "x 0")
    return int(found.split()[1]) << 10


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*(ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
