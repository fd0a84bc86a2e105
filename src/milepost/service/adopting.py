"""Begin a service: read what is written down, and find out of which versions the bytes are still there.

`open_service` tells it in order. Nothing that lies in memory or on disk is believed because it is there: a version is adopted if
the journal knows it, and its bytes have the digests that were announced.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType

from milepost.clock import Clock
from milepost.errors import ConflictError, CorruptError
from milepost.service.core.catalogue import Catalogue
from milepost.service.core.records import Commit, Entry, Weights
from milepost.service.core.service import begin
from milepost.service.endpoint import SERVICE
from milepost.service.index import INDEX_NAME, Index, blob_of
from milepost.service.journal import Journal
from milepost.service.owners import claim, owner_of, reap, take
from milepost.service.snapshots import BELOW, restore
from milepost.service.tiers.disk import DiskTier
from milepost.service.tiers.memory import MemoryTier
from milepost.service.transports.host import SHARED
from milepost.store.base import Store
from milepost.store.local import LocalStore
from milepost.store.posix import Posix

JOURNAL = "journal.sqlite3"
RESTORED_TERMS = 1_000
"""How many terms are passed over after a journal of yesterday was taken: those that have begun since it was written."""
_LOOKERS = 4


@dataclass(frozen=True, slots=True)
class Found:
    """Say which versions lie where, whole; and in which places something lies that is no version, or a damaged one."""

    memory: frozenset[Commit] = frozenset()
    disk: frozenset[Commit] = frozenset()
    memory_orphans: tuple[str, ...] = ()
    disk_orphans: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Of the orphans on disk, those that are whole versions, of which the journal has never heard."""


@dataclass(slots=True)
class Opened:
    """Be all that a service needs to begin. Leaving its context gives root, journal and memory up; versions in memory stay.

    ``entries`` end with the `Began` of this service, which is written down. So the core is
    ``Service(settings, opened.entries, opened.found.memory, opened.run_id)``.
    """

    root: str
    run_id: str
    store: Store
    """Of the directory ``service/``: for ``endpoint.json``, ``token``, snapshots."""
    journal: Journal
    entries: list[Entry]
    memory: MemoryTier
    disk: DiskTier
    found: Found
    restored: str = ""
    """The snapshot that the journal was restored from, if it was."""
    reaped: tuple[str, ...] = ()
    was_live: Commit | None = None
    """What was live before this service began."""
    _held: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """Give all of it up. A second call does nothing."""
        self._held.close()

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_service(
    root: str,
    clock: Clock,
    *,
    run_id: str = "",
    memory_base: str = SHARED,
    journal_directory: str = "",
    disk: Store | None = None,
    wait_s: float = 0.0,
    restored: bool = False,
    posix: Posix | None = None,
) -> Opened:
    """Begin a service on the run root ``root``, a directory of a file system, which need not exist yet.

    ``disk`` is where durable versions go, if not below ``root``; ``journal_directory`` holds the journal where ``root`` is on a
    network; ``restored`` goes back to the newest snapshot of the journal first. ``run_id`` is for a root without a journal.

    Raises `ConflictError` (kind ``held``) that names the service which has the root; what `Journal` raises; `CorruptError` (kind
    ``journal-gone``) where there are versions or snapshots and no journal: they are never swept then; `ConflictError` (kind
    ``not-ours``) where ``disk`` has those of another root; `StoreError`.
    """
    posix = posix or Posix()
    with ExitStack() as held:
        store = LocalStore(os.path.join(root, SERVICE), clock, posix=posix)
        _guard(held, store, wait_s, root)
        tier = DiskTier(disk or store)
        path = _journal_path(store, journal_directory)
        snapshot = restore(store, path, clock) if restored else ""
        sizes = tier.sizes()
        is_known = os.path.lexists(path)
        if not is_known:
            _refuse_gone(path, store, sizes)
        journal = held.enter_context(Journal(path, clock, run_id))
        entries = journal.entries()
        if not entries:
            _refuse_gone(path, store, sizes)
        owner = owner_of(journal.run_id, store.root, path, journal.id)
        claim(tier.store, owner)
        memory = MemoryTier(os.path.join(memory_base, owner.directory_name), posix)
        held.callback(take(memory, owner, posix).unlock)
        reaped = reap(memory_base, owner, posix)
        catalogue = Catalogue(entries)
        found = adopt(catalogue, memory, tier, sizes)
        sweep(found, memory, tier, keep=found.unknown if restored else ())
        for each in (store, tier.store):
            _sweep_temporaries(each)
        _write_began(journal, entries, found, restored=restored)
        began_from = (tuple(reaped), catalogue.live, held.pop_all())
        return Opened(root, journal.run_id, store, journal, entries, memory, tier, found, snapshot, *began_from)


def _write_began(journal: Journal, entries: list[Entry], found: Found, *, restored: bool) -> None:
    began = begin(entries, found.memory, found.disk)
    if restored:
        began = replace(began, term=began.term + RESTORED_TERMS)
    journal.append([began])
    entries.append(began)


