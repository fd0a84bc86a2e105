"""One pass: each byte of a load is read once, side by side, verified on its way into place. B8, DESIGN 6"""

from __future__ import annotations

import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from milepost.encode import frames
from milepost.encode.digest import digest_of
from milepost.engine import oneshot, reader, reads
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.engine.reads import Reads
from milepost.errors import CorruptError, MilepostError, StoreError
from milepost.lifecycle.retain import Keep
from milepost.publish import layout
from milepost.publish.view import read
from milepost.records import BlobRecord, LeafRecord
from milepost.state.rows import Rows
from milepost.store.base import Store
from milepost.store.memory import MemoryStore
from milepost.store.posix import Posix
from milepost.testing.faults import FaultStore
from tests.engine.test_parts import events, flip, leaf_of, manifest_of, mark
from tests.engine.training import bits, local
from tests.strike import before_line

GATE_S = 60.0


@pytest.fixture
def _in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the little that a test loads be read as what is large: into place, piece by piece, by several threads."""
    monkeypatch.setattr(reader, "HELD_BYTES", 0)
    monkeypatch.setattr(reads, "SMALL_BYTES", 256)
    monkeypatch.setattr(reads, "PIECE_BYTES", 1000)
    monkeypatch.setattr(reads, "_WORTH_A_THREAD_BYTES", 1)
    monkeypatch.setattr(reads, "_cores", lambda: 3)


in_place = pytest.mark.usefixtures("_in_place")


def state_of(value: int, arrays: int = 12, size: int = 700) -> dict[str, Any]:
    """Return arrays large and small, wide and narrow, so that they do not lie in the file as they lie in the tree."""
    policy = {f"w{i}": np.full(size + 7 * i, value + i, (np.float32, np.int64, np.uint8)[i % 3]) for i in range(arrays)}
    return {
        "policy": policy,
        "replay": {"obs": np.full(5 * size, value, np.int16), "at": value},
        "counters": {"step": value, "text": "x" * 20},
        "rng": {"own": np.random.default_rng(value)},
    }


def start(where: Path | Store, state: dict[str, Any], **settings: Any) -> CheckpointEngine:
    store = where if isinstance(where, Store) else local(where)
    return CheckpointEngine(store, state=state, writer="inline", keep=Keep(last=9), **settings)


def save(where: Path, *values: int, **settings: Any) -> None:
    for value in values:
        with start(where, state_of(value), **settings) as engine:
            if read_head(where):
                engine.adopt()
            engine.save(value)


def read_head(where: Path) -> int:
    try:
        head = read(local(where)).head
    except MilepostError:
        return 0
    return head.number if head else 0


class Noted(FaultStore):
    """Note which bytes of which blob are read, and by whom."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.ranges: list[tuple[str, int, int]] = []
        self.threads: set[str] = set()

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        got = super().read_into(name, start, into)
        if name.startswith(layout.BLOBS):
            self.ranges.append((name, start, start + got))
            self.threads.add(threading.current_thread().name)
        return got

    def times_read(self) -> Counter[tuple[str, int]]:
        return Counter((name, byte) for name, start, stop in self.ranges for byte in range(start, stop))


class Acting(FaultStore):
    """Do something before each read of a blob; a true answer turns a bit in what was read."""

    def __init__(self, inner: Store, act: Callable[[int, int], object]) -> None:
        super().__init__(inner)
        self._act = act
        self._count = iter(range(1 << 30))
        self.dropped: list[str] = []

    def drop_cached(self, name: str) -> None:
        self.dropped.append(name)

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        if not name.startswith(layout.BLOBS) or len(into) <= 2:  # not the look at a blob's size
            return super().read_into(name, start, into)
        lie = self._act(next(self._count), start)
        got = super().read_into(name, start, into)
        if lie and got:
            into[got - 1] ^= 1
        return got


# --- each byte once -----------------------------------------------------------------------------------------------------


def check_that_each_leaf_was_read_once(where: Path, store: Noted) -> None:
    """Check that every byte of every leaf was read once; the last byte of a blob tells its size, and so it is read twice."""
    times, last = store.times_read(), {blob.name: blob.size_bytes - 1 for blob in manifest_of(where, 2).blobs}
    for component in manifest_of(where, 2).components:
        for leaf in component.leaves:
            name = manifest_of(where, 2).blobs[leaf.blob].name
            for byte in range(leaf.start, leaf.stop):
                assert times[name, byte] == 1 + (byte == last[name]), (leaf.path, byte)
    assert max(times.values()) <= 2


