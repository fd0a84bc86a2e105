"""Judge what lies in a run root: which run it is, which generation is the head, which are live, void, unreadable or foreign.

Reading is done by `read` in the order that rule 19 asks for; the judgement itself, `judge`, is a pure function, so that
every case of rules 1, 2, 3, 3a, 26 and 27 is a row in a table of tests.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from milepost.errors import CorruptError, NotFoundError, StoreError
from milepost.publish import layout
from milepost.publish.hints import check_listing, newest_named
from milepost.publish.manifest import load_record
from milepost.publish.settlements import lost_settlement, repeated_settlement
from milepost.publish.summaries import Summaries
from milepost.records import Fence, Pin, QuarantineMark, Reset, RunRecord, Settlement, Summary
from milepost.store.base import Store

T = TypeVar("T")

_LISTINGS = 8
"""How often a reader lists again because what it had listed was retired before it could be read."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Hold what ``terms/`` says."""

    fences: Mapping[int, Fence | None]
    """By term; None where the fence cannot be read: its name alone still fences."""
    settlements: Mapping[int, Settlement]
    """By term; those that cannot be read are as a manifest of their term repeats them, or left out (rule 3a)."""
    unreadable: frozenset[int] = frozenset()
    """Terms whose settlement exists but cannot be read."""

    @property
    def highest(self) -> int:
        """Return the highest term anybody named."""
        return max([0, *self.fences, *self.settlements, *self.unreadable])

    @property
    def newest(self) -> Settlement | None:
        """Return the highest settlement that is not dead: its run is the root's (rule 26)."""
        return max((each for each in self.settlements.values() if not each.dead), key=lambda each: each.term, default=None)

    @property
    def resets(self) -> tuple[Reset, ...]:
        """Return every reset that some settlement tells of, oldest first."""
        found = {each.reset.term: each.reset for each in self.settlements.values() if each.reset is not None}
        return tuple(found[term] for term in sorted(found))

    @property
    def first_number(self) -> int:
        """Return the lowest number that the root's run can have: what is below lay here when another was set aside."""
        return self.resets[-1].next if self.resets else 1

    @property
    def unsure(self) -> int:
        """Return the number up to which generations may be half deleted, as settlements recorded it (rule 3a)."""
        return max([0, *(each.unsure for each in self.settlements.values())])


@dataclass(frozen=True, slots=True)
class Listing:
    """Hold every manifest that was there at one listing of ``generations/``, by number."""

    summaries: Mapping[int, Summary] = field(default_factory=dict)
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Why, by number: a manifest that cannot be read keeps its number and is never the head (rule 3a)."""
    misnamed: Mapping[int, Summary] = field(default_factory=dict)
    """Manifests that can be read but say that they are another number, by the number of their name."""
    vanished: bool = False
    """Some manifest was listed and gone before it could be read."""

    @property
    def highest(self) -> int:
        """Return the highest number taken, by whomever."""
        return max([0, *self.summaries, *self.unreadable, *self.misnamed])


@dataclass(frozen=True, slots=True)
class View:
    """Say what anyone who lists the root may count on."""

    run_id: str
    head: Summary | None
    live: Mapping[int, Summary]
    """By number, ascending; the head included."""
    void: frozenset[int]
    foreign: frozenset[int]
    """Manifests of another run: somebody copied them here. Ignored, their numbers skipped."""
    unreadable: Mapping[int, str]
    """This run's manifests that cannot be read, and why; those of runs set aside are left out."""
    listing: Listing
    terms: Terms
    latest: int
    """The number that ``LATEST`` names, read after the listing; 0 if it names none of this run. A doubt, not a decision."""
    undecided: bool
    """A higher term has fenced but not settled: the head may become void (rule 3). Do nothing irrevocable with it."""
    pins: Mapping[int, Pin] = field(default_factory=dict)
    marks: Mapping[int, QuarantineMark] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        """Return the number of a newer generation than the head that ``LATEST`` tells of and that is nowhere; 0 if there is none.

        ``LATEST`` is written after its generation has counted, and numbers only rise: somebody removed the manifest. But not
        if a claim has settled below it since: ``LATEST`` is not synced, so after a power cut it may still tell of one that
        an operator dropped, or that was void and swept.
        """
        settled = self.terms.newest
        if self.latest <= max(self.listing.highest, self.head.number if self.head else 0):
            return 0
        return 0 if settled is not None and settled.head < self.latest < settled.next else self.latest

    @property
    def barrier(self) -> int:
        """Return the highest unreadable number: nothing at or below it may be deleted (rule 3a); 0 if there is none."""
        return max(self.unreadable, default=0)

    @property
    def unsure(self) -> int:
        """Return the number up to which generations may be half deleted (rule 3a).

        An unreadable manifest above the head may have dropped any of them, and its paused writer may go on deleting.
        """
        head = self.head.number if self.head else 0
        return max([self.terms.unsure, *(number for number in self.unreadable if number > head)])

    @property
    def line(self) -> Mapping[int, Summary]:
        """Return the live generations that the head's state goes back to, itself included (rule 27).

        A fallback goes to these only: the newest *other* one may be what a rollback or a fresh start had left behind.
        """
        numbers = {self.head.number, *self.head.line} if self.head else set()
        return {number: summary for number, summary in self.live.items() if number in numbers}


