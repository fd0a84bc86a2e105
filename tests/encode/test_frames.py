"""Any range of a compressed blob comes back as it was; what is damaged, or lies about its size, is refused in bounded memory."""

from __future__ import annotations

import io
import random
import threading
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from milepost.encode import frames
from milepost.encode.frames import Extent, most_stored, read_range, unpack
from milepost.errors import CorruptError


class Stored:
    """Be a file of frames, and count what is read of it."""

    def __init__(self, *raws: bytes) -> None:
        self.raw = b"".join(raws)
        packed = [zstandard.ZstdCompressor(level=1).compress(raw) for raw in raws]
        self.data = b"".join(packed)
        self.frames = tuple((len(raw), len(one)) for raw, one in zip(raws, packed, strict=True))
        self.reads: list[tuple[int, int]] = []

    def read_into(self, start: int, into: memoryview) -> int:
        self.reads.append((start, len(into)))
        part = self.data[start : start + len(into)]
        into[: len(part)] = part
        return len(part)


def test_any_range_of_any_frames_comes_back() -> None:
    @given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=6), st.integers(0, 400), st.integers(0, 400))
    def check(raws: list[bytes], start: int, size: int) -> None:
        stored = Stored(*raws)
        into = bytearray(b"\xee" * size)
        got = read_range(stored.read_into, stored.frames, start, memoryview(into))
        assert bytes(into[:got]) == stored.raw[start : start + size]
        assert bytes(into[got:]) == b"\xee" * (size - got)

    check()


@given(
    st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 80))),
)
def test_many_reads_of_one_extent_agree_with_the_raw_file(raws: list[bytes], ranges: list[tuple[int, int]]) -> None:
    stored = Stored(*raws)
    extent = Extent(stored.read_into, stored.frames)
    for start, size in ranges:
        into = bytearray(size)
        got = extent.read(start, memoryview(into))
        assert bytes(into[:got]) == stored.raw[start : start + size]


def test_a_frame_that_is_wanted_whole_is_unpacked_in_place_and_no_other_byte_is_read() -> None:
    stored = Stored(b"a" * 1000, b"b" * 1000, b"c" * 1000)
    into = memoryview(bytearray(1000))
    unpacked: list[memoryview] = []

    def watched(data: memoryview, target: memoryview, frame: int | None = None) -> None:
        unpacked.append(target)
        unpack(data, target, frame)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "unpack", watched)
        assert read_range(stored.read_into, stored.frames, 1000, into) == 1000
    assert (bytes(into), len(unpacked), unpacked[0].obj is into.obj) == (b"b" * 1000, 1, True)
    assert stored.reads == [(stored.frames[0][1], stored.frames[1][1])]


def test_small_leaves_that_follow_each_other_in_a_frame_unpack_it_once_in_each_thread() -> None:
    stored = Stored(bytes(range(256)) * 4, b"x")
    extent = Extent(stored.read_into, stored.frames)
    into = memoryview(bytearray(4))
    for start in range(0, 1024, 4):
        extent.read(start, into)
    assert len(stored.reads) == 1
    thread = threading.Thread(target=lambda: [extent.read(start, memoryview(bytearray(4))) for start in range(8)])
    thread.start()
    thread.join()
    assert len(stored.reads) == 2
    extent.forget()
    extent.read(0, into)
    assert len(stored.reads) == 3


def test_what_one_extent_holds_another_does_not_take_for_its_own() -> None:
    one, other = Stored(b"one" * 100), Stored(b"two" * 100)
    into = memoryview(bytearray(3))
    first, second = Extent(one.read_into, one.frames), Extent(other.read_into, other.frames)
    seen = []
    for extent in (first, second, first, Extent(other.read_into, other.frames)):
        extent.read(0, into)
        seen.append(bytes(into))
    assert seen == [b"one", b"two", b"one", b"two"]


def test_a_frame_whose_bytes_went_bad_leaves_nothing_behind_that_is_taken_for_good() -> None:
    # Of several blocks: what comes before the bad one is unpacked, over the frame that lay there.
    first, second = bytes(300_000), b"\xff" * 150_000 + random.Random(0).randbytes(150_000)
    stored = Stored(first, second)
    extent = Extent(stored.read_into, stored.frames)
    into = memoryview(bytearray(4))
    extent.read(0, into)
    sound = stored.data
    unpacked_some = False
    for size in range(len(sound) - 200_000, len(sound), 10_000):
        stored.data = sound[:size] + bytes(len(sound) - size)
        extent.read(0, into)
        with pytest.raises(CorruptError):
            extent.read(300_000, into)
        unpacked_some |= frames._memory.take("raw", 300_000)[0] == 0xFF
        extent.read(0, into)
        assert bytes(into) == bytes(4)
    assert unpacked_some
    stored.data = sound
    extent.read(300_000, into)
    assert bytes(into) == b"\xff" * 4


