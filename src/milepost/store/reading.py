"""Read a file that stays open between reads."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from milepost.store.base import BlobReader, no_such_name
from milepost.store.posix import Posix, as_bytes, failures_of, read_all

T = TypeVar("T")

_PASSING = (errno.ESTALE, errno.EIO, errno.ETIMEDOUT)


class FileReader(BlobReader):
    """Open a file at the first read, and keep it open until it is closed or fails."""

    def __init__(self, posix: Posix, name: str, path: str, url: str) -> None:
        self._posix = posix
        self._name = name
        self._path = path
        self._url = url
        self._descriptor: int | None = None

    def read_into(self, start: int, into: memoryview) -> int:
        return self.ask(lambda descriptor: read_all(self._posix, descriptor, as_bytes(into), start))

    def ask(self, read: Callable[[int], T]) -> T:
        """Return what ``read`` makes of the open file. Raises `StoreError`, `NotFoundError`."""
        with failures_of("read", self._path, name=self._name):
            try:
                return once_more(lambda: self._ask(read))
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                raise no_such_name(self._name, self._url) from error

    def _ask(self, read: Callable[[int], T]) -> T:
        if self._descriptor is None:
            self._descriptor = self._posix.open_read(self._path)
        try:
            return read(self._descriptor)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):  # it was only read: nothing is lost with it
                self._posix.close(descriptor)


def once_more(ask: Callable[[], T]) -> T:
    """Ask a second time where the first answer was a passing failure.

    On a network file system a file that was replaced while it was open is stale; opened again, it is the new one.
    """
    try:
        return ask()
    except OSError as error:
        if error.errno not in _PASSING:
            raise
        return ask()
