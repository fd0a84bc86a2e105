"""Serve the bytes of versions over a plain socket, in threads of its own: however much is moved, control answers beside it."""

from __future__ import annotations

import hmac
import os
import selectors
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from milepost.clock import Clock, SystemClock
from milepost.errors import MilepostError, ServiceError
from milepost.service.transports import bulk_frames as frames
from milepost.service.transports.base import Blob
from milepost.service.transports.bulk_wire import Ended, Wire
from milepost.service.transports.failures import no_such_blob
from milepost.service.transports.folder import map_file, read_file
from milepost.threads import Member

_BUFFER_BYTES = 1 << 20
_WAITING = 128


class Shelf(Protocol):
    """Be where the bytes lie. Called from several threads at once. What it raises of milepost's errors the client is told."""

    def open_file(self, blob: Blob) -> int | None:
        """Return a descriptor to read a blob from, the caller's to close; None where it is no file, of a shelf that `Reads`.

        Raises `NotFoundError` (kind ``no-such-blob``).
        """

    def write(self, blob: Blob, start: int, data: memoryview) -> None:
        """Take bytes of a commit that is on its way. Refuses what was not announced, and what lies beyond its size."""


@runtime_checkable
class Reads(Protocol):
    """Read what is no file."""

    def size(self, blob: Blob) -> int:
        """Return how many bytes a blob has."""

    def read_into(self, blob: Blob, start: int, into: memoryview) -> None:
        """Fill ``into`` from ``start``."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Say how much a server lets others take of it."""

    connections: int = 64
    greet_s: float = 10.0
    """For how long a new connection may say nothing."""
    idle_s: float = 120.0
    """For how long a greeted one may ask for nothing."""
    stall_s: float = 30.0
    """For how long one may send or take no byte in the middle."""


@dataclass(slots=True)
class Counts:
    """Count what went through, since the server was made."""

    connections: int = 0
    refused: int = 0
    bytes_out: int = 0
    """Promised in an answer, also where the reader goes before it has them all."""
    bytes_in: int = 0


