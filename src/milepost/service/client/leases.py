"""Know which versions this process reads: what nobody reads any more is given back, once."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

from milepost.service.core.records import Commit


class Lease:
    """Be the reading of one version: it ends when nobody refers to it any more. Counting is left to Python, which does it best."""

    __slots__ = ("__weakref__", "at")

    def __init__(self, at: Commit) -> None:
        self.at = at


class Leases:
    """Be all readings of this process. ``release`` is called from wherever the last reference goes, also by the garbage collector."""

    def __init__(self, release: Callable[[Commit], None]) -> None:
        self._release = release
        self._running: weakref.WeakValueDictionary[Commit, Lease] = weakref.WeakValueDictionary()
        self._beginning = threading.Lock()

    def begin(self, at: Commit) -> Lease:
        """Return the lease of a version that has been handed out."""
        with self._beginning:
            lease = self._running.get(at)
            if lease is None:
                lease = self._running[at] = Lease(at)
                weakref.finalize(lease, _ended, self._release, at, os.getpid()).atexit = False
            return lease


def _ended(release: Callable[[Commit], None], at: Commit, pid: int) -> None:
    if os.getpid() == pid:  # in a child that was forked the parent's reading goes on
        release(at)
