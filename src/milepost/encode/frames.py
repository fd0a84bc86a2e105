"""Read any range of a compressed blob: a row of zstd frames, each small enough to be unpacked alone.

What is stored is damaged until proven sound: a frame says how much it gives, the manifest says so too, and not a byte more
is taken from it. That they are the right bytes only digests tell, and these stay with the caller.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from milepost.errors import CorruptError

if TYPE_CHECKING:
    import zstandard

Frames = Sequence[tuple[int, int]]
"""(raw bytes, stored bytes) of each frame, in order."""
ReadInto = Callable[[int, memoryview], int]
"""Fill the memory from this offset of the stored file; return how much there was."""

MOST_RAW_BYTES = 4 << 20
"""How much a frame gives at most: what a reader of one leaf unpacks beside it, and what one damaged bit can take along."""
_MOST_WINDOW_BYTES = 8 << 20


def most_stored(raw_bytes: int) -> int:
    """Return the most bytes that a frame of ``raw_bytes`` takes: what does not shrink is stored raw, in blocks."""
    return raw_bytes + (raw_bytes >> 8) + 64


def read_range(read_into: ReadInto, frames: Frames, start: int, into: memoryview) -> int:
    """Fill ``into`` with raw bytes from ``start``; return how many there were. Raises `CorruptError` where a frame is damaged."""
    return Extent(read_into, frames).read(start, into)


class Extent:
    """Read one compressed blob, from any thread. Each thread keeps the frame of which it read a part last.

    Small leaves follow each other in a frame: without that each of them would unpack it once more.
    """

    __slots__ = ("_held_as", "_raw", "_read_into", "_stored")

    def __init__(self, read_into: ReadInto, frames: Frames) -> None:
        self._read_into = read_into
        self._raw = list(accumulate((raw for raw, _ in frames), initial=0))
        self._stored = list(accumulate((stored for _, stored in frames), initial=0))
        self._held_as = object()

    def forget(self) -> None:
        """Unpack anew whatever is read from now on: what is stored, or the memory that caches it, may have changed."""
        self._held_as = object()

    def read(self, start: int, into: memoryview) -> int:
        """Fill ``into`` with raw bytes from ``start``; return how many there were.

        A frame that is wanted whole is unpacked straight into place. Raises `CorruptError` (kind ``damaged-frame``).
        """
        wanted = into[: max(0, self._raw[-1] - start)]
        index, done = bisect_right(self._raw, start) - 1, 0
        while done < len(wanted):
            begin, end = self._raw[index], self._raw[index + 1]
            skip = start + done - begin
            part = wanted[done : done + end - begin - skip]
            if len(part) == end - begin:
                self._unpack(index, part)
            else:
                part[:] = self._held(index)[skip : skip + len(part)]
            done += len(part)
            index += 1
        return done

    def _held(self, index: int) -> memoryview:
        size = self._raw[index + 1] - self._raw[index]
        raw = _memory.take("raw", size)
        if _memory.held != (self._held_as, index):
            _memory.held = None
            self._unpack(index, raw)
            _memory.held = (self._held_as, index)
        return raw

    def _unpack(self, index: int, into: memoryview) -> None:
        size = self._stored[index + 1] - self._stored[index]
        stored = _memory.take("stored", size)
        if self._read_into(self._stored[index], stored) != size:
            raise _damaged("the file ends within it", index)
        unpack(stored, into, index)


def unpack(stored: memoryview, into: memoryview, frame: int | None = None) -> None:
    """Fill ``into`` with what one frame gives: exactly that much, or it is damaged. Lets go of the GIL."""
    import zstandard

    try:
        told = zstandard.get_frame_parameters(stored)
        if told.content_size != len(into) or told.window_size > _MOST_WINDOW_BYTES or told.dict_id:
            # Before anything is unpacked: a bomb says what it is going to give, or does not say it.
            raise _damaged(f"it says {told.content_size:,} bytes and should say {len(into):,}", frame)
        got = _memory.unpacker().stream_reader(stored).readinto(into)
    except zstandard.ZstdError as error:
        raise _damaged(str(error), frame) from error
    if got != len(into):
        raise _damaged(f"it gives {got:,} bytes and should give {len(into):,}", frame)


def _damaged(why: str, frame: int | None) -> CorruptError:
    return CorruptError(
        "a compressed frame is damaged",
        kind="damaged-frame",
        hint="milepost verify names what it touches, and what a resume would take",
        why=why,
        frame=frame,
    )


class _Memory(threading.local):
    """Keep what a thread unpacks with: one frame as stored, one as it was, and zstd's own tables."""

    def __init__(self) -> None:
        self.held: tuple[object, int] | None = None
        """Which frame lies in ``raw``: of which extent, and its index."""
        self._buffers: dict[str, bytearray] = {}
        self._unpacker: zstandard.ZstdDecompressor | None = None

    def take(self, which: str, size_bytes: int) -> memoryview:
        buffer = self._buffers.get(which)
        if buffer is None or len(buffer) < size_bytes:
            if which == "raw":
                self.held = None
            buffer = self._buffers[which] = bytearray(size_bytes)
        return memoryview(buffer)[:size_bytes]

    def unpacker(self) -> zstandard.ZstdDecompressor:
        if self._unpacker is None:
            import zstandard

            self._unpacker = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW_BYTES)
        return self._unpacker


_memory = _Memory()
