"""Set a run aside so that the next start is a clean one (rule 26). The settlement is the reset; moving files is tidying up.

Terms and numbers go on from where the old run stopped. A process of the old run that sleeps through the reset may wake in
the middle of deleting what it had retired, or of moving names aside: those names must never be used again. See docs/decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from milepost.clock import Clock
from milepost.errors import ConflictError, CorruptError, NotFoundError, StoreError
from milepost.publish import layout
from milepost.publish.hints import read_latest, read_progress
from milepost.publish.manifest import encode, load_record
from milepost.publish.term import Claim, Identity, claim
from milepost.publish.view import Terms, no_such_run, read_manifests, read_pins, read_run, read_terms
from milepost.records import FORMAT_VERSION, Pin, Reset, RunRecord, Settlement, Summary
from milepost.store.base import Store


def reset(store: Store, clock: Clock, who: Identity) -> Reset:
    """Start a new run in this root, and move the old one to ``reset/<run id>/``, which is a run root of its own.

    The caller holds the store's guard. Raises `NotFoundError` if there is no run. Killed half-way, the next claimer goes on.
    """
    return finish(store, begin(store, clock, who))


def begin(store: Store, clock: Clock, who: Identity) -> Claim:
    """Start a new run in this root. From here on the old one is void, whatever becomes of its files."""
    listing = read_manifests(store, [entry.name for entry in store.list(layout.GENERATIONS)])
    if read_run(store, read_terms(store, listing)) is None:
        raise no_such_run(store)
    return claim(store, clock, who, reset=True)


def finish(store: Store, claimed: Claim) -> Reset:
    """Move the old run aside. May be run again after it has failed, by this process or the next claimer."""
    record = claimed.settlement.reset
    assert record is not None
    try:
        set_aside(store, claimed)
    except StoreError as error:
        raise StoreError(
            f"the run is reset, but its files could not all be moved aside: {error.message}",
            kind=error.kind,
            retryable=True,
            hint="the next start moves the rest, and loses none of it; " + (error.hint or "see to the disk first"),
            root=store.url,
            moved_to=record.to,
        ) from error
    return record


def set_aside(store: Store, claimed: Claim) -> bool:
    """Finish what resets have left to do (rule 26b); return whether there was anything. Until then nothing may be swept.

    What the old run had acknowledged lies in the root, void, until it has been moved: these are the only copies.
    """
    pending = [each for each in claimed.resets if _is_pending(store, claimed, each)]
    for each in pending:
        _finish(store, claimed, each)
    return bool(pending)


def _is_pending(store: Store, claimed: Claim, reset: Reset) -> bool:
    blobs = (entry.name for entry in claimed.blobs)
    stale = any(_has_term(name, reset) for name in blobs) or any(_manifests(claimed, reset))
    return stale or not _exists(store, reset.to + layout.RUN)


def _finish(store: Store, claimed: Claim, reset: Reset) -> None:
    """Move blobs, then manifests, then what speaks of them; ``milepost.json`` last declares the set-aside run whole."""
    pins = [pin for number, pin in read_pins(store, reset.run_id).items() if number < reset.next]
    # Blobs are listed again: a generation listed after the first time may name one that was not there then.
    _move(store, reset, [entry.name for entry in store.list(layout.BLOBS) if _has_term(entry.name, reset)])
    _move(store, reset, list(_manifests(claimed, reset)))
    for pin in pins:
        _pin_aside(store, reset, pin)
    marks = [entry.name for entry in store.list(layout.QUARANTINE) if (layout.mark_number(entry.name) or reset.next) < reset.next]
    # The logs that are there: terms are numbers which a damaged settlement may have set anywhere.
    logs = {entry.name for entry in store.list(layout.EVENTS)}
    events = [name for name in sorted(logs) if reset.first_term <= (layout.events_term(name) or 0) < reset.term]
    _move(store, reset, [*marks, *events])
    _move_hints(store, reset)
    _copy_terms(store, claimed.view.terms, reset)
    store.create(reset.to + layout.RUN, encode(RunRecord(FORMAT_VERSION, reset.run_id, reset.at)), label=claimed.label)


def _has_term(name: str, reset: Reset) -> bool:
    term = layout.blob_term(name)
    return term is not None and reset.first_term <= term < reset.term


def _manifests(claimed: Claim, reset: Reset) -> Iterator[str]:
    """Yield the names of the old run's manifests, and of those that nobody can tell whose they are or that were copied in.

    Not those above its head: they are void there as here.
    """
    listing, foreign = claimed.view.listing, claimed.view.foreign
    for number, summary in listing.summaries.items():
        if number not in foreign and reset.first_term <= summary.term < reset.term and number <= reset.head:
            yield layout.manifest(number)
    for number in sorted({*listing.unreadable, *listing.misnamed, *foreign}):
        if number < reset.next:
            yield layout.manifest(number)


def _move(store: Store, reset: Reset, names: list[str]) -> None:
    for name in names:
        try:
            store.move(name, reset.to + name)
        except NotFoundError:
            continue  # another process moved it, or a writer of the old run that retires was faster
        except ConflictError:
            # Moved already, and written once more by a process of the old run that knows of no reset. The first stays.
            store.delete(name)
    for directory in {name.rpartition("/")[0] + "/" for name in names}:
        # Where they are now comes first: a power cut between the two must not find them in neither place.
        store.sync(reset.to + directory)
        store.sync(directory)


def _move_hints(store: Store, reset: Reset) -> None:
    """Move ``LATEST`` and ``progress.json`` if they are still the old run's: only these two names go on to be used."""
    hints = {layout.LATEST: read_latest(store), layout.PROGRESS: read_progress(store)}
    for name, hint in hints.items():
        if hint is not None and hint.run_id == reset.run_id:
            # One that has been moved already stays: what lies here by now may be the new run's.
            with suppress(NotFoundError, ConflictError):
                store.move(name, reset.to + name)


def _pin_aside(store: Store, reset: Reset, pin: Pin) -> None:
    """Take a pin along; a wish for a live generation becomes a promise, since nobody is there any more to answer it."""
    promised = pin.state == "held" or pin.number in _kept(store, reset)
    moved = Pin(pin.run_id, pin.number, "held" if promised else "wanted", pin.by)
    store.create(reset.to + layout.pin(pin.number), encode(moved))
    store.delete(layout.pin(pin.number))
    store.sync(layout.PINS)


def _kept(store: Store, reset: Reset) -> set[int]:
    name = layout.manifest(reset.head)
    for place in (reset.to + name, name):
        try:
            return {reset.head, *load_record(store, place, Summary).keep}
        except (NotFoundError, CorruptError):
            continue
    return set()


def _copy_terms(store: Store, terms: Terms, reset: Reset) -> None:
    """Copy the old run's term records; in the place of the reset's own stands a settlement on the old head."""
    for term, fence in terms.fences.items():
        if fence is not None and reset.first_term <= term <= reset.term:
            store.create(reset.to + layout.fence(term), encode(fence))
    for term, each in terms.settlements.items():
        if reset.first_term <= term < reset.term:
            copied = Settlement(each.run_id, term, each.head, each.next, each.unsure, None, each.dead)
            store.create(reset.to + layout.settlement(term), encode(copied))
    last = Settlement(reset.run_id, reset.term, reset.head, reset.next)
    store.create(reset.to + layout.settlement(reset.term), encode(last))


def _exists(store: Store, name: str) -> bool:
    try:
        store.read(name, 0, 0)
    except NotFoundError:
        return False
    return True
