"""Judge what lies in a run root: which generation is the head, which are live, void, unreadable or foreign.

Reading is done by `read` in the order that rule 19 asks for; the judgement itself, `judge`, is a pure function, so that
every case of rules 1, 2, 3, 3a and 26 is a row in a table of tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from milepost.errors import ConflictError, CorruptError, NotFoundError
from milepost.publish import layout
from milepost.publish.manifest import decode, decode_run, decode_summary
from milepost.records import Fence, Pin, QuarantineMark, RunRecord, Settlement, Summary
from milepost.store.base import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Terms:
    """Hold what ``terms/`` says, foreign records left out (rule 26)."""

    fences: Mapping[int, Fence | None]
    """By term; None where the fence cannot be read: its name alone still fences."""
    settlements: Mapping[int, Settlement]
    unreadable: frozenset[int] = frozenset()
    """Terms whose settlement exists but cannot be read."""
    foreign: frozenset[int] = frozenset()
    """Terms of which some record belongs to another run."""

    @property
    def highest(self) -> int:
        """Return the highest term anybody named."""
        return max([0, *self.fences, *self.settlements, *self.unreadable, *self.foreign])


@dataclass(frozen=True, slots=True)
class Listing:
    """Hold every manifest that was there at one listing of ``generations/``, by number."""

    summaries: Mapping[int, Summary] = field(default_factory=dict)
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Why, by number: a manifest that cannot be read keeps its number and is never the head (rule 3a)."""
    foreign: frozenset[int] = frozenset()

    @property
    def highest(self) -> int:
        """Return the highest number taken, by whomever."""
        return max([0, *self.summaries, *self.unreadable, *self.foreign])


@dataclass(frozen=True, slots=True)
class View:
    """Say what anyone who lists the root may count on."""

    run: RunRecord | None
    head: Summary | None
    live: Mapping[int, Summary]
    """By number, ascending; the head included."""
    void: frozenset[int]
    listing: Listing
    terms: Terms
    undecided: bool
    """A higher term has fenced but not settled: the head may become void (rule 3). Do nothing irrevocable with it."""
    pins: Mapping[int, Pin] = field(default_factory=dict)
    marks: Mapping[int, QuarantineMark] = field(default_factory=dict)

    @property
    def barrier(self) -> int:
        """Return the highest unreadable number: nothing at or below it may be deleted (rule 3a); 0 if there is none."""
        return max(self.listing.unreadable, default=0)


def read(store: Store) -> View:
    """List and judge a run root as a reader: generations before terms (rule 19). Changes nothing.

    Raises `NotFoundError` (kind ``no-such-run``) if the root holds no run, `MismatchError` if a newer milepost wrote it.
    """
    listing_of = [entry.name for entry in store.list(layout.GENERATIONS)]
    run = read_run(store)
    if run is None:
        raise NotFoundError(
            "there is no milepost run here",
            kind="no-such-run",
            hint="check the path; a run root holds milepost.json",
            root=store.url,
        )
    listing = read_manifests(store, listing_of, run)
    terms = read_terms(store, run.run_id, listing)
    return judge(run, listing, terms, read_pins(store, run.run_id), read_marks(store, run.run_id))


def judge(
    run: RunRecord | None,
    listing: Listing,
    terms: Terms,
    pins: Mapping[int, Pin],
    marks: Mapping[int, QuarantineMark],
) -> View:
    """Decide what is void, what is the head and what is live."""
    void = frozenset(number for number, summary in listing.summaries.items() if is_void(summary, terms))
    standing = {number: listing.summaries[number] for number in sorted(listing.summaries) if number not in void}
    head = standing[max(standing)] if standing else None
    held = {number for number, pin in pins.items() if pin.state == "held"}
    # Rule 2: everything else is dead, whatever files exist. A retired manifest whose deletion got lost, or a create that
    # was delayed in the network until its generation had been retired, does not come back to life because its file is there.
    kept = {head.number, *head.keep, *held} if head else set()
    live = {number: summary for number, summary in standing.items() if number in kept}
    return View(run, head, live, void, listing, terms, _undecided(head, terms), pins, marks)


def is_void(summary: Summary, terms: Terms) -> bool:
    """Return whether a higher term settled on a head below this manifest (rule 1)."""
    return any(
        term > summary.term and not settlement.dead and summary.number > settlement.head
        for term, settlement in terms.settlements.items()
    )


def _undecided(head: Summary | None, terms: Terms) -> bool:
    """Return whether a fence above the head's term has no settlement yet (rule 3)."""
    settled = {*terms.settlements, *terms.unreadable}
    return head is not None and any(term > head.term and term not in settled for term in terms.fences)


def read_run(store: Store) -> RunRecord | None:
    """Return whose root this is, or None if nothing here is milepost's.

    A damaged or lost ``milepost.json`` does not lose a run: the run id stands in every manifest and fence as well.
    """
    data = _run_record(store)
    if data is None:
        # A reset has moved it away, and has written its own record before that.
        return None if _there(store, layout.RESET) else _run_without_record(store)
    try:
        return decode_run(data, layout.RUN)
    except CorruptError:
        return _run_from_other_records(store)


def _run_record(store: Store) -> bytes | None:
    try:
        return store.read(layout.RUN)
    except NotFoundError:
        return None


def _there(store: Store, name: str) -> bool:
    try:
        store.read(name, 0, 0)
    except NotFoundError:
        return False
    return True


def _run_without_record(store: Store) -> RunRecord | None:
    """Return the run of a root whose ``milepost.json`` somebody removed; to take it for a fresh one would lose all of it."""
    if not any(layout.fence_term(entry.name) for entry in store.list(layout.TERMS)):
        return None
    # Looked for once more: a reset may have ended between our two looks, and then the terms are the new run's.
    data = _run_record(store)
    return decode_run(data, layout.RUN) if data is not None else _run_from_other_records(store)