def bomb(size: int) -> bytes:
    """Return a frame that gives ``size`` zeros and does not say so."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor(write_content_size=False).stream_writer(out, closefd=False) as writer:
        for _ in range(size >> 20):
            writer.write(bytes(1 << 20))
    return out.getvalue()


def saying(content: bytes, size: int) -> bytes:
    """Return a frame of ``content`` that says it has ``size`` bytes (both below 256)."""
    frame = bytearray(zstandard.ZstdCompressor(level=1).compress(content))
    assert frame[4] == 0x20, "one segment, its size in one byte"
    frame[5] = size
    return bytes(frame)


def far_window() -> bytes:
    """Return a sound frame of a hundred zeros for which a reader is to hold 128 MiB."""
    head = zstandard.FRAME_HEADER + bytes([0x80, (27 - 10) << 3]) + (100).to_bytes(4, "little")
    frame = head + (100 << 3 | 0b011).to_bytes(3, "little") + b"\0"  # the last block, and one byte repeated
    assert zstandard.ZstdDecompressor(max_window_size=1 << 28).decompress(frame) == bytes(100)
    return frame


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x28\xb5\x2f\xfd", id="a magic number and no more"),
        pytest.param(bytes(200), id="zeros"),
        pytest.param(b"\x50\x2a\x4d\x18\x64\0\0\0" + bytes(100), id="a frame to skip"),
        pytest.param(zstandard.ZstdCompressor().compress(bytes(99)), id="a byte too few"),
        pytest.param(zstandard.ZstdCompressor().compress(bytes(101)), id="a byte too many"),
        pytest.param(zstandard.ZstdCompressor().compress(bytes(range(100)))[:-1], id="cut off"),
        pytest.param(bomb(64 << 20), id="a bomb that does not say how large"),
        pytest.param(zstandard.ZstdCompressor().compress(bytes(64 << 20)), id="a bomb that says so"),
        pytest.param(saying(bytes(range(150)), 100), id="more than it says"),
        pytest.param(saying(bytes(range(50)), 100), id="less than it says"),
        pytest.param(far_window(), id="a window larger than anything here"),
    ],
)
def test_what_is_no_sound_frame_of_the_size_that_was_written_is_refused_in_little_memory(data: bytes) -> None:
    into = memoryview(bytearray(100))
    unpack(memoryview(zstandard.ZstdCompressor().compress(bytes(100))), into)  # the tables are there from now on
    tracemalloc.start()
    try:
        with pytest.raises(CorruptError) as caught:
            unpack(memoryview(data), into)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.kind == "damaged-frame"
    # And the next one is unpacked as if nothing had been.
    unpack(memoryview(zstandard.ZstdCompressor().compress(b"y" * 100)), into)
    assert bytes(into) == b"y" * 100


@given(st.binary(max_size=300), st.integers(0, 300))
def test_whatever_lies_in_the_place_of_a_frame_is_refused_or_gives_that_many_bytes(data: bytes, size: int) -> None:
    try:
        unpack(memoryview(data), memoryview(bytearray(size)))
    except CorruptError as error:
        assert error.kind == "damaged-frame"  # noqa: PT017 - that it raises is not sure


def test_a_file_that_ends_within_a_frame_is_damaged_and_one_that_is_gone_is_gone() -> None:
    stored = Stored(b"a" * 100, b"b" * 100)
    stored.data = stored.data[:-1]
    into = memoryview(bytearray(100))
    assert read_range(stored.read_into, stored.frames, 0, into) == 100
    with pytest.raises(CorruptError) as caught:
        read_range(stored.read_into, stored.frames, 100, into)
    assert caught.value.facts["frame"] == 1


def test_to_read_a_large_blob_takes_two_buffers_whatever_its_size() -> None:
    piece = bytes(range(256)) * 4096  # 1 MiB
    stored = Stored(*[piece] * 8)
    extent = Extent(stored.read_into, stored.frames)
    into = memoryview(bytearray(2 << 20))
    extent.read(17, into)
    tracemalloc.start()
    try:
        for start in range(17, 6 << 20, 500_001):
            extent.read(start, into)
        assert tracemalloc.get_traced_memory()[1] < 200_000, "the buffers are used again; this is the test's own reading"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 1, 100, 1 << 17, (1 << 17) + 1, 1 << 20, frames.MOST_RAW_BYTES])
def test_no_frame_is_longer_than_a_reader_allows(size: int) -> None:
    noise = random.Random(0).randbytes(size)
    out = io.BytesIO()
    with zstandard.ZstdCompressor(level=1).stream_writer(out, size=size, closefd=False) as writer:
        writer.write(noise)
    assert len(out.getvalue()) <= most_stored(size)
