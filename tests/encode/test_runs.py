"""What lies side by side in memory is one run: the same bytes, in order, and not copied."""

from __future__ import annotations

import mmap
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from milepost.encode.runs import Pool, runs


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 90), st.integers(1, 40)), max_size=20),
    st.integers(1, 50),
)
def test_the_bytes_are_the_same_in_fewer_views_and_none_is_too_long(cuts: list[tuple[int, int, int]], most: int) -> None:
    memories = [memoryview(bytearray(range(130))), memoryview(bytearray(range(130, 250)) + bytearray(10))]
    views = [memories[which][start : start + size] for which, start, size in cuts]
    joined = list(runs(views, most))
    assert b"".join(joined) == b"".join(views)
    assert all(0 < len(run) <= most for run in joined)
    bounds = [range(address(memory), address(memory) + len(memory) + 1) for memory in memories]
    assert all(any(address(run) in one and address(run) + len(run) in one for one in bounds) for run in joined), "a copy"
    for run, after in pairwise(joined):
        # Where two that are handed on apart touch, that is where one was long enough, or they are of two memories.
        assert address(run) + len(run) != address(after) or len(run) == most or run.obj is not after.obj


def test_a_hundred_thousand_leaves_side_by_side_are_handed_on_in_pieces_that_begin_on_a_page() -> None:
    memory = memoryview(mmap.mmap(-1, 100_000 * 100))
    views = [memory[start : start + 100] for start in range(0, len(memory), 100)]
    pieces = list(runs(views, 1 << 20))
    assert [len(piece) for piece in pieces] == [1 << 20] * 9 + [len(memory) - (9 << 20)]
    assert all(address(piece) % 4096 == 0 for piece in pieces)


def test_two_memories_are_never_joined_though_they_may_touch() -> None:
    whole = np.arange(20, dtype=np.uint8)
    assert [bytes(run) for run in runs([memoryview(whole[:10]), memoryview(whole[10:])], 99)] == [
        bytes(range(10)),
        bytes(range(10, 20)),
    ]


def test_read_only_memory_is_joined_too() -> None:
    memory = memoryview(bytes(range(100)))
    assert [bytes(run) for run in runs([memory[:50], memory[50:]], 200)] == [bytes(range(100))]


def test_a_pool_hands_out_again_what_it_got_back_and_nothing_else() -> None:
    pool = Pool(8)
    first, second = pool.take(), pool.take()
    assert first.obj is not second.obj
    pool.give(memoryview(b"not of it"))
    pool.give(first[:3])
    third = pool.take()
    assert (third.obj is first.obj, len(third), len(pool)) == (True, 8, 2)