@pytest.mark.parametrize("peek", [False, True])
@pytest.mark.parametrize("how", ["held", "in place"])
def test_a_resume_reads_each_byte_once(tmp_path: Path, request: pytest.FixtureRequest, how: str, peek: bool) -> None:
    save(tmp_path, 1, 2)
    if how == "in place":
        request.getfixturevalue("_in_place")
    store, state = Noted(local(tmp_path)), state_of(0)
    with start(store, state) as engine:
        if peek:
            engine.peek()
        assert engine.resume().generation == 2  # type: ignore[union-attr]
    assert bits(state["policy"]) == bits(state_of(2)["policy"])
    check_that_each_leaf_was_read_once(tmp_path, store)
    [told] = events(tmp_path, "resumed")
    leaves = [leaf for component in manifest_of(tmp_path, 2).components for leaf in component.leaves]
    assert told["verified_bytes"] == sum(leaf.size_bytes for leaf in leaves)


@in_place
def test_a_load_and_a_copy_read_each_byte_once(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    store = Noted(local(tmp_path))
    loaded: Any = oneshot.load(store)
    assert bits(loaded["policy"]) == bits(state_of(2)["policy"])
    check_that_each_leaf_was_read_once(tmp_path, store)


@in_place
def test_large_states_are_read_by_several_threads_which_end_with_the_load(tmp_path: Path) -> None:
    save(tmp_path, 1)
    together = threading.Barrier(3)
    state = state_of(0)

    def act(number: int, _start: int) -> None:
        if number < 3:
            together.wait(GATE_S)  # three reads are under way at once, or this fails

    with start(Acting(local(tmp_path), act), state) as engine:
        engine.resume()
        assert not readers()
    assert bits(state["policy"]) == bits(state_of(1)["policy"])


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("milepost-read")]


def test_a_small_state_is_read_by_the_thread_that_asks(tmp_path: Path) -> None:
    save(tmp_path, 1)
    store = Noted(local(tmp_path))
    with start(store, state_of(0)) as engine:
        engine.resume()
    assert store.threads == {threading.current_thread().name}


class Calls(Posix):
    """Count the system calls on blobs."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def perform(self, name: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self.counts["open_blob" if name == "open_read" and "/blobs/" in args[0] else name] += 1
        return function(*args, **kwargs)


def test_many_small_arrays_are_few_opens_and_few_reads(tmp_path: Path) -> None:
    many = {"policy": {f"w{i}": np.full(33, i, (np.float32, np.int64)[i % 2]) for i in range(3000)}}
    with start(tmp_path, many) as engine:
        engine.save(1)
    live = {"policy": {name: np.zeros_like(array) for name, array in many["policy"].items()}}
    calls = Calls()
    with start(local(tmp_path, calls), live) as engine:
        before = calls.counts.copy()
        engine.resume()
        made = calls.counts - before
    assert bits(live) == bits(many)
    assert made["read_into"] < 30, made
    assert made["open_blob"] <= 2, "one look at its size, one to read it"


@in_place
def test_a_blob_is_opened_once_by_each_thread_however_many_arrays_are_in_it(tmp_path: Path) -> None:
    save(tmp_path, 1)
    calls = Calls()
    with start(local(tmp_path, calls), state_of(0)) as engine:
        engine.resume()
    assert calls.counts["read_into"] > 40, "piece by piece"
    assert calls.counts["open_blob"] <= 3 + 1


def test_a_load_takes_no_more_memory_than_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "HELD_BYTES", 1 << 20)
    state = {"policy": [np.ones(1 << 20) for _ in range(6)], "replay": np.ones(100_000), "counters": {"step": 1}}
    with start(tmp_path, state) as engine:
        engine.save(1)
        engine.resume()  # what is made once in a process is made
        tracemalloc.start()
        try:
            engine.resume()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < (1 << 20) + 5 * reads.RUN_BYTES, "48 MB were loaded"


# --- all that can be queued comes out as if it had been read one by one ---------------------------------------------------


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Draw leaves (blob, start, size), in any order, with gaps, some over the same bytes; and how long each blob is."""
    leaves = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9000), st.integers(0, 3000)), min_size=1, max_size=25))
    lengths = [max([start + size for blob, start, size in leaves if blob == index], default=0) for index in range(3)]
    return leaves, lengths