def _run_from_other_records(store: Store) -> RunRecord:
    # A reset starts again above every term and number that was used, so that after one claim the settlements
    # say all that first_term and first_number say. The highest readable fence is the newest word on the run id.
    for entry in sorted(store.list(layout.TERMS), key=lambda entry: entry.name, reverse=True):
        if layout.fence_term(entry.name) is None:
            continue
        try:
            fence = decode(store.read(entry.name), Fence, entry.name)
        except (CorruptError, NotFoundError):
            continue
        return RunRecord(1, fence.run_id, created_at="", first_term=1, first_number=1)
    raise CorruptError(
        "milepost.json is damaged or gone, and no fence says which run this is",
        kind="damaged-record",
        hint="restore milepost.json from a copy, or use a fresh directory",
        root=store.url,
        name=layout.RUN,
    )


def read_manifests(store: Store, names: Iterable[str], run: RunRecord) -> Listing:
    """Read the summaries of the manifests among ``names``; those retired meanwhile are left out."""
    summaries: dict[int, Summary] = {}
    unreadable: dict[int, str] = {}
    foreign: set[int] = set()
    for name in names:
        number = layout.generation_number(name)
        if number is None:
            continue
        try:
            summary = decode_summary(store.read(name), name)
        except NotFoundError:
            continue
        except CorruptError as error:
            unreadable[number] = error.message
            continue
        if summary.run_id != run.run_id:
            foreign.add(number)
        elif summary.number != number:
            unreadable[number] = f"it says that it is generation {summary.number}"
        else:
            summaries[number] = summary
    return Listing(summaries, unreadable, frozenset(foreign))


def read_terms(store: Store, run_id: str, listing: Listing) -> Terms:
    """List and read ``terms/``. A settlement that cannot be read is read from a manifest of its term (rule 3a).

    Raises `CorruptError` (kind ``damaged-settlement``) if none repeats it and no higher term has settled since.
    """
    fences: dict[int, Fence | None] = {}
    settlements: dict[int, Settlement] = {}
    unreadable: set[int] = set()
    foreign: set[int] = set()
    for entry in store.list(layout.TERMS):
        fenced, settled = layout.fence_term(entry.name), layout.settlement_term(entry.name)
        if fenced is not None:
            fence = _read_or_none(store, entry.name, Fence)
            if fence is not None and fence.run_id != run_id:
                foreign.add(fenced)
            else:
                fences[fenced] = fence
        elif settled is not None:
            settlement = _read_or_none(store, entry.name, Settlement)
            if settlement is None:
                unreadable.add(settled)
            elif settlement.run_id != run_id:
                foreign.add(settled)
            else:
                settlements[settled] = settlement
    for term in sorted(unreadable, reverse=True):
        repeated = _settlement_from_manifest(term, run_id, listing)
        if repeated is not None:
            settlements[term] = repeated
        elif not any(higher > term and not other.dead for higher, other in settlements.items()):
            raise _lost_settlement(store, term)
        # Else a higher term settled while this one could be read: what it made void is above that term's head, or is
        # kept by nothing that counts.
    return Terms(fences, settlements, frozenset(unreadable), frozenset(foreign))


def _read_or_none(store: Store, name: str, kind: type[T]) -> T | None:
    try:
        return decode(store.read(name), kind, name)
    except CorruptError:
        return None
    except NotFoundError as error:
        # Fences and settlements are never deleted: a reset has just moved this one, and what else it moved is unknown.
        raise ConflictError(
            "the run is being reset", kind="was-reset", hint="look again in a moment", root=store.url, name=name
        ) from error


def _settlement_from_manifest(term: int, run_id: str, listing: Listing) -> Settlement | None:
    for summary in listing.summaries.values():
        if summary.term == term:
            return Settlement(run_id, term, summary.term_head, summary.term_next)
    return None


def _lost_settlement(store: Store, term: int) -> CorruptError:
    return CorruptError(
        "a settlement cannot be read, and no manifest of its term repeats it; which generations count is unknown",
        kind="damaged-settlement",
        hint=f"restore it from a copy, or see docs/FORMAT.md on writing it anew; milepost verify {store.url}",
        root=store.url,
        name=layout.settlement(term),
    )


def read_pins(store: Store, run_id: str) -> dict[int, Pin]:
    """Return every pin by number. A pin that cannot be read counts as ``wanted``: it protects, but makes nothing alive."""
    pins: dict[int, Pin] = {}
    for entry in store.list(layout.PINS):
        number = layout.pin_number(entry.name)
        if number is None:
            continue
        try:
            pin = decode(store.read(entry.name), Pin, entry.name)
        except NotFoundError:
            continue
        except CorruptError:
            pin = Pin(run_id, number, "wanted")
        if pin.run_id == run_id:
            pins[number] = pin
    return pins


def read_marks(store: Store, run_id: str) -> dict[int, QuarantineMark]:
    """Return every quarantine mark by number. A mark that cannot be read is a reason to check the generation again, no more."""
    marks: dict[int, QuarantineMark] = {}
    for entry in store.list(layout.QUARANTINE):
        number = layout.mark_number(entry.name)
        if number is None:
            continue
        try:
            mark = decode(store.read(entry.name), QuarantineMark, entry.name)
        except NotFoundError:
            continue
        except CorruptError:
            mark = QuarantineMark(run_id, number, "damaged", "its quarantine mark cannot be read", "", 0)
        if mark.run_id == run_id:
            marks[number] = mark
    return marks
