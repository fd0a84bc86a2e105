"""Claim a run root: fence, seal, list, settle (rules 4 to 8). Each step's place in the order is what keeps it safe.

The order in one sentence: whoever acknowledged a save listed ``terms/`` before our fence was there, so a listing of
generations made *after* the fence sees that save; only then may a boundary be written down.
"""

from __future__ import annotations

from dataclasses import dataclass

from milepost.clock import Clock, utc_text
from milepost.errors import ConflictError, NotFoundError
from milepost.publish import layout
from milepost.publish.manifest import encode
from milepost.publish.view import Listing, Terms, View, judge, read_manifests, read_marks, read_pins, read_run, read_terms
from milepost.records import FORMAT_VERSION, Fence, RunRecord, Settlement
from milepost.store.base import Entry, Store

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

    run: RunRecord
    term: int
    claim_id: str
    settlement: Settlement
    view: View
    blobs: tuple[Entry, ...]
    """Everything in ``blobs/`` at the listing of rule 6, unfinished and temporary files included."""

    @property
    def label(self) -> str:
        """Return what this writer's temporary files carry in their names."""
        return layout.label(self.term)


def claim(store: Store, clock: Clock, who: Identity) -> Claim:
    """Claim the root, creating the run if there is none. Raises `ConflictError` if another claimer is faster.

    Deletes nothing: sweeping is `milepost.publish.retire.sweep`, called once the caller has taken what it needs.
    """
    run = _open_run(store, clock)
    term, claim_id = _fence(store, clock, who, run)
    _seal(store, run, term)
    listed = _list(store, run)
    settlement = _settle(store, run, term, listed.view)
    _same_run_still(store, run)
    return Claim(run, term, claim_id, settlement, listed.view, listed.blobs)


def _open_run(store: Store, clock: Clock) -> RunRecord:
    run = read_run(store)
    if run is not None:
        return run
    record = RunRecord(FORMAT_VERSION, clock.nonce() + clock.nonce(), utc_text(clock.wall_ns()))
    if store.create(layout.RUN, encode(record)):
        _no_reset_under_way(store)
        return record
    store.sync("")
    found = read_run(store)
    if found is None:
        raise _was_reset(store)
    return found


def _no_reset_under_way(store: Store) -> None:
    # A reset moves milepost.json away before anything else, and its record is there before that. So whoever finds no
    # milepost.json because of a reset finds reset.json; a run made in that gap would start counting from 1 again.
    try:
        store.read(layout.RESET)
    except NotFoundError:
        return
    raise _was_reset(store)


def _fence(store: Store, clock: Clock, who: Identity, run: RunRecord) -> tuple[int, str]:
    """Create the fence of the next term (rule 4). From here on no lower writer acknowledges anything."""
    claim_id = clock.nonce()
    for _ in range(ATTEMPTS):
        term = _next_term(store, run)
        fence = Fence(run.run_id, term, claim_id, who.host, who.boot_id, who.pid, utc_text(clock.wall_ns()))
        # Labelled as of the term below: killed before its fence is there, this term is the next claimer's own, who sweeps
        # only lower ones.
        made = store.create(layout.fence(term), encode(fence), label=layout.label(term - 1))
        # Whoever made it, its name must be durable before we build on its being there: after a power cut a fence that
        # vanished would leave two writers under one term.
        store.sync(layout.TERMS)
        if made:
            return term, claim_id
    raise ConflictError(
        "another process claimed the run at the same moment, again and again",
        kind="claim-race",
        hint="run it again; if it persists, look for a second copy of the job",
        root=store.url,
        attempts=ATTEMPTS,
    )


def _next_term(store: Store, run: RunRecord) -> int:
    listing = read_manifests(store, [entry.name for entry in store.list(layout.GENERATIONS)], run)
    named = [
        number
        for entry in store.list(layout.TERMS)
        for number in (layout.fence_term(entry.name), layout.settlement_term(entry.name))
        if number is not None
    ]
    written = [summary.term for summary in listing.summaries.values()]
    return 1 + max([run.first_term - 1, *named, *written])


def _seal(store: Store, run: RunRecord, term: int) -> None:
    """Declare every lower unsettled term dead (rule 5).

    Without it, a claimer that paused between its fence and its settlement wakes up later, settles on the head *it* had
    listed, and makes void what we are about to resume from.
    """
    names = {entry.name for entry in store.list(layout.TERMS)}
    fenced = sorted(lower for name in names if (lower := layout.fence_term(name) or term) < term)
    for lower in fenced:
        if layout.settlement(lower) in names:
            continue
        dead = Settlement(run.run_id, lower, head=0, next=0, dead=True)
        if not store.create(layout.settlement(lower), encode(dead), label=layout.label(term)):
            # It got there first, so it counts; our own judgement reads the terms again, after this sync.
            store.sync(layout.TERMS)


@dataclass(frozen=True, slots=True)
class _Listed:
    view: View
    blobs: tuple[Entry, ...]


def _list(store: Store, run: RunRecord) -> _Listed:
    """List blobs, then generations, then pins, and only now judge (rules 6 and 7).

    Blobs first: a blob that is listed and not named by a manifest listed *later* belongs to no manifest of a lower term
    that could still count. The folders are synced after the listing: a manifest whose name another process never synced
    would vanish in a power cut after we had adopted it and deleted what it dropped.
    """
    blobs = tuple(store.list(layout.BLOBS))
    names = [entry.name for entry in store.list(layout.GENERATIONS)]
    listing: Listing = read_manifests(store, names, run)
    pins = read_pins(store, run.run_id)
    store.sync(layout.GENERATIONS)
    store.sync(layout.BLOBS)
    terms: Terms = read_terms(store, run.run_id, listing)
    return _Listed(judge(run, listing, terms, pins, read_marks(store, run.run_id)), blobs)


def _settle(store: Store, run: RunRecord, term: int, view: View) -> Settlement:
    """Write down where this term starts (rule 7): from which head, and with which number nobody has used.

    ``next`` goes on from every number ever seen, void ones and earlier settlements included. Without that record, a void
    manifest that was deleted frees its number, and a paused claimer's late delete hits the generation that took it.
    """
    head = view.head.number if view.head else 0
    used = [view.listing.highest, run.first_number - 1, *(other.next - 1 for other in view.terms.settlements.values())]
    settlement = Settlement(run.run_id, term, head, next=1 + max(used))
    made = store.create(layout.settlement(term), encode(settlement), label=layout.label(term))
    store.sync(layout.TERMS)
    if not made:
        raise ConflictError(
            "another process claimed the run while this one was claiming it; nothing was changed",
            kind="fenced",
            hint="only one process may train a run; stop one of them",
            root=store.url,
            term=term,
        )
    return settlement


def _same_run_still(store: Store, run: RunRecord) -> None:
    now = read_run(store)
    if now is None or now.run_id != run.run_id:
        raise _was_reset(store)


def _was_reset(store: Store) -> ConflictError:
    return ConflictError(
        "the run was reset while this process was claiming it",
        kind="was-reset",
        hint="start again; the new run has a new run id",
        root=store.url,
    )
