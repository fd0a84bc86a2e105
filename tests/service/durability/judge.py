"""Say of what lies there, while nobody serves it, which promise it does not keep. C1, C4, C13, C14"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milepost.clock import SystemClock
from milepost.service.core.catalogue import Catalogue
from milepost.service.core.records import Began, Commit, Entry
from milepost.service.index import place_of_weights
from milepost.service.journal import Journal
from milepost.service.tiers.disk import DiskTier
from milepost.service.tiers.memory import MemoryTier
from milepost.store.local import LocalStore
from tests.service.durability.actors import notes

clock = SystemClock()


def at_of(facts: dict[str, Any]) -> Commit:
    return Commit(*facts["at"])


@dataclass
class Rest:
    """Be what lies there: the journal, read from a copy, and the versions of which all bytes are whole."""

    place: Path
    entries: list[Entry] = field(default_factory=list)
    in_memory: set[Commit] = field(default_factory=set)
    on_disk: set[Commit] = field(default_factory=set)

    def __post_init__(self) -> None:
        copy = self.place / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for end in ("", "-wal"):
            source = self.place / "run" / "service" / f"journal.sqlite3{end}"
            if source.exists():
                shutil.copy(source, copy / f"journal.sqlite3{end}")
        with Journal(str(copy / "journal.sqlite3"), clock) as journal:
            self.entries = journal.entries()
        self.catalogue = Catalogue(self.entries)
        self.disk = DiskTier(LocalStore(self.place / "run" / "service", clock))
        self.memories = [MemoryTier(str(path)) for path in (self.place / "shm").iterdir()]
        self.on_disk = {at for at in self.catalogue.weights if self._is_whole(at, self.disk)}
        self.in_memory = {at for at in self.catalogue.weights for memory in self.memories if self._is_whole(at, memory)}

    def _is_whole(self, at: Commit, tier: DiskTier | MemoryTier) -> bool:
        weights = self.catalogue.weights[at]
        index = tier.index(place_of_weights(weights))
        return index is not None and index.shards == weights.shards and not tier.verify(index)

    def forget_memory(self) -> None:
        """Do what the end of the host does."""
        for memory in self.memories:
            shutil.rmtree(memory.directory)
        self.memories, self.in_memory = [], set()


def broken(rest: Rest) -> Iterator[str]:
    """Yield what does not hold of what lies there just now, whoever was killed wherever."""
    catalogue, acks = rest.catalogue, notes(rest.place, "acks")
    yield from same_versions(rest, acks)
    lost = lost_by_accident(rest)
    yield from (f"{ack['at']} was acknowledged, and lost with term {lost[at_of(ack)]}" for ack in acks if at_of(ack) in lost)
    kept = [at_of(ack) for ack in acks if at_of(ack) not in catalogue.lost]
    newest = next((at for at in catalogue.line(catalogue.live) if at in rest.in_memory | rest.on_disk), None)
    if kept and rest.memories and (newest is None or newest < max(kept)):
        yield f"{max(kept)} was live, and the newest that can be fetched is {newest}; in memory {sorted(rest.in_memory)}"
    durable = max((at_of(ack) for ack in acks if ack["durable"] and at_of(ack) not in catalogue.lost), default=None)
    base = next((at for at in catalogue.line(catalogue.live) if at in rest.on_disk), None)
    if durable is not None and (base is None or base < durable):
        yield f"{durable} was durable, and the newest of its branch on disk is {base}; on disk {sorted(rest.on_disk)}"
    if any(ack["durable"] for ack in acks) and not rest.on_disk & catalogue.stored:
        yield "something was durable, and no version is on disk"


def lost_by_accident(rest: Rest) -> dict[Commit, int]:
    """Return what a service has lost when it began, with its term: it was not in memory that went with its host.

    What training leaves behind, since it goes on from an older version, and what somebody rolls back is lost on purpose.
    """
    durable = {at_of(ack) for ack in notes(rest.place, "acks") if ack["durable"]}
    found: dict[Commit, int] = {}
    catalogue = Catalogue()
    for entry in rest.entries:
        before = {*catalogue.lost}
        catalogue.apply(entry)
        if isinstance(entry, Began):
            took_host = (rest.place / "lost" / str(entry.term)).exists()
            found |= {at: entry.term for at in catalogue.lost - before if not took_host or at in durable}
    return found


def same_versions(rest: Rest, acks: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what was told of a version and is not what is written down of it."""
    by_key: dict[str, Commit] = {}
    for ack in acks:
        weights = rest.catalogue.weights.get(at_of(ack))
        if weights is None or weights.key != ack["key"]:
            yield f"{ack['key']} was acknowledged as {ack['at']}, and that is {weights and weights.key}"
            continue
        if {shard.slot: shard.digest for shard in weights.shards} != ack["digests"]:
            yield f"{weights.at} has other digests than were acknowledged"
        if by_key.setdefault(ack["key"], weights.at) != weights.at:
            yield f"{ack['key']} is two versions"
    for seen in notes(rest.place, "fetched"):
        weights = rest.catalogue.weights.get(at_of(seen))
        if seen["wrong"] or weights is None or weights.key != f"{seen['branch']}-{seen['step']}":
            yield f"{seen['by']} had {seen}, and that is {weights and weights.key}"
    terms = [entry.term for entry in rest.entries if isinstance(entry, Began)]
    if terms != sorted({*terms}):
        yield f"terms do not rise: {terms}"


def lost_by_beginning(rest: Rest) -> Iterator[str]:
    """Yield versions that were durable when a service began, and were lost with that."""
    catalogue = Catalogue()
    for entry in rest.entries:
        before = catalogue.durable
        catalogue.apply(entry)
        if isinstance(entry, Began) and before is not None and (catalogue.durable is None or catalogue.durable < before):
            yield f"with term {entry.term} the durable version went from {before} to {catalogue.durable}"


def went_back(rest: Rest) -> Iterator[str]:
    """Yield where a sampler got an older version than it had, and nothing that is written down says why."""
    had: dict[str, Commit] = {}
    for seen in notes(rest.place, "fetched"):
        before, at = had.get(seen["by"]), at_of(seen)
        if before is not None and at < before and before not in rest.catalogue.lost:
            yield f"{seen['by']} had {before}, then {at}, and {before} is not lost"
        had[seen["by"]] = at
