"""Know what all entries that were written down add up to: versions, the two pointers, lost branches, who is who."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from milepost.errors import CorruptError
from milepost.service.core.records import (
    Began,
    Commit,
    Committed,
    Dropped,
    Entry,
    Held,
    Joined,
    Resumed,
    RolledBack,
    Saved,
    Stored,
    Weights,
)


class Catalogue:
    """Be the sum of all entries so far.

    Two pointers: ``live`` is the newest version of the surviving branch, ``durable`` the newest of that branch whose bytes are on
    disk. Neither goes back but by an entry that says so: `RolledBack`, `Began`, or a `Committed` with an older parent.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.term = 0
        self.weights: dict[Commit, Weights] = {}
        self.live: Commit | None = None
        self.durable: Commit | None = None
        self.stored: set[Commit] = set()
        self.lost: set[Commit] = set()
        self.generations: dict[Commit, int] = {}
        self.held: set[str] = set()
        """The trainers that are about to bring restored weights. It outlives them, and the service: until one of that name says
        that it is done, samplers wait."""
        self.next_number = 1
        self.current: dict[str, Joined] = {}
        self.former: set[tuple[str, str]] = set()
        """Component and incarnation of all who were replaced."""
        self._keys: dict[tuple[str, str], Commit] = {}
        for entry in entries:
            self.apply(entry)

    def committed(self, producer: str, key: str) -> Weights | None:
        """Return what a producer has committed under a key."""
        at = self._keys.get((producer, key))
        return None if at is None else self.weights[at]

    def line(self, at: Commit | None) -> Iterator[Commit]:
        """Yield a version and what it came from, newest first."""
        while at is not None:
            yield at
            at = self.weights[at].parent

    def is_durable(self, at: Commit) -> bool:
        """Say whether training can fall back behind a version no more: it is on disk, or one that it led to is."""
        return at not in self.lost and self.durable is not None and at <= self.durable

    def is_former(self, component: str, incarnation: str) -> bool:
        """Say whether this is a process that another has taken the place of."""
        return (component, incarnation) in self.former

    def newest_at(self, step: int) -> Commit | None:
        """Return the newest version of the surviving branch that is no further than a step: what training at it came from."""
        return next((at for at in self.line(self.live) if self.weights[at].version.step <= step), None)

    def apply(self, entry: Entry) -> None:
        """Add an entry. Raises `CorruptError` (kind ``bad-entry``), and changes nothing, for one that cannot follow."""
        wrong = self._wrong(entry)
        if wrong:
            raise CorruptError(
                "the service's records do not follow from each other",
                kind="bad-entry",
                hint="the disk lost or bent one: restore service/ from a copy, or move it aside to begin a new one",
                entry=type(entry).__name__,
                wrong=wrong,
            )
        match entry:
            case Began(term, live, gone, found):
                self.term = term
                self.stored = (self.stored - {*gone}) | {*found}
                self._go_to(live)
            case Joined():
                before = self.current.get(entry.component)
                if before is not None and before.incarnation != entry.incarnation:
                    self.former.add((before.component, before.incarnation))
                self.current[entry.component] = entry
            case Committed(weights):
                self.weights[weights.at] = weights
                self._keys[weights.producer, weights.key] = weights.at
                self.next_number = weights.at.number + 1
                if weights.parent == self.live:
                    self.live = weights.at  # nothing is lost: this is what nearly every commit is
                else:
                    self._go_to(weights.at)
            case Stored(at):
                self.stored.add(at)
                if at not in self.lost and (self.durable is None or self.durable < at):
                    self.durable = at
            case RolledBack(to, _):
                self._go_to(to)
            case Saved(at, generation):
                self.generations[at] = generation
            case Dropped(at):
                self.stored.discard(at)
            case Held(component):
                self.held.add(component)
            case Resumed(component):
                self.held.discard(component)

    def _go_to(self, live: Commit | None) -> None:
        self.live = live
        self.lost = self.weights.keys() - set(self.line(live))
        # A parent's number is lower than its child's: along a line the newest is the highest.
        self.durable = max(self.stored - self.lost, default=None)

    def _wrong(self, entry: Entry) -> str:
        """Return why an entry cannot follow those before it; empty if it can."""
        match entry:
            case Began(term, live, _, found):
                if term <= self.term:
                    return f"term {term} after term {self.term}"
                unknown = "".join(self._unknown(at) for at in (live, *found))
                return unknown or ("it begins on a lost branch" if live in self.lost else "")
            case Joined():
                return "it was replaced before" if self.is_former(entry.component, entry.incarnation) else ""
            case Committed(weights):
                if weights.at.term != self.term or weights.at.number < self.next_number:
                    return f"{weights.at} of term {weights.at.term} in term {self.term}, after {self.next_number - 1} numbers"
                if (weights.producer, weights.key) in self._keys:
                    return "its key was used before"
                return self._unknown(weights.parent)
            case Stored(at) | Saved(at, _):
                return self._unknown(at)
            case RolledBack(to, _):
                return "it goes back to a lost branch" if to in self.lost else self._unknown(to)
            case Held(component) | Resumed(component):
                return "" if component in self.current else f"{component} is not known"
            case Dropped(at):
                return self._unknown(at) or ("the durable version" if at == self.durable else "")

    def _unknown(self, at: Commit | None) -> str:
        return f"{at} is not known" if at is not None and at not in self.weights else ""
