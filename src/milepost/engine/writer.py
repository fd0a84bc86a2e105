"""Write one generation. `write` is the story of a save after training has gone on; each line of it is one layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from milepost.engine.capture import Staged
from milepost.engine.events import milliseconds
from milepost.engine.placing import FULL, Placed, place
from milepost.engine.session import Order, Session
from milepost.errors import InternalError, StoreError, UsageError
from milepost.publish import layout
from milepost.publish.generation import KeepRule, publish
from milepost.publish.pointer import note_progress, point_at
from milepost.publish.retire import retire
from milepost.publish.signed import as_stored
from milepost.records import FORMAT_VERSION, BlobRecord, ComponentRecord, Manifest


def write(session: Session, staged: Staged, order: Order, keep: KeepRule) -> Manifest:
    """Write what was staged as a new generation and publish it. What it drops is for `retire_dropped`, once it is acknowledged.

    Whatever stops this before `publish` leaves nothing but unnamed blobs, which the next claimer sweeps. Raises
    `StoreError` or `ConflictError`; the generations that were published stay as they were.
    """
    watch = _Watch(session)
    _note_progress(session, order)
    distrust_what_is_gone(session)
    placed = Placed([])
    try:
        place(session, staged, order, placed)
    except StoreError:
        discard(session, placed.tried)
        raise
    watch.lap("write")
    draft = _describe(session, placed, order)
    # The manifest comes last: from its creation on the generation exists, with everything it names already durable.
    try:
        manifest = _commit(session, draft, keep)
    except (StoreError, UsageError):  # the latter: its manifest would be too large to be read
        if draft.write_id not in session.chain.tried:
            # No manifest was even tried, so none names these blobs: on a full disk they would only be in the way.
            discard(session, placed.fresh)
        raise
    watch.lap("publish")
    # Nothing of the base was touched so far. Only now that its successor counts may its generation be retired: that is left
    # for later, since nobody should have to wait for it.
    session.base = manifest
    settle_logs(staged, manifest)
    _tell(session, manifest, staged, placed, order, watch)
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


def settle_logs(staged: Staged, manifest: Manifest) -> None:
    """Tell the logs that they are saved. Only now: a log that was told of a save which then failed would leave out rows ▲."""
    for component, mark, _ in staged.logs:
        record = manifest.component(component)
        assert record is not None
        mark.settle(record.leaves, record.tree)


def _describe(session: Session, placed: Placed, order: Order) -> Manifest:
    components: list[ComponentRecord] = []
    for content in placed.contents:
        records = tuple(record for record in content.records if record is not None)
        if len(records) < len(content.records):
            raise InternalError("a leaf was neither written nor shared", kind="lost-leaf", component=content.name)
        exactness, reason = order.exactness.get(content.name, ("exact", ""))
        components.append(ComponentRecord(content.name, content.tree, records, exactness, reason))
    return draft_of(session, order, placed.blobs, components, placed.nonfinite)


def draft_of(
    session: Session,
    order: Order,
    blobs: Sequence[BlobRecord],
    components: Sequence[ComponentRecord],
    nonfinite: Sequence[str],
) -> Manifest:
    """Return the manifest of content that is durable, but for what `milepost.publish.generation.publish` fills in."""
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
        blobs=tuple(blobs),
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
    manifest = publish_stored(session, draft, keep)
    retire_dropped(session)
    return manifest


def publish_stored(session: Session, draft: Manifest, keep: KeepRule) -> Manifest:
    """Publish content that is stored already, and leave it to `retire_dropped` to delete what ``keep`` drops."""
    fresh = dataclasses.replace(draft, write_id=session.clock.nonce(), provenance=session.provenance)
    manifest = _commit(session, fresh, keep)
    session.events.write("published", generation=manifest.number, step=manifest.step, reason=manifest.reason)
    return manifest


def _commit(session: Session, draft: Manifest, keep: KeepRule) -> Manifest:
    manifest = publish(session.store, session.chain, draft, keep, session.clock.wall_ns())
    data = as_stored(session.store, layout.manifest(manifest.number), session.chain.newest_bytes)
    session.chain.newest_bytes = b""
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


def _tell(session: Session, manifest: Manifest, staged: Staged, placed: Placed, order: Order, watch: _Watch) -> None:
    tally = placed.tally
    session.events.write(
        "published",
        generation=manifest.number,
        step=manifest.step,
        reason=order.reason,
        healthy=manifest.healthy,
        complete=manifest.complete,
        new_bytes=manifest.new_bytes,
        total_bytes=manifest.total_bytes,
        waves=staged.wave_count,
        rows_added=sum(entry.rows_added for entry in staged.logs),
        doubts=[f"{entry.component}: {entry.mark.doubt}" for entry in staged.logs if entry.mark.doubt],
        **dataclasses.asdict(tally),
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
