"""A blob is written beside its digest, packed or not: bounded, in order, from where it lies, and whatever fails is told once."""

from __future__ import annotations

import mmap
import random
import sys
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import safetensors
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from milepost.encode import blob
from milepost.encode.blob import Item, layout, order, write_blob
from milepost.encode.compress import Compressor, buffers
from milepost.encode.digest import Digest, digest_of, xxh3
from milepost.encode.frames import read_range
from milepost.encode.runs import Pool, address_of
from milepost.testing.faults import HANG_S
from tests.encode.test_blob import Sink

MIB = 1 << 20


def leaves_of(*sizes: int) -> tuple[list[Item], list[memoryview]]:
    """Return leaves that lie one after the other on a page, in the order of the file."""
    memory = memoryview(mmap.mmap(-1, max(1, sum(sizes))))
    memory[:] = (random.Random(len(memory)).randbytes(len(memory) // 2 + 1) + bytes(len(memory)))[: len(memory)]
    ends = np.cumsum([0, *sizes]).tolist()
    return [Item(str(n), "uint8", (size,), size) for n, size in enumerate(sizes)], [memory[a:b] for a, b in pairwise(ends)]


def unpacked(data: bytes) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        return reader.read()


@pytest.mark.parametrize("packer", [None, Compressor(), Compressor(threads=3)])
@pytest.mark.parametrize("strong", [False, True])
def test_what_is_written_is_the_same_safetensors_file_packed_or_not(packer: Compressor | None, strong: bool) -> None:
    items, views = leaves_of(100, 0, 5 * MIB, 17, 33 * MIB + 3, 300_000)
    plan, sink = layout(items, {"run": "r"}), Sink()
    result = write_blob(sink, plan, views, strong=strong, compress=packer)
    raw = unpacked(sink.data) if packer else sink.data
    assert (len(raw), result.size_bytes, result.digest) == (plan.size_bytes, len(sink.data), digest_of(sink.data, strong=strong))
    assert result.leaf_digests == tuple(digest_of(view, strong=strong) for view in views)
    assert [raw[start:stop] for start, stop in plan.offsets] == [bytes(view) for view in views]
    assert {name: len(info["data"]) for name, info in safetensors.deserialize(raw)} == {
        item.name: item.size_bytes for item in items
    }
    assert bool(result.frames) == (packer is not None)
    if packer:
        assert (sum(raw for raw, _ in result.frames), sum(size for _, size in result.frames)) == (len(raw), len(sink.data))


@given(
    st.lists(st.tuples(st.sampled_from(["uint8", "float32", "bool"]), st.binary(max_size=60)), max_size=12),
    st.lists(st.booleans(), min_size=12, max_size=12),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 900)), max_size=4),
)
def test_any_leaves_scattered_or_side_by_side_read_late_or_not_come_back(
    parts: list[tuple[str, bytes]], late: list[bool], ranges: list[tuple[int, int]]
) -> None:
    datas = [data[: len(data) // 4 * 4] if dtype == "float32" else data for dtype, data in parts]
    items = [
        Item(str(n), dtype, (len(data) // (4 if dtype == "float32" else 1),), len(data))
        for n, ((dtype, _), data) in enumerate(zip(parts, datas, strict=True))
    ]
    whole = memoryview(bytearray(b"".join(datas[index] for index in order(items))))
    views: list[Any] = [None] * len(datas)
    at = 0
    for index in order(items):
        views[index], at = whole[at : at + len(datas[index])], at + len(datas[index])
        if late[index]:
            views[index] = lambda data=datas[index]: data
    plan, plain, packed = layout(items, {}), Sink(), Sink()
    write_blob(plain, plan, views)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("milepost.encode.compress.FRAME_BYTES", 100)
        result = write_blob(packed, plan, views, compress=Compressor())
    assert unpacked(packed.data) == plain.data
    assert [plain.data[start:stop] for start, stop in plan.offsets] == datas

    def read_into(start: int, into: memoryview) -> int:
        part = packed.data[start : start + len(into)]
        into[: len(part)] = part
        return len(part)

    for start, size in [*ranges, *((start, stop - start) for start, stop in plan.offsets)]:
        into = bytearray(size)
        got = read_range(read_into, result.frames, start, memoryview(into))
        assert into[:got] == plain.data[start : start + size]


def test_leaves_side_by_side_in_memory_are_written_from_there_in_pieces_that_begin_on_a_page() -> None:
    items, views = leaves_of(*[1000] * 30_000)
    plan = layout(items, {})
    base = np.frombuffer(views[0], np.uint8).__array_interface__["data"][0]
    seen: list[tuple[int, int, int]] = []

    class Watching:
        at = 0

        def write(self, data: Any, /) -> None:
            seen.append((self.at, np.frombuffer(data, np.uint8).__array_interface__["data"][0] - base, len(data)))
            self.at += len(data)

    write_blob(Watching(), plan, views, ["known"] * len(views))
    (first, *rest) = seen
    assert (first[2], len(plan.header) % 4096) == (len(plan.header), 0)
    assert [(at % 4096, address) for at, address, _ in rest] == [(0, n * blob._PIECE_BYTES) for n in range(len(rest))]
    assert len(rest) == 2


def test_the_digest_of_the_next_piece_is_made_while_this_one_is_written_and_the_queue_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items, views = leaves_of(200 * MIB)
    gate, digested = threading.Event(), 0
    update = Digest.update

    def counted(self: Digest, data: Any) -> None:
        nonlocal digested
        update(self, data)
        digested += 1
        if digested == 3:
            gate.set()  # the disk has not taken the first piece yet

    class Blocking:
        ahead = 0
        written = 0

        def write(self, data: Any, /) -> None:
            assert gate.wait(HANG_S), "nothing was digested meanwhile"
            self.ahead = max(self.ahead, digested - self.written)
            self.written += 1

    monkeypatch.setattr(Digest, "update", counted)
    sink = Blocking()
    write_blob(sink, layout(items, {}), views, ["known"])
    assert sink.written == digested == 14
    assert sink.ahead <= blob._QUEUED_PIECES + 2


@pytest.mark.parametrize("packer", [None, Compressor()])
@pytest.mark.parametrize("at", [0, 4096, 20 * MIB, 38 * MIB])
def test_a_disk_that_fails_anywhere_is_told_once_and_gets_nothing_more(packer: Compressor | None, at: int) -> None:
    items, views = leaves_of(*[8 * MIB] * 10)
    before = threading.active_count()

    class Failing:
        size = 0
        failed = False

        def write(self, data: Any, /) -> None:
            assert not self.failed, "written behind a piece that is missing"
            if self.size + len(data) > at:
                self.failed = True
                raise OSError(28, "no space left")
            self.size += len(data)

    with pytest.raises(OSError, match="no space left") as caught:
        write_blob(Failing(), layout(items, {}), views, compress=packer)
    assert caught.value.__context__ is None
    assert threading.active_count() == before


@pytest.mark.parametrize("packer", [None, Compressor()])
def test_what_cannot_be_read_when_its_turn_comes_is_told_and_no_thread_stays(packer: Compressor | None) -> None:
    items, views = leaves_of(*[8 * MIB] * 5)

    def gone() -> bytes:
        raise LookupError("retired meanwhile")

    before = threading.active_count()
    with pytest.raises(LookupError, match="retired"):
        write_blob(Sink(), layout(items, {}), [*views[:3], gone, views[4]], compress=packer)
    assert threading.active_count() == before


def test_what_is_read_late_is_read_in_the_order_of_the_file_and_let_go_of() -> None:
    items, views = leaves_of(*[4 * MIB] * 20)
    alive = most = 0
    turns: list[int] = []

    class Held(bytearray):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def late(index: int) -> Any:
        def read() -> memoryview:
            nonlocal alive, most
            turns.append(index)
            alive += 1
            most = max(most, alive)
            return memoryview(Held(views[index]))

        return read

    write_blob(Sink(), layout(items, {}), [late(index) for index in range(20)])
    assert (turns, alive) == (list(range(20)), 0)
    assert most <= blob._QUEUED_PIECES + 4


@pytest.mark.parametrize("packer", [None, Compressor(), Compressor(threads=3)])
def test_buffers_are_used_again_once_they_are_written(packer: Compressor | None, monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[Pool] = []
    monkeypatch.setattr(blob, "buffers", lambda: pools.append(buffers()) or pools[-1])
    monkeypatch.setattr(blob, "Pool", lambda size, pages: pools.append(Pool(size, pages=pages)) or pools[-1])
    views = [memoryview(bytearray(300_000)) for _ in range(400)]
    items = [Item(str(n), "uint8", (300_000,), 300_000) for n in range(400)]
    write_blob(Sink(), layout(items, {}), views, compress=packer)
    assert len(pools[0]) <= (2 * (packer._threads + 2) + 2 if packer else blob._QUEUED_PIECES + 2)


@given(st.lists(st.tuples(st.integers(1, 3 * MIB), st.integers(0, 4095)), min_size=3, max_size=6))
def test_what_lies_on_no_page_is_handed_on_as_a_direct_write_takes_it(sizes: list[tuple[int, int]]) -> None:
    """As torch allocates: each tensor somewhere."""
    views = [memoryview(mmap.mmap(-1, size + place))[place:] for size, place in sizes]
    for number, view in enumerate(views):
        view[:] = bytes([number + 1]) * len(view)
    items = [Item(str(n), "uint8", (len(view),), len(view)) for n, view in enumerate(views)]
    plan, handed, at = layout(items, {}), Sink(), 0
    places: list[tuple[int, int]] = []

    class Looking(Sink):
        def write(self, data: Any, /) -> None:
            nonlocal at
            places.append((address_of(memoryview(data)) - at, len(data)))
            at += len(data)
            handed.write(data)

    result = write_blob(Looking(), plan, views)
    assert [handed.data[start:stop] for start, stop in plan.offsets] == [bytes(view) for view in views]
    assert result.digest == xxh3(handed.data)
    if plan.size_bytes > blob._GATHER_BYTES:
        assert all(off % blob.PAGE_BYTES == 0 for off, _ in places)
        assert max(size for _, size in places) <= blob._PIECE_BYTES


def test_a_small_blob_needs_no_thread_and_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread for twenty kilobytes"))
    items, views = leaves_of(*[1000] * 20)
    sink = Sink()
    result = write_blob(sink, layout(items, {}), views)
    assert (len(sink.pieces), result.digest) == (1, xxh3(sink.data))


@pytest.mark.parametrize("packer", [None, Compressor()])
def test_a_ctrl_c_anywhere_leaves_no_thread_that_writes_to_a_file_which_is_closed(packer: Compressor | None) -> None:
    items, views = leaves_of(*[5 * MIB] * 3)
    plan = layout(items, {})
    struck = 0
    for at in range(0, 400, 3):
        seen, closed = 0, threading.Event()

        class Closing:
            def write(self, data: Any, /) -> None:
                assert not closed.is_set()  # noqa: B023 - this round's

        def strike(frame: Any, event: str, _: object) -> Any:
            nonlocal seen
            if "milepost/encode/" not in frame.f_code.co_filename:
                return None
            if event == "line":
                seen += 1
                if seen == at + 1:  # noqa: B023 - this round's
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return strike

        before = sys.gettrace()
        try:
            sys.settrace(strike)
            write_blob(Closing(), plan, views, ["known"] * 3, compress=packer)
        except KeyboardInterrupt:
            struck += 1
        finally:
            sys.settrace(before)
            closed.set()
        assert not [one.name for one in threading.enumerate() if one.name.startswith(("milepost-io", "milepost-pack"))], at
    assert struck > 50
