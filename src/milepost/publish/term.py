"""Claim a run root: fence, seal, list, settle (rules 4 to 8). Each step's place in the order is what keeps it safe.

The order in one sentence: whoever acknowledged a save listed ``terms/`` before our fence was there, so a listing of
generations made *after* the fence sees that save; only then may a boundary be written down.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from milepost.clock import Clock, utc_text
from milepost.errors import ConflictError, CorruptError, NotFoundError, StoreError
from milepost.publish import layout
from milepost.publish.hints import check_listing, listing_lags, newest_named
from milepost.publish.manifest import encode, load_record
from milepost.publish.signed import refuse_unsigned
from milepost.publish.view import (
    Listing,
    Terms,
    View,
    judge,
    no_such_run,
    read_manifests,
    read_marks,
    read_pins,
    read_run,
    read_terms,
)
from milepost.records import FORMAT_VERSION, Fence, Reset, RunRecord, Settlement
from milepost.store.base import Entry, Store

_MOST_LOST = 1000
"""How far beyond the highest number that is there one may be that only ``LATEST`` tells of."""
ATTEMPTS = 3
"""How often a claim that lost the race for a term starts again before it gives up."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Say who claims: where this process runs."""

    host: str
    boot_id: str
    pid: int


@dataclass(frozen=True, slots=True)
class Claim:
    """Hold what a claim settled. It is fenced, not locked: a later claim ends it without telling it."""

    term: int
    claim_id: str
    settlement: Settlement
    view: View
    """What was judged before the settlement was written; of a reset, the old run's."""
    blobs: tuple[Entry, ...]
    """Everything in ``blobs/`` at the listing of rule 6, unfinished and temporary files included."""

    @property
    def run_id(self) -> str:
        """Return the run this claim is for; of a reset, the new one."""
        return self.settlement.run_id

    @property
    def label(self) -> str:
        """Return what this writer's temporary files carry in their names."""
        return layout.label(self.term)

    @property
    def resets(self) -> tuple[Reset, ...]:
        """Return every reset there was, this claim's own included, oldest first."""
        known = {reset.term: reset for reset in self.view.terms.resets}
        if self.settlement.reset is not None:
            known[self.settlement.reset.term] = self.settlement.reset
        return tuple(known[term] for term in sorted(known))


def claim(store: Store, clock: Clock, who: Identity, *, reset: bool = False) -> Claim:
    """Claim the root, creating the run if there is none. Raises `ConflictError` if another claimer is faster.

    With ``reset`` the settlement says that a new run starts here, which makes everything published so far void (rule 26).
    Deletes nothing: sweeping is `milepost.publish.retire.sweep`, called once the caller has taken what it needs.
    """
    _refuse_what_is_not_ours(store)
    term, claim_id = _fence(store, clock, who)
    with _overtaken(store, term):
        _seal(store, term)
        listed = _list(store, clock)
        settlement = _boundary(store, listed.view, term, clock, reset=reset)
        if not reset:
            _something_readable(store, listed.view)
        _settle(store, settlement)
    return Claim(term, claim_id, settlement, listed.view, listed.blobs)


def _refuse_what_is_not_ours(store: Store) -> None:
    """Look before anything is written: the root of a newer milepost is left as it is, and so is a signed one without its key."""
    try:
        load_record(store, layout.RUN, RunRecord)
    except (NotFoundError, CorruptError):
        return
    refuse_unsigned(store)


def _fence(store: Store, clock: Clock, who: Identity) -> tuple[int, str]:
    """Create the fence of the next term (rule 4). From here on no lower writer acknowledges anything."""
    claim_id = clock.nonce()
    for _ in range(ATTEMPTS):
        term = _within_reach(store, _next_term(store), "term")
        fence = Fence(term, claim_id, who.host, who.boot_id, who.pid, utc_text(clock.wall_ns()))
        made = _create_fence(store, fence)
        # Whoever made it, its name must be durable before we build on its being there: after a power cut a fence that
        # vanished would leave two writers under one term.
        store.sync(layout.TERMS)
        if made:
            return term, claim_id
    _something_else_there(store, layout.fence(term))
    raise ConflictError(
        "another process claimed the run at the same moment, again and again",
        kind="claim-race",
        hint="run it again; if it persists, look for a second copy of the job",
        root=store.url,
        attempts=ATTEMPTS,
    )


