"""Tell what a power cut takes from what damage does, in the few files that are never synced because nothing stands on them.

``LATEST`` and the event logs are hints and stories, the lock file a name for people: a sync for each would make every save
wait for nothing. So a power cut may leave them empty, cut off, or zeros where bytes never reached the disk. An operator who is
told "damaged" would look for a bad disk.
"""

from __future__ import annotations

from milepost.encode.digest import unseal
from milepost.errors import CorruptError, NotFoundError
from milepost.publish import layout
from milepost.store.base import Store

TORN = "a power cut took part of it; it is never synced, and no generation stands on it"

_UNSYNCED = frozenset({layout.LATEST, layout.LOCK, layout.SCRUB})
_NEVER_WRITTEN = bytes(16)
"""So many zeros in a row are no text, and not what a flipped bit makes of one."""

_MOST_BLANK = 16
"""How many reads in a row may find no end of a line in a log."""


def is_torn(store: Store, name: str) -> bool:
    """Return whether all that is wrong with a file is what a power cut leaves of one that was never synced.

    Zeros may be anywhere. What is cut off is at the end: there the last line has no newline, unless only its newline is
    another byte, and that is a flipped bit.
    """
    is_log = name.startswith(layout.EVENTS)
    if name not in _UNSYNCED and not is_log:
        return False
    try:
        return _is_torn(store, name, 2 * layout.most_bytes(name), is_log=is_log)
    except (CorruptError, NotFoundError):  # with a key: it is not signed
        return False


def _is_torn(store: Store, name: str, most: int, *, is_log: bool) -> bool:
    position = blank = 0
    while data := store.read(name, position, position + most):
        blank = 0 if b"\n" in data else blank + 1
        # A record is one line and has a largest size; a log has no hole of a terabyte. Else it is somebody's, not a power cut's.
        if blank > _MOST_BLANK or (not is_log and (len(data) == most or data.count(b"\n") > 1)):
            return False
        *lines, tail = data.split(b"\n")
        if not all(_NEVER_WRITTEN in line or (is_log and _is_record(line + b"\n")) for line in lines):
            return False
        if lines and len(data) == most:
            position += most - len(tail)  # it is read again, from its beginning
        elif _NEVER_WRITTEN in tail:
            position += len(data)
        else:
            return len(data) < most and tail[:1] in (b"", b"{") and not _is_record(tail[:-1] + b"\n")
    return True


def _is_record(line: bytes) -> bool:
    try:
        unseal(line, "a record")
    except CorruptError:
        return False
    return True
