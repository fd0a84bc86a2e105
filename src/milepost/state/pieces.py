"""Compute with half-open ranges of rows: what is visible of pieces that lie over each other, what is new, where to cut.

Pure arithmetic on numbers. A log is stored as pieces ``[a, b)`` in the order in which they were written: where two hold the
same row, the later one is right.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

PIECE_BYTES = 32 << 20
"""The most that a piece holds, all fields together: damage is told this finely, and reads run side by side."""
MOST_RANGES = 1024
"""How many ranges of changed rows one save tells apart: each is a piece, and each piece a line or more in the manifest."""
GAP_BYTES = 64 << 10
"""Two changed ranges with less than this between them are saved as one."""

Span: TypeAlias = tuple[int, int]


class Ranges:
    """Hold whole numbers as ascending ranges that do not touch, at most `MOST_RANGES` of them.

    Where more would be needed the smallest gaps are closed: whatever was added stays in it, and some more may be.
    """

    __slots__ = ("_starts", "_stops")

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in spans:
            self.add(start, stop)

    def __iter__(self) -> Iterator[Span]:
        return zip(self._starts, self._stops, strict=True)

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, stop: int) -> None:
        """Add ``[start, stop)``."""
        if start >= stop:
            return
        first, last = bisect_left(self._stops, start), bisect_right(self._starts, stop)
        if first < last:
            start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]
        if len(self._starts) > 2 * MOST_RANGES:
            self.close_gaps(0)

    def close_gaps(self, least: int) -> None:
        """Close every gap shorter than ``least``, and the shortest ones beyond `MOST_RANGES` ranges."""
        gaps = [start - stop for stop, start in zip(self._stops, self._starts[1:], strict=False)]
        if len(gaps) >= MOST_RANGES:
            open_ = set(heapq.nlargest(MOST_RANGES - 1, range(len(gaps)), key=gaps.__getitem__))
        else:
            open_ = set(range(len(gaps)))
        kept = [index for index, gap in enumerate(gaps) if index in open_ and gap >= least]
        if self._starts:
            self._starts = [self._starts[0], *(self._starts[index + 1] for index in kept)]
            self._stops = [*(self._stops[index] for index in kept), self._stops[-1]]


@dataclass(frozen=True, slots=True)
class Run:
    """Name rows ``[start, stop)`` which are read from one piece."""

    start: int
    stop: int
    piece: int
    """Its index in the list of pieces."""


def visible(pieces: Sequence[Span], start: int, stop: int) -> list[Run]:
    """Return which piece each row of ``[start, stop)`` is read from, in ascending runs; rows in no piece are left out.

    Takes a time that grows as n log n with the number of pieces, however they lie.
    """
    order = sorted(range(len(pieces)), key=lambda piece: pieces[piece][0])
    runs: list[Run] = []
    over: list[int] = []  # a heap of the pieces that have begun, the latest first
    following, row = 0, start
    while row < stop:
        while following < len(order) and pieces[order[following]][0] <= row:
            heapq.heappush(over, -order[following])
            following += 1
        while over and pieces[-over[0]][1] <= row:
            heapq.heappop(over)
        end = min(stop, pieces[order[following]][0]) if following < len(order) else stop
        if over:
            piece = -over[0]
            end = min(end, pieces[piece][1])
            if runs and runs[-1].stop == row and runs[-1].piece == piece:
                runs[-1] = Run(runs[-1].start, end, piece)
            else:
                runs.append(Run(row, end, piece))
        row = end
    return runs


def covers(runs: Iterable[Run], start: int, stop: int) -> bool:
    """Return whether `visible` found a piece for every row of ``[start, stop)``."""
    return sum(run.stop - run.start for run in runs) == max(0, stop - start)


def unsaved(kept: Sequence[Span], changed: Iterable[Span], start: int, stop: int, gap: int = 0) -> list[Span]:
    """Return the rows of the window ``[start, stop)`` to be written: those in no kept piece, and those that changed.

    Ranges with less than ``gap`` rows between them become one.
    """
    found = Ranges((max(start, first), min(stop, last)) for first, last in changed)
    row = start
    for run in visible(kept, start, stop):
        found.add(row, run.start)
        row = run.stop
    found.add(row, stop)
    found.close_gaps(gap)
    return list(found)


def cut(spans: Iterable[Span], rows: int) -> list[Span]:
    """Cut at each multiple of ``rows``: so later saves cut at the same places."""
    return [(max(start, at), min(stop, at + rows)) for start, stop in spans for at in range(start - start % rows, stop, rows)]


def still_visible(kept: Sequence[Span], written: Sequence[Span], start: int, stop: int) -> frozenset[int]:
    """Return the indices of the kept pieces of which a row is read once the ``written`` ones lie over them."""
    return frozenset(run.piece for run in visible([*kept, *written], start, stop))
