"""A ring of rows is saved as what was added or touched since the last commit, and nothing that was changed is forgotten."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from milepost import Rows, UsageError
from milepost.state.leaves import KeptLeaf
from milepost.state.tree import flatten
from tests.state.saves import Saves


def ring(capacity: int = 8, **more: Any) -> Rows:
    rows = Rows({"observation": np.zeros((capacity, 3), np.int32), "reward": np.zeros(capacity)}, **more)
    rows.log.piece_bytes = 4 * rows.row_bytes
    return rows


def write(rows: Rows, n: int = 1, salt: int = 0) -> None:
    for _ in range(n):
        for array in rows.arrays.values():
            array[rows.position] = rows.count + 1000 * salt
        rows.advance()


def test_the_first_save_takes_the_window_in_aligned_pieces_and_the_next_only_what_was_added() -> None:
    rows, saves = ring(), Saves()
    write(rows, 11)
    saves.save(rows)
    assert saves.base is not None
    assert saves.base.tree[:4] == ["rows", 8, 11, [[3, 4], [4, 8], [8, 11]]]
    assert saves.staged_bytes == 8 * rows.row_bytes
    write(rows, 2)
    saves.save(rows)
    assert saves.staged_bytes == 10 * rows.row_bytes
    assert saves.base.tree[3] == [[4, 8], [8, 11], [11, 12], [12, 13]]


def test_a_touched_row_is_written_anew_and_lies_over_the_piece_that_had_it() -> None:
    rows, saves = ring(1000), Saves()
    rows.log.piece_bytes = 1 << 20
    write(rows, 900)
    saves.save(rows)
    rows.arrays["reward"][7] = -1.0
    rows.touch(7, 8)
    saves.save(rows)
    assert saves.base is not None
    assert saves.base.tree[3] == [[0, 900], [7, 8]]
    assert saves.staged_bytes == 901 * rows.row_bytes


def test_a_failed_save_forgets_nothing_and_a_commit_only_what_it_has_seen() -> None:
    rows, saves = ring(100), Saves()
    write(rows, 50)
    saves.save(rows)
    rows.touch(3, 4)
    saves.stage(rows)  # fails
    rows.touch(5, 6)
    second = saves.stage(rows)
    rows.touch(9, 10)  # while it is being written
    saves.commit(second)
    assert rows.log.known is not None
    assert rows.log.changed() == [(9, 10)]


@pytest.mark.parametrize(
    "bad", [{}, {"a": np.zeros(0)}, {"a": np.zeros(3), "b": np.zeros(4)}, {"a": np.float64(1)}, {1: np.zeros(2)}]
)
def test_what_is_no_ring_is_refused(bad: Any) -> None:
    with pytest.raises(UsageError):
        Rows(bad)


def test_a_dtype_that_cannot_be_saved_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="infos") as caught:
        Rows({"infos": np.array([{}, {}], dtype=object)})
    assert caught.value.kind == "unsupported-dtype"


def test_without_a_base_nothing_is_kept() -> None:
    rows, saves = ring(), Saves()
    write(rows, 8)
    saves.save(rows)
    assert not any(isinstance(leaf, KeptLeaf) for leaf in flatten(rows, "replay").leaves)
    assert all(leaf.piece for leaf in flatten(rows, "replay").leaves if not isinstance(leaf, KeptLeaf))
