"""Give back the memory of a service that is not to run again: what is nowhere else goes to disk first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from milepost.clock import Clock
from milepost.errors import ConflictError, StoreError
from milepost.service.adopting import Opened, open_service
from milepost.service.core.catalogue import Catalogue
from milepost.service.core.records import Stored, Weights
from milepost.service.endpoint import SERVICE, Endpoint, read_endpoint
from milepost.service.index import place_of_weights
from milepost.service.owners import give_back, owner_of
from milepost.service.resting import copied_journal
from milepost.service.tiers.memory import MemoryTier
from milepost.service.tiers.spilling import spill
from milepost.service.transports.host import SHARED
from milepost.store.local import LocalStore
from milepost.store.process import boot_id


@dataclass(frozen=True, slots=True)
class Unloaded:
    """Say what was given back."""

    directory: str
    freed_bytes: int
    spilled: tuple[Weights, ...] = ()
    """Versions that were in memory only, and are on disk now; newest first."""


def unload(root: str, clock: Clock, *, memory_base: str = SHARED) -> Unloaded:
    """Give back what the service of a run root has left in this machine's memory; whoever has a version mapped keeps it.

    A version that is nowhere else is written to disk first, unless training has left it. If that fails all stays in memory. The
    next service begins from what is on disk. Raises `ConflictError`: kind ``held`` while a service has the root, naming it,
    ``elsewhere`` where one of another machine has not ended; `NotFoundError` (kind ``no-service``); `StoreError`; what
    `open_service` raises.
    """
    endpoint = read_endpoint(root)
    store = LocalStore(os.path.join(root, SERVICE), clock)
    with copied_journal(root, endpoint, clock) as (path, journal):
        memory = MemoryTier(os.path.join(memory_base, owner_of(journal.run_id, store.root, path, journal.id).directory_name))
    if not os.path.isdir(memory.directory):
        _refuse_elsewhere(endpoint)
        return Unloaded(memory.directory, 0)
    taken = memory.used_bytes()
    disk = LocalStore(endpoint.disk, clock) if endpoint.disk and endpoint.disk != store.url else None
    journal_directory = os.path.dirname(endpoint.journal)
    elsewhere = journal_directory if os.path.realpath(journal_directory or store.root) != os.path.realpath(store.root) else ""
    with open_service(root, clock, memory_base=memory_base, journal_directory=elsewhere, disk=disk) as opened:
        spilled = tuple(_spilled(opened))
        give_back(opened.memory)
    return Unloaded(memory.directory, taken, spilled)


def _spilled(opened: Opened) -> Iterator[Weights]:
    catalogue = Catalogue(opened.entries)
    # The newest first: where the disk has room for one, it is the one that is live.
    for at in sorted(opened.found.memory - opened.found.disk - catalogue.lost, reverse=True):
        weights = catalogue.weights[at]
        index = opened.memory.index(place_of_weights(weights))
        assert index is not None
        try:
            spill(index, opened.memory, opened.disk)
        except StoreError as error:
            error.hint = f"{at} is in memory only, and stays there, as all does: mend the disk, then again"
            raise
        opened.journal.append([Stored(at)])
        yield weights


def _refuse_elsewhere(endpoint: Endpoint) -> None:
    """Refuse to say that nothing is in memory where it may be in that of another machine."""
    if not endpoint.has_ended and endpoint.boot_id != boot_id():
        raise ConflictError(
            "nothing is in this machine's memory, and the service has run on another one, or before this one started anew",
            kind="elsewhere",
            hint="say so on the machine that it runs on; if that one is gone, so is what was in its memory",
            address=endpoint.address,
        )
