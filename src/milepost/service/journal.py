"""Keep what the service has written down: one row an entry, in an SQLite file, durable when `Journal.append` returns.

Rows are only added. Each carries a digest of itself and of the row before it, and the number and digest of the last one are kept
apart: a row that is lost, bent or added is found when the journal is read. Whoever appends compares that last row with what it
has written itself, in the same transaction: of two services on one root only the one that began later gets on.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from threading import Lock
from typing import Any

from milepost.clock import Clock
from milepost.errors import ConflictError, InternalError, MismatchError, StoreError
from milepost.records import Difference
from milepost.service.core.records import Entry
from milepost.service.sqlite_failures import doubtful, said_by, sqlite_error
from milepost.service.wal import lost_transactions
from milepost.service.written import beginning, chained, damaged_journal, entry_of, rows_of
from milepost.store.directories import Directories
from milepost.store.place import place_of
from milepost.store.posix import Posix, failures_of

SCHEMA = 1
"""Of the tables and of what the rows say. A service refuses a journal of a later one."""
APPLICATION = 0x6D706A6C
"""What tells the file from other SQLite files: "mpjl"."""
LOG_BYTES = 4 << 20
"""When the write-ahead log is taken over into the file, and cut off."""
_BUSY_MS = 5_000
_PAGE_BYTES = 4096
_ALL = "SELECT number, CAST(kind AS BLOB), CAST(body AS BLOB), CAST(chain AS BLOB) FROM entries ORDER BY number"
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR", "SQLITE_FORMAT", "SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "")
"""What is said of a damaged file. Of statements that are always the same it can mean nothing else."""

_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE entries (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, body BLOB NOT NULL, chain BLOB NOT NULL);
CREATE TABLE last (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL, chain BLOB NOT NULL);
CREATE TABLE identity (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, run_id TEXT NOT NULL);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {SCHEMA};
"""


