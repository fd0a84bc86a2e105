"""Ranges, what is visible of pieces, and merging: against the plainest model there is, and within their bounds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost import Rows
from milepost.records import LeafSpec
from milepost.state.inflate import inflate
from milepost.state.merging import Limits, MergedLeaf, Part, merges
from milepost.state.pieces import MOST_RANGES, Ranges, Span, covers, cut, still_visible, unsaved, visible
from tests.state.saves import Saves

spans = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda drawn: (drawn[0], drawn[0] + drawn[1]))
pieces = st.lists(spans.filter(lambda span: span[0] < span[1]), max_size=12)


@given(st.lists(spans, max_size=30))
def test_ranges_are_a_set_of_numbers(added: list[Span]) -> None:
    ranges = Ranges(added)
    assert [number for start, stop in ranges for number in range(start, stop)] == sorted(
        {n for span in added for n in range(*span)}
    )
    ends = [end for span in ranges for end in span]
    assert ends == sorted(set(ends)), "ascending, and with a gap between"


@given(st.lists(spans, max_size=30), st.integers(0, 20))
def test_gaps_that_are_closed_leave_everything_in(added: list[Span], least: int) -> None:
    ranges, before = Ranges(added), list(Ranges(added))
    ranges.close_gaps(least)
    inside = {n for span in ranges for n in range(*span)}
    assert inside >= {n for span in before for n in range(*span)}
    assert all(after[0] - span[1] >= least for span, after in itertools.pairwise(ranges))


def test_no_more_than_so_many_ranges_are_told_apart_and_the_smallest_gaps_go_first() -> None:
    ranges = Ranges((n * n, n * n + 1) for n in range(1, 5000))
    assert len(ranges) <= 2 * MOST_RANGES
    ranges.close_gaps(0)
    assert len(ranges) == MOST_RANGES
    assert list(ranges)[-1] == (4999 * 4999, 4999 * 4999 + 1)


@given(pieces, st.integers(0, 20), st.integers(0, 50))
def test_a_row_is_read_from_the_last_piece_that_has_it(found: list[Span], start: int, stop: int) -> None:
    model = {}
    for piece, (first, last) in enumerate(found):
        model.update(dict.fromkeys(range(max(first, start), min(last, stop)), piece))
    runs = visible(found, start, stop)
    assert {row: run.piece for run in runs for row in range(run.start, run.stop)} == model
    assert runs == sorted(runs, key=lambda run: run.start)
    assert all((a.stop, a.piece) != (b.start, b.piece) for a, b in itertools.pairwise(runs)), "as long as can be"
    assert covers(runs, start, stop) == (len(model) == max(0, stop - start))


def test_thirty_thousand_pieces_over_each_other_take_no_square_of_their_number() -> None:
    nested = [(n, 400_000 - n) for n in range(30_000)]
    assert len(visible(nested, 0, 400_000)) == 59_999
    assert len(visible(nested[::-1], 0, 400_000)) == 1


@given(pieces, st.lists(spans, max_size=6), st.integers(0, 20), st.integers(0, 50), st.integers(1, 9), st.integers(0, 4))
def test_what_is_kept_and_what_is_written_are_the_window(
    kept: list[Span], changed: list[Span], start: int, stop: int, rows: int, gap: int
) -> None:
    written = cut(unsaved(kept, changed, start, stop, gap), rows)
    assert all(0 < last - first <= rows and first // rows == (last - 1) // rows for first, last in written)
    assert all(start <= first and last <= stop for first, last in written)
    seen = still_visible(kept, written, start, stop)
    left = [span for piece, span in enumerate(kept) if piece in seen]
    runs = visible([*left, *written], start, stop)
    assert covers(runs, start, stop)
    fresh = {row for span in written for row in range(*span)}
    assert fresh >= {row for span in changed for row in range(*span) if start <= row < stop}
    assert {run.piece for run in runs} >= set(range(len(left))), "no piece is kept for nothing"


@given(pieces, st.integers(0, 20), st.integers(0, 50), st.integers(1, 40), st.integers(2, 4), st.integers(1, 9))
def test_what_is_merged_is_made_of_whole_runs_and_overlaps_nothing(
    over: list[Span], start: int, stop: int, most: int, fan: int, rows: int
) -> None:
    found = [*cut([(0, 60)], rows), *over]
    limits = Limits(piece_bytes=most, small_bytes=most // 2, floor_bytes=1, most_pieces=4, fan=fan, crowd=3)
    ranges = merges(found, [2 * (last - first) for first, last in found], start, stop, limits)
    runs = visible(found, start, stop)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))
    for first, last in ranges:
        inside = [run for run in runs if first <= run.start and run.stop <= last]
        assert inside[0].start == first
        assert inside[-1].stop == last
        assert covers(inside, first, last)
        assert len(inside) == 1 or 2 * (last - first) <= most


SMALL = Limits(piece_bytes=4096, small_bytes=256, floor_bytes=32, most_pieces=16, fan=8, crowd=16)


def ring(capacity: int) -> Rows:
    rows = Rows({"a": np.zeros((capacity, 3), np.uint8), "b": np.zeros(capacity, np.uint8)})
    rows.log.piece_bytes = SMALL.piece_bytes
    rows.log.gap_bytes = 0
    return rows


def most_pieces(window_bytes: int) -> int:
    """Bound how many pieces there are: large ones, at most as many over each as make a crowd, and what waits to be merged."""
    small = min(max(SMALL.small_bytes, window_bytes // SMALL.most_pieces), SMALL.piece_bytes // 2)
    large = 2 + 2 * window_bytes // small
    return large * (SMALL.crowd + 1) + SMALL.fan * (1 + math.ceil(math.log2(small / SMALL.floor_bytes)))


@settings(max_examples=12, deadline=None)
@given(
    st.integers(40, 3000),
    st.lists(st.tuples(st.integers(1, 60), st.lists(st.integers(0, 3000), max_size=3)), min_size=60, max_size=120),
)
def test_pieces_stay_few_and_a_row_is_written_again_only_so_often(capacity: int, steps: list[tuple[int, list[int]]]) -> None:
    """4 bytes a row: what was merged is at most log2(large / floor) + 1 times what was new, and a share for each small piece."""
    rows, saves = ring(capacity), Saves(limits=SMALL)
    added = touches = most = 0
    for salt, (n, touched) in enumerate(steps):
        for _ in range(n):
            rows.arrays["a"][rows.position] = rows.count % 251
            rows.arrays["b"][rows.position] = salt % 251
            rows.advance()
        for back in touched:
            row = rows.count - 1 - back
            if row >= rows.window[0]:
                rows.arrays["b"][row % capacity] = 255 - salt % 7
                rows.touch(row, row + 1)
                touches += 1
        added += 1
        generation = saves.save(rows)
        most = max(most, len(generation.tree[3]))
    built = inflate(generation.tree, generation.records, generation)
    order = [row % capacity for row in range(*rows.window)]
    assert all(built.arrays[name][order].tolist() == array[order].tolist() for name, array in rows.arrays.items())
    assert most <= most_pieces(4 * capacity)
    growth = math.log2(SMALL.piece_bytes / SMALL.floor_bytes) + 2
    allowed = growth * saves.staged_bytes + 4 * SMALL.floor_bytes * (added + touches) + touches * SMALL.piece_bytes / 8
    assert saves.merged_bytes <= allowed


@pytest.mark.parametrize("n", [1, 7])
def test_a_ring_that_is_only_added_to_is_merged_within_a_few_times_what_was_added(n: int) -> None:
    rows, saves = ring(20_000), Saves(limits=SMALL)
    for _ in range(700):
        rows.advance(n)
        generation = saves.save(rows)
    assert len(generation.tree[3]) <= 60
    assert saves.merged_bytes <= 6 * saves.staged_bytes + 700 * SMALL.floor_bytes


def test_dead_bytes_are_at_most_as_many_as_live_ones_and_a_little() -> None:
    rows, saves = ring(2000), Saves(limits=SMALL)
    rows.advance(2000)
    for salt in range(300):
        rows.touch(salt * 7 % 1900, salt * 7 % 1900 + 90)
        generation = saves.save(rows)
        assert sum(map(len, generation.data)) <= 2 * 8000 + SMALL.small_bytes + 8 * 90
    assert saves.merged_bytes <= 3 * saves.staged_bytes


def test_a_large_piece_under_many_small_ones_is_read_once_to_be_merged() -> None:
    data = [bytes(range(100)), *(bytes([200 + at]) for at in range(3))]
    parts = (Part(0, 0, 10), Part(1, 0, 1), Part(0, 11, 40), b"text", Part(2, 0, 1), Part(0, 41, 99), Part(3, 0, 1))
    leaf = MergedLeaf("replay.obs[0:104]", LeafSpec("numpy", "uint8", (104,)), 104, parts)
    asked: list[int] = []
    made = leaf.assemble(lambda index: asked.append(index) or data[index])
    assert asked == [0, 1, 2, 3]
    assert made == data[0][:10] + b"\xc8" + data[0][11:40] + b"text" + b"\xc9" + data[0][41:99] + b"\xca"