def _create_fence(store: Store, fence: Fence) -> bool:
    """Create a fence; return whether that is what lies there now."""
    try:
        # The temporary file still goes by the term before: killed here, it must be a lower term's leftover for whoever
        # takes this one.
        return store.create(layout.fence(fence.term), encode(fence), label=layout.label(fence.term - 1))
    except StoreError as error:
        # Another may have claimed while we stood still, and have swept our unfinished file: we came too late, no more.
        if error.kind != "vanished" or _next_term(store) <= fence.term:
            raise
        return False


def _something_else_there(store: Store, name: str) -> None:
    """Raise `CorruptError` if a name is taken by what is no file, a link or a directory say: nobody claims there, ever."""
    try:
        store.read(name, 0, 0)
    except NotFoundError:
        raise CorruptError(
            "something that is no file lies where a record is due", kind="not-a-file", hint="remove it", root=store.url, name=name
        ) from None


def _within_reach(store: Store, number: int, what: str) -> int:
    """Return ``number`` if files can be named by it. It never runs out by itself: somebody planted a name close to the end."""
    if number > layout.HIGHEST:
        raise CorruptError(
            "a number in this run is so high that none can follow it",
            kind="number-too-high",
            hint=f"milepost ls --all {store.url}; remove what bears the highest number: no run of milepost's gets there",
            root=store.url,
            **{what: number - 1},
        )
    return number


def _next_term(store: Store) -> int:
    listing = read_manifests(store, [entry.name for entry in store.list(layout.GENERATIONS)])
    named = [
        number
        for entry in store.list(layout.TERMS)
        for number in (layout.fence_term(entry.name), layout.settlement_term(entry.name))
        if number is not None
    ]
    return 1 + max([0, *named, *(summary.term for summary in listing.summaries.values())])


def _seal(store: Store, term: int) -> None:
    """Declare every lower unsettled term dead (rule 5).

    Without it, a claimer that paused between its fence and its settlement wakes up later, settles on the head *it* had
    listed, and makes void what we are about to resume from.
    """
    names = {entry.name for entry in store.list(layout.TERMS)}
    if layout.fence(term) not in names:
        # A listing from before our own fence may lack others as well, and one that is not sealed may settle yet.
        raise listing_lags(store, layout.fence(term))
    fenced = sorted(lower for name in names if (lower := layout.fence_term(name) or term) < term)
    for lower in fenced:
        if layout.settlement(lower) in names:
            continue
        dead = Settlement("", lower, head=0, next=0, dead=True)
        if not store.create(layout.settlement(lower), encode(dead), label=layout.label(term)):
            # It got there first, so it counts; our own judgement reads the terms again, after this sync.
            store.sync(layout.TERMS)


@dataclass(frozen=True, slots=True)
class _Listed:
    view: View
    blobs: tuple[Entry, ...]


def _list(store: Store, clock: Clock) -> _Listed:
    """List blobs, then generations, then pins, and only now judge (rules 6 and 7).

    Blobs first: a blob that is listed and not named by a manifest listed *later* belongs to no manifest of a lower term
    that could still count. The folders are synced after the listing: a manifest whose name another process never synced
    would vanish in a power cut after we had adopted it and deleted what it dropped.
    """
    blobs = tuple(store.list(layout.BLOBS))
    listing: Listing = read_manifests(store, [entry.name for entry in store.list(layout.GENERATIONS)])
    store.sync(layout.GENERATIONS)
    store.sync(layout.BLOBS)
    terms: Terms = read_terms(store, listing)
    run_id = _run_of(store, listing, terms, clock)
    pins, marks = read_pins(store, run_id), read_marks(store, run_id)
    view = judge(run_id, listing, terms, pins, marks, newest_named(store, run_id))
    check_listing(store, view.lost)
    return _Listed(view, blobs)


