"""Find out whether a journal's write-ahead log has lost what was written down: SQLite takes damage for its end, and says nothing.

The log is cut off to nothing whenever it was taken over into the database, and each append is synced before the next begins. So
behind the part of it that is whole a crash leaves one transaction at most. Where there are more, a bit has rotted, and what came
after was promised to somebody.
"""

from __future__ import annotations

import struct
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

_HEADER, _FRAME_HEADER = 32, 24
_MAGIC = {0x377F0682: "<u4", 0x377F0683: ">u4"}
_Sum = tuple[int, int]


def lost_transactions(log: bytes, page_bytes: int) -> int:
    """Return how many whole transactions lie behind the part of ``log`` that SQLite will take; one may be a crash's.

    ``page_bytes`` is the page size of the database, for a log whose own header is damaged.
    """
    order, page_bytes, before = _header(log, page_bytes)
    orders = [order] if order else [*_MAGIC.values()]
    return max(_lost(log, page_bytes, each, before if order else None) for each in orders)


def _header(log: bytes, page_bytes: int) -> tuple[str, int, _Sum]:
    """Return the byte order of the log's sums, its page size, and the sum of the header; no order where that is damaged."""
    if len(log) < _HEADER:
        return "", page_bytes, (0, 0)
    magic, _, told_bytes, _, _, _, *told = struct.unpack(">8I", log[:_HEADER])
    order = _MAGIC.get(magic, "")
    if not order or _added((0, 0), log[:24], order) != tuple(told):
        return "", page_bytes, (0, 0)
    return order, told_bytes, (told[0], told[1])


def _lost(log: bytes, page_bytes: int, order: str, before: _Sum | None) -> int:
    """Count the transactions behind the first frame that does not follow from those before it."""
    frames = [log[at : at + _FRAME_HEADER + page_bytes] for at in range(_HEADER, len(log), _FRAME_HEADER + page_bytes)]
    frames = [frame for frame in frames if len(frame) == _FRAME_HEADER + page_bytes]
    salts = log[16:24]
    end = 0
    while before is not None and end < len(frames):
        told = _told(frames[end])
        if frames[end][8:16] != salts or _frame_sum(before, frames[end], order) != told:
            break
        before, end = told, end + 1
    # Of what is behind, a frame is whole if it follows from the one before it, whatever that one is worth.
    return sum(
        1
        for last, frame in pairwise(frames[end:])
        if struct.unpack(">I", frame[4:8])[0] and _frame_sum(_told(last), frame, order) == _told(frame)
    )


def _told(frame: bytes) -> _Sum:
    first, second = struct.unpack(">2I", frame[16:24])
    return first, second


def _frame_sum(before: _Sum, frame: bytes, order: str) -> _Sum:
    return _added(_added(before, frame[:8], order), frame[_FRAME_HEADER:], order)


def _added(before: _Sum, data: bytes, order: str) -> _Sum:
    """Continue SQLite's sum: of each pair of words (a, b), s0 += a + s1, then s1 += b + s0, modulo 2^32."""
    words = np.frombuffer(data, order).astype(np.uint32)
    seed, weights = _weights(len(words))
    state = np.array(before, np.uint32)
    sums = (seed * state).sum(axis=1, dtype=np.uint32) + (weights * words).sum(axis=1, dtype=np.uint32)
    return int(sums[0]), int(sums[1])


@cache
def _weights(count: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Return how much the sum before, and each of ``count`` words, adds to the sum: it is linear in them."""
    step, power = np.array([[1, 1], [1, 2]], np.uint32), np.eye(2, dtype=np.uint32)
    weights = np.zeros((2, count), np.uint32)
    for at in range(count - 2, -1, -2):
        weights[:, at : at + 2] = power @ np.array([[1, 0], [1, 1]], np.uint32)
        power = power @ step
    return power, weights
