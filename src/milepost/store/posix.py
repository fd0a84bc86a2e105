"""Make every system call on a file that milepost makes, one method each, so that a test can count, fail or cut short any of them.

This is the only module that calls ``os.replace``, ``os.link``, ``os.rename`` and ``os.fsync``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import ParamSpec, TypeVar

from milepost.errors import StoreError
from milepost.store.base import Buffer
from milepost.store.plain_files import open_ours, open_regular

P = ParamSpec("P")
T = TypeVar("T")

CHANGES = frozenset(
    {"open_new", "open_append", "open_lock", "preallocate", "write", "write_at", "truncate", "fsync", "sync_directory"}
    | {"link", "rename_new", "replace", "unlink", "mkdir", "rmdir"}
)
"""The calls that change what lies on disk, or promise that it stays there."""

_NO_DIRECTORY_SYNC = (errno.EINVAL, errno.EBADF, errno.ENOTSUP)


class Posix:
    """Offer the system calls the local store is made of; ``perform`` is the one place all of them pass.

    A subclass that overrides `perform` sees each call before, sees its result or error after, and may do neither.
    """

    def perform(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:  # noqa: ARG002
        """Run one call. ``name`` is the method's."""
        return function(*args, **kwargs)

    def open_read(self, path: str) -> int:
        """Open a regular file; FileNotFoundError for anything else. A FIFO or a device would be waited for, perhaps for ever."""
        return self.perform("open_read", open_regular, path)

    def open_new(self, path: str) -> int:
        """Create a file that does not exist, for writing."""
        return self.perform("open_new", os.open, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def open_append(self, path: str) -> int:
        return self.perform("open_append", open_ours, path, os.O_APPEND)

    def open_lock(self, path: str) -> int:
        return self.perform("open_lock", open_ours, path, 0)

    def close(self, descriptor: int) -> None:
        self.perform("close", os.close, descriptor)

    def size(self, descriptor: int) -> int:
        return self.perform("size", _size, descriptor)

    def read_into(self, descriptor: int, into: memoryview, offset: int) -> int:
        return self.perform("read_into", os.preadv, descriptor, [into], offset)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write at the file's own position; may write less than asked. Releases the GIL."""
        return self.perform("write", os.write, descriptor, data)

    def write_at(self, descriptor: int, data: Buffer, offset: int) -> int:
        return self.perform("write_at", os.pwrite, descriptor, data, offset)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self.perform("truncate", os.ftruncate, descriptor, size_bytes)

    def preallocate(self, descriptor: int, size_bytes: int) -> bool:
        """Set blocks aside and make the file as long as that: what is not written reads as zeros. False where that cannot be."""
        from milepost.store.syscalls import preallocate

        return self.perform("preallocate", preallocate, descriptor, size_bytes)

    def direct_alignment(self, descriptor: int) -> int | None:
        """Return what direct writes must be multiples of; 0: the file system has none; None: it does not say."""
        from milepost.store.syscalls import direct_alignment

        return self.perform("direct_alignment", direct_alignment, descriptor)

    def set_direct(self, descriptor: int, direct: bool) -> None:
        """Let writes go past the page cache, straight from the caller's memory, or through it again."""
        from milepost.store.syscalls import set_direct

        self.perform("set_direct", set_direct, descriptor, direct)

    def cached_bytes(self, descriptor: int) -> int:
        """Return how much of a file is in this machine's memory."""
        from milepost.store.syscalls import cached_bytes

        return self.perform("cached_bytes", cached_bytes, descriptor)

    def start_write_back(self, descriptor: int, offset: int, size_bytes: int) -> None:
        """Ask the kernel to write a range soon, and not to keep it cached. A hint: it promises nothing."""
        if sys.platform == "linux":
            self.perform("start_write_back", os.posix_fadvise, descriptor, offset, size_bytes, os.POSIX_FADV_DONTNEED)

    def drop_cached(self, descriptor: int) -> None:
        """Ask the kernel to forget what it holds of a file in memory. A hint: what is dirty or mapped stays."""
        if sys.platform == "linux":
            self.perform("drop_cached", os.posix_fadvise, descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def fsync(self, descriptor: int) -> None:
        self.perform("fsync", _fsync, descriptor)

    def sync_directory(self, path: str) -> bool:
        """Make the names in a directory durable: its new, moved and deleted entries. False where there is no such call.

        Some network file systems have none: their names are durable when the call that made them returns.
        """
        try:
            self.perform("sync_directory", _sync_directory, path)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY_SYNC:
                raise
            return False
        return True

    def link(self, path: str, to: str) -> None:
        """Give a file a second name; FileExistsError if it is taken."""
        self.perform("link", os.link, path, to)

    def rename_new(self, path: str, to: str) -> None:
        """Rename atomically; FileExistsError if ``to`` is taken, EINVAL or ENOSYS where the file system cannot."""
        from milepost.store.syscalls import rename_new

        self.perform("rename_new", rename_new, path, to)

    def replace(self, path: str, to: str) -> None:
        self.perform("replace", os.replace, path, to)

    def unlink(self, path: str) -> None:
        self.perform("unlink", os.unlink, path)

    def mkdir(self, path: str) -> None:
        self.perform("mkdir", os.mkdir, path)

    def rmdir(self, path: str) -> None:
        self.perform("rmdir", os.rmdir, path)

    def exists(self, path: str) -> bool:
        return self.perform("exists", _exists, path)

    def is_directory(self, path: str) -> bool:
        return self.perform("is_directory", _is_directory, path)

    def is_link(self, path: str) -> bool:
        return self.perform("is_link", _is_link, path)

    def same_file(self, path: str, other: str) -> bool:
        """Say whether two names are of one file; false if either is gone."""
        return self.perform("same_file", _same_file, path, other)

    def scan(self, path: str) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
        """Return a directory's own directories, and its files with their sizes. One that is not there is empty."""
        return self.perform("scan", _scan, path)

    def subdirectories(self, path: str) -> tuple[str, ...]:
        """Return a directory's own directories, links to such not among them."""
        return self.perform("subdirectories", _subdirectories, path)

    def free_bytes(self, path: str) -> int:
        return self.perform("free_bytes", _free_bytes, path)

    def space(self, path: str) -> os.statvfs_result:
        """Return what a file system says of its size, its inodes and its longest name."""
        return self.perform("space", os.statvfs, path)

    def status(self, path: str) -> os.stat_result:
        return self.perform("status", os.stat, path)

    def mounts(self) -> str:
        """Return the table of this process's mounts, as Linux words it (proc_pid_mountinfo(5))."""
        return self.perform("mounts", _text_of, "/proc/self/mountinfo")

    def flock(self, descriptor: int, operation: int) -> None:
        """Lock or unlock an open file; BlockingIOError if another holds it and the operation says not to wait."""
        self.perform("flock", fcntl.flock, descriptor, operation)


def _size(descriptor: int) -> int:
    return os.fstat(descriptor).st_size


def _fsync(descriptor: int) -> None:
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # fsync leaves the bytes in the drive's cache there
    else:
        os.fsync(descriptor)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# `os.path.exists` and `isdir` say no when the disk cannot be asked. A directory that a failing disk hides for a moment would
# then be taken for one that needs no sync, and a save be acknowledged whose name is not durable.
def _exists(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _is_link(path: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _same_file(path: str, other: str) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.lstat(other))
    except FileNotFoundError:
        return False


_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)


def _scan(path: str) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    directories: list[str] = []
    files: list[tuple[str, int]] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.name)
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError as error:
                    if error.errno in _NOT_THERE or entry.is_symlink():
                        continue  # deleted since the directory was read, or a link that leads nowhere: not a name
                    raise  # the disk cannot tell: left out, a fence or a manifest would be overlooked
                if stat.S_ISREG(status.st_mode):
                    files.append((entry.name, status.st_size))
    except (FileNotFoundError, NotADirectoryError):
        return (), ()
    return tuple(directories), tuple(files)


def _subdirectories(path: str) -> tuple[str, ...]:
    with os.scandir(path) as entries:
        return tuple(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def _text_of(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _free_bytes(path: str) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


_FULL = "free some space, or keep fewer generations: Keep(last=...)"
_SICK = "the disk or its network failed: see dmesg, then milepost verify"
_MEANINGS: dict[int, tuple[str, bool, str]] = {
    errno.ENOSPC: ("disk-full", False, _FULL),
    errno.EDQUOT: ("quota", False, "free some of your quota (quota -s shows it), or keep fewer generations: Keep(last=...)"),
    errno.EFBIG: ("file-too-big", False, "raise the limit on file sizes (ulimit -f)"),
    errno.EACCES: ("permission", False, "check owner and mode of the run root (ls -ld)"),
    errno.EPERM: ("permission", False, "check owner, mode and attributes of the run root (ls -ld, lsattr -d)"),
    errno.EROFS: ("read-only", False, "the file system is mounted read-only; a failing disk may cause that: see dmesg"),
    errno.EIO: ("io", False, _SICK),
    getattr(errno, "EUCLEAN", -1): ("io", False, "the file system is damaged: unmount it, fsck, then milepost verify"),
    getattr(errno, "EREMOTEIO", -2): ("io", False, _SICK),
    errno.ENXIO: ("io", False, _SICK),
    errno.ENODEV: ("io", False, _SICK),
    errno.ENOTCONN: ("io", False, "what serves this file system has ended: mount it again"),
    errno.ENOENT: ("vanished", False, "was it removed or moved under this process, or swept by a writer that took over?"),
    errno.ENOTDIR: ("not-a-directory", False, "a part of the path is a file: choose a directory for the run root"),
    errno.ELOOP: ("link", False, "remove it: inside a run root milepost reads and writes plain files only, through no link"),
    errno.EXDEV: ("cross-device", False, "keep the whole run root on one file system"),
    errno.ENAMETOOLONG: ("name-too-long", False, "choose a shorter path for the run root"),
    errno.EMFILE: ("too-many-files", True, "raise the limit on open files (ulimit -n)"),
    errno.ENFILE: ("too-many-files", True, "raise the system's limit on open files (sysctl fs.file-max)"),
    errno.ESTALE: ("stale", True, "the file server has lost the file: try again; if it stays, mount the file system anew"),
    errno.EINTR: ("interrupted", True, "try again"),
    errno.EAGAIN: ("interrupted", True, "try again"),
    errno.ETIMEDOUT: ("timeout", True, "the file server does not answer: try again when it does"),
}


def store_error(
    error: OSError,
    operation: str,
    path: str,
    *,
    name: str | None = None,
    unknown: bool = False,
    kind_of_error: type[StoreError] = StoreError,
) -> StoreError:
    """Say what a failed system call means. ``unknown``: it may have happened all the same, so it is not simply retried."""
    kind, retryable, hint = _MEANINGS.get(error.errno or 0, ("os-error", False, _SICK))
    reason = error.strerror or str(error)
    return kind_of_error(
        f"could not {operation}: {reason}", kind=kind, retryable=retryable and not unknown, hint=hint, name=name, path=path
    )


class failures_of:  # noqa: N801 - read where it is used; a generator would take as long as the system call in it
    """Turn what the operating system raises inside into a `StoreError`."""

    __slots__ = ("_facts", "_operation", "_path")

    def __init__(
        self,
        operation: str,
        path: str,
        *,
        name: str | None = None,
        unknown: bool = False,
        kind_of_error: type[StoreError] = StoreError,
    ) -> None:
        self._operation, self._path, self._facts = operation, path, (name, unknown, kind_of_error)

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            name, unknown, kind_of_error = self._facts
            raise store_error(
                error, self._operation, self._path, name=name, unknown=unknown, kind_of_error=kind_of_error
            ) from error


@contextmanager
def unseen() -> Iterator[None]:
    """Note of a `StoreError` raised inside that nothing was done: what is written here has no name yet that anyone looks for."""
    try:
        yield
    except StoreError as error:
        error.undone = True
        raise


def as_bytes(data: Buffer) -> memoryview:
    """See any contiguous buffer as bytes."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def write_all(posix: Posix, descriptor: int, data: memoryview) -> None:
    """Write every byte at the file's own position."""
    while data:
        data = data[posix.write(descriptor, data) :]


def read_all(posix: Posix, descriptor: int, into: memoryview, start: int) -> int:
    """Fill ``into`` from offset ``start``; return how many bytes the file had. One call reads 2 GiB at most."""
    done = 0
    while done < len(into):
        count = posix.read_into(descriptor, into[done:], start + done)
        if count == 0:
            break
        done += count
    return done


@contextmanager
def closing(posix: Posix, descriptor: int) -> Iterator[None]:
    """Close a file after the block. An error of the block's own is the one that counts."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            posix.close(descriptor)
        raise
    posix.close(descriptor)


def discard(posix: Posix, path: str) -> None:
    """Remove what nobody was told of. If that fails too, the next claimer sweeps it; the first error is the one that counts."""
    with suppress(OSError):
        posix.unlink(path)
