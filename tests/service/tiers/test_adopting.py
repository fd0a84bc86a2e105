"""A service that begins anew finds every version that it had, whole; nothing that is none; and nobody beside it. C4, C13, C14"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from milepost.clock import SystemClock
from milepost.errors import ConflictError, CorruptError, MilepostError, NotFoundError, StoreError
from milepost.service import owners
from milepost.service.adopting import Opened, open_service
from milepost.service.core.records import Began, Commit, Dropped, Stored
from milepost.service.index import blob_of
from milepost.service.snapshots import Snapshot
from milepost.service.tiers.memory import MemoryTier
from milepost.service.tiers.spilling import spill
from milepost.service.transports.base import Blob
from milepost.store.local import LocalStore
from milepost.store.posix import Posix
from milepost.store.process import boot_id
from milepost.testing.faults import run_and_kill
from milepost.testing.sick import SickPosix, failing
from tests.service.tiers.versions import bring, committed, index_of

clock = SystemClock()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm"


def opened(path: Path, **more: object) -> Opened:
    return open_service(str(path / "run"), clock, memory_base=str(path / "shm"), run_id="0123456789abcdef", **more)  # type: ignore[arg-type]


def commit(service: Opened, number: int, *, to_disk: bool = False, term: int = 1) -> None:
    """Do what a server does with a commit that was brought to memory, and spill it if ``to_disk``."""
    index = bring(service.memory, number)
    at = Commit(term, number - 1) if number > 1 else None
    service.journal.append(
        [replace(committed(number), weights=replace(committed(number).weights, at=Commit(term, number), parent=at))]
    )
    if to_disk:
        spill(index, service.memory, service.disk)
        service.journal.append([Stored(Commit(term, number))])


def test_versions_in_memory_outlive_the_service_and_not_the_host(base: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as service:
        assert service.entries == [Began(1, None)]
        commit(service, 1, to_disk=True)
        commit(service, 2)
        commit(service, 3)
        directory = service.memory.directory
    with opened(tmp_path) as service:
        assert service.found.memory == {Commit(1, 1), Commit(1, 2), Commit(1, 3)}
        assert service.found.disk == {Commit(1, 1)}
        assert service.entries[-1] == Began(2, Commit(1, 3))
        assert service.memory.directory == directory
        assert service.run_id == "0123456789abcdef"
    shutil.rmtree(directory)
    with opened(tmp_path) as service:
        assert service.found.memory == set()
        assert service.entries[-1] == Began(3, Commit(1, 1))
    with opened(tmp_path) as service:
        assert service.journal.entries() == service.entries


def test_what_was_on_disk_and_not_yet_written_down_is_found_and_what_is_gone_is_told(base: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as service:
        commit(service, 1, to_disk=True)
        commit(service, 2)
        spill(index_of(2), service.memory, service.disk)
        service.disk.erase(index_of(1).place)
    with opened(tmp_path) as service:
        assert service.entries[-1] == Began(2, Commit(1, 2), (Commit(1, 1),), (Commit(1, 2),))


def test_what_the_journal_does_not_know_is_no_version_and_is_swept(base: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as service:
        commit(service, 1, to_disk=True)
        bring(service.memory, 2)
        bring(service.memory, 3, whole=False)
        bring(service.disk, 4)
        bring(service.disk, 5, whole=False)
        service.disk.new_blob(Blob(index_of(6).place, "weights"), 10)
        service.disk.write(Blob(index_of(6).place, "weights"), 0, b"12345")
        temporary = Path(service.store.url) / "blobs" / "index.json-t0-1234.tmp"
        temporary.write_bytes(b"half")
    with opened(tmp_path) as service:
        assert service.found.memory == service.found.disk == {Commit(1, 1)}
        assert service.found.memory_orphans == tuple(sorted((index_of(2).place, index_of(3).place)))
        assert service.found.disk_orphans == tuple(sorted(index_of(number).place for number in (4, 5, 6)))
        assert service.found.unknown == (index_of(4).place,)
        assert service.memory.places() == service.disk.places() == [index_of(1).place]
        assert not temporary.exists()


def test_damaged_memory_is_not_adopted_and_the_copy_on_disk_is(base: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as service:
        commit(service, 1, to_disk=True)
        commit(service, 2)
        for number in (1, 2):
            service.memory.write(Blob(index_of(number).place, blob_of("part2")), 999, b"\x01")
    with opened(tmp_path) as service:
        assert service.found.memory == set()
        assert service.entries[-1] == Began(2, Commit(1, 1))
        assert service.memory.places() == []


def test_bytes_that_say_they_are_another_version_are_not_believed(base: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as service:
        commit(service, 1, to_disk=True)
        commit(service, 2)
        assert service.disk.directory is not None
        for tier in (service.memory.directory, service.disk.directory):
            shutil.copytree(f"{tier}/{index_of(1).place}", f"{tier}/{index_of(7).place}")
        service.memory.erase(index_of(2).place)
        bring(service.memory, 2, {"part0": b"other bytes"})
    with opened(tmp_path) as service:
        assert service.found.memory == service.found.disk == {Commit(1, 1)}
        assert service.found.memory_orphans == (index_of(2).place, index_of(7).place)


def test_of_a_version_that_is_cut_off_on_disk_nothing_is_found(base: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as service:
        for number in (1, 2, 3):
            commit(service, number, to_disk=True)
            service.memory.erase(index_of(number).place)
        assert service.disk.directory is not None
        for number, name in ((2, blob_of("part0")), (3, "index.json")):
            path = Path(service.disk.directory) / index_of(number).place / name
            path.write_bytes(path.read_bytes()[:-1])
    with opened(tmp_path) as service:
        assert service.entries[-1] == Began(2, Commit(1, 1), (Commit(1, 2), Commit(1, 3)))


def test_a_second_service_on_one_root_is_refused_and_told_who_has_it(base: Path, tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(ConflictError) as caught:
        opened(tmp_path)
    assert (caught.value.kind, caught.value.facts["pid"], caught.value.exit_code) == ("held", os.getpid(), 11)
    assert f"kill {os.getpid()}" in caught.value.hint
    opened(tmp_path).close()


def test_the_journal_may_lie_elsewhere_and_is_that_of_one_root_only(base: Path, tmp_path: Path) -> None:
    journals = str(tmp_path / "journals")
    with opened(tmp_path, journal_directory=journals) as service:
        commit(service, 1, to_disk=True)
    assert not (tmp_path / "run" / "service" / "journal.sqlite3").exists()
    with open_service(str(tmp_path / "other"), clock, memory_base=str(base), journal_directory=journals) as other:
        assert other.entries == [Began(1, None)]
    with opened(tmp_path, journal_directory=journals) as service:
        assert service.found.disk == {Commit(1, 1)}
    with pytest.raises(CorruptError) as caught:
        opened(tmp_path)  # forgotten: all would be swept
    assert caught.value.kind == "journal-gone"
    assert "--journal DIR" in caught.value.hint


def test_two_roots_do_not_share_a_disk(base: Path, tmp_path: Path) -> None:
    disk = LocalStore(tmp_path / "disk", clock)
    with opened(tmp_path, disk=disk) as service:
        commit(service, 1, to_disk=True)
        place = service.disk.places()
        (tmp_path / "disk" / "blobs").mkdir(exist_ok=True)
        (tmp_path / "disk" / "blobs" / "index.json-t0-1.tmp").write_bytes(b"what a kill has left")
    with pytest.raises((ConflictError, CorruptError)):
        open_service(str(tmp_path / "other"), clock, memory_base=str(base), disk=disk)
    service.disk.erase(place[0])  # also where there happens to be none just now
    with pytest.raises(ConflictError) as caught:
        open_service(str(tmp_path / "other"), clock, memory_base=str(base), disk=disk)
    assert (caught.value.kind, caught.value.facts["root"]) == ("not-ours", str(tmp_path / "run" / "service"))
    with opened(tmp_path, disk=disk):
        assert [*(tmp_path / "disk" / "blobs").iterdir()] == []
    (tmp_path / "run" / "service" / "journal.sqlite3").unlink()
    with opened(tmp_path, disk=disk) as service:  # a root that is begun anew has its own again
        commit(service, 1, to_disk=True)
    with opened(tmp_path, disk=disk) as service:
        assert service.found.disk == {Commit(1, 1)}


def test_versions_without_a_journal_are_never_swept(base: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as service:
        commit(service, 1, to_disk=True)
        place = service.disk.places()
        path = Path(service.journal.path)
    path.unlink()
    for empty in (False, True):
        if empty:
            path.write_bytes(b"")
        with pytest.raises(CorruptError) as caught:
            opened(tmp_path)
        assert (caught.value.kind, caught.value.facts["versions"]) == ("journal-gone", 1)
    assert [entry.name for entry in (tmp_path / "run" / "service" / "versions").iterdir()] == place


def test_copies_of_a_journal_that_is_gone_are_not_left_to_another(base: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as service:
        commit(service, 1)
        Snapshot.of(service.journal).keep(service.store)
        path = Path(service.journal.path)
    path.unlink()
    with pytest.raises(CorruptError) as caught:
        opened(tmp_path)
    assert (caught.value.kind, caught.value.facts["snapshots"]) == ("journal-gone", 1)
    assert not path.exists()
    with opened(tmp_path, restored=True) as service:
        assert service.found.memory == {Commit(1, 1)}


def test_a_damaged_journal_goes_back_to_its_snapshot_and_sweeps_nothing_that_is_whole(base: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as service:
        commit(service, 1, to_disk=True)
        Snapshot.of(service.journal).keep(service.store)
        commit(service, 2, to_disk=True)
        newest = Snapshot.of(service.journal).keep(service.store)
        commit(service, 3, to_disk=True)
        path = Path(service.journal.path)
    data = bytearray(path.read_bytes())
    damage = data.index(b'"k2"')
    data[damage + 1] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(CorruptError) as caught:
        opened(tmp_path)
    assert caught.value.kind == "damaged-journal"
    with opened(tmp_path, restored=True) as service:
        assert service.restored == newest
        assert service.found.unknown == (index_of(3).place,)
        assert service.entries[-1] == Began(1002, Commit(1, 2))
        assert service.disk.verify(index_of(3)) == {}
        assert [each.read_bytes() for each in path.parent.glob("*.damaged-*") if not each.name.endswith(("-wal", "-shm"))] == [
            bytes(data)
        ]
    (path.parent / newest).write_bytes(b"damaged, too")
    path.unlink()
    with opened(tmp_path, restored=True) as service:
        assert service.entries[-1] == Began(1002, Commit(1, 1))
    assert not [each for each in path.parent.iterdir() if "trial" in each.name]


def test_without_a_whole_snapshot_nothing_is_restored_and_nothing_changed(base: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as service:
        commit(service, 1, to_disk=True)
        path = Path(service.journal.path)
    before = path.read_bytes()
    with pytest.raises(NotFoundError) as caught:
        opened(tmp_path, restored=True)
    assert caught.value.kind == "no-snapshot"
    assert path.read_bytes() == before


def test_only_the_newest_snapshots_stay(base: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as service:
        for number in range(1, 5):
            commit(service, number)
            Snapshot.of(service.journal).keep(service.store)
        assert [entry.name for entry in service.store.list("snapshots/")] == [
            "snapshots/000000000004.sqlite3",
            "snapshots/000000000005.sqlite3",
        ]


def test_what_other_starts_of_this_machine_and_roots_that_are_gone_have_left_in_memory_is_removed(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of a root that can be served again, of a service that lives, in another namespace, or that is no service's."""
    places = {name: tmp_path / name for name in ("down", "gone", "live", "booted", "elsewhere")}
    for path in places.values():
        path.mkdir()
        (path / "shm").symlink_to(base)

    def reaped(service: Opened) -> list[str]:
        return [os.path.basename(directory) for directory in service.reaped]

    def left_by(name: str) -> str:
        with opened(places[name]) as service:
            commit(service, 1)
            assert reaped(service) == []
            return os.path.basename(service.memory.directory)

    monkeypatch.setattr(owners, "boot_id", lambda: "another")
    booted = left_by("booted")
    monkeypatch.setattr(owners, "boot_id", boot_id)
    with opened(places["down"]) as service:
        assert reaped(service) == [booted]
        commit(service, 1)
        down = os.path.basename(service.memory.directory)
    monkeypatch.setattr(owners, "_namespace", lambda: "mnt:[1]")
    elsewhere = left_by("elsewhere")
    monkeypatch.undo()
    gone = left_by("gone")
    for stranger in ("milepost-empty", "milepost-torn", "other-0"):
        (base / stranger).mkdir()
    (base / "milepost-torn" / "owner.json").write_bytes(b"{")
    for name in ("gone", "elsewhere"):
        shutil.rmtree(places[name] / "run")
    with opened(places["live"]) as live:
        assert reaped(live) == [gone]
        shutil.rmtree(places["live"] / "run")  # somebody removed it under a service that lives
        mine = left_by("live")
        lives = os.path.basename(live.memory.directory)
    assert {path.name for path in base.iterdir()} == {
        *(down, elsewhere, lives, mine),
        *("milepost-empty", "milepost-torn", "other-0"),
    }
    with opened(places["down"]) as service:
        assert service.found.memory == {Commit(1, 1)}


