"""Say which versions go to disk next, and which leave memory or disk. Of what is live, leased or wanted nothing goes."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from milepost.service.core.catalogue import Catalogue
from milepost.service.core.records import Commit
from milepost.service.core.settings import Settings


def newest(catalogue: Catalogue, count: int) -> set[Commit]:
    """Return the newest versions of the surviving branch."""
    return set(islice(catalogue.line(catalogue.live), count))


def next_spill(catalogue: Catalogue, settings: Settings, memory: Collection[Commit], wanted: Collection[Commit]) -> Commit | None:
    """Return which version is to be written to disk next: one that somebody waits for, the live one, the oldest.

    None that would leave the disk again at once: those would be written, dropped and written for ever.
    """
    stays = newest(catalogue, settings.disk_keep) | {*wanted}
    unwritten = sorted(at for at in memory if at in stays and at not in catalogue.stored and at not in catalogue.lost)
    first = [at for at in unwritten if at in wanted] or [at for at in unwritten if at == catalogue.live] or unwritten
    return first[0] if first else None


def out_of_memory(
    catalogue: Catalogue, settings: Settings, memory: Collection[Commit], in_use: Collection[Commit]
) -> list[Commit]:
    """Return which versions leave memory: lost ones; and of those that are none of the newest what is on disk, or need not be."""
    stay = newest(catalogue, settings.memory_keep)
    to_disk = newest(catalogue, settings.disk_keep) - catalogue.stored
    return [at for at in sorted(memory) if at not in in_use and (at in catalogue.lost or (at not in stay and at not in to_disk))]


def out_of_disk(catalogue: Catalogue, settings: Settings, in_use: Collection[Commit]) -> list[Commit]:
    """Return which versions leave the disk. Never the durable one: all recovery begins with it; and none while there is no such,
    since the surviving branch has only begun.
    """
    if catalogue.durable is None:
        return []
    stay = newest(catalogue, settings.disk_keep) | {catalogue.durable}
    return [at for at in sorted(catalogue.stored) if at not in stay and at not in in_use]
