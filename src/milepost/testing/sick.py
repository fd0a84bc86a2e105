"""Let a disk be sick: at one system call or from one on, fail it, cut a write short, or remove a directory underneath.

>>> import errno
>>> posix = SickPosix(failing(errno.EIO), at=2)
>>> posix.is_directory("/"), posix.struck
(True, 0)
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from milepost.store.posix import CHANGES, Posix
from milepost.testing.faults import FileOperation

P = ParamSpec("P")
T = TypeVar("T")

READS = frozenset(
    {"open_read", "size", "read_into", "scan", "subdirectories", "exists", "is_directory", "same_file", "free_bytes"}
)
"""The calls that only look."""
TAKES_SPACE = frozenset(
    {
        "open_new",
        "open_append",
        "open_lock",
        "preallocate",
        "write",
        "write_at",
        "mkdir",
        "link",
        "rename_new",
        "replace",
        "fsync",
        "close",
    }
)
"""The calls that a full disk or an exhausted quota may refuse; to delete is never among them."""

Sickness = Callable[[FileOperation, Callable[[], Any]], Any]
"""Do something else than the call, or do it and answer something else."""


def failing(number: int) -> Sickness:
    """Refuse the call with an error of the system. A close is done all the same, as the system does it."""

    def refuse(operation: FileOperation, apply: Callable[[], Any]) -> Any:
        if operation.name == "close":
            apply()
        raise OSError(number, os.strerror(number))

    return refuse


def failing_late(number: int) -> Sickness:
    """Do what changes a name, and say that it failed: so does a network that loses the answer. All else is refused."""

    def answer_wrongly(operation: FileOperation, apply: Callable[[], Any]) -> Any:
        if operation.name in ("link", "rename_new", "replace", "unlink", "mkdir", "fsync", "sync_directory", "close"):
            apply()
        raise OSError(number, os.strerror(number))

    return answer_wrongly


def short() -> Sickness:
    """Take half of what is written, and say so."""

    def write_half(operation: FileOperation, apply: Callable[[], Any]) -> Any:
        descriptor, data, *more = operation.arguments
        if operation.name == "write":
            return os.write(descriptor, data[: (len(data) + 1) // 2])  # type: ignore[index, arg-type]
        if operation.name == "write_at":
            return os.pwrite(descriptor, data[: (len(data) + 1) // 2], *more)  # type: ignore[index, arg-type]
        return apply()

    return write_half


def removing(path: str) -> Sickness:
    """Remove a directory and all that is in it before the call, as somebody else may at any time."""

    def remove(_operation: FileOperation, apply: Callable[[], Any]) -> Any:
        shutil.rmtree(path, ignore_errors=True)
        return apply()

    return remove


class SickPosix(Posix):
    """Let ``sickness`` strike at call ``at`` (from 0) of those named in ``calls``; with ``lasting``, at all that follow, too.

    ``only`` narrows it down further, by the arguments, say. `heal` ends it. ``struck`` counts the calls that were struck,
    ``seen`` those that could have been.
    """

    def __init__(
        self,
        sickness: Sickness | None = None,
        at: int = 0,
        *,
        calls: frozenset[str] = CHANGES,
        lasting: bool = False,
        only: Callable[[FileOperation], bool] | None = None,
    ) -> None:
        self.seen = 0
        self.struck = 0
        self._sickness = sickness
        self._at = at
        self._calls = calls
        self._lasting = lasting
        self._only = only
        self._lock = threading.Lock()

    def heal(self) -> None:
        """Let everything work from here on."""
        self._sickness = None

    def perform(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        operation = FileOperation(name, args)
        sickness = self._strikes(operation)
        if sickness is None:
            return function(*args, **kwargs)
        return sickness(operation, lambda: function(*args, **kwargs))  # type: ignore[no-any-return]

    def _strikes(self, operation: FileOperation) -> Sickness | None:
        if operation.name not in self._calls or (self._only is not None and not self._only(operation)):
            return None
        with self._lock:
            number = self.seen
            self.seen += 1
            strikes = number >= self._at if self._lasting else number == self._at
            if self._sickness is None or not strikes:
                return None
            self.struck += 1
            return self._sickness
