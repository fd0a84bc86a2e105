"""Move bytes by the best way that leads from here to the service."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence

import grpc

from milepost.encode.digest import Buffer
from milepost.errors import UsageError
from milepost.service.client.calls import Calls
from milepost.service.client.target import Target
from milepost.service.deltas.taking import ToldPart, fetch_told
from milepost.service.index import Chunks
from milepost.service.transports.base import Blob, Source, Transport
from milepost.service.transports.bulk import BulkTransport
from milepost.service.transports.files import FilesTransport
from milepost.service.transports.host_cache import HostCache
from milepost.service.transports.landing import new_memory
from milepost.service.transports.moving import Mover
from milepost.service.transports.rdma_mooncake import RdmaTransport
from milepost.service.transports.shm import ShmTransport
from milepost.service.transports.store import StoreTransport
from milepost.service.transports.stream import StreamTransport

_NAMES = ("auto", "shm", "files", "store", "rdma", "bulk", "grpc")
_FROM_SERVICE = ("rdma", "bulk", "grpc")
_MEASURED_BYTES = 1 << 20
"""Of fewer bytes it cannot be told how fast they come."""


class Ways:
    """Be the ways of one client, from any thread. ``transport``: ``auto``, or the name of the only one to be used.

    ``link_bytes_s``: how fast bytes come and go; 0: it is measured as they do.
    """

    def __init__(self, calls: Calls, transport: str, link_bytes_s: float = 0.0) -> None:
        self._calls = calls
        self._transport = transport
        self._is_measured = not link_bytes_s
        self._made: tuple[grpc.Channel | None, list[Transport]] = (None, [])
        self.link_bytes_s = link_bytes_s
        """How fast bytes come and go; 0: nobody knows yet."""
        self.cache = HostCache(host=calls.identity.host, shares_alone=False, clock=calls.clock)
        """Where what is fetched from another host comes to lie: readers of this one fetch it once."""
        if transport not in _NAMES:
            raise UsageError(
                "there is no such transport",
                kind="bad-setting",
                hint=f"transport is one of {', '.join(_NAMES)}",
                transport=transport,
            )

    def fetch(
        self, sources: Sequence[Source], parts: Mapping[Blob, Chunks], *, limit_bytes: int, timeout_s: float
    ) -> dict[Blob, memoryview]:
        """Return the bytes of all parts, read-only: where they lie in this host's memory, or checked. As `Mover.fetch`."""
        began_ns = self._calls.clock.monotonic_ns()
        moved = self._mover().fetch(sources, parts, limit_bytes=limit_bytes, timeout_s=timeout_s)
        moved_bytes = sum(moved.bytes_by.values())
        if self._is_measured and moved_bytes >= _MEASURED_BYTES:
            self.link_bytes_s = moved_bytes * 1e9 / max(1, self._calls.clock.monotonic_ns() - began_ns)
        return moved.views

    def fetch_told(
        self, sources: Sequence[Source], parts: Mapping[str, ToldPart], *, timeout_s: float
    ) -> tuple[dict[Blob, memoryview], str]:
        """Return what could be made of what was told. As `milepost.service.deltas.taking.fetch_told`."""
        mover = Mover(self._chosen(), self._calls.clock)  # what is told is of use to nobody for long
        moved, why = fetch_told(mover, sources, parts, land=self.cache.land, timeout_s=timeout_s)
        return moved.views, why

    def travels(self, sources: Sequence[Source]) -> bool:
        """Say whether a version has to travel here from the service: it lies nowhere where this process can map it."""
        chosen = self._chosen()
        for way in chosen:
            for source in sources:
                link = way.reach(source) if way.is_local else None
                if link is not None:
                    link.close()
                    return False
        return any(source.transport in _FROM_SERVICE for source in sources for way in chosen if way.name == source.transport)

    def room(self, sinks: Sequence[Source], blob: Blob, size_bytes: int) -> memoryview | None:
        """Return memory of the service's for a part; None where none of it is this host's."""
        return self._mover().room(sinks, blob, size_bytes)

    def bring(self, sinks: Sequence[Source], parts: Mapping[Blob, Buffer], *, timeout_s: float) -> None:
        """Bring parts. Raises as `Mover.bring`."""
        self._mover().bring(sinks, parts, timeout_s=timeout_s)

    def own(self, size_bytes: int) -> memoryview:
        """Return memory of this process."""
        return new_memory(size_bytes)

    def _mover(self) -> Mover:
        return Mover(self._chosen(), self._calls.clock, land=self.cache.land)

    def _chosen(self) -> list[Transport]:
        return [way for way in self._known() if self._transport in ("auto", way.name)]

    def _known(self) -> list[Transport]:
        # To make them takes as long as a fetch; they are the same until the service is found elsewhere.
        channel, known = self._made
        now = self._calls.line.channel()
        if channel is not now:
            known = self._make(now)
            self._made = (now, known)
        return known

    def _make(self, channel: grpc.Channel) -> list[Transport]:
        line, clock = self._calls.line, self._calls.clock
        target = line.target()
        return [
            ShmTransport(self._calls.identity.host),
            FilesTransport(),
            StoreTransport(clock=clock),
            RdmaTransport(BulkTransport(target.token or "", host=target.host, clock=clock), clock),
            BulkTransport(target.token or "", host=target.host, tls=_context(target), clock=clock),
            StreamTransport(channel, metadata=line.metadata, caller=self._calls.caller),
        ]


def _context(target: Target) -> ssl.SSLContext | None:
    tls = target.tls
    if tls is None:
        return None
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    return context