def generation(
    store: Store, leaves: list[tuple[int, int, int]], lengths: list[int], frame_bytes: int = 0
) -> tuple[Any, list[LeafRecord]]:
    """Write blobs of random bytes, in compressed frames if they are said to be of some size; return what names their leaves."""
    data = [np.random.default_rng(index).bytes(length) for index, length in enumerate(lengths)]
    records = [
        LeafRecord(f"leaf{i}", "numpy", "uint8", (size,), blob, start, start + size, digest_of(data[blob][start : start + size]))
        for i, (blob, start, size) in enumerate(leaves)
    ]
    blobs = []
    for index, raw in enumerate(data):
        pieces = [raw[at : at + frame_bytes] for at in range(0, len(raw), frame_bytes)] if frame_bytes else []
        packed = [zstandard.ZstdCompressor(level=1).compress(piece) for piece in pieces]
        stored = b"".join(packed) if frame_bytes else raw
        store.replace(f"blobs/{index}", stored)
        frames = tuple((len(piece), len(frame)) for piece, frame in zip(pieces, packed, strict=True))
        blobs.append(BlobRecord(f"blobs/{index}", len(stored), digest_of(stored), frames))
    return _Blobs(tuple(blobs), data), records


class _Blobs:
    """Be as much of a manifest as reading takes."""

    number = 7

    def __init__(self, blobs: tuple[BlobRecord, ...], raw: list[bytes]) -> None:
        self.blobs = blobs
        self.raw = raw


@pytest.fixture(scope="module")
def _small_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SMALL_BYTES", 700), ("PIECE_BYTES", 512), ("RUN_BYTES", 2000), ("GAP_BYTES", 64)):
            patch.setattr(reads, name, value)
        patch.setattr(reads, "_WORTH_A_THREAD_BYTES", 2000)
        patch.setattr(reads, "_OPEN_FILES", 2)
        yield


