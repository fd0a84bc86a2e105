"""Leave one sync out of the local store, wherever it is called: what it is for shows after a power cut."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from milepost.store import posix
from milepost.store.posix import Posix

SITES = [
    ("fsync", "_write_whole"),
    ("sync_directory", "_write_whole"),
    ("fsync", "commit"),
    ("sync_directory", "commit"),
    ("sync_directory", "keep"),
    ("sync_directory", "sync"),
]
"""Every place of the local store that syncs: the call, and the function which makes it."""


class Dropping(Posix):
    """Do as if one sync had been done, each time that one function asks for it; ``on_behalf_of`` one that called that."""

    def __init__(self, name: str, caller: str, on_behalf_of: str | None = None, inner: Posix | None = None) -> None:
        self.name = name
        self.callers = [caller] + ([on_behalf_of] if on_behalf_of else [])
        self.dropped = 0
        self.inner = inner or Posix()

    def perform(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if name == self.name and callers_of_posix(len(self.callers)) == self.callers:
            self.dropped += 1
            return None
        return self.inner.perform(name, function, *args, **kwargs)


def callers_of_posix(count: int) -> list[str]:
    """Return the names of the functions that made the system call which is just performed, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame and (frame.f_code.co_name == "perform" or frame.f_code.co_filename == posix.__file__):
        frame = frame.f_back
    names = []
    while frame and len(names) < count:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names
