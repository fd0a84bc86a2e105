"""Make room on a full disk: publish first that fewer generations are kept, and only then delete them (rule 16)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TypeVar

from milepost.engine.capture import Staged
from milepost.engine.placing import FULL
from milepost.engine.room import free_bytes, no_room, survey
from milepost.engine.session import BALLAST_BYTES, Order, Session
from milepost.engine.writer import distrust_what_is_gone, republish, retire_dropped, write
from milepost.errors import ConflictError, NotFoundError, StoreError
from milepost.publish import layout
from milepost.publish.generation import KeepRule, check_still_ours, settle_attempt
from milepost.records import Manifest, Summary
from milepost.store.base import Store

T = TypeVar("T")

_BLOCK_BYTES = 4096
"""What the smallest file takes on most file systems."""


def write_with_relief(session: Session, staged: Staged, order: Order, keep: KeepRule | None = None) -> Manifest:
    """Write a generation; on a full disk retire the oldest that may go, one at a time, and try again.

    Raises the `StoreError` of the last try, with what was needed and what there is, once nothing more may go.
    """
    try:
        return _write(session, staged, order, keep or session.kept)
    except ConflictError:
        raise  # whoever fenced us tells the story from here on
    except Exception as error:
        session.events.write(
            "save-failed", step=order.step, reason=order.reason, kind=getattr(error, "kind", ""), error=str(error)
        )
        raise


def _write(session: Session, staged: Staged, order: Order, keep: KeepRule) -> Manifest:
    if staged.wave_count > 1 and session.keep.independent > 1:
        # What came in waves may not come again: a copy that finds no room is a save that is lost. It is not begun.
        free = free_bytes(session)
        session.cramped |= free is not None and free < staged.size_bytes
    while True:
        try:
            manifest = write(session, staged, order, keep)
        except StoreError as error:
            _check_still_ours(session)
            if error.kind not in FULL:
                raise
            if session.apart:
                # A copy of its own can wait for room: no generation has to go for it. What there is stays independent.
                session.events.write("no-room-for-a-copy", step=order.step, independent=session.keep.independent)
                session.apart, session.cramped = False, True
                if not staged.repeatable:
                    raise  # the next save shares
                continue
            _make_room(session, staged, error)
            if not staged.repeatable:
                # Of a state that came in waves the first are not there any more, and training has gone on. There is room now
                # for the next save.
                raise
        else:
            session.cramped = False  # the next one may find room
            return manifest


def clear_up(session: Session) -> None:
    """Do what nobody waits for, after a save was acknowledged and before the next begins: delete what it dropped."""
    retire_dropped(session)
    hold_ballast(session)


def _check_still_ours(session: Session) -> None:
    """Ask whether we are fenced: a claimer may have swept our unfinished blob, and then the disk is fine.

    A disk that cannot even answer that leaves the first error to tell.
    """
    with suppress(StoreError):
        check_still_ours(session.store, session.chain)


def _make_room(session: Session, staged: Staged, error: StoreError) -> None:
    """Retire the oldest generation that may go; raise what there is to say where none may, or where it would not help."""
    take_up_attempt(session)
    # The save may have failed at its very first file: that all which the newest stands on is still there is not known yet.
    distrust_what_is_gone(session)
    if _deleted_what_was_due(session):
        return
    room = survey(session, staged)
    if not room.going:
        raise no_room(session, room, error, "no more generations may be retired") from error
    if room.hopeless:
        raise no_room(session, room, error, "to retire all that may go would not make room enough") from error
    try:
        trim(session, room.going[:1])
    except StoreError as second:
        _check_still_ours(session)
        if second.kind not in FULL:
            raise
        raise no_room(session, room, second, "there is not even room to retire older generations") from second
    # Held again before the save takes all that was freed: with the last byte gone, no further trim could be published.
    hold_ballast(session)


def _deleted_what_was_due(session: Session) -> bool:
    """Delete what was dropped long ago and what the disk would not let go of then; return whether there was any."""
    chain = session.chain
    before = len(chain.dropped) + len(chain.condemned)
    retire_dropped(session)
    return len(chain.dropped) + len(chain.condemned) < before


def take_up_attempt(session: Session) -> None:
    """Learn of a save that was thought to have failed and landed since: a trim repeats the head, and that is the head now.

    To repeat the generation before it would put an older state on top of a newer one.
    """
    landed = settle_attempt(session.store, session.chain)
    if landed is not None and session.chain.base == landed.number:
        session.base = landed


def trim(session: Session, going: Collection[int]) -> None:
    """Publish the base, which is the head, once more with a ``keep`` that leaves ``going`` out, and then delete those.

    Deleting first would be to retire what no manifest has dropped: a claimer that rolls back to it meanwhile would find
    its blobs gone. The ballast makes room for the manifest.
    """
    give_up_ballast(session.store)
    head = session.base
    assert head is not None
    draft = dataclasses.replace(head, trim_of=head.number, reason="trim")

    def shorter(live: Mapping[int, Summary], pinned: frozenset[int]) -> frozenset[int]:
        return frozenset(live) - {*going, head.number} | (pinned & live.keys())

    session.base = republish(session, draft, shorter)
    if session.resumed_from == head.number:
        session.resumed_from = session.base.number


def give_up_ballast(store: Store) -> None:
    """Delete the ballast. Where even that fails, what it was to make room for is tried all the same."""
    with suppress(StoreError):
        store.delete(layout.BALLAST)


def with_ballast(store: Store, action: Callable[[], T]) -> T:
    """Run ``action``; on a full disk give the ballast up for it, once. ``action`` must be one that may be run again."""
    try:
        return action()
    except StoreError as error:
        if error.kind not in FULL:
            raise
    give_up_ballast(store)
    return action()


def hold_ballast(session: Session) -> None:
    """Keep a file that a trim may give up: room for its manifest. Without room there is none, and a trim has to do without."""
    least = 2 * session.manifest_bytes + _BLOCK_BYTES
    refused: StoreError | None = None
    # On a nearly full disk a small one is held: it is there that a trim will be needed.
    for size_bytes in (max(BALLAST_BYTES, least), least):
        try:
            _hold(session, size_bytes)
        except StoreError as error:
            refused = error
        else:
            return
    assert refused is not None
    session.events.write("no-ballast", error=refused.message)


def _hold(session: Session, size_bytes: int) -> None:
    try:
        # Looked for first: to write and sync its bytes at every save would be for nothing.
        if session.store.read_into(layout.BALLAST, size_bytes - 1, memoryview(bytearray(1))):
            return
    except NotFoundError:
        session.store.create(layout.BALLAST, bytes(size_bytes), label=session.chain.label)
    else:
        session.store.replace(layout.BALLAST, bytes(size_bytes), label=session.chain.label)