@pytest.mark.usefixtures("_small_limits")
@given(layouts(), st.integers(1, 3), st.sampled_from([0, 0, 300, 2500]), st.data())
def test_any_leaves_come_out_right_and_one_wrong_byte_is_told_with_its_leaf(
    drawn: tuple[list[tuple[int, int, int]], list[int]], threads: int, frame_bytes: int, data: st.DataObject
) -> None:
    store = MemoryStore()
    manifest, records = generation(store, *drawn, frame_bytes)
    into = [bytearray(record.size_bytes) for record in records]
    unread = data.draw(st.sets(st.integers(0, len(records) - 1)), "only verified")

    def load() -> None:
        with Reads(store, manifest, threads=threads) as queue:
            for index, record in enumerate(records):
                queue.ask("policy", record, None if index in unread else memoryview(into[index]))
                if data.draw(st.integers(0, 9)) == 0:
                    queue.settle()
            queue.settle()

    load()
    for index, record in enumerate(records):
        expected = bytes(record.size_bytes) if index in unread else manifest.raw[record.blob][record.start : record.stop]
        assert into[index] == expected
        into[index] += b"!"  # nobody holds on to the memory
        del into[index][-1:]
    long = [record for record in records if record.size_bytes]
    if not long:
        return
    chosen = data.draw(st.sampled_from(long), "the spoilt leaf")
    at = data.draw(st.integers(chosen.start, chosen.stop - 1), "the spoilt byte")
    first, last = (at, at + 1) if not frame_bytes else (at - at % frame_bytes, at - at % frame_bytes + frame_bytes)
    hit = {r.path for r in records if r.blob == chosen.blob and r.start < last and r.stop > first and r.size_bytes}
    spoil(store, manifest.blobs[chosen.blob], at // frame_bytes if frame_bytes else None, at)
    with pytest.raises(CorruptError) as caught:
        load()
    assert caught.value.facts["leaf"] in hit
    assert (caught.value.kind, caught.value.facts["blob"]) == ("damaged-leaf", f"blobs/{chosen.blob}")


def spoil(store: Store, blob: BlobRecord, frame: int | None, at: int) -> None:
    """Turn a bit of one byte, or the first one of a frame, so that it is none any more."""
    stored = bytearray(store.read(blob.name))
    stored[at if frame is None else sum(size for _, size in blob.frames[:frame])] ^= 1
    store.replace(blob.name, bytes(stored))


@pytest.mark.usefixtures("_small_limits")
@pytest.mark.parametrize("size", [60, 701])
def test_no_frame_is_unpacked_more_often_than_leaves_end_in_it(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    store, unpacked = MemoryStore(), []
    manifest, records = generation(store, [(0, 7 + size * i, size) for i in range(40)], [7 + 40 * size, 0, 0], 1500)
    unpack = frames.unpack
    monkeypatch.setattr(frames, "unpack", lambda *given: [unpacked.append(1), unpack(*given)])
    into = [bytearray(size) for _ in records]
    with Reads(store, manifest, threads=1) as queue:
        for record, memory in zip(records, into, strict=True):
            queue.ask("policy", record, memoryview(memory))
        queue.settle()
    assert b"".join(into) == manifest.raw[0][7:]
    assert len(unpacked) <= 2 * len(manifest.blobs[0].frames)


class Backwards:
    """Ask for leaves in the opposite order, all those that may be under way at once."""

    def __init__(self, source: reader.Source) -> None:
        self._source = source
        self._asked: list[tuple[int, memoryview]] = []

    def read_into(self, index: int, into: memoryview) -> None:
        self._asked.append((index, into))

    def settle(self) -> None:
        for index, into in reversed(self._asked):
            self._source.read_into(index, into)
        self._asked.clear()
        self._source.settle()


@in_place
def test_two_saved_arrays_over_one_live_memory_end_as_the_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "_cores", lambda: 1)
    direct = reader.Source
    monkeypatch.setattr(reader, "Source", lambda *given: Backwards(direct(*given)))
    with start(tmp_path, {"policy": {"a": np.full(900, 1), "b": np.full(900, 2), "c": np.full(900, 3)}}) as engine:
        engine.save(1)
    one = np.zeros(900, np.int64)
    with start(tmp_path, {"policy": {"a": one, "b": one, "c": np.zeros(900, np.int64)}}) as engine:
        engine.resume()
    assert set(one.tolist()) == {2}


@in_place
def test_rows_of_a_ring_come_back_into_its_own_arrays_by_several_threads(tmp_path: Path) -> None:
    def ring(count: int) -> dict[str, Any]:
        rows = np.arange(max(0, count - 1000), count)
        arrays = {"obs": np.zeros((1000, 9), np.int32), "done": np.zeros(1000, np.bool_)}
        arrays["obs"][rows % 1000], arrays["done"][rows % 1000] = rows[:, None] * 9 + np.arange(9), rows % 3 == 0
        return {"replay": Rows(arrays, count=count), "policy": np.full(10, count), "counters": {"step": count}}

    with start(tmp_path, ring(2345)) as engine:
        engine.save(1)
    live = ring(17)
    arrays = dict(live["replay"].arrays)
    with start(tmp_path, live) as engine:
        assert engine.resume() is not None
    saved = ring(2345)["replay"]
    assert live["replay"].count == 2345
    for name, array in live["replay"].arrays.items():
        assert array is arrays[name]
        assert array.tobytes() == saved.arrays[name].tobytes()


# --- what goes wrong on the way -----------------------------------------------------------------------------------------


@in_place
def test_an_interrupt_waits_for_the_reads_under_way_and_leaves_no_thread(tmp_path: Path) -> None:
    save(tmp_path, 1)
    me, other_reads, interrupted = threading.current_thread(), threading.Event(), threading.Event()
    ended: list[str] = []

    def act(_number: int, _start: int) -> None:
        if threading.current_thread() is me and not interrupted.is_set():
            assert other_reads.wait(GATE_S)
            interrupted.set()
            raise KeyboardInterrupt
        other_reads.set()
        assert interrupted.wait(GATE_S)
        ended.append(threading.current_thread().name)

    state = state_of(0)
    with start(Acting(local(tmp_path), act), state) as engine:
        with pytest.raises(KeyboardInterrupt):
            engine.resume()
        assert ended, "the read under way was waited for"
        assert not readers()
        with pytest.raises(MilepostError) as caught:
            engine.save(2)
        assert caught.value.kind in ("half-loaded", "not-resumed")
        assert engine.resume() is not None
        engine.save(2)
    assert bits(state["policy"]) == bits(state_of(1)["policy"])


@pytest.mark.parametrize("at", range(110))
def test_one_ctrl_c_before_any_line_leaves_no_thread_and_nothing_is_written_later(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "SMALL_BYTES", 10)
    monkeypatch.setattr(reads, "_WORTH_A_THREAD_BYTES", 100)
    store = MemoryStore()
    manifest, records = generation(store, [(0, 100 * i, 100) for i in range(6)], [600, 0, 0])
    into = [bytearray(100) for _ in records]

    before = sys.gettrace()
    try:
        queue = Reads(store, manifest, threads=2)
        with queue, queue:
            sys.settrace(before_line(at, reads.__file__))
            for record, memory in zip(records, into, strict=True):
                queue.ask("policy", record, memoryview(memory))
            queue.settle()
            queue.__exit__()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    assert not readers(), at
    for memory in into:
        assert bytes(memory) in (bytes(100), *(store.read(f"blobs/{0}", r.start, r.stop) for r in records))


@in_place
def test_where_no_thread_can_be_started_the_caller_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)

    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    store, state = Noted(local(tmp_path)), state_of(0)
    with start(store, state) as engine:
        assert engine.resume() is not None
    assert store.threads == {threading.current_thread().name}
    assert bits(state["policy"]) == bits(state_of(1)["policy"])


