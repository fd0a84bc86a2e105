"""Set a run aside so that the next start is a clean one, in steps that any later process can finish.

Terms and numbers go on from where the old run stopped. A writer of the old run that sleeps through the reset may wake in
the middle of deleting what it had retired: the names it deletes must never be used again. See docs/decisions.
"""

from __future__ import annotations

from contextlib import suppress

from milepost.clock import Clock, utc_text
from milepost.errors import ConflictError, CorruptError, NotFoundError
from milepost.publish import layout
from milepost.publish.manifest import decode, encode
from milepost.publish.term import Identity, claim
from milepost.publish.view import read_run
from milepost.records import FORMAT_VERSION, ResetRecord, RunRecord
from milepost.store.base import Store


def reset(store: Store, clock: Clock, who: Identity) -> ResetRecord:
    """Move the run to ``reset/<run id>/`` within its root, which is then a run root of its own; return where it went.

    The caller holds the store's guard. Raises `NotFoundError` if there is no run.
    """
    check_is_run(store)
    interrupted = finish_interrupted(store)
    if interrupted is not None:
        return interrupted
    # The claim fences whoever trains this run: from now on it acknowledges nothing.
    claimed = claim(store, clock, who)
    record = ResetRecord(
        claimed.run.run_id,
        clock.nonce() + clock.nonce(),
        f"{layout.ASIDE}{claimed.run.run_id}/",
        first_term=claimed.term + 1,
        first_number=claimed.settlement.next,
        at=utc_text(clock.wall_ns()),
    )
    store.create(layout.RESET, encode(record), label=claimed.label)
    _finish(store, record)
    return record


def check_is_run(store: Store) -> None:
    """Raise `NotFoundError` if there is no run here, nor a reset of one to finish. Changes nothing."""
    if read_run(store) is None and not _exists(store, layout.RESET):
        raise NotFoundError("there is no milepost run here", kind="no-such-run", hint="check the path", root=store.url)


def finish_interrupted(store: Store) -> ResetRecord | None:
    """Finish a reset that was killed half-way, and return its record; None if there is none to finish."""
    try:
        data = store.read(layout.RESET)
    except NotFoundError:
        return None
    try:
        record = decode(data, ResetRecord, layout.RESET)
    except CorruptError as error:
        raise CorruptError(
            "a reset was interrupted, and its record cannot be read",
            kind="damaged-record",
            hint="move milepost's files out of the directory by hand, and start again",
            root=store.url,
            name=layout.RESET,
        ) from error
    _finish(store, record)
    return record


def _finish(store: Store, record: ResetRecord) -> None:
    """Move every name, then name the new run, then drop the intent. Every step may have been done before."""
    if not _is_new(store, record):
        _move_all(store, record)
        _name_new_run(store, record)
    store.delete(layout.RESET)
    store.sync("")


def _is_new(store: Store, record: ResetRecord) -> bool:
    try:
        return decode(store.read(layout.RUN), RunRecord, layout.RUN).run_id == record.new_run_id
    except (NotFoundError, CorruptError):
        return False


def _move_all(store: Store, record: ResetRecord) -> None:
    # milepost.json first: a writer looks at the terms and then at milepost.json before it acknowledges. If it misses our
    # fence because that has moved already, it finds no milepost.json, or another run's.
    _move_run_record(store, record)
    names = [name for name in layout.FILES if name != layout.RUN and _exists(store, name)]
    names += [entry.name for directory in layout.DIRECTORIES for entry in store.list(directory)]
    if _is_new(store, record):
        # We slept, another process finished this reset, and what we have listed may be the new run's. Asked after the
        # listing: if the new run is not there yet, then all that is listed is older, and those names come never again.
        return
    for name in names:
        _set_aside(store, name, record.to + name)
    for directory in layout.DIRECTORIES:
        store.sync(directory)
        store.sync(record.to + directory)
    store.sync(record.to)
    store.sync("")


def _set_aside(store: Store, name: str, to: str) -> None:
    try:
        store.move(name, to)
    except NotFoundError:
        return  # a writer of the old run, in the middle of deleting what it had retired, was faster
    except ConflictError:
        # A writer of the old run that knows nothing of the reset has written a name again that was moved already: LATEST,
        # an event, a manifest whose create it repeats. What was set aside first stays, else this reset never ends.
        store.delete(name)


def _move_run_record(store: Store, record: ResetRecord) -> None:
    try:
        run = decode(store.read(layout.RUN), RunRecord, layout.RUN)
    except NotFoundError:
        return
    except CorruptError:
        run = None
    if run is None or run.run_id == record.run_id:
        # Taken: another process that finishes the same reset was faster, and the name may be the new run's by now.
        with suppress(ConflictError):
            store.move(layout.RUN, record.to + layout.RUN)
        store.sync("")


def _exists(store: Store, name: str) -> bool:
    try:
        store.read(name, 0, 0)
    except NotFoundError:
        return False
    return True


def _name_new_run(store: Store, record: ResetRecord) -> None:
    new = encode(RunRecord(FORMAT_VERSION, record.new_run_id, record.at, record.first_term, record.first_number))
    while not store.create(layout.RUN, new):
        # Somebody who knew nothing of the reset made a run in the gap; it has refused to go on. Its record gives way.
        current = store.read(layout.RUN)
        if current == new or store.replace_if(layout.RUN, current, new):
            return
