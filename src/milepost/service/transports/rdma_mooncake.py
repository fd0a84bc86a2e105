"""Read versions from the memory of another host by RDMA, through Mooncake's transfer engine, an optional package.

Where a blob lies is asked over a connection of the bulk protocol (`milepost.service.transports.rdma_serving`): whoever does not
know the token is not told. The bytes then come without anybody's help. The engine itself asks nobody for a token; it is for
networks on which only friends are.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from milepost.clock import Clock, SystemClock
from milepost.errors import MilepostError, MissingExtraError
from milepost.service.transports.base import Blob, Link, Source, Transport
from milepost.service.transports.bulk import NAME as BULK
from milepost.service.transports.bulk import BulkTransport
from milepost.service.transports.failures import failed, no_such_blob

NAME = "rdma"
WHERE = struct.Struct("<QQ240s")
"""What a lookup answers: the address of a blob in the serving process, its size, and the name of that process for the engine."""
PIECE_BYTES = 4 << 20
_MOST_ABANDONED = 16
_LATE_NS = 4 * 10**9
"""A failure after this time may be one of waiting, which the engine bounds at 5 s or more: then bytes may still come."""


class Engine:
    """Be the transfer engine of this process, known to others as ``host`` and a port of its choice."""

    def __init__(self, host: str) -> None:
        with _quiet():
            try:
                from mooncake.engine import TransferEngine
            except ImportError as error:  # the package, or libibverbs, which it needs and does not bring
                raise MissingExtraError("rdma", f"mooncake.engine ({error})") from error
            engine: Any = TransferEngine()
            if engine.initialize(host, "P2PHANDSHAKE", "rdma" if has_device() else "tcp", ""):
                raise failed("the transfer engine did not begin", NAME, host)
        self._engine = engine
        self.name = f"{host}:{engine.get_rpc_port()}"
        self.pid = os.getpid()

    def register(self, address: int, size_bytes: int) -> bool:
        """Let others read this memory. Return whether they may."""
        return bool(self._engine.register_memory(address, size_bytes) == 0)

    def unregister(self, address: int) -> None:
        """Let nobody read it any more."""
        self._engine.unregister_memory(address)

    def read(self, peer: str, address: int, into: int, size_bytes: int) -> bool:
        """Fetch bytes from a peer's memory; return whether they came. Takes a bounded time: ``MC_TRANSFER_TIMEOUT``, 30 s."""
        return bool(self._engine.transfer_sync_read(peer, into, address, size_bytes) == 0)


def has_device() -> bool:
    """Return whether this host has a network card that can do it. Without, the engine goes over TCP: a way to try it out."""
    try:
        return bool(os.listdir("/sys/class/infiniband"))
    except OSError:
        return False


def address_of(memory: mmap.mmap) -> int:
    """Return where memory lies, also such as may only be read."""
    import numpy as np

    return int(np.frombuffer(memory, np.uint8).ctypes.data)


class RdmaTransport(Transport):
    """Reach the memory of a service that offers it so. ``lookup``: how its bulk protocol is spoken (token, TLS)."""

    name = NAME

    def __init__(self, lookup: BulkTransport, clock: Clock | None = None) -> None:
        self._lookup, self._clock = lookup, clock or SystemClock()

    def reach(self, source: Source) -> Link | None:
        if source.transport != NAME or len(_abandoned) >= _MOST_ABANDONED:
            return None
        lookup = self._lookup.reach(Source(BULK, source.address))
        if lookup is None:
            return None
        try:
            return RdmaLink(_engine_for(source.address), lookup, source.address, self._clock)
        except (MilepostError, OSError):
            lookup.close()
            return None


class RdmaLink(Link):
    """Read by way of memory of its own, registered once: a card may write there as late as it likes, and no one else's is hurt."""

    def __init__(self, engine: Engine, lookup: Link, address: str, clock: Clock) -> None:
        self._engine, self._lookup, self._address, self._clock = engine, lookup, address, clock
        self._room = mmap.mmap(-1, PIECE_BYTES)
        self._at = address_of(self._room)
        self._is_of_use = engine.register(self._at, PIECE_BYTES)
        if not self._is_of_use:
            raise failed("no memory could be registered: is enough of it allowed to be locked (ulimit -l)?", NAME, address)

    def read_into(self, blob: Blob, start: int, into: memoryview) -> None:
        view = memoryview(into).cast("B")
        if not self._is_of_use:
            raise failed("this link is of no use any more", NAME, self._address)
        where = bytearray(WHERE.size)
        self._lookup.read_into(blob, 0, memoryview(where))
        begins, size_bytes, name = WHERE.unpack(where)
        if start + len(view) > size_bytes:
            raise no_such_blob(blob, ends_at=size_bytes)
        peer = name.rstrip(b"\0").decode("ascii", "replace")
        for at in range(0, len(view), PIECE_BYTES):
            piece = view[at : at + PIECE_BYTES]
            self._fetch(peer, begins + start + at, len(piece))
            piece[:] = memoryview(self._room)[: len(piece)]

    def _fetch(self, peer: str, address: int, size_bytes: int) -> None:
        began = self._clock.monotonic_ns()
        if self._engine.read(peer, address, self._at, size_bytes):
            return
        self._is_of_use = False
        if self._clock.monotonic_ns() - began > _LATE_NS:
            _abandoned.append(self._room)
        raise failed("could not read the memory of the service", NAME, self._address, peer=peer, size_bytes=size_bytes)

    def close(self) -> None:
        self._is_of_use = False
        self._lookup.close()
        if self._at and not any(room is self._room for room in _abandoned):
            self._engine.unregister(self._at)
        self._at = 0


_engines: list[Engine] = []
_abandoned: list[mmap.mmap] = []
"""Memory into which a peer may still write that did not do so in time."""
_making = threading.Lock()


def _engine_for(address: str) -> Engine:
    """Return the engine of this process; of one that was forked from another, a new one: its threads are not here."""
    with _making:
        if not _engines or _engines[-1].pid != os.getpid():
            _engines.append(Engine(_own_host(address)))
        return _engines[-1]


def _own_host(address: str) -> str:
    """Return by which address of this host that one is reached."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((host, int(port)))  # sends nothing
        return str(way.getsockname()[0])


@contextmanager
def _quiet() -> Iterator[None]:
    """Let the engine tell of failures only, unless somebody has said what it is to tell. It looks at its beginning."""
    if "MC_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["MC_LOG_LEVEL"] = "ERROR"
    try:
        yield
    finally:
        with suppress(KeyError):
            del os.environ["MC_LOG_LEVEL"]
