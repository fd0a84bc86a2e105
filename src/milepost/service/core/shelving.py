"""Know where the bytes of every visible version are; write the next one to disk, and let go of what nobody needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from milepost.service.core import keeping
from milepost.service.core.desk import Desk
from milepost.service.core.events import Erase, Erased, Spill, Spilled
from milepost.service.core.records import Commit, Dropped, Entry, Stored, Tier
from milepost.service.core.turns import Turn


class Shelves:
    """Be memory and disk. ``stored`` is called when a version has become durable, ``refused`` with one that the disk refused."""

    def __init__(
        self, desk: Desk, memory: Iterable[Commit], stored: Callable[[], None], refused: Callable[[Commit, str], None]
    ) -> None:
        self._desk = desk
        self._stored = stored
        self._refused = refused
        self._memory = {at: desk.catalogue.weights[at].size_bytes for at in memory}
        self._erasing: set[tuple[Commit, Tier]] = set()
        self._dropping: set[Commit] = set()
        self._spilling: Commit | None = None
        self._again_ns = 0
        """When the disk is asked again, after it has refused."""

    @property
    def memory_bytes(self) -> int:
        """Return how much memory all versions take, with those that are about to be erased."""
        return sum(self._memory.values())

    def tiers(self, at: Commit) -> tuple[Tier, ...]:
        """Return where a version can be read from."""
        tiers: list[Tier] = []
        if at in self._memory and (at, "memory") not in self._erasing:
            tiers.append("memory")
        if at in self._desk.catalogue.stored and at not in self._dropping:
            tiers.append("disk")
        return tuple(tiers)

    def put(self, at: Commit, tier: Tier) -> None:
        """Take note of the bytes of a version that has become visible."""
        if tier == "memory":
            self._memory[at] = self._desk.catalogue.weights[at].size_bytes

    def spilled(self, event: Spilled) -> None:
        """Hear of a version that was to be written to disk. What is not of the one under way is old, and changes nothing."""
        at = event.at
        if at != self._spilling:
            return

        def failed(why: str) -> None:
            self._spilling = None
            self._wait()
            self._refused(at, why)

        def done() -> None:
            self._spilling = None
            self._stored()

        if event.failure:
            failed(event.failure)
        else:
            self._desk.write_down(Turn(lambda: (Stored(at),), done, failed))

    def erased(self, event: Erased) -> None:
        """Note that bytes are gone."""
        self._erasing.discard((event.at, event.tier))
        if event.tier == "memory":
            self._memory.pop(event.at, None)

    def tidy(self, wanted: Collection[Commit], in_use: Collection[Commit]) -> None:
        """Write the next version to disk, one that somebody waits for first; let go of what nobody needs."""
        catalogue, settings = self._desk.catalogue, self._desk.settings
        disk_rests = self._desk.now_ns < self._again_ns
        if self._spilling is None and not disk_rests:
            stays = [at for at in self._memory if (at, "memory") not in self._erasing]
            self._spilling = keeping.next_spill(catalogue, settings, stays, wanted)
            if self._spilling is not None:
                self._desk.do(Spill(self._spilling))
        busy = {*in_use, *wanted} if self._spilling is None else {*in_use, *wanted, self._spilling}
        for at in keeping.out_of_memory(catalogue, settings, self._memory, busy):
            self._erase(at, "memory")
        for at in keeping.out_of_disk(catalogue, settings, busy):
            if at not in self._dropping and not disk_rests:
                self._drop(at)

    def _erase(self, at: Commit, tier: Tier) -> None:
        if (at, tier) not in self._erasing:
            self._erasing.add((at, tier))
            self._desk.do(Erase(at, tier))

    def _drop(self, at: Commit) -> None:
        """Write down that a version is no longer on disk, and only then take it off."""
        self._dropping.add(at)

        def decide() -> tuple[Entry, ...]:
            if at != self._desk.catalogue.durable:
                return (Dropped(at),)
            self._dropping.discard(at)  # the pointer went back to it meanwhile
            return ()

        def done() -> None:
            self._dropping.discard(at)
            self._erase(at, "disk")

        def failed(_: str) -> None:
            self._dropping.discard(at)
            self._wait()

        self._desk.write_down(Turn(decide, done, failed))

    def _wait(self) -> None:
        self._again_ns = self._desk.now_ns + self._desk.settings.retry_ns
