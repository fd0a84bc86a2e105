"""Get and bring bytes over the bulk port of a service: a plain socket, with no copy between file and memory."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Sequence

from milepost.clock import Clock, SystemClock
from milepost.encode.digest import Buffer
from milepost.errors import MilepostError, ServiceError
from milepost.service.transports import bulk_frames as frames
from milepost.service.transports.base import Blob, Link, Source, Transport
from milepost.service.transports.bulk_wire import Wire
from milepost.service.transports.failures import failed, refused

NAME = "bulk"


class BulkTransport(Transport):
    """Reach the bulk port of a service.

    ``tls``: a context that knows whom to trust; None where the port speaks none. ``host``: whom an address means that has a port
    and no host: the one that the control connection goes to.
    """

    name = NAME

    def __init__(
        self,
        token: str = "",
        *,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        connect_s: float = 10.0,
        stall_s: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        self._token, self._tls, self._host = token, tls, host
        self._connect_s, self._stall_s = connect_s, stall_s
        self._clock = clock or SystemClock()

    def reach(self, source: Source) -> Link | None:
        where = _host_and_port(source.address, self._host)
        if source.transport != NAME or where is None:
            return None
        try:
            wire = self._connected(*where)
        except (OSError, ValueError):
            return None
        try:
            wire.send(frames.greeting(self._token))
            link = BulkLink(wire, source.address)
            link.hear()
        except (OSError, MilepostError):
            wire.close()
            return None
        return link

    def _connected(self, host: str, port: int) -> Wire:
        connected = socket.create_connection((host, port), timeout=self._connect_s)
        try:
            if self._tls is not None:
                connected = self._tls.wrap_socket(connected, server_hostname=host)
            return Wire(connected, self._clock, self._stall_s, tls=self._tls is not None)
        except BaseException:
            connected.close()
            raise


class BulkLink(Link):
    """Be one connection to a bulk port, greeted."""

    def __init__(self, wire: Wire, address: str) -> None:
        self._wire, self._address = wire, address
        self._is_of_use = True

    def read_into(self, blob: Blob, start: int, into: memoryview) -> None:
        for _ in self.read_each(blob, start, (into,)):
            pass

    def read_each(self, blob: Blob, start: int, into: Sequence[memoryview]) -> Iterator[memoryview]:
        size_bytes = sum(map(len, into))
        self._check()
        self._is_of_use = False  # until all of it has come: whoever stops in the middle leaves bytes in the socket
        try:
            self._wire.send(frames.Request(frames.GET, blob, start, size_bytes).encode())
            self._answer(size_bytes)
            for piece in into:
                self._wire.fill(piece)
                yield piece
        except ServiceError as error:
            raise failed("the service could not read", NAME, self._address, error.message, refused=error.kind) from error
        except (OSError, frames.Malformed) as error:
            raise failed("could not fetch over the bulk port", NAME, self._address, error) from error
        self._is_of_use = True

    def write(self, blob: Blob, start: int, data: Buffer) -> None:
        self._check()
        view = memoryview(data).cast("B")
        self._is_of_use = False
        try:
            for at in range(0, len(view), frames.MOST_PUT_BYTES):
                self._put(blob, start + at, view[at : at + frames.MOST_PUT_BYTES])
            if not view:
                self._put(blob, start, view)
        except (OSError, frames.Malformed) as error:
            raise failed("could not bring bytes over the bulk port", NAME, self._address, error) from error
        self._is_of_use = True

    def _put(self, blob: Blob, start: int, data: memoryview) -> None:
        self._wire.send(frames.Request(frames.PUT, blob, start, len(data)).encode())
        self._wire.send(data)
        self._answer(0)

    def hear(self) -> None:
        """Wait for the answer to the greeting."""
        try:
            self._answer(0)
        except frames.Malformed as error:
            raise failed("no bulk port", NAME, self._address, error) from error

    def interrupt(self) -> None:
        self._wire.interrupt()

    def close(self) -> None:
        self._is_of_use = False
        self._wire.close()

    def _answer(self, expected_bytes: int) -> None:
        """Hear whether so many bytes come now. A refusal is raised, and the link is of use."""
        status, size_bytes = frames.ANSWER.unpack(self._wire.receive(frames.ANSWER.size))
        if status == frames.DONE:
            if size_bytes != expected_bytes:
                raise frames.Malformed("another number of bytes than was asked for")
            return
        if status != frames.REFUSED or size_bytes > frames.MOST_TEXT_BYTES:
            raise frames.Malformed("no answer of this protocol")
        said = frames.refused(self._wire.receive(size_bytes))
        self._is_of_use = True
        raise refused(*said)

    def _check(self) -> None:
        if not self._is_of_use:
            raise failed("this connection is of no use any more", NAME, self._address)


def _host_and_port(address: str, own: str) -> tuple[str, int] | None:
    """Return where to connect to: ``host:port``, ``[v6]:port``, ``:port``; None for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 65536:
        return None
    return host.removeprefix("[").removesuffix("]") or own, int(port)
