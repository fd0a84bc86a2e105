"""Offer a reader its next version told against the one that it has, where that is less."""

from __future__ import annotations

import asyncio

from milepost.encode.digest import Buffer
from milepost.errors import NotFoundError
from milepost.service import wire
from milepost.service.core.catalogue import Catalogue
from milepost.service.core.records import Weights
from milepost.service.delta.settings import How
from milepost.service.deltas.offering import Offers, Wish
from milepost.service.index import delta_of, place_of_weights
from milepost.service.proto import service_pb2 as pb
from milepost.service.server.places import Places
from milepost.service.server.storage import Storage
from milepost.service.settings import ServiceSettings
from milepost.service.transports.base import Blob

SHARE = 8
"""All deltas together take at most this part of what versions may take in memory; beside that."""


def offers_of(storage: Storage, settings: ServiceSettings, memory_bytes: int) -> Offers:
    """Return what makes deltas for this service. None are made where its settings say so."""

    def part(blob: Blob) -> Buffer | None:
        for tier in (storage.memory, storage.disk):
            try:
                return tier.map(blob)
            except NotFoundError:
                continue
        return None

    how = How(incremental_threshold=settings.incremental_threshold, link_bytes_s=settings.link_bytes_s)
    return Offers(storage.memory, part, how=how, most_bytes=memory_bytes // SHARE if settings.incremental else 0)


async def offer(offers: Offers, catalogue: Catalogue, places: Places, request: pb.OfferRequest) -> pb.OfferReply:
    """Return which parts are told, once they are; of others, and where one of the two versions is not here, nothing is said."""
    base, at = (wire.unpack_commit(message) for message in (request.base, request.at))
    if base is None or at is None or base == at:
        return pb.OfferReply()
    told = []
    before, after = catalogue.weights.get(base), catalogue.weights.get(at)
    for slot in _in_common(before, after, request):
        assert before is not None
        assert after is not None
        wish = Wish(place_of_weights(before), base.number, place_of_weights(after), slot)
        told.append((slot, asyncio.wrap_future(offers.ask(wish, request.link_bytes_s))))
    made = [(slot, await future) for slot, future in told]
    kept = after is not None and places.kept(place_of_weights(after)) is not None
    return pb.OfferReply(
        told=[
            pb.Told(slot=slot, blob=wire.pack_shard(delta_of(slot, base.number), chunks))
            for slot, chunks in made
            if chunks is not None and kept
        ]
    )


def _in_common(before: Weights | None, after: Weights | None, request: pb.OfferRequest) -> list[str]:
    if before is None or after is None:
        return []
    common = {shard.slot for shard in before.shards} & {shard.slot for shard in after.shards}
    return [slot for slot in dict.fromkeys(request.slots[: wire.MAX_SLOTS]) if slot in common]
