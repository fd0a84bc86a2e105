"""Find out what a service has left that does not run: what the next one would begin with. Reads, and changes nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from milepost.clock import Clock, utc_text
from milepost.errors import NotFoundError
from milepost.service.adopting import JOURNAL, Found, adopt
from milepost.service.core.catalogue import Catalogue
from milepost.service.core.records import Commit, Tier, Weights
from milepost.service.core.service import begin
from milepost.service.endpoint import ENDPOINT, SERVICE, Endpoint, read_endpoint
from milepost.service.journal import Journal
from milepost.service.owners import owner_of
from milepost.service.standing import ComponentStanding, Standing, VersionStanding
from milepost.service.tiers.disk import DiskTier
from milepost.service.tiers.memory import MemoryTier
from milepost.service.transports.host import SHARED
from milepost.store.local import LocalStore
from milepost.store.posix import failures_of


@dataclass(frozen=True, slots=True)
class Rest:
    """Be what lies there."""

    run_id: str
    catalogue: Catalogue
    """With the pointers as the next service would have them."""
    memory: MemoryTier
    disk: DiskTier
    found: Found
    """Which versions lie where, whole."""

    def tiers(self, at: Commit) -> tuple[Tier, ...]:
        """Return where the bytes of a version lie, whole."""
        there: tuple[tuple[Tier, frozenset[Commit]], ...] = (("memory", self.found.memory), ("disk", self.found.disk))
        return tuple(tier for tier, versions in there if at in versions)


def read_rest(root: str, clock: Clock, *, memory_base: str = SHARED) -> Rest:
    """Read what the service of a run root has left.

    What lies in memory is read through and compared with its digests. Raises `NotFoundError` (kind ``no-service``), and what
    `Journal` raises for a journal that is damaged or of a newer milepost.
    """
    store = LocalStore(os.path.join(root, SERVICE), clock)
    endpoint = read_endpoint(root)
    versions = LocalStore(endpoint.disk, clock) if endpoint.disk else store
    with copied_journal(root, endpoint, clock) as (path, journal):
        entries, run_id, journal_id = journal.entries(), journal.run_id, journal.id
    owner = owner_of(run_id, store.root, path, journal_id)
    memory, disk = MemoryTier(os.path.join(memory_base, owner.directory_name)), DiskTier(versions)
    catalogue = Catalogue(entries)
    found = adopt(catalogue, memory, disk)
    catalogue.apply(begin(entries, found.memory, found.disk))
    return Rest(run_id, catalogue, memory, disk, found)


@contextmanager
def copied_journal(root: str, endpoint: Endpoint, clock: Clock) -> Iterator[tuple[str, Journal]]:
    """Open the journal of a service that may not run, and say where it is. Nothing is changed there. Raises as `read_rest`."""
    path = _journal_path(root, endpoint)
    # SQLite writes beside what it reads, and a service may begin at any moment: it is a copy that is read.
    with tempfile.TemporaryDirectory(prefix="milepost-journal-") as scratch:
        _copy(root, path, scratch)
        with Journal(os.path.join(scratch, JOURNAL), clock) as journal:
            yield path, journal


def at_rest(root: str, clock: Clock, *, memory_base: str = SHARED) -> Standing:
    """Return how a service stands that does not run. Raises as `read_rest`."""
    rest = read_rest(root, clock, memory_base=memory_base)
    catalogue = rest.catalogue
    there = sorted(rest.found.memory | rest.found.disk, reverse=True)
    versions = [
        VersionStanding(catalogue.weights[at], rest.tiers(at), at in catalogue.lost, catalogue.generations.get(at))
        for at in there
    ]
    joined = [catalogue.current[name] for name in sorted(catalogue.current)]
    return Standing(
        run_id=rest.run_id,
        term=catalogue.term - 1,  # the last is of the service that would begin now
        live=_weights(catalogue, catalogue.live),
        durable=_weights(catalogue, catalogue.durable),
        versions=tuple(versions),
        components=tuple(ComponentStanding(each.component, each.incarnation, each.role) for each in joined),
        memory_bytes=rest.memory.used_bytes(),
        disk_bytes=rest.disk.used_bytes(),
        held_by=", ".join(sorted(catalogue.held)),
    )


def last_word(root: str, endpoint: Endpoint) -> str:
    """Return when a service has last written anything down, for people; empty if nobody knows."""
    times, journal = [], _journal_path(root, endpoint)
    for path in (os.path.join(root, SERVICE, ENDPOINT), journal, f"{journal}-wal"):
        with suppress(OSError):  # what is not there says nothing
            times.append(os.stat(path).st_mtime_ns)
    return utc_text(max(times)) if times else ""


def _weights(catalogue: Catalogue, at: Commit | None) -> Weights | None:
    return None if at is None else catalogue.weights[at]


def _journal_path(root: str, endpoint: Endpoint) -> str:
    return endpoint.journal or os.path.join(root, SERVICE, JOURNAL)


def _copy(root: str, path: str, scratch: str) -> None:
    with failures_of("read", path):
        if not os.path.exists(path):
            hint = f"milepost serve {root} begins one"
            raise NotFoundError("no service has begun for this run", kind="no-service", hint=hint, root=root)
        # Should a service begin just now, and take its log over in between: the rows do not follow from each other then, and
        # the journal says so.
        shutil.copyfile(path, os.path.join(scratch, JOURNAL))
        with suppress(FileNotFoundError):
            shutil.copyfile(f"{path}-wal", os.path.join(scratch, f"{JOURNAL}-wal"))
