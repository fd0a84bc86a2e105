"""Be the service's brain: one event after the other comes in, and what is to be done goes out.

The story of a version: `Begin` (is there room, and where) -> `Arrived`, a part at a time -> all parts are here: a turn of its
own decides its number and its parent -> `Record` -> it is visible and live, and whoever waits for news is answered -> `Spill`
-> `Stored`: it is durable -> it leaves memory once it is none of the newest, and nobody reads it.

Nothing is announced that cannot be fetched; nothing is promised before it is written down; what an earlier incarnation still
says changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import assert_never

from milepost.service.core.catalogue import Catalogue
from milepost.service.core.committing import Commits
from milepost.service.core.desk import Desk
from milepost.service.core.events import (
    Abort,
    Accepted,
    Action,
    Arrived,
    Begin,
    Caller,
    Cancel,
    Erased,
    Event,
    Fetch,
    Finish,
    Goodbye,
    Heartbeat,
    Hello,
    Hold,
    Link,
    Recorded,
    Refused,
    Release,
    Resume,
    RollBack,
    Spilled,
    Tick,
)
from milepost.service.core.holding import hold
from milepost.service.core.joining import Components
from milepost.service.core.reading import Readers
from milepost.service.core.records import Began, Commit, Entry, RolledBack, Tier
from milepost.service.core.settings import Settings
from milepost.service.core.shelving import Shelves
from milepost.service.core.turns import Turn

_RECORDS_BYTES = 64 << 10
"""What the record of a version takes beside its parts, and more."""


def begin(entries: Iterable[Entry], memory: Collection[Commit], disk: Collection[Commit]) -> Began:
    """Return the entry with which a service begins that found these entries, and the bytes of these versions, whole.

    Live is the newest version of the surviving branch whose bytes are anywhere. What came after it is a lost branch: readers may
    have it, and nobody can bring it back.
    """
    catalogue = Catalogue(entries)
    there = {*disk} & catalogue.weights.keys()
    live = next((at for at in catalogue.line(catalogue.live) if at in there or at in memory), None)
    gone, found = sorted(catalogue.stored - there), sorted(there - catalogue.stored)
    return Began(catalogue.term + 1, live, tuple(gone), tuple(found))


class Service:
    """Be what the service knows.

    ``entries`` are all that was ever written down, and end with the `Began` of this service; ``memory`` are the versions whose
    bytes it found there, whole.
    """

    def __init__(self, settings: Settings, entries: Iterable[Entry], memory: Collection[Commit], run_id: str) -> None:
        self.catalogue = Catalogue(entries)
        self._desk = desk = Desk(settings, self.catalogue)
        self._components = Components(desk, self._gone)
        self._shelves = Shelves(desk, memory, self._look_again, lambda at, why: self._commits.not_durable(at, why))
        self._commits = Commits(desk, run_id, self._visible, self._components.superseded)
        self._readers = Readers(desk, self._shelves.tiers)

    @property
    def memory_bytes(self) -> int:
        """Return what is taken of memory: by versions, also those that are about to be erased, and by what is on its way."""
        return self._shelves.memory_bytes + self._commits.staged_bytes

    def tiers(self, at: Commit) -> tuple[Tier, ...]:
        """Return where a version can be read from."""
        return self._shelves.tiers(at)

    def readers(self, at: Commit) -> int:
        """Return how many read a version."""
        return self._readers.readers(at)

    def reads(self, caller: Caller) -> tuple[Commit, ...]:
        """Return which versions a reader has."""
        return self._readers.reads(caller)

    def last(self, caller: Caller) -> Commit | None:
        """Return the version that a reader was given last, or has said that it has; None if nobody knows."""
        return self._readers.last(caller)

    def under_way(self) -> list[tuple[Begin, tuple[str, ...]]]:
        """Return the commits on their way, and which parts of each are not here yet."""
        return self._commits.under_way()

    def refusal(self, caller: Caller) -> Refused | None:
        """Return what is said to a process that is nobody, or no longer anybody; None: it is who its component is now."""
        return self._components.refusal(caller)

    def heard_ns(self, caller: Caller) -> int | None:
        """Return when a process was heard of last; None for one that has ended, or was not heard of since the service began."""
        return self._components.heard_ns(caller)

    def handle(self, event: Event, now_ns: int) -> list[Action]:
        """Take one event, and return what is to be done, in this order. The first is a `Tick`."""
        self._desk.now_ns = max(now_ns, self._desk.now_ns)
        self._take(event)
        self._shelves.tidy(self._commits.wanted, self._readers.in_use)
        actions = [*self._desk.actions]
        self._desk.actions.clear()
        return actions

    def _take(self, event: Event) -> None:
        match event:
            case Hello():
                self._components.hello(event)
            case Heartbeat(caller, reads):
                self._components.hear(caller)
                if reads is not None and self._components.is_current(caller):
                    self._readers.said(caller, reads)
            case Goodbye(caller):
                if self._components.is_current(caller):
                    self._components.forget(caller)
            case Begin() | Arrived() | Finish() | Link() | Hold() | Resume():
                itself = not isinstance(event, Resume)
                if self._components.admits(event.request, event.caller, trainer=True, itself=itself):
                    self._from_trainer(event)
            case Abort():
                self._commits.abort(event)
            case Fetch():
                if self._components.admits(event.request, event.caller):
                    self._readers.fetch(event)
            case Release(caller, at):
                self._components.hear(caller)
                self._readers.release(caller, at)
            case Cancel(request):
                self._commits.cancel(request)
                self._readers.cancel(request)
            case RollBack():
                self._desk.write_down(self._roll_back(event))
            case Recorded():
                self._desk.turns.recorded(event)
            case Spilled():
                self._shelves.spilled(event)
            case Erased():
                self._shelves.erased(event)
            case Tick():
                self._time_passes()
            case _:
                assert_never(event)

    def _from_trainer(self, event: Begin | Arrived | Finish | Link | Hold | Resume) -> None:
        match event:
            case Begin():
                size = sum(size for _, size in event.sizes)
                fits = self.memory_bytes + size <= self._desk.settings.memory_bytes
                # Others take memory, too; and of a container it may have less than it was told that it may take.
                is_there = event.free_bytes is None or size + size // 1000 + _RECORDS_BYTES <= event.free_bytes
                self._commits.begin(event, "memory" if fits and is_there else "disk")
            case Arrived():
                self._commits.arrived(event)
            case Finish():
                self._commits.finish(event)
            case Link():
                self._commits.link(event)
            case Hold() | Resume():
                self._desk.write_down(hold(self._desk, event, self._look_again))

    def _visible(self, at: Commit, tier: Tier) -> None:
        self._shelves.put(at, tier)
        self._look_again()

    def _look_again(self) -> None:
        self._readers.look_again()
        self._commits.look_again()

    def _gone(self, caller: Caller) -> None:
        self._commits.forget(caller)
        self._readers.forget(caller, self._components.superseded(caller))

    def _time_passes(self) -> None:
        for caller in self._components.silent():
            self._readers.forget_leases(caller)
        self._commits.time_passes()
        self._readers.time_passes()

    def _roll_back(self, event: RollBack) -> Turn:
        """Return the turn in which the live pointer goes back, if it can."""
        to, catalogue, desk = event.to, self.catalogue, self._desk

        def refuse(kind: str, message: str) -> tuple[Entry, ...]:
            hint = "milepost status shows what there is to go back to"
            return desk.refuse(event.request, kind, message, hint, version=str(to))

        def decide() -> tuple[Entry, ...]:
            if to not in catalogue.weights:
                return refuse("unknown-version", "there never was such a version here")
            if to in catalogue.lost:
                return refuse("lost-branch", "training has left this branch already")
            if not self._shelves.tiers(to):
                return refuse("gone", "the bytes of this version are kept no longer")
            if to == catalogue.live:
                desk.reply(event.request, Accepted())
                return ()
            return (RolledBack(to, event.reason),)

        def done() -> None:
            desk.reply(event.request, Accepted())
            self._look_again()

        return Turn(decide, done, lambda why: desk.not_written(event.request, why))
