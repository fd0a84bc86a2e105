"""Read the two hints beside the truth. Nothing is decided by them but a doubt: what they name and is not there was lost."""

from __future__ import annotations

from milepost.errors import CorruptError, NotFoundError
from milepost.publish import layout
from milepost.publish.manifest import decode
from milepost.records import Latest, Progress
from milepost.store.base import Store


def read_progress(store: Store) -> Progress | None:
    """Return the step a save was last begun at, or None if that was never written or cannot be read."""
    try:
        return decode(store.read(layout.PROGRESS), Progress, layout.PROGRESS)
    except (NotFoundError, CorruptError):
        return None


def read_latest(store: Store) -> Latest | None:
    """Return what ``LATEST`` says, or None if it is not there or cannot be read: it is a hint."""
    try:
        return decode(store.read(layout.LATEST), Latest, layout.LATEST)
    except (NotFoundError, CorruptError):
        return None


def newest_named(store: Store, run_id: str) -> int:
    """Return the number that ``LATEST`` names, if it is this run's; else 0."""
    latest = read_latest(store)
    return latest.generation if latest is not None and latest.run_id == run_id else 0
