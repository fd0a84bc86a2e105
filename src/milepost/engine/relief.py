"""Make room on a full disk: publish first that fewer generations are kept, and only then delete them (rule 16)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from milepost.engine.capture import Staged
from milepost.engine.session import BALLAST_BYTES, Order, Session
from milepost.engine.writer import FULL, republish, write
from milepost.errors import ConflictError, NotFoundError, StoreError
from milepost.lifecycle.retain import essential, originals
from milepost.publish import layout
from milepost.publish.generation import KeepRule, check_still_ours, settle_attempt
from milepost.publish.view import read_pins
from milepost.records import Manifest, Summary


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
    while True:
        try:
            manifest = write(session, staged, order, keep)
        except StoreError as error:
            # A claimer may have swept our unfinished blob: then the disk is fine, and the answer is that we are fenced.
            check_still_ours(session.store, session.chain)
            if error.kind not in FULL:
                raise
            take_up_attempt(session)
            oldest = expendable(session)
            if oldest is None:
                raise _no_room(session, staged, error, "no more generations may be retired") from error
            try:
                trim(session, oldest)
            except StoreError as second:
                if second.kind not in FULL:
                    raise
                raise _no_room(session, staged, second, "there is not even room to retire older generations") from second
            continue
        hold_ballast(session)
        return manifest


def take_up_attempt(session: Session) -> None:
    """Learn of a save that was thought to have failed and landed since: a trim repeats the head, and that is the head now.

    To repeat the generation before it would put an older state on top of a newer one.
    """
    landed = settle_attempt(session.store, session.chain)
    if landed is not None and session.chain.base == landed.number:
        session.base = landed


def expendable(session: Session) -> int | None:
    """Return the oldest generation that may go: not the newest healthy, not a best one, not pinned, not what we stand on.

    None as well while the base is not the head: the first generation after a change of base keeps what the old head kept
    (rule 27), and a trim repeats the base.
    """
    chain = session.chain
    if session.base is None or chain.head is None or session.base.number != chain.head.number:
        return None
    pinned = read_pins(session.store, session.run_id)
    staying = {*essential(chain.live), *session.keep.best_of(chain.live), *session.protected, *pinned}
    return min((number for number in originals(chain.live) if number not in staying), default=None)


def trim(session: Session, going: int) -> None:
    """Publish the base, which is the head, once more with a ``keep`` that leaves ``going`` out, and then delete that one.

    Deleting first would be to retire what no manifest has dropped: a claimer that rolls back to it meanwhile would find
    its blobs gone. The ballast makes room for the manifest.
    """
    session.store.delete(layout.BALLAST)
    head = session.base
    assert head is not None
    draft = dataclasses.replace(head, trim_of=head.number, reason="trim")

    def shorter(live: Mapping[int, Summary], pinned: frozenset[int]) -> frozenset[int]:
        return frozenset(live) - {going, head.number} | (pinned & live.keys())

    session.base = republish(session, draft, shorter)
    if session.resumed_from == head.number:
        session.resumed_from = session.base.number


def hold_ballast(session: Session) -> None:
    """Keep a file that a trim may give up: room for its manifest. Without room there is none, and a trim has to do without."""
    wanted = max(BALLAST_BYTES, 2 * session.manifest_bytes)
    try:
        # Looked for first: to write and sync its bytes at every save would be for nothing.
        if session.store.read_into(layout.BALLAST, wanted - 1, memoryview(bytearray(1))):
            return
        session.store.replace(layout.BALLAST, bytes(wanted), label=session.chain.label)
    except NotFoundError:
        _make_ballast(session, wanted)
    except StoreError as error:
        session.events.write("no-ballast", error=error.message)


def _make_ballast(session: Session, size_bytes: int) -> None:
    try:
        session.store.create(layout.BALLAST, bytes(size_bytes), label=session.chain.label)
    except StoreError as error:
        session.events.write("no-ballast", error=error.message)


def _no_room(session: Session, staged: Staged, error: StoreError, why: str) -> StoreError:
    live = session.chain.live.values()
    return StoreError(
        f"the disk is full, and {why}; training can go on, this save is lost",
        kind=error.kind,
        retryable=True,
        hint="free some space, or remove a pin (milepost unpin), or keep fewer: Keep(last=1)",
        root=session.store.url,
        needed_bytes=staged.size_bytes,
        free_bytes=session.store.free_bytes(),
        kept_bytes=sum({blob.name: blob.size_bytes for summary in live for blob in summary.blobs}.values()),
        kept_generations=sorted(session.chain.live),
    )
