"""Find out whether a process is ready: whether it has made its file, or listens at its address."""

from __future__ import annotations

import errno
import os
import select
import socket
from contextlib import suppress
from pathlib import Path

from milepost.errors import UsageError
from milepost.supervise.roles import Ready

_UNDER_WAY = (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK)


class Probe:
    """Look for the sign of one start. Made before that start: a file that an earlier one has left is no sign."""

    def __init__(self, ready: Ready, folder: Path, index: int, *, others_run: bool) -> None:
        """``others_run``: another process of the role is there, whose sign this one shares unless each has its own.

        Raises `UsageError` (``address-taken``) where somebody else listens at the address already: the roles that wait for
        it would talk to a stranger, perhaps to the same service of another pipeline.
        """
        self._ready = ready
        self._path = folder / ready.path.replace("{index}", str(index)) if ready.path else None
        self._connection: socket.socket | None = None
        shares = others_run and not ready.is_each
        self._before = None if self._path is None or shares else _shape_of(self._path)
        if not ready.path and not shares and self._is_listening(0.5):
            raise UsageError(
                "somebody listens at this address already",
                kind="address-taken",
                hint="stop that process (ss -ltnp names it), or choose another port",
                address=ready,
            )

    def is_ready(self) -> bool:
        """Say whether the sign is there. Never waits."""
        if self._path is not None:
            shape = _shape_of(self._path)
            return shape is not None and shape != self._before
        return self._is_listening(0.0)

    def close(self) -> None:
        """Give up what is under way."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def describe(self) -> str:
        """Return what is waited for, and what speaks against it."""
        if self._path is not None and self._before is not None:
            return f"{self._path} was there before the start, and was not touched since"
        return f"nothing made {self._path}" if self._path is not None else f"nothing listens at {self._ready}"

    def _is_listening(self, within_s: float) -> bool:
        with suppress(OSError):
            if self._connection is None:
                family, kind, _, _, address = socket.getaddrinfo(self._ready.host, self._ready.port, type=socket.SOCK_STREAM)[0]
                self._connection = socket.socket(family, kind)
                self._connection.setblocking(False)
                if self._connection.connect_ex(address) not in (0, *_UNDER_WAY):
                    self.close()
                    return False
            waiting = select.poll()
            waiting.register(self._connection, select.POLLOUT)
            if not waiting.poll(within_s * 1e3):
                return False
            failed = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            # A connection to a free port of this machine can by chance be answered by its own other end.
            found = not failed and self._connection.getsockname() != self._connection.getpeername()
            self.close()
            return found
        self.close()
        return False


def _shape_of(path: Path) -> tuple[int, int, int, int] | None:
    """Return what changes when a file is written, touched or made anew; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def free_port(taken: set[int]) -> int:
    """Return a port at which nobody listens, none of ``taken``. Whoever asks first has it: nothing keeps it free."""
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        if port not in taken:
            return port