class Journal:
    """Be the journal at ``path``, made if there is none. Hold the service's guard before, and use it from one thread at a time.

    ``run_id`` is for a journal that is new; an old one knows its own. Raises `StoreError` (kinds ``no-wal`` on a network file
    system, ``disk-full``, ``permission``, ``read-only``, ``io``), `CorruptError` (kind ``damaged-journal``) and `MismatchError`
    (kind ``format``) for that of a newer milepost, of which nothing is touched.
    """

    def __init__(self, path: str, clock: Clock, run_id: str = "") -> None:
        self.path = path
        self._in_use = Lock()
        self._doubt: StoreError | None = None
        _check_place(path)
        directory = os.path.dirname(path)
        with failures_of("make the directory", directory):
            Directories(directory, Posix()).keep(directory)
        _check_log(path)
        self._connection = _connect(path)
        try:
            with self._failures("open"):
                self._set_up(clock.nonce(), run_id or clock.nonce())
                self.id, self.run_id = self._one("SELECT id, run_id FROM identity")
                self._last = self._read_last()
        except BaseException:
            self._connection.close()
            raise

    def __len__(self) -> int:
        """Return how many entries there are."""
        return self._last[0]

    @property
    def is_in_doubt(self) -> bool:
        """Say whether nobody knows what is written down: the service has to end, and the next one reads what there is."""
        return self._doubt is not None

    def entries(self) -> list[Entry]:
        """Return all entries, in order. Raises `CorruptError` (kind ``damaged-journal``) unless each of them is as written."""
        found: list[Entry] = []
        before = beginning(self.id, self.run_id)
        # As bytes, whatever a bent page says they are. Closed whatever comes: an open question keeps the file open for ever.
        with self._used(), self._failures("read"), closing(self._connection.execute(_ALL)) as rows:
            for number, kind, body, chain in rows:
                if number != len(found) + 1 or chain != chained(before, kind, body):
                    raise damaged_journal(self.path, f"row {number} is not what follows row {len(found)}")
                before = chain
                found.append(self._entry(number, kind, body))
        if (len(found), before) != self._last:
            raise damaged_journal(self.path, f"{len(found)} rows of {self._last[0]}")
        return found

    def append(self, entries: Iterable[Entry]) -> None:
        """Write entries down, all or none, with one sync. They outlive a power cut when it returns.

        Raises `ConflictError` (kind ``fenced``) if another service has written since, and `StoreError`: with ``undone`` it is
        certain that nothing was written. Else nobody knows: `is_in_doubt` is true, and all that follows is refused.
        """
        rows = rows_of(entries, self._last[1])
        if not rows:
            return
        with self._used():
            if self._doubt is not None:
                raise _in_doubt(self.path) from self._doubt
            first = self._last[0] + 1
            last = (self._last[0] + len(rows), rows[-1][2])
            with self._failures("append to", undone=True):
                self._connection.execute("BEGIN IMMEDIATE")
            with self._rolled_back(), self._failures("append to", undone=True):
                self._check_fence()
                numbered = ((first + at, *row) for at, row in enumerate(rows))
                self._connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", numbered)
                self._connection.execute("UPDATE last SET number = ?, chain = ?", last)
            with self._rolled_back(), self._failures("append to"):
                self._connection.execute("COMMIT")
            self._last = last
            self._take_over_log()

    def check_fence(self) -> None:
        """Raise `ConflictError` (kind ``fenced``) if another service has written since."""
        with self._used(), self._failures("read"):
            self._check_fence()

    def copy(self) -> bytes:
        """Return the whole journal as the bytes of a file, for a snapshot."""
        with self._used(), self._failures("copy"):
            return self._connection.serialize()

    def close(self) -> None:
        """Take the log over into the file, and give the file up. Never raises; a second call does nothing."""
        with suppress(sqlite3.Error):
            self._connection.close()  # the last one to close does that

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _set_up(self, new_id: str, run_id: str) -> None:
        """Check that the file is a journal that this milepost knows; make one of an empty file."""
        connection = self._connection
        (application,), (schema,), (tables,) = (
            connection.execute(question).fetchone()
            for question in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        )
        is_new = (application, schema, tables) == (0, 0, 0)
        if not is_new:
            self._check_schema(application, schema)
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise _no_wal(self.path, f"SQLite says {mode}")
        connection.execute("PRAGMA synchronous = FULL")
        if is_new:
            connection.executescript(_TABLES)  # one transaction, which the next lines end: a kill leaves an empty file
            connection.execute("INSERT INTO last VALUES (1, 0, ?)", (beginning(new_id, run_id),))
            connection.execute("INSERT INTO identity VALUES (1, ?, ?)", (new_id, run_id))
            connection.execute("COMMIT")

    def _check_schema(self, application: int, schema: int) -> None:
        if application != APPLICATION or schema < 1:
            raise damaged_journal(self.path, "an SQLite file that is no journal")
        if schema > SCHEMA:
            raise MismatchError(
                "this journal was written by a newer milepost",
                [Difference("journal", f"schema {schema}", f"schema {SCHEMA}", "format")],
                kind="format",
                hint="pip install --upgrade milepost",
                path=self.path,
            )

    def _read_last(self) -> tuple[int, bytes]:
        number, chain = self._one("SELECT number, CAST(chain AS BLOB) FROM last")
        return number, chain

    def _one(self, question: str) -> tuple[Any, Any]:
        row: tuple[Any, Any] | None = self._connection.execute(question).fetchone()
        if row is None:
            raise damaged_journal(self.path, "a row that is always there is gone")
        return row

    def _check_fence(self) -> None:
        if self._read_last() != self._last:
            raise ConflictError(
                "another service has begun on this root, and this one may say nothing more",
                kind="fenced",
                hint="end this one; milepost status says which is current",
                path=self.path,
            )

    def _entry(self, number: int, kind: bytes, body: bytes) -> Entry:
        try:
            return entry_of(kind, body)
        except ValueError as error:  # msgspec's are such, too. Its digest is right: it was written so
            raise damaged_journal(self.path, f"row {number} is no entry: {error}") from error

    def _take_over_log(self) -> None:
        """Bound the log. What was appended is durable already: a disk without room for this fails the next append."""
        try:
            if os.stat(self.path + "-wal").st_size < LOG_BYTES:
                return
            self._connection.execute("PRAGMA busy_timeout = 0")  # who reads it just now is not waited for
            try:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self._connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        except (OSError, sqlite3.Error) as error:
            logging.getLogger("milepost").warning("the journal's log could not be taken over into %s: %s", self.path, error)

    @contextmanager
    def _used(self) -> Iterator[None]:
        if not self._in_use.acquire(blocking=False):
            raise InternalError("two threads use the journal at once", kind="journal-shared", path=self.path)
        try:
            yield
        finally:
            self._in_use.release()

    @contextmanager
    def _rolled_back(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with suppress(sqlite3.Error):  # it may be over already; the first error is the one that counts
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _failures(self, operation: str, *, undone: bool = False) -> Iterator[None]:
        """Turn what SQLite raises inside into an error of ours. An append that was not ``undone`` may leave a doubt."""
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise InternalError("the journal is closed", kind="journal-closed", path=self.path) from error
        except sqlite3.Error as error:
            if said_by(error) in _DAMAGED:
                raise damaged_journal(self.path, str(error)) from error
            failure = sqlite_error(error, operation, self.path)
            if operation == "append to":
                failure.undone = undone or not doubtful(error)
                if not failure.undone:
                    self._doubt = failure
            raise failure from error


def _connect(path: str) -> sqlite3.Connection:
    try:
        return sqlite3.connect(path, isolation_level=None, timeout=_BUSY_MS / 1e3, check_same_thread=False)
    except sqlite3.Error as error:
        raise sqlite_error(error, "open", path) from error


def _check_place(path: str) -> None:
    """Refuse a network file system: the memory that SQLite's log needs between processes does not reach over it."""
    place = place_of(path, Posix())
    if place.kind == "network":
        raise _no_wal(path, f"{place.file_system} at {place.mount_point}")


def _check_log(path: str) -> None:
    """Refuse a log in which something lies that SQLite would pass over without a word."""
    with failures_of("read", path):
        try:
            with open(path + "-wal", "rb") as file:
                log = file.read()
        except FileNotFoundError:
            return
    lost = lost_transactions(log, _PAGE_BYTES)
    if lost > 1:
        raise damaged_journal(path + "-wal", f"{lost} transactions behind a damaged one")


def _no_wal(path: str, found: str) -> StoreError:
    return StoreError(
        "the service's journal cannot be kept on this file system",
        kind="no-wal",
        retryable=False,
        hint="keep it on a disk of this machine: milepost serve --journal DIR",
        path=path,
        found=found,
    )


def _in_doubt(path: str) -> StoreError:
    return StoreError(
        "the disk failed during the last append, and nobody knows whether it is written down",
        kind="journal-in-doubt",
        retryable=False,
        undone=True,
        hint="start the service again: it reads what there is",
        path=path,
    )
