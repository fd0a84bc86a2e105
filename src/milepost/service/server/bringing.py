"""Look at the bytes of a part before the core hears that it has arrived: nobody's word is taken for them."""

from __future__ import annotations

from milepost.errors import NotFoundError
from milepost.service.core.events import Caller, Refused
from milepost.service.core.records import Shard
from milepost.service.index import Chunks, blob_of
from milepost.service.server.places import Incoming
from milepost.service.server.refusing import Refusal
from milepost.service.server.shell import Shell
from milepost.service.server.storage import Storage
from milepost.service.transports.base import Blob

_TOLD = 16


async def arrive(shell: Shell, caller: Caller, key: str, shard: Shard, chunks: Chunks) -> None:
    """Compare the bytes of a part with what is said of them, if there is anything to compare; the core is told afterwards.

    Raises `Refusal` (kind ``damaged-shard``) if they differ, with the numbers of the chunks: those are to be brought again.
    """
    incoming = shell.places.of_key(caller, key)
    if incoming is None or incoming.sizes.get(shard.slot) != shard.size_bytes or shell.core.refusal(caller) is not None:
        return  # the core says what that is
    if shard.slot in incoming.chunks:
        return  # it was looked at before; the core says whether it is the same
    wrong = await shell.work(lambda: _wrong(shell.storage, incoming, shard.slot, chunks))
    if not shell.places.is_incoming(incoming):
        return  # given up, or superseded, meanwhile
    if wrong is None:
        raise Refusal(Refused("being-looked-at", "this part is being looked at already", "ask again", {"slot": shard.slot}))
    if wrong:
        facts = {"slot": shard.slot, "chunks": ", ".join(map(str, wrong[:_TOLD])), "damaged": len(wrong), "of": len(chunks)}
        hint = "bring these chunks again, then say once more that it has arrived"
        raise Refusal(Refused("damaged-shard", "the bytes that are here are not those that were meant", hint, facts))
    incoming.chunks.setdefault(shard.slot, chunks)


def _wrong(storage: Storage, incoming: Incoming, slot: str, chunks: Chunks) -> tuple[int, ...] | None:
    """Return which chunks are wrong, having closed the slot if none is; None if another call looks at it."""
    if not incoming.close(slot):
        return None
    tier, blob = storage.tier(incoming.tier), Blob(incoming.place, blob_of(slot))
    is_right = False
    try:
        if not chunks.size_bytes and slot not in incoming.begun:
            tier.new_blob(blob, 0)  # nothing had to be brought
        tier.finish(blob)
        wrong = tier.wrong(blob, chunks)
        is_right = not wrong
        return wrong
    except NotFoundError:
        return tuple(range(len(chunks))) or (0,)
    finally:
        if not is_right:
            incoming.reopen(slot)
