"""Send and receive exactly so many bytes over a socket, and never wait for ever for the next one."""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress

from milepost.clock import Clock
from milepost.encode.digest import Buffer

_AT_ONCE_BYTES = 4 << 20
SLOWEST_BYTES_S = 64 << 10
"""Who sends or takes less than this, over a whole piece, has stalled as well: a byte now and then keeps nobody waiting."""


class Ended(Exception):
    """Say that the peer has ended the connection between two messages, as it may."""


class Wire:
    """Be a connected socket, plain or TLS. For one thread at a time; `interrupt` from any."""

    def __init__(self, connected: socket.socket, clock: Clock, stall_s: float, tls: bool = False) -> None:
        self._socket = connected
        self._clock = clock
        self.is_plain = not tls
        self.wait_at_most(stall_s)
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def wait_at_most(self, stall_s: float) -> None:
        """Bound how long a call waits without any byte."""
        self._stall_s = stall_s
        if not self.is_plain:
            self._socket.settimeout(stall_s)
            return
        # Blocking, with a bound that the kernel keeps: MSG_WAITALL fills megabytes in one call then. With a timeout of Python's
        # the socket does not block, and each call brings what has come since the one before.
        self._socket.settimeout(None)
        bound = struct.pack("ll", int(stall_s), int(stall_s % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, bound)

    def receive(self, size_bytes: int, *, may_end: bool = False) -> bytes:
        """Return so many bytes. With ``may_end``: raises `Ended` if the peer has ended before the first."""
        data = bytearray(size_bytes)
        self.fill(memoryview(data), may_end=may_end)
        return bytes(data)

    def fill(self, into: memoryview, *, may_end: bool = False) -> None:
        """Receive until ``into`` is full. Raises `OSError`: `TimeoutError` after a time without a byte, or too slow a piece."""
        until = self._until(len(into))
        view = into
        while view:
            count = self._receive_some(view)
            if not count:
                if may_end and len(view) == len(into):
                    raise Ended
                raise ConnectionResetError("the other side has ended in the middle")
            view = view[count:]
            self._check(until, view)

    def send(self, data: Buffer) -> None:
        """Send all of ``data``. Raises `OSError` as `fill` does."""
        view = memoryview(data).cast("B")
        until = self._until(len(view))
        while view:
            view = view[self._send_some(view[:_AT_ONCE_BYTES]) :]
            self._check(until, view)

    def interrupt(self) -> None:
        """End whatever waits in this socket, in any thread. Never raises."""
        with suppress(OSError):  # the other side has gone already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it; never raises."""
        with suppress(OSError):
            self._socket.close()

    def _receive_some(self, view: memoryview) -> int:
        try:
            return self._socket.recv_into(view, 0, socket.MSG_WAITALL if self.is_plain else 0)
        except (BlockingIOError, ssl.SSLWantReadError) as error:
            raise TimeoutError(f"sent no byte in {self._stall_s:g} s") from error

    def _send_some(self, view: memoryview) -> int:
        try:
            return self._socket.send(view)
        except (BlockingIOError, ssl.SSLWantWriteError) as error:
            raise TimeoutError(f"took no byte in {self._stall_s:g} s") from error

    def _until(self, size_bytes: int) -> int:
        return self._clock.monotonic_ns() + round((self._stall_s + size_bytes / SLOWEST_BYTES_S) * 1e9)

    def _check(self, until: int, more: object) -> None:
        if more and self._clock.monotonic_ns() > until:
            raise TimeoutError(f"moved less than {SLOWEST_BYTES_S >> 10} KiB a second")