def adopt(
    catalogue: Catalogue, memory: MemoryTier, disk: DiskTier, sizes: Mapping[str, Mapping[str, int]] | None = None
) -> Found:
    """Find out which versions lie in memory and on disk, whole. Changes nothing.

    What lies in memory is read and compared with its digests: whoever maps it gets it unread. Of what lies on disk the record is
    read, and the sizes are compared (``sizes``: `DiskTier.sizes`, if it is known): its contents are compared when they are read.
    """
    in_memory, memory_orphans = _adopt_memory(catalogue, memory)
    on_disk, disk_orphans, unknown = _adopt_disk(catalogue, disk, disk.sizes() if sizes is None else sizes)
    return Found(frozenset(in_memory), frozenset(on_disk), tuple(memory_orphans), tuple(disk_orphans), tuple(unknown))


def sweep(found: Found, memory: MemoryTier, disk: DiskTier, *, keep: Collection[str] = ()) -> None:
    """Remove what is no version, or a damaged one."""
    for place in found.memory_orphans:
        memory.erase(place)
    for place in found.disk_orphans:
        if place in keep:
            text = "the restored journal does not know the version in %s; it is kept until the next start, and then swept"
            logging.getLogger("milepost").warning(text, place)
        else:
            disk.erase(place)


def _adopt_memory(catalogue: Catalogue, memory: MemoryTier) -> tuple[list[Commit], list[str]]:
    found: list[Commit] = []
    orphans: list[str] = []
    with ThreadPoolExecutor(_LOOKERS, thread_name_prefix="milepost-adopt") as lookers:
        for place, weights in zip(
            places := memory.places(), lookers.map(lambda place: _whole_in_memory(catalogue, memory, place), places), strict=True
        ):
            if weights is None:
                orphans.append(place)
            else:
                found.append(weights.at)
    return found, orphans


def _whole_in_memory(catalogue: Catalogue, memory: MemoryTier, place: str) -> Weights | None:
    try:
        index = memory.index(place)
    except CorruptError:
        return None
    weights = _known(catalogue, index, place)
    if index is None or weights is None:
        return None
    wrong = memory.verify(index)
    for slot, chunks in wrong.items():
        text = "version %s in memory is damaged, and is given up there: %s of %s, chunks %s"
        logging.getLogger("milepost").warning(text, weights.at, slot, place, chunks)
    return None if wrong else weights


def _adopt_disk(
    catalogue: Catalogue, disk: DiskTier, sizes: Mapping[str, Mapping[str, int]]
) -> tuple[list[Commit], list[str], list[str]]:
    found: list[Commit] = []
    orphans: list[str] = []
    unknown: list[str] = []
    for place, blobs in sorted(sizes.items()):
        index = _whole_on_disk(disk, place, blobs)
        weights = _known(catalogue, index, place)
        if weights is not None:
            found.append(weights.at)
            continue
        orphans.append(place)
        if index is not None:
            unknown.append(place)
    return found, orphans, unknown


def _whole_on_disk(disk: DiskTier, place: str, blobs: Mapping[str, int]) -> Index | None:
    if INDEX_NAME not in blobs:
        return None
    try:
        index = disk.index(place)
    except CorruptError as error:
        logging.getLogger("milepost").warning("a version on disk is given up: %s", error)
        return None
    if index is None or any(blobs.get(blob_of(slot)) != chunks.size_bytes for slot, chunks in index.chunks.items()):
        return None
    return index


def _known(catalogue: Catalogue, index: Index | None, place: str) -> Weights | None:
    """Return the version that an index is of; None if it is of none, or says otherwise what that is."""
    if index is None or index.place != place:
        return None
    weights = catalogue.committed(index.component, index.key)
    return weights if weights is not None and weights.shards == index.shards else None


def _guard(held: ExitStack, store: LocalStore, wait_s: float, root: str) -> None:
    try:
        held.enter_context(store.guard(wait_s=wait_s, take_over=False))
    except ConflictError as error:
        if error.kind != "held":
            raise
        pid = error.facts.get("pid")
        hint = f"ask it (milepost status {root}), or end it{f' (kill {pid})' if pid else ''}"
        raise ConflictError("another service has this root", kind="held", hint=hint, **error.facts) from error


def _journal_path(store: LocalStore, directory: str) -> str:
    if not directory:
        return os.path.join(store.root, JOURNAL)
    from milepost.encode.digest import xxh3

    # Two roots may share the directory, and never a journal.
    return os.path.join(os.path.abspath(directory), f"journal-{xxh3(os.path.realpath(store.root).encode())[:16]}.sqlite3")


def _refuse_gone(path: str, store: Store, sizes: Mapping[str, Mapping[str, int]]) -> None:
    """Refuse to begin without a journal where there are versions, or copies of it: none of them would be of the new one.

    The versions would be swept, as none is known; and of the copies the old ones would stay, which have more entries.
    """
    versions = [place for place, blobs in sizes.items() if INDEX_NAME in blobs]
    copies = [*store.list(BELOW)]
    if versions or copies:
        raise CorruptError(
            "the journal that was here is gone, and nothing else says what the versions are",
            kind="journal-gone",
            hint="milepost serve --restore goes back to its newest snapshot; was it kept elsewhere: --journal DIR",
            path=path,
            versions=len(versions),
            snapshots=len(copies),
        )


def _sweep_temporaries(store: Store) -> None:
    """Remove what killed writes of whole names have left (`LocalStore.create`); nobody else writes while the guard is held."""
    for entry in store.list("blobs/"):
        if entry.name.endswith(".tmp"):
            store.delete(entry.name)
