"""Check every sealed record of a run root that is not a manifest, and the ballast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from milepost.encode.digest import unseal
from milepost.errors import CorruptError, NotFoundError
from milepost.lifecycle.torn import is_torn
from milepost.publish import layout
from milepost.publish.hints import is_foreign
from milepost.publish.manifest import read_record
from milepost.store.base import Store

GONE = "it is gone"
_PIECE_BYTES = 1 << 20
_MOST_BALLAST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Records:
    """Say how the records are."""

    damaged: tuple[tuple[str, str], ...] = ()
    """Name and problem of each that is not as it was written."""
    torn: tuple[str, ...] = ()
    """Names of those that are never synced and of which a power cut took a part."""


def check_records(store: Store, count: Callable[[int], None]) -> Records:
    """Read every record; ``count`` is called with the bytes read."""
    damaged: list[tuple[str, str]] = []
    torn: list[str] = []
    names = [entry.name for directory in layout.DIRECTORIES for entry in store.list(directory)]
    singles = [layout.RUN, layout.LATEST, layout.PROGRESS, layout.LOCK, layout.LEASE, layout.BALLAST, layout.SCRUB]
    # What has another name is not milepost's, and not its to judge: a file server's leavings, a note somebody put there.
    for name in (*singles, *filter(layout.is_other_record, names)):
        problem = _problem(store, name, count) and _problem_on_the_medium(store, name)
        if problem and is_torn(store, name):
            torn.append(name)
        elif problem:
            damaged.append((name, problem))
    return Records(tuple(damaged), tuple(torn))


def _problem_on_the_medium(store: Store, name: str) -> str | None:
    """Read once more what looks damaged, before it is believed: a flaky read is not damage."""
    store.drop_cached(name)
    return _problem(store, name, lambda _: None)


def _problem(store: Store, name: str, count: Callable[[int], None]) -> str | None:
    try:
        return _record_problem(store, name, count)
    except NotFoundError:
        return GONE if name == layout.RUN else None
    except CorruptError as error:  # or, with a key: it is not signed
        return error.message


def _record_problem(store: Store, name: str, count: Callable[[int], None]) -> str | None:
    if name == layout.BALLAST:
        return _ballast_problem(store, count)
    if name.startswith(layout.EVENTS):
        return _log_problem(store, name, count)
    data = read_record(store, name)
    count(len(data))
    if name in (layout.LATEST, layout.PROGRESS) and is_foreign(data):
        return "it is not milepost's, or damaged beyond recognition; the next save gives it another name"
    if data or name != layout.LOCK:
        unseal(data, name)
    return None


def _ballast_problem(store: Store, count: Callable[[int], None]) -> str | None:
    piece, position = memoryview(bytearray(_PIECE_BYTES)), 0
    while got := store.read_into(layout.BALLAST, position, piece):
        count(got)
        position += got
        if bytes(piece[:got]).strip(b"\0"):
            return "it is not all zeros"
        if position > _MOST_BALLAST_BYTES:
            return "it is larger than any that is held"
    return None


def _log_problem(store: Store, name: str, count: Callable[[int], None]) -> str | None:
    """Check an event log line by line, however long it is: it is never held whole."""
    number, position = 0, 0
    while data := store.read(name, position, position + 2 * layout.MOST_RECORD_BYTES):
        # What is cut off at the end is read again, from its beginning. If there is nothing else, it is too long for a line.
        whole = data[: data.rfind(b"\n") + 1] or data
        for line in whole.splitlines(keepends=True):
            number += 1
            try:
                unseal(line, name)
            except CorruptError as error:
                return f"line {number}: {error.message}"
        count(len(whole))
        position += len(whole)
    return None
