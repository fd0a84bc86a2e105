"""A version comes by the best way that can be reached, whole, whatever fails on the way; and is brought so."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.clock import FakeClock
from milepost.encode.digest import Buffer
from milepost.errors import CorruptError, MilepostError, NotFoundError, ServiceError, UsageError
from milepost.service.index import Chunks
from milepost.service.transports import folder, landing, moving
from milepost.service.transports.base import Blob, Link, Source, Transport
from milepost.service.transports.bulk import BulkTransport
from milepost.service.transports.bulk_server import BulkServer
from milepost.service.transports.files import FilesTransport
from milepost.service.transports.folder import Folder
from milepost.service.transports.host import host_id
from milepost.service.transports.moving import RUN_CHUNKS, Mover, runs_of
from milepost.service.transports.shm import ShmTransport
from tests.at_length import examples
from tests.service.transports.serving import serving

LIMIT = 1 << 40
CHUNK = 100
PLACE = "000000000001-00"


def blob(slot: str) -> Blob:
    return Blob(PLACE, f"{slot}.safetensors")


def failed() -> ServiceError:
    return ServiceError("it failed", kind="transport-failed")


class Memory(Transport):
    """Reach bytes in memory, and fail as a test wants it: ``before`` is called before each read with what is read."""

    def __init__(self, name: str, blobs: Mapping[Blob, bytes], before: Callable[[Blob, int], object] = lambda *_: None) -> None:
        self.name = name
        self.blobs = dict(blobs)
        self.before = before
        self.links = 0
        self.open = 0
        self.given: list[tuple[Blob, int]] = []
        self.interrupted = threading.Event()

    def reach(self, source: Source) -> Link | None:
        if source.transport != self.name:
            return None
        self.links += 1
        self.open += 1
        return _MemoryLink(self)


class _MemoryLink(Link):
    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._is_open = True

    def read_into(self, blob: Blob, start: int, into: memoryview) -> None:
        assert self._is_open
        self._memory.before(blob, start)
        data = self._memory.blobs.get(blob, b"")[start : start + len(into)]
        if len(data) < len(into):
            raise NotFoundError("there are no such bytes", kind="no-such-blob")
        into[:] = data
        self._memory.given.append((blob, start))

    def write(self, blob: Blob, start: int, data: Buffer) -> None:
        self._memory.before(blob, start)
        there = bytearray(self._memory.blobs.get(blob, b""))
        there[start : start + len(data)] = data
        self._memory.blobs[blob] = bytes(there)

    def interrupt(self) -> None:
        self._memory.interrupted.set()

    def close(self) -> None:
        self._memory.open -= self._is_open
        self._is_open = False


def source(name: str) -> Source:
    return Source(name, "")


def whole(**slots: bytes) -> tuple[dict[Blob, bytes], dict[Blob, Chunks]]:
    data = {blob(slot): its for slot, its in slots.items()}
    return data, {name: Chunks.of(its, CHUNK) for name, its in data.items()}


# --- which way


def test_what_lies_on_this_host_is_mapped_and_neither_moved_nor_looked_at(tmp_path: Path) -> None:
    data, parts = whole(weights=b"a" * 1000, optimizer=b"b" * 1000)
    there = Folder(str(tmp_path))
    for name, its in data.items():
        there.write(name, 0, its)
    os.truncate(there.path(blob("weights")), 0)
    os.truncate(there.path(blob("weights")), 1000)  # zeros: nobody reads them
    far = Memory("far", data)
    moved = Mover([far, ShmTransport()]).fetch([source("far"), Source("shm", str(tmp_path), host_id())], parts, limit_bytes=LIMIT)
    assert moved.views == {blob("weights"): bytes(1000), blob("optimizer"): b"b" * 1000}
    assert (moved.mapped_bytes, moved.bytes_by, far.links) == (2000, {}, 0)


def test_memory_of_another_host_is_not_taken_for_that_of_this_one(tmp_path: Path) -> None:
    data, parts = whole(weights=b"a" * 1000)
    Folder(str(tmp_path)).write(blob("weights"), 0, b"x" * 1000)
    for host in ("another", ""):
        moved = Mover([ShmTransport(), Memory("far", data)]).fetch(
            [Source("shm", str(tmp_path), host), source("far")], parts, limit_bytes=LIMIT
        )
        assert (moved.views, moved.mapped_bytes) == (data, 0)
    assert ShmTransport("").reach(Source("shm", str(tmp_path), "")) is None


def test_a_mapped_part_that_is_shorter_than_it_should_be_comes_another_way(tmp_path: Path) -> None:
    data, parts = whole(weights=b"a" * 1000, optimizer=b"b" * 500)
    there = Folder(str(tmp_path))
    there.write(blob("weights"), 0, b"a" * 999)
    there.write(blob("optimizer"), 0, b"b" * 500)
    sources = [Source("shm", str(tmp_path), host_id()), source("far")]
    moved = Mover([ShmTransport(), Memory("far", data)]).fetch(sources, parts, limit_bytes=LIMIT)
    assert moved.views == data
    assert (moved.mapped_bytes, moved.bytes_by) == (500, {"shm": 900, "far": 100})


def test_what_one_source_does_not_have_comes_from_the_next() -> None:
    data, parts = whole(weights=b"a" * 1000, optimizer=b"b" * 1000)
    first, second = Memory("first", {blob("optimizer"): b"b" * 1000}), Memory("second", data)
    moved = Mover([first, second]).fetch([source("first"), source("second")], parts, limit_bytes=LIMIT)
    assert (moved.views, moved.bytes_by) == (data, {"first": 1000, "second": 1000})


def test_parts_without_bytes_come_and_nobody_is_asked() -> None:
    data, parts = whole(weights=b"", optimizer=b"")
    assert Mover([]).fetch([], parts, limit_bytes=0).views == data
    assert Mover([]).fetch([], {}, limit_bytes=0).views == {}


# --- what fails


def test_a_source_that_fails_in_the_middle_goes_on_where_it_was_over_a_new_link() -> None:
    data, parts = whole(weights=os.urandom(5000))
    failing = iter([300, 2000, 2000])
    at: list[int] = [next(failing)]

    def before(_: Blob, start: int) -> None:
        if start == at[0]:
            at[0] = next(failing, -1)
            raise failed()

    memory = Memory("one", data, before)
    moved = Mover([memory], links=1).fetch([source("one")], parts, limit_bytes=LIMIT)
    assert moved.views == data
    assert memory.links == 4
    assert [start for _, start in sorted(memory.given, key=lambda each: each[1])] == list(range(0, 5000, CHUNK))
    assert memory.open == 0


def test_a_source_that_gets_nowhere_is_left_after_so_many_tries_and_the_next_goes_on_from_there() -> None:
    data, parts = whole(weights=os.urandom(5000))

    def before(_: Blob, start: int) -> None:
        if start >= 2000:
            raise failed()

    first, second = Memory("first", data, before), Memory("second", data)
    moved = Mover([first, second], links=1, tries=3).fetch([source("first"), source("second")], parts, limit_bytes=LIMIT)
    assert moved.views == data
    assert moved.bytes_by == {"first": 2000, "second": 3000}
    assert first.links <= 3 * 4


def test_without_any_source_it_is_said_so() -> None:
    data, parts = whole(weights=b"a" * 10)

    def never(*_: object) -> None:
        raise failed()

    for transports, kind in (
        ([], "unreachable"),
        ([Memory("one", data, never)], "transport-failed"),
        ([Memory("one", {})], "no-such-blob"),
        ([Memory("one", {}), Memory("two", data, never)], "transport-failed"),
    ):
        with pytest.raises((ServiceError, NotFoundError)) as caught:
            Mover(transports).fetch([source("one"), source("two")], parts, limit_bytes=LIMIT)
        assert caught.value.kind == kind


def test_a_chunk_that_comes_damaged_is_asked_for_again_alone() -> None:
    data, parts = whole(weights=os.urandom(2000))
    memory = Memory("one", data)
    tries = {500: 2, 1900: 1}

    def before(name: Blob, start: int) -> None:
        flipped = bytearray(data[name])
        if tries.get(start, 0):
            tries[start] -= 1
            flipped[start] ^= 4
        memory.blobs[name] = bytes(flipped)

    memory.before = before
    moved = Mover([memory], links=1).fetch([source("one")], parts, limit_bytes=LIMIT)
    assert moved.views == data
    assert moved.bytes_by == {"one": 2000 + 3 * CHUNK}


def test_a_chunk_that_is_damaged_everywhere_is_named() -> None:
    data, parts = whole(weights=os.urandom(2000), optimizer=os.urandom(1000))
    bad = bytearray(data[blob("weights")])
    bad[1234] ^= 1
    other = bytearray(data[blob("weights")])
    other[34] ^= 1
    one = Memory("one", data | {blob("weights"): bytes(bad)})
    two = Memory("two", data | {blob("weights"): bytes(other)})
    assert Mover([one, two]).fetch([source("one"), source("two")], parts, limit_bytes=LIMIT).views == data
    two.blobs[blob("weights")] = bytes(bad)
    with pytest.raises(CorruptError) as caught:
        Mover([one, two], tries=2).fetch([source("one"), source("two")], parts, limit_bytes=LIMIT)
    facts = caught.value.facts
    assert (caught.value.kind, facts["shard"], facts["chunk"], facts["bytes"], facts["tries"]) == (
        "damaged-shard",
        "weights",
        12,
        "1200-1300",
        4,
    )


def test_bytes_of_the_callers_are_filled_and_those_of_a_wrong_size_refused() -> None:
    data, parts = whole(weights=b"a" * 1000)
    into = memoryview(bytearray(1000)).cast("I")
    moved = Mover([Memory("one", data)]).fetch([source("one")], parts, limit_bytes=LIMIT, into={blob("weights"): into})
    assert bytes(into) == data[blob("weights")] == moved.views[blob("weights")]
    with pytest.raises(UsageError) as caught:
        Mover([Memory("one", data)]).fetch([source("one")], parts, limit_bytes=LIMIT, into={blob("weights"): into[:-1]})
    assert caught.value.kind == "wrong-size"


@pytest.mark.parametrize(
    ("chunks", "kind"),
    [
        (Chunks(1 << 60, bytes(16), 1 << 60), "too-large"),
        (Chunks(1 << 60, b""), "bad-chunks"),
        (Chunks(-1, b""), "bad-chunks"),
        (Chunks(10, bytes(16), 0), "bad-chunks"),
        (Chunks(10, bytes(32)), "bad-chunks"),
        (Chunks(1001, bytes(16)), "too-large"),
    ],
)
def test_what_cannot_be_is_refused_before_memory_is_taken(chunks: Chunks, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> memoryview:
        raise AssertionError("memory was asked for")

    monkeypatch.setattr(landing, "new_memory", never)
    memory = Memory("one", {})
    with pytest.raises(MilepostError) as caught:
        Mover([memory], land=never).fetch([source("one")], {blob("weights"): chunks}, limit_bytes=1000)
    assert (caught.value.kind, memory.links) == (kind, 0)


def test_a_fetch_that_takes_too_long_ends() -> None:
    clock = FakeClock()
    data, parts = whole(weights=os.urandom(5000))
    memory = Memory("one", data, lambda *_: clock.advance(seconds=1.0))
    with pytest.raises(ServiceError) as caught:
        Mover([memory], clock).fetch([source("one")], parts, limit_bytes=LIMIT, timeout_s=10.0)
    assert caught.value.kind == "fetch-timeout"
    assert len(memory.given) < 15
    assert memory.open == 0


def test_an_interrupt_ends_all_links_and_leaves_no_thread() -> None:
    data, parts = whole(weights=os.urandom(RUN_CHUNKS * CHUNK * 4))
    main = threading.main_thread()
    waits = threading.Event()
    memory = Memory("one", data)

    def before(*_: object) -> None:
        if threading.current_thread() is main:
            assert waits.wait(60)
            signal.raise_signal(signal.SIGINT)
        waits.set()
        assert memory.interrupted.wait(60)
        raise failed()

    memory.before = before
    with pytest.raises(KeyboardInterrupt):
        Mover([memory], links=2).fetch([source("one")], parts, limit_bytes=LIMIT)
    assert memory.open == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("milepost-move")]


def test_what_is_wrong_with_us_in_a_thread_beside_is_raised() -> None:
    data, parts = whole(weights=os.urandom(RUN_CHUNKS * CHUNK * 4))
    begun = threading.Event()
    memory = Memory("one", data)

    def before(*_: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            raise RuntimeError("a mistake")
        assert begun.wait(60)

    memory.before = before
    with pytest.raises(RuntimeError, match="a mistake"):
        Mover([memory], links=2).fetch([source("one")], parts, limit_bytes=LIMIT)
    assert memory.open == 0


def test_several_links_move_the_parts_of_a_version_at_once() -> None:
    data, parts = whole(**{f"weights.{n}": os.urandom(RUN_CHUNKS * CHUNK) for n in range(4)})
    both = threading.Barrier(2)
    memory = Memory("one", data, lambda _, start: both.wait(60) if start == 0 else None)
    assert Mover([memory], links=2).fetch([source("one")], parts, limit_bytes=LIMIT).views == data
    assert memory.links == 2


@given(
    sizes=st.lists(st.integers(0, 3 * RUN_CHUNKS * 10), min_size=1, max_size=4),
    links=st.integers(1, 3),
    sick=st.lists(st.tuples(st.sampled_from(["fail", "damage", "missing"]), st.integers(0, 60)), max_size=12),
)
@settings(max_examples=examples(60, 1000))
def test_whatever_fails_a_version_comes_whole_or_not_at_all(sizes: list[int], links: int, sick: list[tuple[str, int]]) -> None:
    data = {blob(f"weights.{n}"): bytes(n + (at * 7) % 200 for at in range(size)) for n, size in enumerate(sizes)}
    parts = {name: Chunks.of(its, 10) for name, its in data.items()}
    memory = Memory("one", data)
    plan, count = {at: what for what, at in sick}, iter(range(10**9))

    def before(name: Blob, start: int) -> None:
        what = plan.get(next(count))
        memory.blobs[name] = data[name]
        if what == "fail":
            raise failed()
        if what == "missing":
            raise NotFoundError("not there", kind="no-such-blob")
        if what == "damage" and links == 1 and data[name]:
            memory.blobs[name] = data[name][:start] + bytes([data[name][start] ^ 1]) + data[name][start + 1 :]

    memory.before = before
    last = Memory("last", data)
    moved = Mover([memory, last], links=links, tries=2).fetch([source("one"), source("last")], parts, limit_bytes=LIMIT)
    assert moved.views == data
    assert memory.open == last.open == 0
    # What has come stays: only damage makes anything come twice.
    again = sum(moved.bytes_by.values()) - sum(len(its) for its in {c: data[n] for n, c in parts.items()}.values())
    assert 0 <= again <= 10 * sum(what == "damage" for what, _ in sick)


# --- real servers


def test_a_server_that_is_killed_in_the_middle_costs_only_what_had_not_come(tmp_path: Path) -> None:
    data = os.urandom(24 << 20)
    name, chunks = blob("weights"), Chunks.of(data, 256 << 10)
    Folder(str(tmp_path)).write(name, 0, data)
    with serving("bulk", tmp_path) as (address, pid):
        sick, landed = BulkTransport(), threading.Event()

        class Struck(landing.PrivateLanding):
            def landed(self, number: int) -> None:
                super().landed(number)
                if number == 20:
                    os.kill(pid, signal.SIGKILL)
                    landed.set()

        mover = Mover([sick, FilesTransport()], links=1, land=Struck)
        sources = [Source("bulk", address), Source("files", str(tmp_path))]
        moved = mover.fetch(sources, {name: chunks}, limit_bytes=LIMIT)
    assert landed.is_set()
    assert moved.views[name] == data
    assert sum(moved.bytes_by.values()) < len(data) + RUN_CHUNKS * (256 << 10)
    assert moved.bytes_by["bulk"] >= 21 * (256 << 10)


@pytest.fixture
def shelf(tmp_path: Path) -> Folder:
    (tmp_path / PLACE).mkdir()
    return Folder(str(tmp_path))


def test_parts_are_brought_over_a_socket_and_into_memory(shelf: Folder) -> None:
    data, parts = whole(weights=os.urandom(3 << 20), optimizer=b"", more=os.urandom(10))
    with BulkServer(shelf) as server:
        sinks = [Source("shm", shelf.directory, "another"), Source("bulk", server.address)]
        mover = Mover([ShmTransport(), BulkTransport()])
        assert mover.room(sinks, blob("weights"), 10) is None
        assert mover.bring(sinks, data) == {"bulk": (3 << 20) + 10}
    assert {name: bytes(shelf.map(name)) for name in parts} == data
    here = [Source("shm", shelf.directory, host_id())]
    room = Mover([ShmTransport()]).room(here, blob("new"), 1000)
    assert room is not None
    room[:] = b"n" * 1000
    assert shelf.map(blob("new")) == b"n" * 1000


def test_memory_without_room_is_none_and_leaves_nothing(shelf: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, size_bytes: int) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder, "preallocate", full)
    here = [Source("shm", shelf.directory, host_id())]
    assert Mover([ShmTransport()]).room(here, blob("weights"), 1000) is None
    assert list(Path(shelf.directory).rglob("*.safetensors")) == []


def test_what_is_refused_is_told_at_once_and_not_tried_elsewhere() -> None:
    def refuse(*_: object) -> None:
        raise ServiceError("it was not announced", kind="not-announced")

    first, second = Memory("first", {}, refuse), Memory("second", {})
    with pytest.raises(ServiceError) as caught:
        Mover([first, second]).bring([source("first"), source("second")], {blob("weights"): b"x"})
    assert (caught.value.kind, second.links) == ("not-announced", 0)


def test_what_was_brought_stays_where_a_sink_fails_and_pieces_come_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost.service.transports.bringing.PIECE_BYTES", 100)
    data, _ = whole(weights=os.urandom(1050))
    order: list[int] = []

    def failing() -> Iterator[bool]:
        yield from (False, False, True, False, True)
        while True:
            yield True

    fails = failing()

    def before(_: Blob, start: int) -> None:
        if next(fails):
            raise failed()
        order.append(start)

    first = Memory("first", {}, before)
    second = Memory("second", first.blobs, lambda _, start: order.append(start))
    second.blobs = first.blobs  # the same service, by another way
    carried = Mover([first, second], tries=2).bring([source("first"), source("second")], data)
    assert first.blobs == data
    assert order == list(range(0, 1050, 100))
    assert carried == {"first": 300, "second": 750}


def test_nobody_to_bring_it_to_is_told() -> None:
    with pytest.raises(ServiceError) as caught:
        Mover([]).bring([source("bulk")], {blob("weights"): b"x"})
    assert caught.value.kind == "unreachable"
    clock = FakeClock()
    memory = Memory("one", {}, lambda *_: clock.advance(seconds=60.0))
    with pytest.raises(ServiceError) as caught:
        Mover([memory], clock).bring([source("one")], {blob(f"w{n}"): b"x" for n in range(9)}, timeout_s=100.0)
    assert caught.value.kind == "commit-timeout"


@given(numbers=st.sets(st.integers(0, 200)))
def test_runs_hold_what_follows_one_another(numbers: set[int]) -> None:
    runs = list(runs_of(sorted(numbers)))
    assert [number for run in runs for number in run] == sorted(numbers)
    assert all(run == list(range(run[0], run[0] + len(run))) and len(run) <= moving.RUN_CHUNKS for run in runs)
