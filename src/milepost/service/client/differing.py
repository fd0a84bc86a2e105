"""Get and bring versions by how they differ from one that both sides have, where that is there sooner than the whole."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from milepost.encode.digest import Buffer
from milepost.errors import MilepostError, UsageError
from milepost.service.client.calls import TRY_S, Calls
from milepost.service.client.line import Broken
from milepost.service.client.until import Until
from milepost.service.client.ways import Ways
from milepost.service.core.records import Commit
from milepost.service.delta.settings import How
from milepost.service.deltas.taking import ToldPart
from milepost.service.deltas.telling import tell
from milepost.service.index import delta_of
from milepost.service.proto import service_pb2 as pb
from milepost.service.transports.base import Blob, Source
from milepost.service.wire import Told, pack_commit, unpack_shard

log = logging.getLogger("milepost")


@dataclass(frozen=True, slots=True)
class Base:
    """Be a version that this process and the service have."""

    at: Commit
    parts: Mapping[str, Buffer]
    """By slot."""


class Differences:
    """Be the versions of one client against which others are told: the last that it read, and the last that it brought.

    Each is kept until the next one is here, and none where the service's memory is this host's: nothing travels there.
    """

    def __init__(self, calls: Calls, ways: Ways, *, incremental: bool) -> None:
        self._calls = calls
        self._ways = ways
        self._is_on = incremental
        self._changing = threading.Lock()
        self._read: Base | None = None
        self._brought: Base | None = None

    def fetch(
        self, told: Told, sources: Sequence[Source], blobs: Mapping[str, Blob], *, limit_bytes: int, until: Until
    ) -> dict[Blob, memoryview]:
        """Return those parts of a version that could be made of the version before; the others are to be had whole."""
        base = self._read
        if base is None or base.at == told.weights.at or not self._ways.travels(sources):
            return {}
        slots = [slot for slot in blobs if slot in base.parts]
        if not slots or sum(told.chunks[slot].size_bytes for slot in slots) > limit_bytes:
            return {}
        try:
            offered = self._offered(told, base, slots, until)
        except (Broken, MilepostError) as error:
            log.debug("no difference was offered: version=%s cause=%s", told.weights.at, error)
            return {}
        moved, why = self._ways.fetch_told(sources, offered, timeout_s=until.left_s)
        if why:
            log.info("a version is fetched whole that was to be made of another: version=%s cause=%s", told.weights.at, why)
        return moved

    def _offered(self, told: Told, base: Base, slots: Sequence[str], until: Until) -> dict[str, ToldPart]:
        request = pb.OfferRequest(
            caller=self._calls.caller,
            base=pack_commit(base.at),
            at=pack_commit(told.weights.at),
            slots=slots,
            link_bytes_s=self._ways.link_bytes_s,
        )
        reply = self._calls.line.call("Offer", request, min(TRY_S, max(until.left_s, 0.001)))
        offered = {}
        for each in reply.told:
            shard, chunks = unpack_shard(each.blob, is_blob=True)
            if each.slot in slots and shard.slot == delta_of(each.slot, base.at.number):
                blob = Blob(told.place, shard.slot)
                offered[each.slot] = ToldPart(blob, chunks, base.parts[each.slot], told.chunks[each.slot])
        return offered

    def has_read(self, told: Told, sources: Sequence[Source], parts: Mapping[str, memoryview]) -> None:
        """Keep a version, which the next one may be told against."""
        base = Base(told.weights.at, dict(parts)) if self._is_on and self._ways.travels(sources) else None
        with self._changing:
            self._read = base

    def told(self, base_number: int, slot: str, part: Buffer) -> tuple[Commit, bytes] | None:
        """Return how a part differs from that of the version of this number, and which that is; None: bring it whole."""
        base = self._brought
        if base is None or base.at.number != base_number or slot not in base.parts:
            return None
        link_bytes_s = self._ways.link_bytes_s
        pieces = tell(base.parts[slot], part, How(link_bytes_s=link_bytes_s) if link_bytes_s else How())
        return None if pieces is None else (base.at, b"".join(pieces))

    def has_brought(self, at: Commit, parts: Mapping[str, Buffer]) -> None:
        """Keep what was brought, which the next version may be told against; nothing, where nothing had to travel."""
        with self._changing:
            self._brought = Base(at, dict(parts)) if self._is_on and parts else None


def check_link(link_bytes_s: float | None) -> float:
    """Return how fast bytes come and go, 0 where it is to be measured. Raises `UsageError` (kind ``bad-setting``)."""
    if link_bytes_s is None:
        return 0.0
    if not 0 < link_bytes_s < float("inf"):
        hint = "it is bytes a second, more than 0; without it, it is measured"
        raise UsageError("a link has no such speed", kind="bad-setting", hint=hint, link_bytes_s=link_bytes_s)
    return link_bytes_s