def read(store: Store) -> View:
    """List and judge a run root as a reader: generations before terms (rule 19). Changes nothing.

    Raises `NotFoundError` (kind ``no-such-run``) if the root holds no run, `MismatchError` if a newer milepost wrote it.
    """
    listing = _list(store)
    terms = read_terms(store, listing)
    run_id = read_run(store, terms)
    if run_id is None:
        raise no_such_run(store)
    pins, marks = read_pins(store, run_id), read_marks(store, run_id)
    view = judge(run_id, listing, terms, pins, marks, newest_named(store, run_id))
    if view.lost:
        # Published while we looked, perhaps; LATEST is read last.
        listing = _list(store)
        view = judge(run_id, listing, read_terms(store, listing), pins, marks, view.latest)
    check_listing(store, view.lost)
    return view


def no_such_run(store: Store) -> NotFoundError:
    """Return the error for a root that holds no run."""
    return NotFoundError(
        "there is no milepost run here",
        kind="no-such-run",
        hint="check the path; a run root holds milepost.json",
        root=store.url,
    )


def _list(store: Store) -> Listing:
    """Read all manifests of one listing. What was retired between its listing and its reading may have been the head
    then, and its successor is not in that listing: list again.
    """
    before: list[str] = []
    for _ in range(_LISTINGS):
        names = [entry.name for entry in store.list(layout.GENERATIONS)]
        listing = read_manifests(store, names)
        # The same names again, and one of them still not there: a network file system that goes on listing what was deleted.
        # What was published since is in this listing, or `check_listing` misses it.
        if not listing.vanished or names == before:
            return listing
        before = names
    raise StoreError(
        "generations are retired faster than they can be read",
        kind="unstable",
        retryable=True,
        hint="look again in a moment",
        root=store.url,
    )


def judge(
    run_id: str,
    listing: Listing,
    terms: Terms,
    pins: Mapping[int, Pin],
    marks: Mapping[int, QuarantineMark],
    latest: int = 0,
) -> View:
    """Decide what is void, what is the head and what is live; ``latest`` is what ``LATEST`` names."""
    named = {**listing.summaries, **listing.misnamed}
    runs = {term: settlement.run_id for term, settlement in terms.settlements.items() if not settlement.dead}
    foreign = frozenset(number for number, summary in named.items() if _is_foreign(summary, runs))
    own = {number: listing.summaries[number] for number in sorted(listing.summaries) if number not in foreign}
    limits = _limits(terms)
    void = frozenset(number for number, summary in own.items() if is_void(summary, limits))
    standing = {number: summary for number, summary in own.items() if number not in void}
    head = standing[max(standing)] if standing else None
    held = {number for number, pin in pins.items() if pin.state == "held"}
    # Rule 2: everything else is dead, whatever files exist. A retired manifest whose deletion got lost, or a create that
    # was delayed in the network until its generation had been retired, does not come back to life because its file is there.
    kept = {head.number, *head.keep, *held} if head else set()
    live = {number: summary for number, summary in standing.items() if number in kept}
    unreadable = _unreadable(listing, terms, foreign)
    undecided = _undecided(head, terms)
    return View(run_id, head, live, void, foreign, unreadable, listing, terms, latest, undecided, pins, marks)


def _unreadable(listing: Listing, terms: Terms, foreign: frozenset[int]) -> Mapping[int, str]:
    misnamed = {
        number: f"it says that it is generation {summary.number}"
        for number, summary in listing.misnamed.items()
        if number not in foreign
    }
    return {number: why for number, why in {**listing.unreadable, **misnamed}.items() if number >= terms.first_number}


def _limits(terms: Terms) -> tuple[list[int], list[int]]:
    """Return the settled terms, ascending, and for each the lowest head that it or a higher one settled on."""
    settled = sorted(term for term, settlement in terms.settlements.items() if not settlement.dead)
    heads = [terms.settlements[term].head for term in settled]
    for index in range(len(heads) - 2, -1, -1):
        heads[index] = min(heads[index], heads[index + 1])
    return settled, heads


def is_void(summary: Summary, limits: tuple[list[int], list[int]]) -> bool:
    """Return whether a higher term settled on a head below this manifest (rule 1)."""
    settled, heads = limits
    higher = bisect_right(settled, summary.term)
    return higher < len(heads) and summary.number > heads[higher]


def _is_foreign(summary: Summary, runs: Mapping[int, str]) -> bool:
    return bool(runs) and (summary.run_id not in runs.values() or runs.get(summary.term, summary.run_id) != summary.run_id)


