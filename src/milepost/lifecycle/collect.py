"""Say of everything in a run root whether it stays or may go, and why. From records alone; deletes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from milepost.lifecycle.retain import Keep, essential, originals, resumable
from milepost.publish import layout
from milepost.publish.view import View
from milepost.records import Summary
from milepost.store.base import Entry, Store


@dataclass(frozen=True, slots=True)
class Standing:
    """Say whether one generation stays."""

    number: int
    stays: bool
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leftover:
    """Name a file that no generation stands on: of a save that never counted, or of one that was retired."""

    name: str
    size_bytes: int
    term: int
    """Whose it is. The process of the newest term may be writing it right now."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold what would go and what would stay."""

    standings: tuple[Standing, ...]
    """Of every generation, newest first."""
    leftovers: tuple[Leftover, ...]
    freed_bytes: int
    """Of manifests, of the blobs that only they name, and of leftovers."""
    held_up: int = 0
    """A generation that cannot be read: nothing as old as it is deleted (rule 3a); 0 if there is none."""

    @property
    def going(self) -> tuple[int, ...]:
        """Return the generations that would go, newest first."""
        return tuple(standing.number for standing in self.standings if not standing.stays)

    @property
    def nothing(self) -> bool:
        """Return whether all is as it should be."""
        return not self.going and not self.leftovers


def plan_of(store: Store, view: View, keep: Keep | None) -> Plan:
    """Plan for ``keep``; None leaves the generations to the rule of their own writer, whose result the newest one names."""
    standings = tuple(_standings(view, keep))
    going = {standing.number for standing in standings if not standing.stays}
    summaries = view.listing.summaries
    staying = [summary for number, summary in summaries.items() if number not in going]
    unnamed = list(_unnamed(view, store.list(layout.BLOBS), staying))
    named_by_going = {blob.name for number in going for blob in summaries[number].blobs}
    manifests = {layout.manifest(number) for number in going}
    freed_bytes = sum(entry.size_bytes for entry in store.list(layout.GENERATIONS) if entry.name in manifests)
    freed_bytes += sum(one.size_bytes for one in unnamed)
    leftovers = tuple(one for one in unnamed if one.name not in named_by_going)
    return Plan(standings, leftovers, freed_bytes, view.barrier)


def _standings(view: View, keep: Keep | None) -> Iterator[Standing]:
    live_why = _reasons(view, keep)
    for number in sorted({*view.listing.summaries, *view.unreadable, *view.foreign}, reverse=True):
        if number in view.unreadable:
            yield Standing(number, True, (f"it cannot be read: {view.unreadable[number]}",))
        elif number in view.foreign:
            yield Standing(number, True, ("it belongs to another run",))
        elif number <= view.barrier or (number in view.live and _is_unsure(view)):
            yield Standing(number, True, (*live_why.get(number, ()), "another generation cannot be read"))
        elif number in view.live:
            yield Standing(number, bool(live_why[number]), live_why[number] or (_why_not(view, number, keep),))
        elif number in view.pins:
            yield Standing(number, True, (f"a pin is wanted {_by(view.pins[number].by)}".rstrip(),))
        else:
            yield Standing(number, False, ("void: its writer had been fenced" if number in view.void else "retired already",))


def _is_unsure(view: View) -> bool:
    """Return whether the head itself may be half deleted: then nothing new may name its blobs, and nothing is trimmed."""
    return view.head is not None and view.head.number <= view.unsure


def _reasons(view: View, keep: Keep | None) -> dict[int, tuple[str, ...]]:
    """Return by number why each live generation stays; nothing where it may go."""
    found: dict[int, list[str]] = {number: [] for number in view.live}
    counted = originals(view.live)
    healthy = [number for number in counted if counted[number].healthy]
    complete = [number for number in healthy if counted[number].complete]
    if view.head is not None:
        found[view.head.number].append("the newest")
    next_start = resumable(view, view.live)
    if next_start is not None:
        found[next_start].append("a resume would take it")
    if healthy:
        found[max(healthy)].append("the newest healthy one")
    if complete and max(complete) != max(healthy):
        found[max(complete)].append("the newest healthy one that is complete")
    for number, pin in view.pins.items():
        if number in found:
            found[number].append(f"pinned {_by(pin.by)}".rstrip())
    for number in essential(view.live):
        found[number] = found[number] or ["from before the run went back or started anew: until two newer ones exist"]
    if keep is None:
        return {number: tuple(why or ["its writer keeps it"]) for number, why in found.items()}
    for number in sorted(counted)[-keep.last :]:
        found[number].append(f"one of the last {keep.last}" if keep.last > 1 else "the last")
    for place, number in enumerate(keep.best_of(view.live), 1):
        found[number].append(f"number {place} by {keep.by}" if keep.best > 1 else f"the best by {keep.by}")
    return {number: tuple(why) for number, why in found.items()}


def _by(who: str) -> str:
    return f"by {who}" if who else ""


def _why_not(view: View, number: int, keep: Keep | None) -> str:
    if number not in originals(view.live):
        return "a newer one repeats it"
    assert keep is not None
    best = f", nor among the best {keep.best} by {keep.by}" if keep.best else ""
    return f"{f'older than the last {keep.last}' if keep.last > 1 else 'not the last'}{best}"


def _unnamed(view: View, blobs: Iterable[Entry], staying: Iterable[Summary]) -> Iterator[Leftover]:
    named = {blob.name for summary in staying for blob in summary.blobs}
    for entry in blobs:
        term = layout.blob_term(entry.name)
        if term is None or entry.name in named:
            continue
        unfinished = entry.name.endswith((".tmp", ".part"))
        # What an unreadable manifest names is unknown, but it is as old as that or older (rule 3a).
        if unfinished or (layout.blob_number(entry.name) or 0) > view.barrier:
            yield Leftover(entry.name, entry.size_bytes, term)
