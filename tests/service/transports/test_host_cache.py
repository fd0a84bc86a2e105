"""Readers of one host share what one of them fetches, whoever of them is killed, and within a bound."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from milepost.clock import FakeClock
from milepost.encode.digest import xxh3
from milepost.errors import CorruptError, ServiceError
from milepost.service.index import Chunks
from milepost.service.transports import folder as folder_module
from milepost.service.transports import host_cache_files
from milepost.service.transports.base import Blob, Source
from milepost.service.transports.bulk import BulkTransport
from milepost.service.transports.bulk_server import BulkServer
from milepost.service.transports.folder import Folder
from milepost.service.transports.host_cache import HostCache, SharedLanding
from milepost.service.transports.landing import PrivateLanding
from milepost.service.transports.moving import Moved, Mover
from milepost.testing.faults import run_in_child
from tests.at_length import examples
from tests.service.transports.besieging import besiege
from tests.service.transports.reading import reading

CHUNK = 256 << 10
SIZE = 16 * CHUNK
CACHE = "cache"


def version(number: int, slots: int = 1) -> tuple[dict[Blob, bytes], dict[Blob, Chunks]]:
    data = {Blob(f"{number:012d}-00", f"weights.{slot}.safetensors"): os.urandom(SIZE) for slot in range(slots)}
    return data, {blob: Chunks.of(its, CHUNK) for blob, its in data.items()}


@contextmanager
def served(directory: Path, data: Mapping[Blob, bytes]) -> Iterator[BulkServer]:
    folder = Folder(str(directory / "served"))
    (directory / "served").mkdir(exist_ok=True)
    for blob, its in data.items():
        folder.write(blob, 0, its)
    with BulkServer(folder) as server:
        yield server


def fetch(address: str, cache: HostCache, parts: Mapping[Blob, Chunks]) -> Moved:
    return Mover([BulkTransport()], land=cache.land).fetch([Source("bulk", address)], parts, limit_bytes=1 << 40)


def marked(cache: Path) -> int:
    return sum(path.read_bytes()[8:].count(1) for path in cache.glob("*.chunks"))


def said_by(reader: subprocess.Popen[str]) -> str:
    assert reader.stdout is not None
    return reader.stdout.readline().strip()


def test_four_readers_on_a_host_cost_one_transfer(tmp_path: Path) -> None:
    data, parts = version(1, slots=2)
    cache = tmp_path / CACHE
    with served(tmp_path, data) as server, ExitStack() as stack:
        first = stack.enter_context(reading(server.address, cache, parts, stop=8))
        assert said_by(first) == "stopped"
        others = [stack.enter_context(reading(server.address, cache, parts)) for _ in range(3)]
        assert first.stdin is not None
        first.stdin.write("go on\n")
        first.stdin.flush()
        said = [json.loads(said_by(reader)) for reader in (first, *others)]
        assert [each["has"] for each in said] == [{str(blob): xxh3(its) for blob, its in data.items()}] * 4
        assert [each["moved"] for each in said] == [2 * SIZE, 0, 0, 0]
        assert server.counts.bytes_out == 2 * SIZE
        assert len(list(cache.glob("*.bytes"))) == 2


def test_a_reader_that_is_killed_in_the_middle_leaves_its_chunks_to_the_next(tmp_path: Path) -> None:
    data, parts = version(1)
    cache = tmp_path / CACHE
    with served(tmp_path, data) as server, ExitStack() as stack:
        first = stack.enter_context(reading(server.address, cache, parts, stop=8))
        assert said_by(first) == "stopped"
        others = [stack.enter_context(reading(server.address, cache, parts)) for _ in range(2)]
        first.kill()
        said = [json.loads(said_by(reader)) for reader in others]
        assert [each["has"] for each in said] == [{str(blob): xxh3(its) for blob, its in data.items()}] * 2
        assert sorted(each["moved"] for each in said) == [0, SIZE // 2]


def test_whoever_is_killed_and_whenever_nobody_has_other_bytes_and_the_bound_is_kept(tmp_path: Path) -> None:
    by_chance, cache, limit_bytes = random.Random(7), tmp_path / CACHE, 3 * 2 * SIZE
    versions = [version(number, slots=2) for number in range(4)]
    with served(tmp_path, {blob: its for data, _ in versions for blob, its in data.items()}) as server:

        def start() -> subprocess.Popen[str]:
            return besiege(server.address, cache, limit_bytes, [parts for _, parts in versions], by_chance.randrange(1 << 30))

        readers = [start() for _ in range(3)]
        try:
            for _ in range(examples(5, 100)):
                at = by_chance.randrange(3)
                for _ in range(by_chance.randrange(1, 20)):
                    assert said_by(readers[at]) == "whole"
                assert used_bytes(cache) <= limit_bytes
                _end(readers[at])
                readers[at] = start()
        finally:
            for reader in readers:
                _end(reader)
    HostCache(str(cache)).close()
    assert list(cache.glob("*.bytes")) == []


def _end(reader: subprocess.Popen[str]) -> None:
    with reader:
        reader.kill()


def test_a_reader_that_is_alone_shares_nothing_unless_it_is_told_to_and_shares_once_there_is_another(tmp_path: Path) -> None:
    def cache() -> HostCache:
        return HostCache(str(tmp_path / CACHE), shares_alone=False)

    (_, first), (_, second) = version(1), version(2)
    one, other = cache(), cache()
    ((_, chunks),), ((_, later),) = first.items(), second.items()
    assert isinstance(one.land(chunks), PrivateLanding)
    for reader, wanted in ((other, chunks), (one, later), (other, later)):
        landing = reader.land(wanted)
        assert isinstance(landing, SharedLanding)
        landing.close()
    other.close()
    assert isinstance(one.land(chunks), PrivateLanding)
    one.close()
    third = HostCache(str(tmp_path / CACHE)).land(chunks)
    assert isinstance(third, SharedLanding)
    third.close()


def test_versions_in_turn_take_the_place_of_those_that_nobody_maps(tmp_path: Path) -> None:
    cache = HostCache(str(tmp_path / CACHE), limit_bytes=2 * SIZE)
    versions = [version(number) for number in range(4)]
    with served(tmp_path, {blob: its for data, _ in versions for blob, its in data.items()}) as server:
        for data, parts in versions:
            moved = fetch(server.address, cache, parts)
            assert moved.views == data
            assert all(view.readonly for view in moved.views.values())
            assert used_bytes(tmp_path / CACHE) <= 2 * SIZE
        assert fetch(server.address, cache, versions[3][1]).bytes_by == {}
        assert fetch(server.address, cache, versions[0][1]).bytes_by == {"bulk": SIZE}


def used_bytes(cache: Path) -> int:
    used = 0
    for path in cache.glob("*.bytes"):
        with suppress(FileNotFoundError):  # it goes while it is looked at
            used += path.stat().st_blocks * 512
    return used


def test_what_is_mapped_stays_and_what_has_no_room_beside_it_is_not_shared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = HostCache(str(tmp_path / CACHE), limit_bytes=SIZE + SIZE // 2)
    versions = [version(number) for number in range(3)]
    with served(tmp_path, {blob: its for data, _ in versions for blob, its in data.items()}) as server:
        first = fetch(server.address, cache, versions[0][1])
        with caplog.at_level(logging.WARNING, "milepost"):
            kept = [fetch(server.address, cache, parts) for _, parts in versions[1:]]
        assert [each.views for each in kept] == [data for data, _ in versions[1:]]
        assert first.views == versions[0][0]
        assert used_bytes(tmp_path / CACHE) == SIZE
        assert len(caplog.records) == 1
        first.views.clear()
        assert fetch(server.address, cache, versions[1][1]).views == versions[1][0]
        assert [path.stat().st_size for path in (tmp_path / CACHE).glob("*.bytes")] == [SIZE]


def test_memory_that_is_full_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, size_bytes: int) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder_module, "preallocate", full)
    data, parts = version(1)
    cache = HostCache(str(tmp_path / CACHE))
    with served(tmp_path, data) as server, caplog.at_level(logging.WARNING, "milepost"):
        for _ in range(2):
            moved = fetch(server.address, cache, parts)
            assert (moved.views, moved.bytes_by) == (data, {"bulk": SIZE})
    assert [record.message.partition(": ")[2] for record in caplog.records] == ["could not share memory: No space left on device"]
    assert list((tmp_path / CACHE).glob("*.bytes")) == []


@pytest.mark.parametrize("spoil", ["wide", "link", "file"])
def test_a_directory_that_is_not_this_users_alone_is_not_used(
    tmp_path: Path, spoil: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "cache"
    (tmp_path / "elsewhere").mkdir(0o700)
    if spoil == "wide":
        directory.mkdir()
        directory.chmod(0o770)
    elif spoil == "link":
        directory.symlink_to("elsewhere")
    else:
        directory.write_bytes(b"")
    with caplog.at_level(logging.WARNING, "milepost"):
        landing = HostCache(str(directory)).land(Chunks.of(b"x" * 100))
    assert isinstance(landing, PrivateLanding)
    assert len(caplog.records) == 1


def test_a_reader_that_stands_still_is_not_waited_for(tmp_path: Path) -> None:
    clock = FakeClock()
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        clock.advance(seconds=seconds)

    chunks = Chunks.of(os.urandom(SIZE), CHUNK)
    first = HostCache(str(tmp_path / CACHE)).land(chunks)
    second = HostCache(str(tmp_path / CACHE), stall_s=5.0, clock=clock, wait=wait).land(chunks)
    assert (type(first), type(second)) == (SharedLanding, PrivateLanding)
    assert 5.0 <= sum(waited) < 6.0
    first.close()


def test_a_reader_that_gets_on_is_waited_for(tmp_path: Path) -> None:
    clock, data = FakeClock(), os.urandom(SIZE)
    chunks = Chunks.of(data, CHUNK)
    first = HostCache(str(tmp_path / CACHE)).land(chunks)
    numbers = iter(range(len(chunks)))

    def wait(seconds: float) -> None:
        clock.advance(seconds=4.0)
        number = next(numbers, None)
        if number is None:
            first.close()
        else:
            start, stop = chunks.range_of(number)
            first.memory[start:stop] = data[start:stop]
            first.landed(number)

    second = HostCache(str(tmp_path / CACHE), stall_s=5.0, clock=clock, wait=wait).land(chunks)
    assert isinstance(second, SharedLanding)
    assert second.missing() == []
    assert second.finish() == data
    second.close()


def test_damage_that_came_over_the_network_is_not_shared(tmp_path: Path) -> None:
    data, parts = version(1)
    (blob,) = data
    bad = bytearray(data[blob])
    bad[3 * CHUNK + 5] ^= 1
    cache = HostCache(str(tmp_path / CACHE))
    with served(tmp_path, {blob: bytes(bad)}) as server, pytest.raises(CorruptError) as caught:
        fetch(server.address, cache, parts)
    assert caught.value.facts["chunk"] == 3
    assert marked(tmp_path / CACHE) == 15
    with served(tmp_path, data) as server:
        moved = fetch(server.address, cache, parts)
    assert (moved.views, moved.bytes_by) == (data, {"bulk": CHUNK})


def test_what_fails_leaves_its_chunks_and_no_lock(tmp_path: Path) -> None:
    data, parts = version(1)
    cache = HostCache(str(tmp_path / CACHE))
    with pytest.raises(ServiceError):
        fetch("127.0.0.1:9", cache, parts)
    with served(tmp_path, data) as server:
        assert fetch(server.address, cache, parts).views == data


def test_parts_with_the_same_bytes_come_once(tmp_path: Path) -> None:
    data, parts = version(1)
    ((blob, its),) = data.items()
    other = Blob(blob.place, "target.safetensors")
    with served(tmp_path, data | {other: its}) as server:
        moved = fetch(server.address, HostCache(str(tmp_path / CACHE)), parts | {other: parts[blob]})
    assert moved.views == {blob: its, other: its}
    assert moved.bytes_by == {"bulk": SIZE}


def test_what_others_have_left_is_swept_and_half_of_a_blob_is_made_anew(tmp_path: Path) -> None:
    chunks = Chunks.of(os.urandom(SIZE), CHUNK)
    cache = HostCache(str(tmp_path / CACHE), limit_bytes=2 * SIZE)
    landing = cache.land(chunks)
    landing.landed(0)
    landing.close()
    key = next((tmp_path / CACHE).glob("*.bytes")).name.removesuffix(".bytes")
    for kind in (".bytes", ".chunks"):  # one died between the two
        (tmp_path / CACHE / (key + kind)).unlink()
        landing = cache.land(chunks)
        assert landing.missing() == list(range(16))
        landing.landed(0)
        landing.close()
    (tmp_path / CACHE / "another.bytes").write_bytes(bytes(SIZE))
    (tmp_path / CACHE / "a-third.chunks").write_bytes(bytes(20))
    for _ in range(2):
        cache.land(Chunks.of(os.urandom(SIZE), CHUNK)).close()
    assert {path.name for path in (tmp_path / CACHE).iterdir()} & {"another.bytes", "another.chunks", "a-third.chunks"} == set()
    assert used_bytes(tmp_path / CACHE) <= 2 * SIZE


def test_marks_of_another_file_say_nothing(tmp_path: Path) -> None:
    chunks = Chunks.of(os.urandom(SIZE), CHUNK)
    cache = HostCache(str(tmp_path / CACHE))
    landing = cache.land(chunks)
    for number in range(16):
        landing.landed(number)
    landing.close()
    path = next((tmp_path / CACHE).glob("*.bytes"))
    held = path.open("rb")  # its number is not given to the next
    path.unlink()
    path.write_bytes(bytes(SIZE))
    landing = cache.land(chunks)
    assert landing.missing() == list(range(16))
    landing.close()
    held.close()


def test_what_nobody_has_used_for_long_goes_when_the_next_comes(tmp_path: Path) -> None:
    clock = FakeClock(epoch_ns=time.time_ns())
    cache = HostCache(str(tmp_path / CACHE), idle_s=60.0, clock=clock)
    for seconds, left in ((0, 1), (30, 2), (3600, 1)):
        clock.advance(seconds=seconds)
        cache.land(Chunks.of(os.urandom(SIZE), CHUNK)).close()
        assert len(list((tmp_path / CACHE).glob("*.bytes"))) == left


def test_a_cache_that_is_closed_gives_back_what_no_other_reader_maps(tmp_path: Path) -> None:
    versions = [version(number) for number in range(2)]
    cache = HostCache(str(tmp_path / CACHE))
    with served(tmp_path, {blob: its for data, _ in versions for blob, its in data.items()}) as server:
        kept = fetch(server.address, cache, versions[0][1])
        fetch(server.address, cache, versions[1][1])
        other = HostCache(str(tmp_path / CACHE))
        theirs = fetch(server.address, other, versions[0][1])
    cache.close()
    cache.close()
    assert len(list((tmp_path / CACHE).glob("*.bytes"))) == 1
    other.close()
    assert list((tmp_path / CACHE).glob("*.bytes")) == []
    assert kept.views == theirs.views == versions[0][0]


def test_a_lock_is_let_go_once_whoever_comes_first(tmp_path: Path) -> None:
    data, parts = version(1)
    cache = HostCache(str(tmp_path / CACHE))
    with served(tmp_path, data) as server:
        kept = fetch(server.address, cache, parts)
    (descriptor,) = cache._used
    cache.close()
    # Its number is somebody else's by now.
    taken = os.open(tmp_path, os.O_RDONLY)
    if taken != descriptor:
        os.dup2(taken, descriptor)
    del kept
    os.fstat(descriptor)
    for each in {taken, descriptor}:
        os.close(each)


def test_a_forked_child_that_ends_lets_go_of_nothing(tmp_path: Path) -> None:
    data, parts = version(1)
    cache = HostCache(str(tmp_path / CACHE))
    with served(tmp_path, data) as server:
        kept = fetch(server.address, cache, parts)
    assert run_in_child(cache.close) == 0
    assert len(list((tmp_path / CACHE).glob("*.bytes"))) == 1
    assert HostCache(str(tmp_path / CACHE)).land(parts[next(iter(parts))]).missing() == []
    assert kept.views == data


def test_a_blob_that_is_removed_just_before_it_is_locked_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = Chunks.of(os.urandom(SIZE), CHUNK)
    cache = HostCache(str(tmp_path / CACHE))
    cache.land(chunks).close()
    lock = host_cache_files._is_locked
    calls = iter(range(100))

    def removed_first(descriptor: int, how: int) -> bool:
        if next(calls) == 0:
            for path in (tmp_path / CACHE).iterdir():
                path.unlink()
        return lock(descriptor, how)

    monkeypatch.setattr(host_cache_files, "_is_locked", removed_first)
    landing = cache.land(chunks)
    assert isinstance(landing, SharedLanding)
    assert len(list((tmp_path / CACHE).glob("*.chunks"))) == 1
    landing.close()