@in_place
def test_what_fails_in_a_thread_is_raised_once_and_the_next_resume_succeeds(tmp_path: Path) -> None:
    save(tmp_path, 1)
    failing = [True]

    def act(number: int, _start: int) -> None:
        if failing and number >= 5:
            raise StoreError("the disk failed", kind="io", retryable=False)

    state = state_of(0)
    with start(Acting(local(tmp_path), act), state) as engine:
        with pytest.raises(StoreError) as caught:
            engine.resume()
        assert caught.value.kind == "io"
        assert not readers()
        with pytest.raises(MilepostError):
            engine.save(2)
        failing.clear()
        assert engine.resume().skipped == ()  # type: ignore[union-attr]
        engine.save(2)
    assert bits(state["policy"]) == bits(state_of(1)["policy"])
    assert read(local(tmp_path)).marks == {}


@in_place
@pytest.mark.parametrize("nth", [0, 3, 17])
def test_a_failure_that_passes_and_a_flaky_read_cost_one_more_read(tmp_path: Path, nth: int) -> None:
    save(tmp_path, 1)

    def fails(number: int, _start: int) -> None:
        if number == nth:
            raise StoreError("no answer", kind="timeout", retryable=True)

    for act in (fails, lambda number, _start: number == nth):
        state, store = state_of(0), Acting(local(tmp_path), act)
        with start(store, state) as engine:
            restored = engine.resume()
        assert restored is not None
        assert (restored.skipped, restored.exact) == ((), True)
        assert store.dropped == [manifest_of(tmp_path, 1).blobs[0].name], "read again, past this machine's memory"
        assert bits(state["policy"]) == bits(state_of(1)["policy"])
        assert read(local(tmp_path)).marks == {}


@in_place
def test_damage_far_into_a_load_is_overwritten_whole_by_the_generation_before(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3)
    rot_last_array(tmp_path, 3)
    rot_last_array(tmp_path, 2)
    state, told = state_of(0), []
    with start(tmp_path, state) as engine:
        restored = engine.resume()
        told.append(restored)
        assert restored is not None
        assert (restored.generation, restored.exact) == (1, True)
        assert [text.split(":")[0] for text in restored.skipped] == ["generation 3 damaged", "generation 2 damaged"]
        assert sorted(read(local(tmp_path)).marks) == [2, 3]
        engine.save(4)
    assert bits(state["policy"]) == bits(state_of(1)["policy"])
    assert state["counters"] == state_of(1)["counters"]
    assert bits(oneshot.load(tmp_path, parts=["policy"])) == bits({"policy": state_of(1)["policy"]})


def rot_last_array(where: Path, number: int) -> None:
    manifest = manifest_of(where, number)
    record = manifest.component("policy")
    assert record is not None
    leaf = record.leaves[-1]
    flip(where / manifest.blobs[leaf.blob].name, leaf.stop - 1)


def test_damage_in_what_is_small_is_found_before_anything_is_changed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    rot_last_array(tmp_path, 1)
    state = state_of(0)
    with start(tmp_path, state) as engine:
        with pytest.raises(CorruptError) as caught:
            engine.resume()
        assert caught.value.kind == "nothing-valid"
        assert bits(state["policy"]) == bits(state_of(0)["policy"])
        with pytest.raises(MilepostError) as refused:
            engine.save(2)
        assert refused.value.kind == "not-resumed", "there is nothing to undo"