def _run_of(store: Store, listing: Listing, terms: Terms, clock: Clock) -> str:
    """Return whose root this is by the terms listed under our own fence; name a new run if it is nobody's yet (rule 26)."""
    run_id = read_run(store, terms)
    if run_id is not None:
        return run_id
    if listing.summaries:
        # Somebody has lost milepost.json and terms/. A new run here would make what there is another run's from now on.
        return listing.summaries[max(listing.summaries)].run_id
    record = RunRecord(FORMAT_VERSION, clock.nonce() + clock.nonce(), utc_text(clock.wall_ns()))
    if store.create(layout.RUN, encode(record)):
        return record.run_id
    store.sync("")
    made_meanwhile = read_run(store, terms)
    if made_meanwhile is None:
        raise no_such_run(store)
    return made_meanwhile


def _boundary(store: Store, view: View, term: int, clock: Clock, *, reset: bool) -> Settlement:
    """Say where this term starts: from which head, and with which number nobody has used.

    ``next`` goes on from every number ever seen, void ones and earlier settlements included. Without that record, a void
    manifest that was deleted frees its number, and a paused claimer's late delete hits the generation that took it. So does
    the number that only LATEST still tells of: pins and marks of the generation that was removed are not the new one's.
    """
    head = view.head.number if view.head else 0
    used = [view.listing.highest, *(other.next - 1 for other in view.terms.settlements.values())]
    if view.lost <= max(used) + _MOST_LOST:  # a hint must not use up the numbers, whoever wrote it
        used.append(view.lost)
    following = _within_reach(store, 1 + max(used), "generation")
    last = view.terms.resets[-1] if view.terms.resets else None
    if not reset:
        return Settlement(view.run_id, term, head, following, view.unsure, last)
    first = last.term if last else 1
    aside = Reset(view.run_id, head, following, first, term, utc_text(clock.wall_ns()))
    return Settlement(clock.nonce() + clock.nonce(), term, 0, following, 0, aside)


def _something_readable(store: Store, view: View) -> None:
    """Refuse to settle on nothing where there was something: to settle would make void what may only be damaged or misplaced.

    There are manifests that cannot be read (rule 3a), or none where the last term began with one, or where LATEST names one.
    """
    last = view.terms.newest
    foreign = sorted(number for number in view.foreign if number >= view.terms.first_number)
    if view.head is None and (view.unreadable or foreign or view.lost or (last is not None and last.head)):
        raise CorruptError(
            "this run has had generations, but none of its manifests can be read; this is not taken for a fresh start",
            kind="nothing-valid",
            hint=f"restore {layout.GENERATIONS} from a copy, or set the run aside: milepost reset {store.url}",
            root=store.url,
            unreadable=", ".join(layout.manifest(number) for number in sorted(view.unreadable)) or None,
            of_another_run=", ".join(layout.manifest(number) for number in foreign) or None,
            newest_that_was_there=layout.manifest(view.lost) if view.lost else None,
        )


def _settle(store: Store, settlement: Settlement) -> None:
    """Write the boundary down, if nobody has sealed this term meanwhile (rule 7)."""
    term = settlement.term
    made = store.create(layout.settlement(term), encode(settlement), label=layout.label(term))
    store.sync(layout.TERMS)
    if not made:
        raise _fenced(store, term)


@contextmanager
def _overtaken(store: Store, term: int) -> Iterator[None]:
    """Tell a claimer that a later one has overtaken just that.

    To one that stood still in between it looks like a sick disk, since its unfinished files were swept; or like a damaged
    run, since the generations it had listed are gone, and the ones it has not seen are named by all that it reads later.
    """
    try:
        yield
    except (StoreError, NotFoundError, CorruptError) as error:
        if _next_term(store) > term + 1:
            raise _fenced(store, term) from error
        raise


def _fenced(store: Store, term: int) -> ConflictError:
    return ConflictError(
        "another process claimed the run while this one was claiming it; nothing was changed",
        kind="fenced",
        hint="only one process may train a run; stop one of them",
        root=store.url,
        term=term,
    )