def test_a_root_that_is_begun_anew_does_not_get_what_the_one_before_had_in_memory(base: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as service:
        commit(service, 1)
        directory = service.memory.directory
    shutil.rmtree(tmp_path / "run")
    with opened(tmp_path) as service:
        assert service.entries == [Began(1, None)]
        assert service.reaped == (directory,)
        assert service.memory.places() == []


def test_memory_that_another_service_has_is_not_shared(base: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as service:
        owner = owners.owner_of(service.run_id, service.store.url, service.journal.path, service.journal.id)
        with pytest.raises(ConflictError) as caught:
            owners.take(MemoryTier(service.memory.directory), owner, Posix())
        assert caught.value.kind == "held"


def test_a_kill_before_any_file_operation_of_a_start_leaves_all_that_was_there(base: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as service:
        commit(service, 1, to_disk=True)
        commit(service, 2)
        bring(service.memory, 3, whole=False)
        bring(service.disk, 4, whole=False)
    number = 0
    while run_and_kill(lambda posix: opened(tmp_path, posix=posix).close(), number):
        number += 1
        if number % 4 == 0:
            with opened(tmp_path) as service:
                assert service.found.memory == {Commit(1, 1), Commit(1, 2)}
                bring(service.memory, 3, whole=False)
                bring(service.disk, 4, whole=False)
    assert number > 8
    with opened(tmp_path) as service:
        assert service.found.disk == {Commit(1, 1)}
        assert service.entries[-1].live == Commit(1, 2)  # type: ignore[union-attr]


def test_a_start_on_a_sick_disk_is_told_and_loses_nothing(base: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as service:
        commit(service, 1, to_disk=True)
        commit(service, 2)
    for at in range(12):
        try:
            opened(tmp_path, posix=SickPosix(failing(errno.EIO), at)).close()
        except MilepostError as error:
            told = error
            assert isinstance(told, StoreError), told
    with opened(tmp_path) as service:
        assert service.found.memory == {Commit(1, 1), Commit(1, 2)}
        assert service.found.disk == {Commit(1, 1)}


def test_what_was_dropped_is_not_found_again(base: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as service:
        commit(service, 1, to_disk=True)
        commit(service, 2, to_disk=True)
        service.journal.append([Dropped(Commit(1, 1))])
        service.disk.erase(index_of(1).place)
    with opened(tmp_path) as service:
        assert service.entries[-1] == Began(2, Commit(1, 2))


CHILD = """
import os, sys
from milepost.clock import SystemClock
from milepost.service.adopting import open_service
service = open_service(sys.argv[1], SystemClock(), memory_base=sys.argv[2], wait_s=float(sys.argv[3]))
print(service.memory.directory, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child(base: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", CHILD, str(tmp_path / "run"), str(base), "60"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_a_service_that_is_killed_lets_go_of_everything(child: subprocess.Popen[str], base: Path, tmp_path: Path) -> None:
    assert child.stdout is not None
    directory = child.stdout.readline().strip()
    with pytest.raises(ConflictError) as caught:
        opened(tmp_path)
    assert caught.value.facts["pid"] == child.pid
    child.kill()
    with opened(tmp_path, wait_s=60.0) as service:
        assert service.memory.directory == directory
        assert service.entries[-1] == Began(2, None)
