"""Say what a full disk lacks: what the save needs, what retiring each generation would free, and why the others stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from milepost.encode.blob import PAGE_BYTES
from milepost.engine.capture import Staged
from milepost.engine.placing import new_bytes
from milepost.engine.session import BALLAST_BYTES, Session
from milepost.errors import StoreError
from milepost.lifecycle.retain import essential, originals
from milepost.publish.view import read_pins
from milepost.records import Summary


@dataclass(frozen=True, slots=True)
class Room:
    """Hold what there is to decide with, and to tell."""

    needed_bytes: int
    """The leaves that changed, and a manifest: what is shared with older generations costs nothing."""
    free_bytes: int | None
    """None where the store cannot say."""
    frees_bytes: dict[int, int]
    """By generation, the bytes of the blobs that only it names."""
    staying: dict[int, str]
    """Why these generations may not go."""
    going: tuple[int, ...]
    """The generations that may go, oldest first."""
    all_frees_bytes: int
    """What all that may go would free together; more than the sum where two of them share a blob."""
    least_bytes: int
    """What is needed at least: how far something will shrink is not known before it is written."""
    leftover: bool
    """A failed attempt's blobs are still there: they go as soon as a manifest takes their number."""

    @property
    def hopeless(self) -> bool:
        """Return whether all that may go would still not make room enough: then no history is given away for nothing."""
        if self.free_bytes is None or self.leftover:
            return False
        return self.free_bytes + BALLAST_BYTES + self.all_frees_bytes < self.least_bytes


def survey(session: Session, staged: Staged) -> Room:
    """Look at what is live, without changing anything."""
    chain = session.chain
    counted = originals(chain.live)
    staying, named = _staying(session), {**chain.dropped, **chain.live}
    going = may_go(session, staying)
    needed_bytes, least_bytes = new_bytes(session, staged)
    return Room(
        needed_bytes + PAGE_BYTES + session.manifest_bytes,
        free_bytes(session),
        {number: _freed(named, {number}) for number in sorted(counted)},
        staying,
        going,
        freed_by(session, going),
        least_bytes + PAGE_BYTES + session.manifest_bytes,
        bool(chain.attempted or chain.condemned),
    )


def may_go(session: Session, staying: Mapping[int, str] | None = None) -> tuple[int, ...]:
    """Return the generations that may be retired for room, oldest first. ``staying`` is what is known of those that may not."""
    stays = _staying(session) if staying is None else staying
    return tuple(number for number in sorted(originals(session.chain.live)) if number not in stays)


def freed_by(session: Session, going: Iterable[int]) -> int:
    """Return how many bytes the retirement of these generations together frees."""
    return _freed({**session.chain.dropped, **session.chain.live}, going)


def free_bytes(session: Session) -> int | None:
    """Return what the store has room for, or None where it cannot say."""
    try:
        return session.store.free_bytes()
    except StoreError:
        return None  # the disk that is full is also sick: what is told is that it is full


def _freed(named: dict[int, Summary], going: Iterable[int]) -> int:
    gone = frozenset(going)
    # A trim repeats the content of another generation, and goes or stays with it: its blobs hold nothing of their own.
    repeats = {number: summary.trim_of for number, summary in named.items()}
    going_too = gone | {number for number, original in repeats.items() if original in gone}
    kept = {blob.name for number, each in named.items() if number not in going_too for blob in each.blobs}
    freed = {blob.name: blob.size_bytes for number in going_too if number in named for blob in named[number].blobs}
    return sum(size for name, size in freed.items() if name not in kept)


def _staying(session: Session) -> dict[int, str]:
    """Return why each generation that may not go stays: not what we stand on, the newest healthy, a best one, a pinned one.

    All of them while the base is not the head: the first generation after a change of base keeps what the old head kept
    (rule 27), and a trim repeats the base. And while it is damaged: that would be to give away sound ones for it.
    """
    chain, root = session.chain, session.store.url
    counted = originals(chain.live)
    reasons: dict[int, str] = {}
    if not session.stands_on_its_head:
        reasons.update(dict.fromkeys(counted, "kept until a save has followed the change of base, or the damage of the newest"))
    reasons.update(dict.fromkeys(essential(chain.live), "the newest healthy one, or left behind by a rollback"))
    reasons.update(dict.fromkeys(session.keep.best_of(chain.live), f"among the best by {session.keep.by}"))
    reasons.update(dict.fromkeys(session.protected, "this process resumed from it"))
    reasons.update({number: f"pinned: milepost unpin {root} {number}" for number in read_pins(session.store, session.run_id)})
    if counted:
        reasons[max(counted)] = "the newest"
    return {number: reason for number, reason in sorted(reasons.items()) if number in counted}


def no_room(session: Session, room: Room, error: StoreError, why: str) -> StoreError:
    """Return the error of a save for which there is no room and none could be made."""
    return StoreError(
        f"the disk is full, and {why}; training can go on, this save is lost",
        kind=error.kind,
        retryable=True,
        hint=_hint(session, room, error),
        root=session.store.url,
        needed_bytes=room.needed_bytes,
        free_bytes=room.free_bytes,
        retiring_frees_bytes=room.frees_bytes,
        retiring_all_that_may_go_frees_bytes=room.all_frees_bytes,
        staying=room.staying,
        kept_bytes=sum({blob.name: blob.size_bytes for each in session.chain.live.values() for blob in each.blobs}.values()),
        kept_generations=sorted(session.chain.live),
    )


def _hint(session: Session, room: Room, error: StoreError) -> str:
    lacking = None if room.free_bytes is None else room.needed_bytes - room.free_bytes
    if error.kind == "quota":
        ways = ["free some of your quota (quota -s shows it)"]
    elif lacking is not None and lacking <= 0:
        ways = ["there are bytes free, so look at its files (df -i) and at limits of this directory, and free some"]
    else:
        ways = ["free some space" if lacking is None else f"free {lacking:,} bytes more"]
    pinned = [number for number, why in room.staying.items() if why.startswith("pinned") and room.frees_bytes.get(number)]
    ways += [f"milepost unpin {session.store.url} {number} (frees {room.frees_bytes[number]:,} bytes)" for number in pinned[:1]]
    if session.keep.last > 1 or session.keep.best:
        ways.append("keep fewer: Keep(last=1)")
    return ", or ".join(ways)