def _undecided(head: Summary | None, terms: Terms) -> bool:
    """Return whether a fence above the head's term has no settlement yet (rule 3)."""
    settled = {*terms.settlements, *terms.unreadable}
    return head is not None and any(term > head.term and term not in settled for term in terms.fences)


def read_run(store: Store, terms: Terms) -> str | None:
    """Return the id of the run a root holds, or None if it holds none: that of the highest settlement (rule 26).

    ``milepost.json`` says it only until the first settlement, so that its loss or damage loses no run.
    """
    try:
        first = load_record(store, layout.RUN, RunRecord)
    except NotFoundError:
        return terms.newest.run_id if terms.newest else None
    except CorruptError as error:
        if terms.newest is None:
            raise CorruptError(
                "milepost.json is damaged, and nothing was ever saved here",
                kind="damaged-record",
                hint=f"remove {layout.RUN} and {layout.TERMS} from this directory, and start again",
                root=store.url,
                name=layout.RUN,
            ) from error
        return terms.newest.run_id
    return terms.newest.run_id if terms.newest else first.run_id


def read_manifests(store: Store, names: Iterable[str]) -> Listing:
    """Read the summaries of the manifests among ``names``; those retired meanwhile are left out, and that is noted."""
    summaries: dict[int, Summary] = {}
    unreadable: dict[int, str] = {}
    misnamed: dict[int, Summary] = {}
    vanished, reading = False, Summaries()
    for name in names:
        number = layout.generation_number(name)
        if number is None:
            continue
        try:
            summary = reading.load(store, name)
        except NotFoundError:
            vanished = True
            continue
        except CorruptError as error:
            unreadable[number] = error.message
            continue
        (summaries if summary.number == number else misnamed)[number] = summary
    return Listing(summaries, unreadable, misnamed, vanished)


def read_terms(store: Store, listing: Listing) -> Terms:
    """List and read ``terms/``. A settlement that cannot be read is read from where it is repeated (rule 3a).

    Raises `CorruptError` (kind ``damaged-settlement``) if none repeats it and no higher term has settled since.
    """
    fences: dict[int, Fence | None] = {}
    settlements: dict[int, Settlement] = {}
    unreadable: set[int] = set()
    for entry in store.list(layout.TERMS):
        fenced, settled = layout.fence_term(entry.name), layout.settlement_term(entry.name)
        if fenced is not None:
            fences[fenced] = _read_or_none(store, entry.name, Fence)
        elif settled is not None:
            settlement = _read_or_none(store, entry.name, Settlement)
            if settlement is None:
                unreadable.add(settled)
            else:
                settlements[settled] = settlement
    for term in sorted(unreadable, reverse=True):
        repeated = repeated_settlement(store, term, listing.summaries.values())
        if repeated is not None:
            settlements[term] = repeated
        elif not any(higher > term and not other.dead for higher, other in settlements.items()):
            raise lost_settlement(store, term)
        # Else a higher term settled while this one could be read: what it made void is above that term's head, or is
        # kept by nothing that counts. Retired terms have no manifests: one rotten old record must not block a run for ever.
    return Terms(fences, settlements, frozenset(unreadable))


def _read_or_none(store: Store, name: str, kind: type[T]) -> T | None:
    try:
        return load_record(store, name, kind)
    except CorruptError:
        return None
    except NotFoundError as error:
        # Term records are never deleted. Nothing may be concluded from one that was listed and is gone.
        raise StoreError(
            "the record of a term was removed while it was read",
            kind="vanished",
            retryable=True,
            hint="was the run root removed or moved? look before you start again",
            root=store.url,
            name=name,
        ) from error


def read_pins(store: Store, run_id: str) -> dict[int, Pin]:
    """Return a run's pins by number. A pin that cannot be read counts as ``wanted``: it protects, but makes nothing alive."""
    pins: dict[int, Pin] = {}
    for entry in store.list(layout.PINS):
        number = layout.pin_number(entry.name)
        if number is None:
            continue
        try:
            pin = load_record(store, entry.name, Pin)
        except NotFoundError:
            continue
        except CorruptError:
            pin = Pin(run_id, number, "wanted")
        if pin.run_id == run_id:
            pins[number] = pin
    return pins


def read_marks(store: Store, run_id: str) -> dict[int, QuarantineMark]:
    """Return a run's quarantine marks by number. One that cannot be read is a reason to check the generation again, no more."""
    marks: dict[int, QuarantineMark] = {}
    for entry in store.list(layout.QUARANTINE):
        number = layout.mark_number(entry.name)
        if number is None:
            continue
        try:
            mark = load_record(store, entry.name, QuarantineMark)
        except NotFoundError:
            continue
        except CorruptError:
            mark = QuarantineMark(run_id, number, "damaged", "its quarantine mark cannot be read", "", 0)
        if mark.run_id == run_id:
            marks[number] = mark
    return marks