class BulkServer:
    """Answer on one port, from `start` to `close`. ``token``: what who connects has to know; empty: nothing.

    >>> server = BulkServer(shelf, token)                                      # doctest: +SKIP
    >>> server.start()                                                         # doctest: +SKIP
    '127.0.0.1:40123'
    """

    def __init__(
        self,
        shelf: Shelf,
        token: str = "",
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._shelf, self._token, self._tls = shelf, token.encode(), tls
        self._host, self._port = host, port
        self._limits, self._clock = limits or Limits(), clock or SystemClock()
        self.counts = Counts()
        self._changing = threading.Lock()
        self._open: dict[int, tuple[socket.socket, Member]] = {}
        self._number = 0
        self._listener: socket.socket | None = None
        self._accepting: Member | None = None
        self._wake = (-1, -1)

    @property
    def address(self) -> str:
        """Return ``host:port``; what is listened on, also if any port was asked for."""
        assert self._listener is not None, "start() comes first"
        port = self._listener.getsockname()[1]
        return f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"

    @property
    def connections(self) -> int:
        """Return how many connections are open."""
        with self._changing:
            return len(self._open)

    def start(self) -> str:
        """Listen, and return the address. Raises `ServiceError` (kind ``cannot-listen``) where that cannot be."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            self._listener = socket.create_server((self._host, self._port), family=family, backlog=_WAITING)
        except OSError as error:
            raise ServiceError(
                f"cannot listen for bulk transfers: {error.strerror or error}",
                kind="cannot-listen",
                hint="HOST has to be an address of this machine; port 0 takes any that nobody else has",
                host=self._host,
                port=self._port,
            ) from error
        self._listener.setblocking(False)
        self._wake = os.pipe()
        self._accepting = Member(self._accept, "milepost-bulk")
        self._accepting.start()
        return self.address

    def close(self) -> None:
        """End all connections, also in the middle, and wait until that is done. A second call does nothing."""
        if self._accepting is None or self._listener is None:
            return
        os.write(self._wake[1], b"\0")
        self._accepting.wait_out()
        self._accepting = None
        self._listener.close()
        for end in self._wake:
            os.close(end)
        with self._changing:
            members = list(self._open.values())
            for connected, _ in members:
                with suppress(OSError):  # it has ended by itself
                    connected.shutdown(socket.SHUT_RDWR)
        for _, member in members:
            member.wait_out()

    def __enter__(self) -> BulkServer:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _accept(self) -> None:
        assert self._listener is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wake[0], selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._wake[0] in ready:
                    return
                try:
                    connected, _ = self._listener.accept()
                except OSError:
                    # Gone before it was taken; or no descriptor is left, which the next pass may find again.
                    threading.Event().wait(0.05)
                    continue
                self._admit(connected)

    def _admit(self, connected: socket.socket) -> None:
        with self._changing:
            if len(self._open) >= self._limits.connections:
                # Nobody is told why: it would have to be waited for. A client tries again, or goes another way.
                self.counts.refused += 1
                connected.close()
                return
            self.counts.connections += 1
            self._number += 1
            number = self._number
            member = Member(lambda: self._serve(number, connected), f"milepost-bulk-{number}")
            self._open[number] = (connected, member)
        try:
            member.start()
        except RuntimeError:  # no thread is left for it: as if there were no place
            self._leave(number)

    def _serve(self, number: int, connected: socket.socket) -> None:
        try:
            self._converse(self._secured(number, connected))
        except (OSError, Ended, frames.Malformed):
            # Whoever it was is gone, stands still, or speaks something else. What it was sent it checks; what it had brought
            # counts for nothing before it says that all is there.
            pass
        finally:
            self._leave(number)

    def _leave(self, number: int) -> None:
        with self._changing:
            self._open.pop(number)[0].close()

    def _converse(self, wire: Wire) -> None:
        talk = _Talk(wire, self._shelf, self.counts, self._changing)
        try:
            if not talk.greet(self._token):
                return
            while True:
                wire.wait_at_most(self._limits.idle_s)
                head = wire.receive(frames.REQUEST.size, may_end=True)
                wire.wait_at_most(self._limits.stall_s)
                talk.answer(head)
        finally:
            talk.close()

    def _secured(self, number: int, connected: socket.socket) -> Wire:
        if self._tls is None:
            return Wire(connected, self._clock, self._limits.greet_s)
        connected.settimeout(self._limits.greet_s)
        # The wrapped socket takes the place of the other, which from then on is none: whoever closes this server ends that one.
        with self._changing:
            secured = self._tls.wrap_socket(connected, server_side=True, do_handshake_on_connect=False)
            self._open[number] = (secured, self._open[number][1])
        secured.do_handshake()
        return Wire(secured, self._clock, self._limits.greet_s, tls=True)


class _Talk:
    """Answer one client's requests, one after the other."""

    def __init__(self, wire: Wire, shelf: Shelf, counts: Counts, counting: threading.Lock) -> None:
        self._wire, self._shelf = wire, shelf
        self._counts, self._counting = counts, counting
        self._blob: Blob | None = None
        self._descriptor: int | None = None
        self._view = memoryview(b"")
        self._buffer = bytearray()

    def greet(self, token: bytes) -> bool:
        """Return whether the client knows the token; it is told."""
        size_bytes = frames.greeted(self._wire.receive(frames.GREETING.size, may_end=True))
        said = self._wire.receive(size_bytes)
        if token and not hmac.compare_digest(said, token):
            self._refuse(
                ServiceError("the token is not the right one", kind="bad-token", hint="connect with the run root, or its token")
            )
            return False
        self._wire.send(frames.ANSWER.pack(frames.DONE, 0))
        return True

    def answer(self, head: bytes) -> None:
        """Do what a request says."""
        verb, place_bytes, name_bytes, start, size_bytes = frames.requested(head)
        blob = frames.named(self._wire.receive(place_bytes + name_bytes), place_bytes)
        if verb == frames.GET:
            self._get(blob, start, size_bytes)
        else:
            self._put(blob, start, size_bytes)

    def close(self) -> None:
        """Let go of the blob of the last request."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = self._blob = None
        self._view = memoryview(b"")

    def _get(self, blob: Blob, start: int, size_bytes: int) -> None:
        try:
            there = self._opened(blob)
            if start + size_bytes > there:
                raise no_such_blob(blob, ends_at=there)
            view = self._mapped(blob, start + size_bytes)
        except MilepostError as error:
            self._refuse(error)
            return
        with self._counting:  # before they go: who has them all finds them counted
            self._counts.bytes_out += size_bytes
        self._wire.send(frames.ANSWER.pack(frames.DONE, size_bytes))
        if view is None:
            self._send_copies(blob, start, size_bytes)
        else:
            self._wire.send(view[start : start + size_bytes])

    def _mapped(self, blob: Blob, stop: int) -> memoryview | None:
        """Return the open blob where it lies, for the kernel to send from; None where somebody else would have to look at it.

        The kernel alone looks: a file that became shorter, or a disk that fails, is an error of its call then, and does not end
        this process. ``sendfile`` would spare a copy, but hands the receiver single pages, which cost it more than that.
        """
        if self._descriptor is None or not self._wire.is_plain:
            return None
        if len(self._view) < stop:
            self._view = map_file(self._descriptor, blob)
        return self._view

    def _send_copies(self, blob: Blob, start: int, size_bytes: int) -> None:
        stop, room = start + size_bytes, self._room()
        while start < stop:
            piece = room[: stop - start]
            try:
                self._read(blob, start, piece)
            except MilepostError as error:
                # So many bytes were promised: there is no other way left to say that they do not come.
                raise ConnectionAbortedError("the bytes cannot be read any more") from error
            self._wire.send(piece)
            start += len(piece)

    def _read(self, blob: Blob, start: int, into: memoryview) -> None:
        if self._descriptor is not None:
            read_file(self._descriptor, blob, start, into)
        elif isinstance(self._shelf, Reads):
            self._shelf.read_into(blob, start, into)

    def _put(self, blob: Blob, start: int, size_bytes: int) -> None:
        error: MilepostError | None = None
        room, stop = self._room(), start + size_bytes
        while start < stop:
            piece = room[: stop - start]
            self._wire.fill(piece)
            if error is None:
                error = self._written(blob, start, piece)
            start += len(piece)
        if size_bytes == 0:
            error = self._written(blob, start, room[:0])
        if error is not None:
            self._refuse(error)
            return
        with self._counting:
            self._counts.bytes_in += size_bytes
        self._wire.send(frames.ANSWER.pack(frames.DONE, 0))

    def _written(self, blob: Blob, start: int, data: memoryview) -> MilepostError | None:
        try:
            self._shelf.write(blob, start, data)
        except MilepostError as error:
            return error
        return None

    def _opened(self, blob: Blob) -> int:
        """Open a blob unless it is the one of the request before; return how many bytes it has."""
        if self._blob != blob:
            self.close()
            self._descriptor = self._shelf.open_file(blob)
            self._blob = blob
        if self._descriptor is not None:
            return os.fstat(self._descriptor).st_size
        if isinstance(self._shelf, Reads):
            return self._shelf.size(blob)
        raise no_such_blob(blob)

    def _room(self) -> memoryview:
        self._buffer = self._buffer or bytearray(_BUFFER_BYTES)
        return memoryview(self._buffer)

    def _refuse(self, error: MilepostError) -> None:
        text = frames.refusal(error)
        self._wire.send(frames.ANSWER.pack(frames.REFUSED, len(text)) + text)
