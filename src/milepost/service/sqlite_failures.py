"""Say what an error of SQLite means."""

from __future__ import annotations

import sqlite3

from milepost.errors import StoreError

_FULL = "free some space: the service's journal needs a little"
_SICK = "the disk failed, or a quota is used up: see dmesg and quota -s"
_MEANINGS: dict[str, tuple[str, bool, str]] = {
    "SQLITE_FULL": ("disk-full", False, _FULL),
    "SQLITE_IOERR_SHMSIZE": ("disk-full", False, _FULL),
    "SQLITE_READONLY": (
        "read-only",
        False,
        "check owner and mode of service/ (ls -ld), and whether its disk is mounted read-only",
    ),
    "SQLITE_CANTOPEN": ("permission", False, "check owner and mode of service/ and of the journal in it (ls -la)"),
    "SQLITE_PERM": ("permission", False, "check owner and mode of service/ and of the journal in it (ls -la)"),
    "SQLITE_BUSY": ("busy", True, "another process writes to it: find it (fuser), and end it"),
    "SQLITE_LOCKED": ("busy", True, "another process writes to it: find it (fuser), and end it"),
    "SQLITE_IOERR": ("io", False, _SICK),
}


def said_by(error: sqlite3.Error) -> str:
    """Return SQLite's name for an error, without what it says more exactly; empty for an error of Python's module."""
    name = _name_of(error)
    return "_".join(name.split("_")[:2])


def sqlite_error(error: sqlite3.Error, operation: str, path: str) -> StoreError:
    """Return what an error of SQLite is to us."""
    kind, retryable, hint = _MEANINGS.get(_name_of(error)) or _MEANINGS.get(said_by(error)) or ("sqlite", False, _SICK)
    return StoreError(
        f"could not {operation} the service's journal: {error}",
        kind=kind,
        retryable=retryable,
        hint=hint,
        path=path,
        sqlite=_name_of(error) or None,
    )


def doubtful(error: sqlite3.Error) -> bool:
    """Say whether a transaction whose end failed so may be there all the same.

    It counts once its last page is in the log, whole. A write that failed has not written that; a sync that failed may have, and
    what comes after the sync comes after it.
    """
    return _name_of(error) not in ("SQLITE_FULL", "SQLITE_BUSY", "SQLITE_IOERR_WRITE")


def _name_of(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", "") or ""
