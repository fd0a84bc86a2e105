"""What both tiers promise, in memory, in a directory, and in a store that is none. C1, C4, C16"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.clock import SystemClock
from milepost.errors import CorruptError, NotFoundError, UsageError
from milepost.service.index import INDEX_NAME, blob_of, delta_of, is_slot
from milepost.service.tiers.disk import DiskTier
from milepost.service.tiers.memory import MemoryTier
from milepost.service.transports.base import Blob
from milepost.store.local import LocalStore
from milepost.store.memory import MemoryStore
from tests.service.tiers.versions import bring, contents, index_of, read_all

Tier = MemoryTier | DiskTier


def in_memory(path: Path) -> Tier:
    tier = MemoryTier(str(path / "memory"))
    tier.make()
    return tier


KINDS: dict[str, Callable[[Path], Tier]] = {
    "memory": in_memory,
    "directory": lambda path: DiskTier(LocalStore(path / "service", SystemClock())),
    "store": lambda _: DiskTier(MemoryStore()),
}


@pytest.fixture(params=KINDS)
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Tier:
    return KINDS[request.param](tmp_path)


def test_a_version_is_there_once_its_index_is(tier: Tier) -> None:
    index = bring(tier, 1, whole=False)
    assert tier.places() == [index.place]
    assert tier.index(index.place) is None
    tier.write_index(index)
    tier.write_index(index)  # said again
    assert tier.index(index.place) == index
    assert read_all(tier, index) == contents(1)
    assert tier.verify(index) == {}
    assert tier.used_bytes() == 3500 + len(index.encode())


def test_ranges_are_read_and_what_is_not_there_is_told(tier: Tier) -> None:
    index = bring(tier, 1)
    blob, data = Blob(index.place, blob_of("part0")), contents(1)["part0"]
    assert tier.size(blob) == 2500
    into = bytearray(100)
    tier.read_into(blob, 2400, memoryview(into))
    assert into == data[2400:]
    for wrong, start in ((blob, 2401), (blob, 9999), (Blob(index.place, "other"), 0), (Blob("nowhere", blob.name), 0)):
        with pytest.raises(NotFoundError) as caught:
            tier.read_into(wrong, start, memoryview(into))
        assert caught.value.kind == "no-such-blob"
    for wrong in (Blob(index.place, "other"), Blob("nowhere", blob.name)):
        with pytest.raises(NotFoundError):
            tier.size(wrong)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc", "a\\b", ".hidden", "-rf", "x" * 201, "a\0b", "ü", "a\n"])
def test_no_name_leads_out_of_a_tier(tier: Tier, name: str) -> None:
    for blob in (Blob(name, "weights.safetensors"), Blob("place", name)):
        for ask in (
            lambda blob=blob: tier.new_blob(blob, 1),
            lambda blob=blob: tier.write(blob, 0, b"x"),
            lambda blob=blob: tier.size(blob),
            lambda blob=blob: tier.read_into(blob, 0, memoryview(bytearray(1))),
            lambda blob=blob: tier.map(blob),
        ):
            with pytest.raises((UsageError, NotFoundError)) as caught:
                ask()
            assert caught.value.kind in ("bad-name", "no-such-blob")
    with pytest.raises(UsageError):
        tier.erase(name)
    assert tier.places() == []


def test_more_than_was_announced_is_refused(tier: Tier) -> None:
    blob = Blob("place", "weights")
    with pytest.raises(NotFoundError):
        tier.write(blob, 0, b"12345")
    tier.new_blob(blob, 10)
    tier.write(blob, 0, b"12345")
    for start, data in ((0, b"x" * 11), (5, b"x" * 6), (11, b""), (-1, b"x")):
        with pytest.raises(UsageError) as caught:
            tier.write(blob, start, data)
        assert caught.value.kind == "out-of-range"
    tier.write(blob, 5, b"67890")
    tier.write(blob, 3, b"4567")  # again: what was sent twice is there once
    tier.finish(blob)
    tier.finish(blob)
    into = bytearray(10)
    tier.read_into(blob, 0, memoryview(into))
    assert into == b"1234567890"


def test_a_blob_that_is_begun_anew_has_nothing_of_the_one_before(tier: Tier) -> None:
    blob = Blob("place", "weights")
    tier.new_blob(blob, 10)
    tier.write(blob, 0, b"1234567890")
    tier.new_blob(blob, 4)
    tier.write(blob, 0, b"abcd")
    tier.finish(blob)
    assert tier.size(blob) == 4
    tier.new_blob(blob, 3)
    tier.write(blob, 0, b"xyz")
    tier.finish(blob)
    into = bytearray(3)
    tier.read_into(blob, 0, memoryview(into))
    assert into == b"xyz"


@pytest.mark.parametrize("slot", ["weights", "_x", "0", "a.b-c_d", "x" * 128])
def test_whatever_a_part_may_be_called_its_blob_may_be_called(tier: Tier, slot: str) -> None:
    assert is_slot(slot)
    for name in (blob_of(slot), delta_of(slot, 2**62)):
        tier.new_blob(Blob("place", name), 1)
        tier.write(Blob("place", name), 0, b"x")
        tier.finish(Blob("place", name))
        assert tier.size(Blob("place", name)) == 1


def test_what_is_erased_is_gone_and_can_be_brought_anew(tier: Tier) -> None:
    index, other = bring(tier, 1), bring(tier, 2)
    tier.new_blob(Blob(index.place, "part9.from-1"), 8)
    tier.erase(index.place)
    tier.erase(index.place)
    assert tier.places() == [other.place]
    assert tier.index(index.place) is None
    bring(tier, 1)
    assert tier.verify(index) == {}
    assert tier.verify(other) == {}


def test_a_damaged_chunk_is_named_with_its_slot(tmp_path: Path) -> None:
    for tier in (in_memory(tmp_path), KINDS["directory"](tmp_path)):
        index = bring(tier, 1)
        assert tier.directory is not None
        path = Path(tier.directory) / index.place / blob_of("part0")
        data = bytearray(path.read_bytes())
        data[1700] ^= 1
        path.write_bytes(data)
        assert tier.verify(index) == {"part0": (1,)}
        path.write_bytes(data[:2000])
        assert tier.verify(index) == {"part0": (0, 1, 2)}
        path.unlink()
        assert tier.verify(index) == {"part0": (0, 1, 2)}
        (path.parent / blob_of("part1")).unlink()
        assert tier.verify(index) == {"part0": (0, 1, 2), "part1": (0,)}


def test_a_damaged_index_is_told(tmp_path: Path) -> None:
    for tier in (in_memory(tmp_path), KINDS["directory"](tmp_path)):
        index = bring(tier, 1)
        assert tier.directory is not None
        path = Path(tier.directory) / index.place / INDEX_NAME
        record = path.read_bytes()
        for damaged in (b"", record[:-1], record.replace(b"part0", b"part8"), b"\0" * len(record)):
            path.write_bytes(damaged)
            with pytest.raises(CorruptError) as caught:
                tier.index(index.place)
            assert caught.value.kind == "damaged-record"


def test_two_versions_do_not_share_a_place_on_disk(tmp_path: Path) -> None:
    tier = KINDS["directory"](tmp_path)
    index = bring(tier, 1)
    other = index_of(1, {"part0": b"another"})
    assert other.place == index.place
    with pytest.raises(UsageError) as caught:
        tier.write_index(other)
    assert caught.value.kind == "place-taken"
    assert tier.index(index.place) == index


def test_what_lies_on_disk_leaves_no_empty_directories(tmp_path: Path) -> None:
    tier = KINDS["directory"](tmp_path)
    for number in range(1, 4):
        bring(tier, number)
        tier.erase(index_of(number).place)
    assert list((tmp_path / "service" / "versions").iterdir()) == []
