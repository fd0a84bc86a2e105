"""Keep bytes in a directory of a POSIX file system, so that what was acknowledged survives a power cut.

The order of the system calls in `LocalStore._write_whole` and `BlobFile.commit` is what everything else stands on.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from milepost.clock import Clock
from milepost.errors import NotFoundError, StoreError
from milepost.store.base import (
    BlobReader,
    BlobWriter,
    Buffer,
    Capabilities,
    Entry,
    Store,
    checked_name,
    checked_prefix,
    is_name,
    name_taken,
    no_such_name,
)
from milepost.store.blob_bytes import WayToDisk
from milepost.store.blob_file import BlobFile
from milepost.store.directories import Directories
from milepost.store.posix import Posix, as_bytes, closing, discard, failures_of, read_all, store_error, unseen, write_all
from milepost.store.reading import FileReader, once_more

if TYPE_CHECKING:
    from milepost.store.lock import FileGuard

T = TypeVar("T")

_CAS_LOCK = "cas.lock"
_CAS_WAIT_S = 60.0
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_FULL = (errno.ENOSPC, errno.EDQUOT)  # of inodes, where every name takes one, as on tmpfs: a rename takes none
_NO_RENAME_NEW = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


class _CondemnedError(StoreError):
    """Report a failed fsync of a file nobody has seen yet: its bytes may be gone from memory as well as from disk."""


class LocalStore(Store):
    """Keep names as files below ``root``, which is made by the first write.

    ``wait`` sleeps for some seconds while another process holds a lock; tests pass one that moves their clock.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        clock: Clock,
        *,
        posix: Posix | None = None,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        # A training script may change its working directory, and its checkpoints must not move with it.
        self.root = _absolute(os.fspath(root))
        self.url = self.root
        self._clock = clock
        self._posix = posix or Posix()
        self._wait = wait or threading.Event().wait
        self._directories = Directories(self.root, self._posix)
        self._way = WayToDisk()
        self._appending = threading.Lock()
        self._torn: dict[str, int] = {}
        """The size of each log whose last append failed: what lies behind is half a record."""

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    @property
    def capabilities(self) -> Capabilities:
        from milepost.store.place import place_of  # not at the top: looking at a run asks for none of it

        return Capabilities(place_of(self.root, self._posix).survives, "lock")

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        def read_range(descriptor: int) -> bytes:
            size = self._posix.size(descriptor)
            data = bytearray(max(0, (size if stop is None else min(stop, size)) - start))
            into = memoryview(data)
            return bytes(into[: read_all(self._posix, descriptor, into, start)])

        return self._read_from(name, read_range)

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        return self._read_from(name, lambda descriptor: read_all(self._posix, descriptor, as_bytes(into), start))

    def is_cached(self, name: str) -> bool:
        def mostly(descriptor: int) -> bool:
            return 2 * self._posix.cached_bytes(descriptor) > self._posix.size(descriptor)

        try:
            return self._read_from(name, mostly)
        except (NotFoundError, StoreError):  # nobody can tell, or the read that follows says why
            return False

    def open_reader(self, name: str) -> BlobReader:
        return self._file(name)

    def drop_cached(self, name: str) -> None:
        with suppress(NotFoundError, StoreError):  # a disk that fails says so at the read that follows
            self._read_from(name, self._posix.drop_cached)

    def list(self, prefix: str) -> list[Entry]:
        found: list[Entry] = []
        pending = [checked_prefix(prefix)]
        self._directories.refuse_links(os.path.join(self.root, prefix).rstrip("/"))
        while pending:
            below = pending.pop()
            path = os.path.join(self.root, below)
            with failures_of("list", path, name=prefix):
                directories, files = once_more(partial(self._posix.scan, path))
            pending += [f"{below}{directory}/" for directory in directories if is_name(directory)]
            found += [Entry(below + file, size_bytes) for file, size_bytes in files if is_name(file)]
        return sorted(found, key=lambda entry: entry.name)

    def create(self, name: str, data: Buffer, *, label: str = "t0") -> bool:
        return self._anew_if_condemned(lambda: self._write_whole(name, data, label, self._link_new))

    def replace(self, name: str, data: Buffer, *, durable: bool = True, label: str = "t0") -> None:
        self._anew_if_condemned(lambda: self._write_whole(name, data, label, self._replace, durable=durable))

    def replace_if(self, name: str, expected: bytes | None, data: Buffer, *, label: str = "t0") -> bool:
        with self._compare_and_set(name):
            try:
                current = self.read(name, 0, len(expected or b"") + 1)
            except NotFoundError:
                current = None
            if current != expected:
                return False
            self.replace(name, data, label=label)
            return True

    def append(self, name: str, data: Buffer) -> None:
        path, record = self._path(name), as_bytes(data)
        with self._appending, failures_of("append to", path, name=name):
            self._directories.keep(os.path.dirname(path))
            descriptor = self._posix.open_append(path)
            with closing(self._posix, descriptor):
                self._append_whole(descriptor, name, record, path)

    def _append_whole(self, descriptor: int, name: str, record: memoryview, path: str) -> None:
        """Append all of a record or none of it: a full disk takes half of one, which would spoil the next one too."""
        size_bytes = self._posix.size(descriptor)
        torn_from = self._torn.get(name, size_bytes)
        if torn_from < size_bytes:
            self._posix.truncate(descriptor, torn_from)
            size_bytes = torn_from
        # Noted until it is whole: a disk that fails to take a record may fail to cut it off, too, and then the next append does.
        self._torn[name] = size_bytes
        if self._posix.write(descriptor, record) < len(record):
            self._posix.truncate(descriptor, size_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        del self._torn[name]

    def open_blob(self, name: str, *, size_bytes: int | None = None) -> BlobWriter:
        path = self._path(name)
        with failures_of("create", path, name=name):
            self._directories.keep(os.path.dirname(path))
            try:
                if self._posix.exists(path):
                    raise FileExistsError
                descriptor = self._posix.open_new(path + ".part")
            except FileExistsError:
                raise name_taken(name, self.url) from None
        return BlobFile(self._posix, name, path, descriptor, self._way, size_bytes)

    def delete(self, name: str) -> None:
        path = self._path(name)
        with failures_of("delete", path, name=name):
            try:
                self._posix.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                return

    def prune(self, prefix: str) -> None:
        path = self._path(checked_prefix(prefix).removesuffix("/"))
        with suppress(OSError):  # not empty, or gone: an empty directory harms nobody
            self._posix.rmdir(path)

    def move(self, name: str, to: str) -> None:
        path, target = self._path(name), self._path(to)
        with failures_of("move", path, name=name, unknown=True):
            self._directories.keep(os.path.dirname(target))
            try:
                self._rename_new(path, target)
            except FileExistsError:
                if self._posix.exists(path):
                    raise name_taken(to, self.url) from None
            except (FileNotFoundError, NotADirectoryError):
                if not self._posix.exists(target):
                    raise no_such_name(name, self.url) from None

    def sync(self, prefix: str) -> None:
        path = os.path.join(self.root, checked_prefix(prefix)).rstrip("/")
        self._directories.refuse_links(path)
        with failures_of("sync", path, name=prefix):
            if not self._posix.is_directory(path):
                return
            self._directories.keep(path)
            pending = [path]
            while pending:
                directory = pending.pop()
                try:
                    self._posix.sync_directory(directory)
                    pending += [os.path.join(directory, below) for below in self._posix.subdirectories(directory)]
                except FileNotFoundError:
                    continue  # gone, and so are the names in it

    def free_bytes(self) -> int | None:
        with failures_of("ask for the free space of", self.root):
            path = self.root
            while not self._posix.exists(path):
                path = os.path.dirname(path)
            return self._posix.free_bytes(path)

    def guard(self, *, wait_s: float, take_over: bool) -> FileGuard:
        from milepost.store.lock import FileGuard  # not at the top: a run that is only looked at is not locked

        # A new claim begins, perhaps after one that failed because somebody had removed the root.
        self._directories.forget()
        with failures_of("make the directory", self.root):
            self._directories.keep(self.root)
        return FileGuard(self.root, self._posix, self._clock, self._wait, wait_s=wait_s, take_over=take_over)

    def _write_whole(
        self, name: str, data: Buffer, label: str, give_name: Callable[[str, str], bool], *, durable: bool = True
    ) -> bool:
        """Write a name whole, in the one order that a kill or a power cut between any two lines cannot spoil."""
        posix, target, blobs = self._posix, self._path(name), os.path.join(self.root, "blobs")
        self._directories.refuse_links(blobs)
        with unseen(), failures_of("write", target, name=name):
            # A directory whose own name is lost takes all names in it along: first the parents, durably.
            self._directories.keep(os.path.dirname(target))
            # In blobs/ the next claimer sweeps what a kill leaves here, and the label tells it whose it was (PROTOCOL rule 8).
            self._directories.keep(blobs)
            temporary = os.path.join(blobs, f"{os.path.basename(target)}-{label}-{self._clock.nonce()}.tmp")
            descriptor = posix.open_new(temporary)
        try:
            # A network file system may tell of a failed write only when the file is closed: as a failed sync, that condemns it.
            with (
                unseen(),
                failures_of("close", target, name=name, kind_of_error=_CondemnedError),
                closing(posix, descriptor),
                failures_of("write", target, name=name),
            ):
                write_all(posix, descriptor, as_bytes(data))
                if durable:
                    # Bytes before the name: a name that a power cut leaves pointing at a hole is a damaged record.
                    with failures_of("sync", target, name=name, kind_of_error=_CondemnedError):
                        posix.fsync(descriptor)
            with failures_of("name", target, name=name, unknown=True):
                # All or nothing: no reader ever sees a half-written name, and of two creators one is told no.
                given = give_name(temporary, target)
                if given and durable:
                    # The name itself: until now a power cut takes it back, so only now may anyone be told.
                    posix.sync_directory(os.path.dirname(target))
            return given
        except BaseException:
            discard(posix, temporary)
            raise

    def _anew_if_condemned(self, write: Callable[[], bool]) -> bool:
        """Write once more under another temporary name after a failed fsync: a second fsync of the same file would lie."""
        try:
            return write()
        except _CondemnedError:
            return write()

    def _link_new(self, temporary: str, target: str) -> bool:
        """Give the written file its name unless that is taken; the temporary name goes in any case."""
        posix = self._posix
        try:
            posix.link(temporary, target)
            given = True
        except FileExistsError:
            # A network file system may have done it, lost the answer and asked again: then the name is of our own file.
            given = posix.same_file(temporary, target)
        except OSError as error:
            if error.errno not in (*_NO_LINKS, *_FULL):
                raise
            try:
                posix.rename_new(temporary, target)
                return True
            except FileExistsError:
                given = False
            except OSError as second:
                if second.errno in _NO_RENAME_NEW and error.errno not in _FULL:
                    raise _no_atomic_create(target) from error
                raise (error if second.errno in _NO_RENAME_NEW else second) from None
        discard(posix, temporary)
        return given

    def _replace(self, temporary: str, target: str) -> bool:
        self._posix.replace(temporary, target)
        return True

    def _rename_new(self, path: str, target: str) -> None:
        """Rename unless the new name is taken; where the file system cannot, by a link, which a kill may leave half done."""
        try:
            self._posix.rename_new(path, target)
        except OSError as error:
            if error.errno not in _NO_RENAME_NEW:
                raise
            try:
                self._posix.link(path, target)
            except FileExistsError:
                if not self._posix.same_file(path, target):
                    raise
            self._posix.unlink(path)

    def _path(self, name: str) -> str:
        path = os.path.join(self.root, checked_name(name))
        self._directories.refuse_links(os.path.dirname(path))
        return path

    def _read_from(self, name: str, read: Callable[[int], T]) -> T:
        with self._file(name) as file:
            return file.ask(read)

    def _file(self, name: str) -> FileReader:
        return FileReader(self._posix, name, self._path(name), self.url)

    @contextmanager
    def _compare_and_set(self, name: str) -> Iterator[None]:
        """Keep every other `replace_if` out, in this process and in all others, for a handful of system calls."""
        from milepost.store.lock import FileLock

        lock = FileLock(os.path.join(self.root, _CAS_LOCK), self._posix)
        with failures_of("lock", lock.path, name=name):
            self._directories.keep(self.root)
            if not lock.wait_and_lock(_CAS_WAIT_S, self._clock, self._wait):
                raise store_error(OSError(errno.ETIMEDOUT, "a stopped process holds it"), "lock", lock.path, name=name)
        try:
            yield
        finally:
            lock.unlock()


def _absolute(path: str) -> str:
    """Make a path absolute. After a symbolic link, ``..`` is above what it leads to, as it is for every other program."""
    return os.path.realpath(path) if os.pardir in path.split(os.sep) else os.path.abspath(path)


def _no_atomic_create(target: str) -> StoreError:
    return StoreError(
        "the file system can neither link nor rename without overwriting, so two writers could not be told apart",
        kind="no-atomic-create",
        retryable=False,
        hint="put the run root on a local disk, NFS, Lustre or another file system with hard links",
        path=target,
    )
