"""Read the two hints beside the truth. Nothing is decided by them but a doubt: what they name and is not there was lost."""

from __future__ import annotations

import re

from milepost.errors import CorruptError, NotFoundError, StoreError
from milepost.publish import layout
from milepost.publish.manifest import load_record
from milepost.records import Latest, Progress
from milepost.store.base import Store

ENOUGH_BYTES = 4096
"""A hint of milepost's is far smaller; of something larger no more needs to be seen."""
_BEGINS = re.compile(rb'\{"run_id":"[0-9a-f]{32}","(generation|term)":')


def read_progress(store: Store) -> Progress | None:
    """Return the step a save was last begun at, or None if that was never written or cannot be read."""
    try:
        return load_record(store, layout.PROGRESS, Progress)
    except (NotFoundError, CorruptError):
        return None


def read_latest(store: Store) -> Latest | None:
    """Return what ``LATEST`` says, or None if it is not there or cannot be read: it is a hint."""
    try:
        return load_record(store, layout.LATEST, Latest)
    except (NotFoundError, CorruptError):
        return None


def is_foreign(data: bytes) -> bool:
    """Return whether a file under a hint's name is somebody else's, by its first bytes.

    Milepost's own shows it in more than one place, so that it is known though a bit of it has changed, or its end is gone. A
    power cut leaves an empty one, or zeros: no more of them than it had bytes.
    """
    ours = (b'"manifest_digest":"', b'"written_at":"', b',"digest":"sha256:')
    is_ours = any(mark in data for mark in ours) or _BEGINS.match(data) is not None
    return (bool(data.strip(b"\0 \t\r\n")) or len(data) >= ENOUGH_BYTES) and not is_ours


def newest_named(store: Store, run_id: str) -> int:
    """Return the number that ``LATEST`` names, if it is this run's; else 0."""
    latest = read_latest(store)
    return latest.generation if latest is not None and latest.run_id == run_id else 0


def check_listing(store: Store, lost: int) -> None:
    """Refuse a listing that lags: ``lost``, which ``LATEST`` tells of, is not in it, but is there by its name (0: none).

    A network file system may serve a listing of a minute ago. Who settled by it would make void what a writer on another
    machine has acknowledged since; ``LATEST`` was written before that.
    """
    if not lost:
        return
    try:
        store.read(layout.manifest(lost), 0, 0)
    except NotFoundError:
        return
    raise listing_lags(store, layout.manifest(lost))


def listing_lags(store: Store, name: str) -> StoreError:
    """Say that a name is there and not listed."""
    return StoreError(
        "what is there is not all listed yet, and nothing may be decided by such a listing",
        kind="listing-lags",
        retryable=True,
        hint="try again in a minute; NFS is to be mounted without nocto: milepost doctor fs says how it is",
        root=store.url,
        not_listed=name,
    )
