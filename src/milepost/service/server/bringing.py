"""Look at the bytes of a part before the core hears that it has arrived: nobody's word is taken for them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from milepost.errors import NotFoundError
from milepost.service.core.events import Caller, Refused
from milepost.service.core.records import Commit, Shard, Weights
from milepost.service.core.staging import differs
from milepost.service.deltas.taking import take_told
from milepost.service.index import Chunks, blob_of, delta_of, place_of_weights
from milepost.service.server.places import Incoming
from milepost.service.server.refusing import Refusal
from milepost.service.server.shell import Shell
from milepost.service.server.storage import Storage
from milepost.service.transports.base import Blob

_TOLD = 16


async def arrive(
    shell: Shell, caller: Caller, key: str, shard: Shard, chunks: Chunks, told: tuple[Commit, int] | None = None
) -> None:
    """Compare the bytes of a part with what is said of them, if there is anything to compare; the core is told afterwards.

    ``told``: what was brought is how it differs from that version's, in so many bytes; it is made of both. Raises `Refusal` (kind
    ``damaged-shard``) if they differ, with the numbers of the chunks: those are to be brought again. Raises `CorruptError` (kind
    ``damaged-delta``), `MismatchError` (kind ``wrong-base``) and `NotFoundError` (kind ``no-such-base``) where it cannot be made
    of what was told: then it is to be brought whole.
    """
    incoming = shell.places.of_key(caller, key)
    if incoming is None or incoming.sizes.get(shard.slot) != shard.size_bytes or shell.core.refusal(caller) is not None:
        return  # the core says what that is
    with shell.counted("looking"):
        while shard.slot in incoming.looks:  # one looks at a time; what it finds may be what this call is about
            await asyncio.wait([incoming.looks[shard.slot]])
        wrong: tuple[int, ...] = ()
        seen = incoming.chunks.get(shard.slot)
        if seen is None:
            wrong = await _looked(incoming, shard.slot, _look(shell, incoming, shard.slot, chunks, told))
    if not shell.places.is_incoming(incoming):
        return  # it was given up meanwhile, or is visible already, and the core says which
    if seen is not None and seen.digest != shard.digest:
        raise Refusal(differs(key, shard.slot))  # who had it looked at went away perhaps, and the core has not heard of it
    if wrong:
        facts = {"slot": shard.slot, "chunks": ", ".join(map(str, wrong[:_TOLD])), "damaged": len(wrong), "of": len(chunks)}
        hint = "bring these chunks again, then say once more that it has arrived"
        raise Refusal(Refused("damaged-shard", "the bytes that are here are not those that were meant", hint, facts))


async def _looked(incoming: Incoming, slot: str, look: Coroutine[Any, Any, tuple[int, ...]]) -> tuple[int, ...]:
    """Return what a look finds. It goes on if this call is broken off: the thread does, and another would meet it there."""
    task = asyncio.get_running_loop().create_task(look)
    incoming.looks[slot] = task

    def ended(task: asyncio.Task[tuple[int, ...]]) -> None:
        del incoming.looks[slot]
        if not task.cancelled():
            task.exception()  # of a call that was broken off nobody hears it

    task.add_done_callback(ended)
    return await asyncio.shield(task)


async def _look(shell: Shell, incoming: Incoming, slot: str, chunks: Chunks, told: tuple[Commit, int] | None) -> tuple[int, ...]:
    if told is None:
        wrong = await shell.work(lambda: _wrong(shell.storage, incoming, slot, chunks))
    else:
        base = shell.core.catalogue.weights.get(told[0])
        wrong = await shell.work(lambda: _made(shell.storage, incoming, slot, chunks, base, told[1]))
    if wrong == ():
        incoming.chunks.setdefault(slot, chunks)
    # None, where its commit was given up meanwhile: the core says so.
    return wrong or ()


def _wrong(storage: Storage, incoming: Incoming, slot: str, chunks: Chunks) -> tuple[int, ...] | None:
    """Return which chunks are wrong, having closed the slot if none is; None if it is closed already."""
    if not incoming.close(slot):
        return None
    tier, blob = storage.tier(incoming.tier), Blob(incoming.place, blob_of(slot))
    is_right = False
    try:
        if not chunks.size_bytes:
            tier.new_blob(blob, 0)  # nothing had to be brought
        tier.finish(blob)
        wrong = tier.wrong(blob, chunks)
        is_right = not wrong
        if is_right and incoming.base is not None:
            storage.memory.drop(Blob(incoming.place, delta_of(slot, incoming.base.number)))  # told, and then brought all the same
        return wrong
    except NotFoundError:
        return tuple(range(len(chunks))) or (0,)
    finally:
        if not is_right:
            incoming.reopen(slot)


def base_of(shell: Shell, caller: Caller, key: str) -> Commit | None:
    """Return against which version a commit that is on its way may be told: the caller's newest that lies in memory here."""
    incoming, live = shell.places.of_key(caller, key), shell.core.catalogue.live
    if incoming is None or incoming.tier != "memory" or live is None or not shell.offers.are_made:
        return None
    is_its = shell.core.catalogue.weights[live].producer == caller.component
    if incoming.base is None and is_its and "memory" in shell.core.tiers(live):
        incoming.base = live
    return incoming.base


def _made(
    storage: Storage, incoming: Incoming, slot: str, chunks: Chunks, base: Weights | None, told_bytes: int
) -> tuple[int, ...] | None:
    """Make a slot of what was told, and close it; return None if it is closed already, or the commit has ended."""
    if not incoming.close(slot):
        return None
    is_right = False
    try:
        # As one who writes: its place is not erased meanwhile, and does not come back after it was.
        with incoming.writing(slot, is_closed=True) as may:
            if may:
                _make(storage, incoming, slot, chunks, base, told_bytes)
                is_right = True
        return () if is_right else None
    finally:
        if not is_right:
            incoming.reopen(slot)


def _make(storage: Storage, incoming: Incoming, slot: str, chunks: Chunks, base: Weights | None, told_bytes: int) -> None:
    if base is None or base.at != incoming.base:
        raise _no_base(slot)
    told = Blob(incoming.place, delta_of(slot, base.at.number))
    try:
        before = storage.memory.map(Blob(place_of_weights(base), blob_of(slot)))
    except NotFoundError as error:
        storage.memory.drop(told)
        raise _no_base(slot) from error
    part = Blob(incoming.place, blob_of(slot))
    incoming.begun.discard(part.name)  # what was brought of it whole goes
    take_told(storage.memory, told, told_bytes, before, part, chunks)


def _no_base(slot: str) -> NotFoundError:
    hint = "bring the part whole"
    return NotFoundError("the version that a part was told against is not here", kind="no-such-base", hint=hint, slot=slot)
