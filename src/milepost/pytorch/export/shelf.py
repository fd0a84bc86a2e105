"""Keep the directory in which an engine's exports lie: only whole ones under their names, and nothing of a killed writer's.

What is under way has a hidden name, and its writer a lock on it: what can be locked has lost its writer. A file system that
cannot lock a directory keeps such leftovers; nothing reads them.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from milepost.clock import Clock
from milepost.errors import ConflictError, StoreError
from milepost.pytorch.export.naming import Leftover, leftover_name, leftover_of, step_in
from milepost.store.directories import Directories
from milepost.store.local import LocalStore
from milepost.store.posix import Posix, closing, failures_of

log = logging.getLogger("milepost")

_NO_RENAME_NEW = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


class Shelf:
    """Write, list and remove the exports of one engine. For one thread at a time."""

    def __init__(self, path: str, clock: Clock, posix: Posix | None = None) -> None:
        self.path = path
        self._clock = clock
        self._posix = posix or Posix()
        self._directories = Directories(path, self._posix)
        self.store = LocalStore(path, clock, posix=self._posix)

    def finished(self) -> list[str]:
        """Return the names of all exports that are whole, in the order of training."""
        with failures_of("list", self.path):
            names = self._posix.scan(self.path)[0]
        return sorted((name for name in names if step_in(name)), key=lambda name: step_in(name) or ())

    @contextmanager
    def making(self, export: str) -> Iterator[str]:
        """Give a hidden directory to fill, by names of `store`; `publish` it in the end. Leaving it otherwise removes it."""
        name = leftover_name(export, self._clock.nonce(), "new")
        path = os.path.join(self.path, name)
        with failures_of("make", path):
            self._directories.keep(path)
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with closing(self._posix, descriptor):
            self._lock(descriptor)
            try:
                yield name
            except BaseException:
                with suppress(OSError):  # the next writer's sweep removes it; the first error is the one that counts
                    self._remove(name)
                raise

    def sees(self, name: str) -> bool:
        """Say whether a directory that another rank is filling is one here, too: on another machine it need not be."""
        try:
            return self._posix.is_directory(os.path.join(self.path, name))
        except OSError:  # who cannot look cannot write there either
            return False

    def check_there(self, name: str, sizes: Mapping[str, int]) -> None:
        """Raise `StoreError` (kind ``not-shared``) unless what others have written lies whole in a directory here."""
        for file, size_bytes in sizes.items():
            path = os.path.join(self.path, name, file)
            with failures_of("look for", path), suppress(FileNotFoundError):
                if self._posix.status(path).st_size == size_bytes:
                    continue
            raise StoreError(
                "the first rank does not see what another one has written",
                kind="not-shared",
                retryable=False,
                hint="look at how long its file system answers out of its memory, and save once more",
                path=path,
            )

    def publish(self, name: str, export: str) -> str:
        """Give a filled directory its name, durably, and return its path. A finished one of that name is replaced."""
        target, source = os.path.join(self.path, export), os.path.join(self.path, name)
        replaced = ""
        with failures_of("publish", target):
            # Its files are durable, and their names in it: the store has seen to that with each of them.
            if self._posix.is_directory(target):
                replaced = leftover_name(export, self._clock.nonce(), "old")
                # A kill right after this line leaves it hidden, and `sweep` gives it its name again.
                self._posix.replace(target, os.path.join(self.path, replaced))
            self._give_name(source, target)
            self._posix.sync_directory(self.path)
        if replaced:
            self._remove_later(replaced)
        return target

    def remove(self, export: str) -> None:
        """Remove a finished export: at once from sight, whatever comes between, then its files."""
        gone = leftover_name(export, self._clock.nonce(), "gone")
        with failures_of("remove", export):
            self._posix.replace(os.path.join(self.path, export), os.path.join(self.path, gone))
            # Else a power cut could bring the name back above files that are half deleted.
            self._posix.sync_directory(self.path)
        self._remove(gone)

    def sweep(self) -> None:
        """Remove what killed writers have left, and bring back an export that was being replaced when its writer died."""
        with failures_of("list", self.path):
            names = self._posix.scan(self.path)[0]
        for leftover in filter(None, map(leftover_of, names)):
            if leftover.state == "old" and leftover.export not in names:
                self._bring_back(leftover)
            elif leftover.state != "new" or self._is_abandoned(leftover.name):
                self._remove_later(leftover.name)

    def _bring_back(self, leftover: Leftover) -> None:
        with failures_of("bring back", leftover.export):
            self._give_name(os.path.join(self.path, leftover.name), os.path.join(self.path, leftover.export))
            self._posix.sync_directory(self.path)

    def _give_name(self, source: str, target: str) -> None:
        """Rename a directory unless its new name is taken. A plain rename replaces an empty directory only."""
        try:
            try:
                self._posix.rename_new(source, target)
            except OSError as error:
                if error.errno not in _NO_RENAME_NEW:
                    raise
                self._posix.replace(source, target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            raise ConflictError(
                "another writer has made this export",
                kind="name-taken",
                hint="let one process export a trial's engine, or give each trial its own name",
                path=target,
            ) from error

    def _lock(self, descriptor: int) -> bool:
        try:
            self._posix.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # held by its writer, or this file system locks no directories
            return False
        return True

    def _is_abandoned(self, name: str) -> bool:
        try:
            descriptor = os.open(os.path.join(self.path, name), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # its writer was faster
            return False
        with closing(self._posix, descriptor):
            return self._lock(descriptor)

    def _remove_later(self, name: str) -> None:
        """Remove what nobody looks for any more; if that fails the next sweep does, and the export counts."""
        try:
            self._remove(name)
        except StoreError as error:
            log.warning("[export] what is left of an export stays for now: %s", error)

    def _remove(self, name: str) -> None:
        path = os.path.join(self.path, name)
        with failures_of("remove", path):
            directories, files = self._posix.scan(path)
            for file, _ in files:
                self._posix.unlink(os.path.join(path, file))
            for directory in directories:
                self._remove(os.path.join(name, directory))
            self._posix.rmdir(path)
