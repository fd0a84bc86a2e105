"""What was appended to the journal is there, all of it, in order and as it was; or whoever reads it is told. C1, C13, C14"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from milepost.clock import FakeClock, SystemClock
from milepost.errors import ConflictError, CorruptError, InternalError, MismatchError, StoreError
from milepost.service import journal as journal_module
from milepost.service.core.catalogue import Catalogue
from milepost.service.core.records import Began, Commit, Entry
from milepost.service.journal import SCHEMA, Journal
from milepost.service.written import chained, entry_of, rows_of
from milepost.store.place import Place
from milepost.testing.faults import KILLED, run_in_child
from tests.at_length import AT_LENGTH, examples
from tests.service.journal.entries import story

clock = SystemClock()


def made(path: Path, entries: list[Entry]) -> Path:
    with Journal(str(path), clock) as journal:
        for entry in entries:
            journal.append([entry])
    return path


def read(path: Path) -> list[Entry]:
    with Journal(str(path), clock) as journal:
        return journal.entries()


def changed(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


@given(entries=st.lists(st.one_of([st.from_type(kind) for kind in get_args(Entry)]), max_size=4))
@settings(max_examples=examples(60, 500))
def test_every_kind_of_entry_is_read_back_as_it_was_written(entries: list[Entry]) -> None:
    assert [entry_of(kind.encode(), body) for kind, body, _ in rows_of(entries, b"")] == entries


def test_a_journal_knows_who_it_is_and_what_was_appended(tmp_path: Path) -> None:
    path, entries = str(tmp_path / "service" / "journal.sqlite3"), story(40)
    with Journal(path, clock, "run-7") as journal:
        name = journal.id
        assert journal.entries() == []
        journal.append(entries[:3])
        journal.append([])
        for entry in entries[3:]:
            journal.append([entry])
        assert (len(journal), journal.run_id) == (40, "run-7")
    with Journal(path, clock, "another") as again:
        assert (again.entries(), again.id, again.run_id) == (entries, name, "run-7")
    assert Catalogue(entries).next_number == 31


def test_of_two_services_on_one_root_only_the_one_that_began_later_gets_on(tmp_path: Path) -> None:
    path = str(made(tmp_path / "journal.sqlite3", story(2)))
    with Journal(path, clock) as first, Journal(path, clock) as second:
        second.append([Began(2, None)])
        with pytest.raises(ConflictError) as caught:
            first.append(story(3)[2:])
        assert caught.value.kind == "fenced"
        second.append([Began(3, None)])
    assert read(Path(path)) == [*story(2), Began(2, None), Began(3, None)]


def test_two_threads_do_not_use_a_journal_at_once(tmp_path: Path) -> None:
    with Journal(str(tmp_path / "journal.sqlite3"), clock) as journal, journal._used(), pytest.raises(InternalError):
        journal.append([Began(1, None)])


@pytest.mark.parametrize(
    "bend",
    [
        "UPDATE entries SET body = replace(body, '\"term\":1', '\"term\":2') WHERE number = 4",
        "UPDATE entries SET kind = 'Stored' WHERE number = 4",
        "UPDATE entries SET chain = zeroblob(32) WHERE number = 20",
        "DELETE FROM entries WHERE number = 7",
        "DELETE FROM entries WHERE number = 20",
        "DELETE FROM entries",
        "INSERT INTO entries SELECT 21, kind, body, chain FROM entries WHERE number = 20",
        "UPDATE entries SET number = 99 WHERE number = 20",
        "UPDATE last SET number = 19",
        "DELETE FROM last",
    ],
)
def test_a_row_that_is_bent_lost_or_added_is_told(tmp_path: Path, bend: str) -> None:
    path = made(tmp_path / "journal.sqlite3", story(20))
    changed(path, bend)
    with pytest.raises(CorruptError) as caught:
        read(path)
    assert caught.value.kind == "damaged-journal"
    assert "milepost serve --restore" in caught.value.hint


def test_a_row_that_was_written_so_and_is_no_entry_is_told(tmp_path: Path) -> None:
    path = made(tmp_path / "journal.sqlite3", story(2))
    _, body, _ = rows_of(story(2), b"")[1]

    with Journal(str(path), clock) as journal:
        chain = chained(journal._last[1], b"Forgotten", body)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("INSERT INTO entries VALUES (3, 'Forgotten', ?, ?)", (body, chain))
    connection.execute("UPDATE last SET number = 3, chain = ?", (chain,))
    connection.close()
    with pytest.raises(CorruptError, match="no entry is called"):
        read(path)


def test_the_journal_of_a_newer_milepost_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = made(tmp_path / "journal.sqlite3", story(5))
    changed(path, f"PRAGMA user_version = {SCHEMA + 1}")
    before = path.read_bytes()
    with pytest.raises(MismatchError) as caught:
        Journal(str(path), clock)
    assert (caught.value.kind, caught.value.exit_code) == ("format", 15)
    assert path.read_bytes() == before


def test_a_file_that_is_no_journal_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    changed(tmp_path / "other.sqlite3", "CREATE TABLE mine (what TEXT)")
    (tmp_path / "text.sqlite3").write_bytes(b"not a database at all, and longer than its header is" * 40)
    for path in (tmp_path / "other.sqlite3", tmp_path / "text.sqlite3"):
        before = path.read_bytes()
        with pytest.raises(CorruptError, match="damaged"):
            Journal(str(path), clock)
        assert path.read_bytes() == before


def test_a_network_file_system_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "place_of", lambda *_: Place("nfs4", "/mnt/runs"))
    with pytest.raises(StoreError) as caught:
        Journal(str(tmp_path / "journal.sqlite3"), clock)
    assert caught.value.kind == "no-wal"
    assert "--journal DIR" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def refused(journal: Journal, entries: list[Entry]) -> StoreError | None:
    try:
        journal.append(entries)
    except StoreError as error:
        return error
    return None


def as_nobody(action: Callable[[], None]) -> None:
    """Run ``action`` as somebody whom the modes of files bind, too."""

    def act() -> None:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        action()

    assert run_in_child(act) == 0


def test_a_directory_that_nobody_may_write_to_is_told(tmp_path: Path) -> None:
    home = Path("/tmp") if os.geteuid() == 0 else tmp_path
    place = home / f"milepost-read-only-{os.getpid()}"
    place.mkdir()
    try:
        made(place / "journal.sqlite3", story(3))
        (place / "journal.sqlite3").chmod(0o444)
        place.chmod(0o555)

        def act() -> None:
            for name in ("journal.sqlite3", "new.sqlite3"):
                with pytest.raises(StoreError) as caught, Journal(str(place / name), clock) as journal:
                    journal.append([Began(2, None)])
                assert caught.value.kind in ("permission", "read-only")
                assert caught.value.exit_code == 12

        as_nobody(act)
    finally:
        shutil.rmtree(place)


def test_a_disk_that_has_no_room_refuses_the_append_and_keeps_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    made(path, story(10))

    def act() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with Journal(str(path), clock) as journal:
            written = 10
            more = story(400)
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            for limit in (40_000, 90_001, 131_072):  # the log ends in the midst of a page, and of its header
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
                while (failure := refused(journal, [more[written]])) is None:
                    written += 1
                assert failure.undone
                assert not journal.is_in_doubt
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
                journal.append([more[written]])
                written += 1
            assert journal.entries() == more[:written]
            (tmp_path / "written").write_text(str(written))
            shutil.copytree(tmp_path, tmp_path.parent / "cut")

    assert run_in_child(act) == 0
    written = int((tmp_path / "written").read_text())
    assert written > 13
    assert read(path) == story(written)
    assert read(tmp_path.parent / "cut" / "journal.sqlite3") == story(written)  # as a kill had left it
    shutil.rmtree(tmp_path.parent / "cut")


def test_a_database_that_is_full_refuses_the_append_as_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    with Journal(str(path), clock) as journal:
        (pages,) = journal._connection.execute("PRAGMA max_page_count = 12").fetchone()
        assert pages == 12
        written, more = 0, story(400)

        def fill() -> None:
            nonlocal written
            while True:
                journal.append([more[written]])
                written += 1

        with pytest.raises(StoreError) as caught:
            fill()
        assert (caught.value.kind, caught.value.exit_code, caught.value.undone) == ("disk-full", 16, True)
        journal._connection.execute("PRAGMA max_page_count = 10000")
        journal.append([more[written]])
    assert read(path) == more[: written + 1]


class Failing:
    """Be a connection whose COMMIT fails, before it is done or after."""

    def __init__(self, inner: sqlite3.Connection, name: str, *, done: bool) -> None:
        self.inner, self.name, self.done = inner, name, done

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def execute(self, statement: str, *values: object) -> object:
        if statement == "COMMIT":
            if self.done:
                self.inner.execute(statement)
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = self.name
            raise error
        return self.inner.execute(statement, *values)


@pytest.mark.parametrize("done", [False, True])
def test_a_sync_that_fails_leaves_a_doubt_which_only_a_new_start_can_settle(tmp_path: Path, done: bool) -> None:
    path = made(tmp_path / "journal.sqlite3", story(4))
    with Journal(str(path), clock) as journal:
        journal._connection = Failing(journal._connection, "SQLITE_IOERR_FSYNC", done=done)  # type: ignore[assignment]
        with pytest.raises(StoreError) as caught:
            journal.append(story(5)[4:])
        assert (caught.value.kind, caught.value.undone, journal.is_in_doubt) == ("io", False, True)
        with pytest.raises(StoreError) as caught:
            journal.append(story(5)[4:])
        assert (caught.value.kind, caught.value.undone) == ("journal-in-doubt", True)
    assert read(path) == story(5 if done else 4)


def files_of(path: Path) -> dict[str, bytes]:
    return {end: Path(f"{path}{end}").read_bytes() for end in ("", "-wal") if os.path.exists(f"{path}{end}")}


def put(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(exist_ok=True)
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    for end, data in files.items():
        Path(f"{path}{end}").write_bytes(data)
    return path


def test_a_power_cut_anywhere_in_an_append_leaves_all_of_it_or_nothing(tmp_path: Path) -> None:
    path, entries = tmp_path / "journal.sqlite3", story(12)
    with Journal(str(path), clock) as journal:
        for entry in entries[:8]:
            journal.append([entry])
        before = files_of(path)
        journal.append(entries[8:])
        after = files_of(path)
    old, new = before["-wal"], after["-wal"]
    assert new.startswith(old)
    assert len(new) > len(old)
    for end in range(len(old), len(new) + 1, 1 if AT_LENGTH else 211):
        for filler in (b"", b"\0" * (len(new) - end)):
            found = read(put(tmp_path / "cut" / "j", before | {"-wal": new[:end] + filler}))
            assert found == (entries if end == len(new) else entries[:8])


def test_a_power_cut_while_the_log_is_taken_over_leaves_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, entries = tmp_path / "journal.sqlite3", story(60)
    with Journal(str(path), clock) as journal:
        journal.append(entries[:30])
        monkeypatch.setattr(journal_module, "LOG_BYTES", 0)
        journal._take_over_log()
        monkeypatch.undo()
        for entry in entries[30:]:
            journal.append([entry])
        before = files_of(path)
        assert journal._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[0] == 0
        after = files_of(path)
    size = max(len(before[""]), len(after[""]))
    pages = size // 4096
    for mask in range(0, 1 << pages, 1 if pages < 6 else (1 << pages) // 60):  # any of the pages may have got there
        mixed = b"".join(
            (after if mask >> page & 1 else before)[""].ljust(size, b"\0")[page * 4096 : (page + 1) * 4096]
            for page in range(pages)
        )
        assert read(put(tmp_path / "cut" / "j", {"": mixed, "-wal": before["-wal"]})) == entries
    assert read(put(tmp_path / "cut" / "j", {"": after[""]})) == entries


def told(path: Path, entries: list[Entry], lost: int = 0) -> str:
    """Say what is read of a damaged journal: all of it, all but what was last, or an error of ours; nothing else may be."""
    try:
        found = read(path)
    except (CorruptError, MismatchError):
        return "told"
    assert found == entries or (lost and found == entries[:-lost])
    return "all" if found == entries else "lost"


def flips(size: int, dice: st.DataObject) -> tuple[int, int]:
    return dice.draw(st.integers(0, size - 1)), 1 << dice.draw(st.integers(0, 7))


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def test_a_flipped_bit_in_the_file_is_told_or_changes_nothing(tmp_path: Path) -> None:
    entries = story(40)
    whole = files_of(made(tmp_path / "journal.sqlite3", entries))
    assert "-wal" not in whole
    step = 53 if AT_LENGTH else 379
    ends = {
        told(put(tmp_path / "cut" / "j", {"": flipped(whole[""], at, 1 << at % 8)}), entries)
        for at in range(0, len(whole[""]), step)
    }
    assert ends == {"told", "all"}


def test_a_flipped_bit_in_the_log_is_told_or_costs_what_a_crash_may_have_cost(tmp_path: Path) -> None:
    """In the last transaction it is like a crash in the midst of it. Before that SQLite would drop all that follows."""
    path, entries = tmp_path / "journal.sqlite3", story(30)
    with Journal(str(path), clock) as journal:
        for entry in entries:
            journal.append([entry])
        whole = files_of(path)
    ends: dict[str, int] = {}
    size = len(whole["-wal"])
    for at in [*range(64), *range(64, size, 71 if AT_LENGTH else 811), size - 1]:
        end = told(put(tmp_path / "cut" / "j", whole | {"-wal": flipped(whole["-wal"], at, 1 << at % 8)}), entries, lost=1)
        ends[end] = ends.get(end, 0) + 1
        if at < size - 5 * 4120:
            assert end != "lost"
    assert ends["told"] > ends.get("lost", 0)


def test_a_log_that_failed_appends_have_left_their_pages_in_is_not_taken_for_damaged(tmp_path: Path) -> None:
    path, more = tmp_path / "journal.sqlite3", story(200)

    def act() -> None:
        with Journal(str(path), clock) as journal:
            journal.append(more[:2])
            size, hard = os.path.getsize(f"{path}-wal"), resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            for batch in (120, 90, 60, 100):
                resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4120 * 3 + 100, hard))
                failure = refused(journal, more[2 : 2 + batch])
                assert failure is not None
                assert failure.undone
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            journal.append(more[2:4])
            (tmp_path / "size").write_text(str(size))
            shutil.copytree(tmp_path, tmp_path.parent / "left")

    assert run_in_child(act) == 0
    left = files_of(tmp_path.parent / "left" / "journal.sqlite3")
    shutil.rmtree(tmp_path.parent / "left")
    for end in range(int((tmp_path / "size").read_text()), len(left["-wal"]) + 1, 1030):  # and then a power cut after them
        found = read(put(tmp_path / "cut" / "j", left | {"-wal": left["-wal"][:end]}))
        assert found in (more[:2], more[:4])


CHILD = """
import sys
from milepost.clock import SystemClock
from milepost.service import journal
from tests.service.journal.entries import story
journal.LOG_BYTES = 40_000
entries = story(3_000)
with journal.Journal(sys.argv[1], SystemClock()) as opened:
    at = len(opened)
    assert opened.entries() == entries[:at]
    while True:
        opened.append(entries[at : at + 1 + at % 3])
        at = len(opened)
        print(at, flush=True)
