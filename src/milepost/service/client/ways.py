"""Move bytes by the best way that leads from here to the service."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence

from milepost.encode.digest import Buffer
from milepost.errors import UsageError
from milepost.service.client.calls import Calls
from milepost.service.client.target import Target
from milepost.service.index import Chunks
from milepost.service.transports.base import Blob, Source, Transport
from milepost.service.transports.bulk import BulkTransport
from milepost.service.transports.files import FilesTransport
from milepost.service.transports.landing import new_memory
from milepost.service.transports.moving import Mover
from milepost.service.transports.shm import ShmTransport
from milepost.service.transports.store import StoreTransport


class Ways:
    """Be the ways of one client, from any thread. ``transport``: ``auto``, or the name of the only one to be used."""

    def __init__(self, calls: Calls, transport: str) -> None:
        self._calls = calls
        self._transport = transport
        if transport != "auto" and transport not in self._known(Target("localhost:0")):
            raise UsageError(
                "there is no such transport",
                kind="bad-setting",
                hint=f"transport is `auto`, or one of {', '.join(self._known(Target('localhost:0')))}",
                transport=transport,
            )

    def fetch(
        self, sources: Sequence[Source], parts: Mapping[Blob, Chunks], *, limit_bytes: int, timeout_s: float
    ) -> dict[Blob, memoryview]:
        """Return the bytes of all parts, read-only: where they lie in memory of this host, else checked. Raises as `Mover.fetch`."""
        return self._mover().fetch(sources, parts, limit_bytes=limit_bytes, timeout_s=timeout_s).views

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
        known = self._known(self._calls.line.target())
        chosen = [way for name, way in known.items() if self._transport in ("auto", name)]
        return Mover(chosen, self._calls.clock)

    def _known(self, target: Target) -> dict[str, Transport]:
        clock = self._calls.clock
        ways: list[Transport] = [
            ShmTransport(self._calls.identity.host),
            FilesTransport(),
            StoreTransport(clock=clock),
            BulkTransport(target.token or "", host=target.host, tls=_context(target), clock=clock),
        ]
        return {way.name: way for way in ways}


def _context(target: Target) -> ssl.SSLContext | None:
    tls = target.tls
    if tls is None:
        return None
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    return context