@in_place
def test_a_large_replay_that_is_rotten_everywhere_stops_one_start_and_the_next_goes_on_without_it(tmp_path: Path) -> None:
    """The first start finds it half-way through overwriting the live buffer, which is then neither the old nor the new."""
    save(tmp_path, 1)
    name, leaf = leaf_of(tmp_path, 1, "replay")
    flip(tmp_path / name, leaf.stop - 1)
    with start(tmp_path, state_of(0)) as engine:
        with pytest.raises(CorruptError) as caught:
            engine.resume()
        assert caught.value.hint.startswith("start the script anew, and it may go on without replay; ")
        with pytest.raises(MilepostError):
            engine.save(2)
    assert sorted(read(local(tmp_path)).marks) == [1]
    state = state_of(0)
    with start(tmp_path, state) as engine:
        restored = engine.resume()
        assert restored is not None
        assert (restored.generation, restored.exact) == (1, False)
        assert bits(state["replay"]) == bits(state_of(0)["replay"])
        assert bits(state["policy"]) == bits(state_of(1)["policy"])
        engine.save(2)
    assert oneshot.verify(tmp_path).resume_from == 2


def test_what_a_run_can_do_without_is_the_first_to_be_read_before_anything_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state: dict[str, Any] = {"policy": np.ones(1000), "counters": {"step": 1}, "replay": {"obs": np.ones(4000)}}
    with start(tmp_path, state) as engine:
        engine.save(1)
    name, leaf = leaf_of(tmp_path, 1, "replay")
    flip(tmp_path / name, leaf.stop - 1)
    monkeypatch.setattr(reader, "HELD_BYTES", leaf.size_bytes)  # for the larger one, or for the others
    state["policy"][:], state["replay"]["obs"][:] = 0, 7
    with start(tmp_path, state) as engine:
        restored = engine.resume()
        assert restored is not None
        assert restored.components == ("policy", "counters")
    assert set(state["policy"].tolist()) == {1.0}
    assert set(state["replay"]["obs"].tolist()) == {7.0}


@in_place
def test_what_the_script_has_no_more_is_verified_all_the_same(tmp_path: Path) -> None:
    """A save would be published on top of it, and a full disk would have the whole generation named once more."""
    save(tmp_path, 1, 2)
    state = {name: value for name, value in state_of(0).items() if name != "replay"}
    store = Noted(local(tmp_path))
    with start(store, state) as engine:
        engine.resume()
    check_that_each_leaf_was_read_once(tmp_path, store)
    name, leaf = leaf_of(tmp_path, 2, "replay")
    flip(tmp_path / name, leaf.stop - 1)
    with start(tmp_path, state) as engine:
        assert engine.resume().generation == 1  # type: ignore[union-attr]
        assert 2 in read(local(tmp_path)).marks


def test_a_generation_that_is_marked_is_read_whole_before_the_mark_is_taken_away(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    mark(tmp_path, 2)
    store = Noted(local(tmp_path))
    with start(store, state_of(0)) as engine:
        assert engine.resume().generation == 2  # type: ignore[union-attr]
    times = store.times_read()
    assert all(times[blob.name, byte] >= 1 for blob in manifest_of(tmp_path, 2).blobs for byte in range(blob.size_bytes))
    assert read(local(tmp_path)).marks == {}


@in_place
def test_generators_come_back_last_though_reads_run_side_by_side(tmp_path: Path) -> None:
    class Draws:
        def __init__(self) -> None:
            self.w = np.zeros(5000)

        def state_dict(self) -> dict[str, Any]:
            return {"w": self.w}

        def load_state_dict(self, state: Any) -> None:
            self.w[:] = state["w"]
            own.random(3)

    own = np.random.default_rng(5)
    state = {"rng": {"own": own}, "policy": Draws(), "extra": {"a": np.zeros(5000)}}
    with start(tmp_path, state) as engine:
        engine.save(1)
        expected = own.random()
        engine.resume()
        assert own.random() == expected


def test_no_blob_is_looked_at_of_which_nothing_is_read() -> None:
    class Looked(MemoryStore):
        def is_cached(self, name: str) -> bool:
            looked.append(name)
            return super().is_cached(name)

    looked: list[str] = []
    store, size = Looked(), 3 << 20
    manifest, records = generation(store, [(blob, at * size // 3, size // 3) for blob in range(3) for at in range(3)], [size] * 3)
    queue = Reads(store, manifest)
    with queue, queue:
        for record in (records[3], records[5]):
            queue.ask("policy", record, None)
        queue.settle()
    assert looked == ["blobs/1"], "once, however often it is entered and however many leaves are read"
