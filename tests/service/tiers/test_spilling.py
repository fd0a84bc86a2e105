"""A spill is whole or it is not there, whatever kills it, cuts its power, fills or sickens its disk. C1, C4, C14"""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest

from milepost.clock import SystemClock
from milepost.errors import CorruptError, StoreError
from milepost.service.index import Index, blob_of
from milepost.service.tiers.disk import DiskTier
from milepost.service.tiers.memory import MemoryTier
from milepost.service.tiers.spilling import spill
from milepost.service.transports.base import Blob
from milepost.store.local import LocalStore
from milepost.store.memory import MemoryStore
from milepost.store.posix import Posix
from milepost.testing.faults import FaultStore, Killed, count_operations, run_and_kill
from milepost.testing.power import Recorder, replay
from milepost.testing.sick import TAKES_SPACE, SickPosix, failing, failing_late
from tests.at_length import AT_LENGTH
from tests.service.tiers.versions import bring, contents, index_of, read_all


@pytest.fixture
def memory(tmp_path: Path) -> MemoryTier:
    memory = MemoryTier(str(tmp_path / "memory"))
    memory.make()
    return memory


def disk_at(path: Path, posix: Posix | None = None) -> DiskTier:
    return DiskTier(LocalStore(path, SystemClock(), posix=posix))


def check_whole_or_absent(disk: DiskTier, index: Index) -> bool:
    """Return whether it is there; one that is, is whole."""
    found = disk.index(index.place)
    if found is None:
        return False
    assert found == index
    assert disk.verify(found) == {}
    return True


def test_a_spilled_version_is_on_disk_as_it_was_and_stays_in_memory(memory: MemoryTier, tmp_path: Path) -> None:
    index = bring(memory, 1)
    for disk in (disk_at(tmp_path / "service"), DiskTier(MemoryStore())):
        spill(index, memory, disk)
        assert read_all(disk, index) == contents(1)
        spill(index, memory, disk)
        assert check_whole_or_absent(disk, index)
    assert memory.verify(index) == {}
    assert disk_at(tmp_path / "service").sizes()[index.place].keys() == {"index.json", *map(blob_of, index.chunks)}


def test_memory_that_is_damaged_is_never_made_durable(memory: MemoryTier, tmp_path: Path) -> None:
    index, disk = bring(memory, 1), disk_at(tmp_path / "service")
    memory.write(Blob(index.place, blob_of("part0")), 1700, b"\0")
    with pytest.raises(CorruptError) as caught:
        spill(index, memory, disk)
    assert caught.value.kind == "damaged-shard"
    assert caught.value.facts == {"blob": f"{index.place}/part0.safetensors", "chunk": 1}
    assert disk.places() == []


def test_a_kill_before_any_file_operation_leaves_a_whole_version_or_none(memory: MemoryTier, tmp_path: Path) -> None:
    index = bring(memory, 1)
    ends = []
    for number in itertools.count():
        path = tmp_path / str(number)

        def act(posix: Posix, path: Path = path) -> None:
            spill(index, memory, disk_at(path, posix))

        was_killed = run_and_kill(act, number)
        ends.append(check_whole_or_absent(disk_at(path), index))
        again = disk_at(path)
        spill(index, memory, again)
        assert check_whole_or_absent(again, index)
        if not was_killed:
            break
    assert number > 20
    assert ends == sorted(ends)  # from some operation on it is there


def test_a_power_cut_anywhere_in_a_spill_leaves_a_whole_version_or_none_and_keeps_what_was_durable(memory: MemoryTier) -> None:
    first, second = bring(memory, 1), bring(memory, 2)

    def act(place: Path, recorder: Recorder) -> None:
        disk = disk_at(place / "service", recorder)
        for index in (first, second):
            spill(index, memory, disk)
            recorder.note("acknowledged", place=index.place)
        disk.erase(first.place)

    def check(cut: object, place: Path) -> None:
        disk = disk_at(place / "service")
        told = {facts["place"] for facts in cut.noted("acknowledged")}  # type: ignore[attr-defined]
        there = {index.place for index in (first, second) if _is_whole(disk, index)}
        assert second.place in there or second.place not in told
        assert first.place in there or first.place not in told or second.place in told  # it was dropped after the second
        for index in (first, second):
            spill(index, memory, disk)
            assert check_whole_or_absent(disk, index)

    tally = replay(act, check, limit=None if AT_LENGTH else 250)
    assert not tally.lost, tally.failures[0]
    assert tally.operations > 40


def _is_whole(disk: DiskTier, index: Index) -> bool:
    return disk.index(index.place) == index and not disk.verify(index)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_anywhere_leaves_a_whole_version_or_none_and_the_next_try_works(
    memory: MemoryTier, tmp_path: Path, number: int
) -> None:
    index = bring(memory, 1)
    calls = {"calls": TAKES_SPACE} if number == errno.ENOSPC else {}
    total = len(count_operations(lambda posix: spill(index, memory, disk_at(tmp_path / "counted", posix))))
    for at, sickness in itertools.product(range(0, total, 1 if AT_LENGTH else 2), (failing, failing_late)):
        path = tmp_path / f"{at}-{sickness.__name__}"
        posix = SickPosix(sickness(number), at, lasting=number == errno.ENOSPC, **calls)  # type: ignore[arg-type]
        disk = disk_at(path, posix)
        kind = ""
        try:
            spill(index, memory, disk)
            assert check_whole_or_absent(disk, index)
        except StoreError as error:
            kind = error.kind
        assert kind in ("", "disk-full" if number == errno.ENOSPC else "io")
        posix.heal()
        check_whole_or_absent(disk_at(path), index)
        spill(index, memory, disk)
        assert check_whole_or_absent(disk_at(path), index)


def test_a_store_that_is_full_is_told_keeps_no_half_and_takes_it_once_there_is_room(memory: MemoryTier) -> None:
    index, store = bring(memory, 1), MemoryStore()
    store.capacity_bytes = 3000
    disk = DiskTier(store)
    with pytest.raises(StoreError) as caught:
        spill(index, memory, disk)
    assert caught.value.exit_code == 16
    assert store.list("") == []
    store.capacity_bytes = None
    spill(index, memory, disk)
    assert check_whole_or_absent(disk, index)


def test_a_store_whose_user_dies_at_any_operation_has_a_whole_version_or_none(memory: MemoryTier) -> None:
    index, inner = bring(memory, 1), MemoryStore()
    for number in itertools.count():
        store = FaultStore(inner)
        store.kill_before(number)
        try:
            spill(index, memory, DiskTier(store))
        except Killed:
            check_whole_or_absent(DiskTier(inner), index)
        else:
            break
        for entry in inner.list(""):
            inner.delete(entry.name)
    assert number > 8
    assert check_whole_or_absent(DiskTier(inner), index)


def test_a_damaged_record_on_disk_is_written_anew(memory: MemoryTier, tmp_path: Path) -> None:
    index, disk = bring(memory, 1), disk_at(tmp_path / "service")
    spill(index, memory, disk)
    assert disk.directory is not None
    (Path(disk.directory) / index.place / "index.json").write_bytes(b"{}")
    spill(index, memory, disk)
    assert check_whole_or_absent(disk, index)


def test_a_version_with_no_parts_to_speak_of_is_spilled_too(memory: MemoryTier, tmp_path: Path) -> None:
    index, disk = bring(memory, 1, {"empty": b""}), disk_at(tmp_path / "service")
    spill(index, memory, disk)
    assert check_whole_or_absent(disk, index)
    assert index_of(1, {"empty": b""}) == index
