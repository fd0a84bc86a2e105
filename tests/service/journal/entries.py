"""Make up entries for a journal."""

from __future__ import annotations

from milepost.records import Version
from milepost.service.core.records import Began, Commit, Committed, Entry, Shard, Stored, Weights

RUN = "0" * 32


def weights(number: int, term: int = 1) -> Weights:
    parent = Commit(term, number - 1) if number > 1 else None
    version = Version(RUN, number * 10, 1_700_000_000_000_000_000 + number)
    return Weights(Commit(term, number), version, (Shard("weights", 5, f"{number:032x}"),), parent, "trainer", "i1", f"k{number}")


def story(count: int) -> list[Entry]:
    """Return entries that follow from each other: a service begins, versions are committed, some are stored."""
    entries: list[Entry] = [Began(1, None)]
    number = 0
    while len(entries) < count:
        number += 1
        entries.append(Committed(weights(number)))
        if number % 3 == 0 and len(entries) < count:
            entries.append(Stored(Commit(1, number)))
    return entries