"""


def test_what_was_appended_before_a_kill_is_there_after_it(tmp_path: Path) -> None:
    """Eight kills in the midst of appends and of takeovers of the log, of one journal."""
    path, least = tmp_path / "journal.sqlite3", 0
    for kill in range(20 if AT_LENGTH else 5):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for _ in range(5 + 13 * kill % 31):
            line = child.stdout.readline()
            assert line
            least = int(line)
        child.kill()
        rest = child.communicate()[0].split()
        least = int(rest[-1]) if rest and child.returncode == -signal.SIGKILL else least
        assert child.returncode == -signal.SIGKILL != KILLED
        found = read(path)
        assert len(found) >= least
        assert found == story(3_000)[: len(found)]


def test_the_log_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "LOG_BYTES", 100_000)
    path = tmp_path / "journal.sqlite3"
    with Journal(str(path), clock) as journal:
        sizes = []
        for entry in story(120):
            journal.append([entry])
            sizes.append(os.path.getsize(f"{path}-wal"))
        assert max(sizes) < 150_000
        assert 0 in sizes
        reader = sqlite3.connect(path)
        reader.execute("SELECT * FROM entries").fetchone()  # somebody looks at it for long: nobody waits for him
        for number in range(2, 80):
            journal.append([Began(number, None)])
        reader.close()
        journal.append([Began(80, None)])
        assert len(journal.entries()) == 199


class Writing(RuleBasedStateMachine):
    """Append, close, kill and fence in any order: a journal is what was appended."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(f"/tmp/milepost-journal-{os.getpid()}-{FakeClockOf.next()}")
        self.directory.mkdir()
        self.path = self.directory / "journal.sqlite3"
        self.journal = Journal(str(self.path), clock)
        self.written: list[Entry] = []

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            self.journal.close()
            shutil.rmtree(self.directory)

    @rule(count=st.integers(0, 9), term=st.integers(1, 99))
    def append(self, count: int, term: int) -> None:
        entries: list[Entry] = [Began(term + at, Commit(term, at)) for at in range(count)]
        self.journal.append(entries)
        self.written += entries

    @rule()
    def close(self) -> None:
        self.journal.close()
        self.journal = Journal(str(self.path), clock)
        assert self.journal.entries() == self.written

    @rule(cut=st.integers(0, 3000))
    def die(self, cut: int) -> None:
        """Go on from what a kill leaves, with junk behind it that was never synced."""
        files = files_of(self.path)
        self.journal.close()
        put(self.path, files | {"-wal": files.get("-wal", b"") + b"\x5a" * cut} if files.get("-wal") else files)
        self.journal = Journal(str(self.path), clock)
        assert self.journal.entries() == self.written

    @rule()
    def fence(self) -> None:
        with Journal(str(self.path), clock) as other:
            other.append([Began(7, None)])
        self.written.append(Began(7, None))
        with pytest.raises(ConflictError):
            self.journal.append([Began(8, None)])
        self.close()

    @rule()
    def take_over(self) -> None:
        self.journal._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


class FakeClockOf:
    """Count the examples."""

    clock = FakeClock()

    @classmethod
    def next(cls) -> str:
        return cls.clock.nonce()


def test_whatever_happens_to_a_journal_it_is_what_was_appended() -> None:
    run_state_machine_as_test(Writing, settings=settings(max_examples=examples(12, 200), stateful_step_count=15))
