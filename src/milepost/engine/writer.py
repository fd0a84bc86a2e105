"""Write one generation. `write` is the story of a save after training has gone on; each line of it is one layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from milepost.encode.blob import Item, write_blob
from milepost.encode.blob import layout as blob_layout
from milepost.encode.digest import digest_of
from milepost.encode.plan import NewLeaf, Plan, plan
from milepost.engine.capture import Staged
from milepost.engine.events import milliseconds
from milepost.engine.session import Order, Session
from milepost.errors import StoreError, UsageError
from milepost.lifecycle.health import is_finite, is_scanned
from milepost.publish import layout
from milepost.publish.generation import KeepRule, publish
from milepost.publish.manifest import encode
from milepost.publish.pointer import note_progress, point_at
from milepost.publish.retire import retire
from milepost.publish.signed import as_stored, is_signing
from milepost.records import FORMAT_VERSION, BlobRecord, ComponentRecord, LeafRecord, Manifest

FULL = frozenset({"disk-full", "quota"})
"""The kinds of `StoreError` that retiring older generations may cure."""


def write(session: Session, staged: Staged, order: Order, keep: KeepRule) -> Manifest:
    """Write what was staged as a new generation and publish it. What it drops is for `retire_dropped`, once it is acknowledged.

    Whatever stops this before `publish` leaves nothing but unnamed blobs, which the next claimer sweeps. Raises
    `StoreError` or `ConflictError`; the generations that were published stay as they were.
    """
    watch = _Watch(session)
    _note_progress(session, order)
    distrust_what_is_gone(session)
    leaves = _digest(staged, strong=is_signing(session.store))
    watch.lap("digest")
    planned = session.plan(leaves, complete=order.complete)
    written = _write_blobs(session, staged, leaves, planned)
    watch.lap("write")
    draft = _describe(session, staged, leaves, written, order)
    watch.lap("health")
    # The manifest comes last: from its creation on the generation exists, with everything it names already durable.
    try:
        manifest = _commit(session, draft, keep)
    except (StoreError, UsageError):  # the latter: its manifest would be too large to be read
        if draft.write_id not in session.chain.tried:
            # No manifest was even tried, so none names these blobs: on a full disk they would only be in the way.
            discard(session, sorted(written.fresh))
        raise
    watch.lap("publish")
    # Nothing of the base was touched so far. Only now that its successor counts may its generation be retired: that is left
    # for later, since nobody should have to wait for it.
    session.base = manifest
    _tell(session, manifest, order, watch)
    return manifest


def _note_progress(session: Session, order: Order) -> None:
    try:
        note_progress(session.store, session.chain, session.clock, attempt=session.provenance.attempt, step=order.step)
    except StoreError as error:
        if error.kind in FULL:
            raise  # where this does not fit, the data does not either: make room first
        # Nothing is decided by it. To refuse the data because its step could not be noted would lose both (B18).
        session.events.write("progress-not-written", step=order.step, error=error.message)


def distrust_what_is_gone(session: Session) -> None:
    """Share nothing with a base whose blobs are not all there any more.

    Somebody may have removed blobs/ under a running trainer. A generation that named what is gone would be acknowledged and
    could not be loaded, and so would each that shares with it, until the last whole one is retired.
    """
    if session.base is None or not session.base.blobs:
        return
    there = {entry.name: entry.size_bytes for entry in session.store.list(layout.BLOBS)}
    gone = sorted(blob.name for blob in session.base.blobs if there.get(blob.name) != blob.size_bytes)
    if gone:
        session.events.write("blobs-gone", generation=session.base.number, blobs=gone)
        session.distrust(*gone)


def new_bytes(session: Session, staged: Staged) -> int:
    """Return how many bytes of leaves a save of ``staged`` has to write: of those that are shared, none."""
    leaves = _digest(staged, strong=is_signing(session.store))
    planned = plan(leaves, session.base)
    return sum(leaves[index].size_bytes for index in (*planned.fresh, *planned.moved))


def _digest(staged: Staged, *, strong: bool) -> list[NewLeaf]:
    # By SHA-256 where the manifest will be signed: a signature over a digest that anyone can forge would say nothing.
    return [
        NewLeaf(component.name, leaf.path, leaf.spec, len(leaf.data), digest_of(leaf.data, strong=strong))
        for component in staged.components
        for leaf in component.leaves
    ]


@dataclass(frozen=True, slots=True)
class _Written:
    """Say where every leaf is: (index into ``blobs``, start, stop) by leaf, shared ones included."""

    blobs: tuple[BlobRecord, ...]
    places: dict[int, tuple[int, int, int]]
    fresh: frozenset[str]
    """The names of those among ``blobs`` that this save wrote."""


def _write_blobs(session: Session, staged: Staged, leaves: Sequence[NewLeaf], planned: Plan) -> _Written:
    data = [leaf.data for component in staged.components for leaf in component.leaves]
    blobs: list[BlobRecord] = []
    places: dict[int, tuple[int, int, int]] = {}
    tried: list[str] = []
    try:
        for part, group in enumerate(_groups(leaves, planned, session.blob_bytes)):
            record, offsets = _write_one(session, part, [leaves[i] for i in group], [data[i] for i in group], tried)
            places.update({index: (len(blobs), *span) for index, span in zip(group, offsets, strict=True)})
            blobs.append(record)
    except StoreError:
        discard(session, tried)
        raise
    fresh = frozenset(blob.name for blob in blobs)
    _share(session, planned, blobs, places)
    return _Written(tuple(blobs), places, fresh)


def _groups(leaves: Sequence[NewLeaf], planned: Plan, blob_bytes: int) -> Iterator[list[int]]:
    """Cut the leaves to write into blobs of at most ``blob_bytes`` (one leaf may be larger), moved ones apart."""
    for indices in (planned.fresh, planned.moved):
        group: list[int] = []
        size = 0
        for index in indices:
            if group and size + leaves[index].size_bytes > blob_bytes:
                yield group
                group, size = [], 0
            group.append(index)
            size += leaves[index].size_bytes
        if group:
            yield group


def _write_one(
    session: Session, part: int, leaves: Sequence[NewLeaf], data: Sequence[memoryview], tried: list[str]
) -> tuple[BlobRecord, tuple[tuple[int, int], ...]]:
    """Write one blob. A file whose fsync failed is condemned: the bytes are written anew under another name, once."""
    items = [Item(leaf.path, leaf.spec.dtype, leaf.spec.shape, leaf.size_bytes) for leaf in leaves]
    placed = blob_layout(items, {"milepost_run": session.run_id, "milepost_generation": str(session.chain.next)})
    for last_try in (False, True):
        name = layout.blob(session.chain.next, session.chain.term, session.clock.nonce(), part)
        tried.append(name)
        try:
            with session.store.open_blob(name) as sink:
                known = [leaf.digest for leaf in leaves]
                written = write_blob(sink, placed, data, known, strong=is_signing(session.store))
                sink.commit()
            break
        except StoreError as error:
            if last_try or error.kind in FULL:
                raise
    return BlobRecord(name, written.size_bytes, written.digest), placed.offsets


def _share(session: Session, planned: Plan, blobs: list[BlobRecord], places: dict[int, tuple[int, int, int]]) -> None:
    if session.base is None:
        return
    index_of: dict[int, int] = {}
    for leaf, record in planned.shared.items():
        if record.blob not in index_of:
            index_of[record.blob] = len(blobs)
            blobs.append(session.base.blobs[record.blob])
        places[leaf] = (index_of[record.blob], record.start, record.stop)


def _describe(session: Session, staged: Staged, leaves: Sequence[NewLeaf], written: _Written, order: Order) -> Manifest:
    components: list[ComponentRecord] = []
    nonfinite: list[str] = []
    index = 0
    for component in staged.components:
        records: list[LeafRecord] = []
        for leaf in component.leaves:
            blob, start, stop = written.places[index]
            records.append(
                LeafRecord(leaf.path, leaf.spec.kind, leaf.spec.dtype, leaf.spec.shape, blob, start, stop, leaves[index].digest)
            )
            if is_scanned(component.name) and not is_finite(leaf.spec.dtype, leaf.data):
                nonfinite.append(leaf.path)
            index += 1
        exactness, reason = order.exactness.get(component.name, ("exact", ""))
        components.append(ComponentRecord(component.name, component.tree, tuple(records), exactness, reason))
    return Manifest(
        format_version=FORMAT_VERSION,
        run_id=session.run_id,
        number=0,
        term=session.chain.term,
        write_id=session.clock.nonce(),
        parent=0,
        keep=(),
        rollback_to=None,
        term_head=session.chain.term_head,
        term_next=session.chain.term_next,
        step=order.step,
        commit_timestamp=0,
        blobs=written.blobs,
        complete=order.complete,
        healthy=not nonfinite,
        nonfinite=tuple(nonfinite),
        metrics=order.metrics,
        best_by=session.keep.by or "",
        best_mode=session.keep.mode,
        reason=order.reason,
        elapsed_s=order.elapsed_s.hex(),
        counters=order.counters,
        provenance=session.provenance,
        components=tuple(components),
        fingerprint=session.fingerprint,
    )


def republish(session: Session, draft: Manifest, keep: KeepRule) -> Manifest:
    """Publish content that is stored already, as a new generation: for a trim or a rollback. Retires what ``keep`` drops."""
    fresh = dataclasses.replace(draft, write_id=session.clock.nonce(), provenance=session.provenance)
    manifest = _commit(session, fresh, keep)
    session.events.write("published", generation=manifest.number, step=manifest.step, reason=manifest.reason)
    retire_dropped(session)
    return manifest


def _commit(session: Session, draft: Manifest, keep: KeepRule) -> Manifest:
    manifest = publish(session.store, session.chain, draft, keep, session.clock.wall_ns())
    data = as_stored(session.store, layout.manifest(manifest.number), encode(manifest))
    session.manifest_bytes = len(data)
    try:
        point_at(session.store, session.chain, manifest, data)
    except StoreError as error:
        # The save counts: LATEST is a hint, and pollers list as well.
        session.events.write("latest-not-written", generation=manifest.number, error=error.message)
    return manifest


def retire_dropped(session: Session) -> None:
    """Delete what the newest manifest dropped. A disk that fails at this is told, and tried again after the next save."""
    watch = _Watch(session)
    try:
        retired = retire(session.store, session.chain)
    except StoreError as error:
        session.events.write("retire-failed", error=error.message)
        return
    if retired.generations or retired.blobs:
        watch.lap("retire")
        session.events.write(
            "retired",
            generations=retired.generations,
            blobs=len(retired.blobs),
            milliseconds=milliseconds(watch.phases_ns),
        )


def discard(session: Session, names: Sequence[str]) -> None:
    """Delete blobs of a save that no manifest ever named. What cannot be deleted is swept by the next claimer."""
    for name in names:
        if name in session.chain.attempted:
            continue
        try:
            session.store.delete(name)
        except StoreError as error:
            session.events.write("discard-failed", blob=name, error=error.message)


def _tell(session: Session, manifest: Manifest, order: Order, watch: _Watch) -> None:
    session.events.write(
        "published",
        generation=manifest.number,
        step=manifest.step,
        reason=order.reason,
        healthy=manifest.healthy,
        complete=manifest.complete,
        new_bytes=manifest.new_bytes,
        total_bytes=manifest.total_bytes,
        milliseconds=milliseconds(watch.phases_ns),
    )


class _Watch:
    """Time the phases of one save."""

    def __init__(self, session: Session) -> None:
        self._clock = session.clock
        self._last = session.clock.monotonic_ns()
        self.phases_ns: dict[str, int] = {}

    def lap(self, phase: str) -> None:
        now = self._clock.monotonic_ns()
        self.phases_ns[phase] = now - self._last
        self._last = now
