"""B4, B9: a ring of rows is saved as what was added or touched since the last commit; nothing that was changed is forgotten."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import pytest
import torch

from milepost import CorruptError, LeafSpec, Rows, UsageError
from milepost.state.compare import compare
from milepost.state.inflate import inflate, skeleton
from milepost.state.leaves import KeptLeaf
from milepost.state.merging import Limits
from milepost.state.pieces import MOST_RANGES, PIECE_BYTES
from milepost.state.restore import restore
from milepost.state.tree import flatten
from tests.state.saves import Generation, Saves


def ring(capacity: int = 8, **more: Any) -> Rows:
    rows = Rows({"observation": np.zeros((capacity, 3), np.int32), "reward": np.zeros(capacity)}, **more)
    rows.log.piece_bytes = 4 * rows.row_bytes
    rows.log.gap_bytes = 0
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
    live = ring(1000)
    restore(live, saves.base.tree, saves.base.records, saves.base, "replay")
    assert live.arrays["reward"].tolist() == rows.arrays["reward"].tolist()


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


def test_a_piece_that_passes_the_end_of_the_ring_is_in_the_order_of_its_rows() -> None:
    rows, saves = ring(), Saves()
    rows.log.piece_bytes = 1 << 20
    write(rows, 13)
    generation = saves.save(rows)
    assert generation.tree[3] == [[5, 13]]
    assert np.frombuffer(generation.data[1], float).tolist() == [5.0, 6, 7, 8, 9, 10, 11, 12]


def test_a_ring_that_was_written_round_more_than_once_between_two_saves_is_all_new() -> None:
    rows, saves = ring(), Saves()
    write(rows, 5)
    saves.save(rows)
    write(rows, 20)
    kept = saves.kept
    generation = saves.save(rows)
    assert saves.kept == kept
    assert generation.tree[3][0][0] == 17


def test_what_was_loaded_is_not_written_again_and_a_load_forgets_what_was_touched() -> None:
    rows, saves = ring(), Saves()
    write(rows, 6)
    first = saves.save(rows)
    rows.arrays["reward"][1] = -1
    rows.touch(1, 2)
    write(rows, 9, salt=1)
    saves.save(rows)
    rows.touch(2, 12)
    restore(rows, first.tree, first.records, first, "replay")
    assert rows.count == 6
    saves.base, staged = first, saves.staged_bytes
    again = saves.save(rows)
    assert saves.staged_bytes == staged
    assert again.tree == first.tree
    write(rows, 9, salt=2)  # the numbers that came before come again, with other content
    saves.save(rows)
    built: Any = inflate(saves.base.tree, saves.base.records, saves.base)
    assert built.arrays["reward"].tolist() == rows.arrays["reward"].tolist()


def test_a_save_that_was_in_flight_when_another_generation_was_loaded_says_nothing_any_more() -> None:
    rows, saves = ring(), Saves()
    write(rows, 6)
    first = saves.save(rows)
    write(rows, 2, salt=1)
    in_flight = saves.stage(rows)
    restore(rows, first.tree, first.records, first, "replay")
    saves.commit(in_flight)
    assert rows.log.known is not None
    assert rows.log.known.count == 6


def test_a_load_that_finds_damage_leaves_nothing_to_rely_on() -> None:
    class Damaged(Generation):
        def settle(self) -> None:
            raise CorruptError("a leaf's bytes are not those that were saved", kind="damaged-leaf")

    rows, saves = ring(), Saves()
    write(rows, 6)
    first = saves.save(rows)
    with pytest.raises(CorruptError):
        restore(rows, first.tree, first.records, Damaged(first.tree, list(first.records), first.data), "replay")
    assert rows.log.known is None


def test_a_commit_that_is_told_from_another_thread_is_seen_by_the_next_save() -> None:
    rows, saves = ring(), Saves()
    write(rows, 6)
    staged = saves.stage(rows)
    thread = threading.Thread(target=saves.commit, args=(staged,), name="test-writer")
    thread.start()
    thread.join()
    saves.save(rows)
    assert saves.staged_bytes == 6 * rows.row_bytes


def test_whoever_changes_rows_in_silence_is_found_and_the_whole_window_is_written() -> None:
    rows, saves = ring(16), Saves()
    write(rows, 16)
    saves.save(rows)
    rows.arrays["reward"][6] = -1
    doubts = []
    for _ in range(4):  # four pieces: one is looked at in each save
        flat, generation = saves.stage(rows)
        doubts.append(flat.logs[0].doubt)
        saves.commit((flat, generation))
    assert [bool(doubt) for doubt in doubts] == [False, True, False, False]
    assert "rows 4 to 8 of replay.reward" in doubts[1]
    assert saves.staged_bytes == 32 * rows.row_bytes
    assert rows.log.pieces_checked == 4


def test_the_self_check_knows_the_digests_of_signed_runs() -> None:
    rows, saves = ring(), Saves(strong=True)
    write(rows, 8)
    saves.save(rows)
    saves.save(rows)
    assert saves.staged_bytes == 8 * rows.row_bytes
    assert rows.log.pieces_checked == 1


def test_nothing_is_relied_on_after_doubt_until_a_save_that_began_later_is_committed() -> None:
    rows, saves = ring(), Saves()
    write(rows, 8)
    saves.save(rows)
    in_flight = saves.stage(rows)
    rows.doubt("a callback wrote to it")
    saves.commit(in_flight)
    flat, generation = saves.stage(rows)
    assert flat.logs[0].doubt == "a callback wrote to it"
    assert not any(isinstance(leaf, KeptLeaf) for leaf in flat.leaves)
    saves.commit((flat, generation))
    assert all(isinstance(leaf, KeptLeaf) for leaf in saves.stage(rows)[0].leaves)


def test_a_million_touches_stay_a_handful_of_ranges() -> None:
    rows, saves = ring(100_000), Saves()
    rows.log.piece_bytes = PIECE_BYTES
    rows.advance(100_000)
    saves.save(rows)
    for _ in range(10_000):
        rows.touch(10, 20)
    assert rows.log.changed() == [(10, 20)]
    for row in range(0, 100_000, 7):
        rows.touch(row, row + 1)
    changed = rows.log.changed()
    assert len(changed) <= 2 * MOST_RANGES
    inside = np.zeros(100_002, bool)
    for start, stop in changed:
        inside[start:stop] = True
    assert inside[0:100_000:7].all()
    for _ in range(12):  # saves that fail, each with changes of its own
        saves.stage(rows)
        rows.touch(5, 6)
    assert len(rows.log.changed()) <= 2 * MOST_RANGES + 10


def test_a_save_copies_what_is_new_whatever_the_capacity() -> None:
    costs = []
    for capacity in (1_000, 1_000_000):
        rows, saves = ring(capacity), Saves()
        rows.log.piece_bytes = PIECE_BYTES
        rows.advance(capacity)
        saves.save(rows)
        before = saves.staged_bytes
        write(rows, 10)
        saves.save(rows)
        costs.append(saves.staged_bytes - before)
    assert costs[0] == costs[1] == 10 * rows.row_bytes


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 1 << 63)])
def test_a_range_that_is_none_is_refused(start: int, stop: int) -> None:
    rows = ring()
    with pytest.raises(UsageError):
        rows.touch(start, stop)


def test_rows_that_are_gone_or_not_counted_yet_may_be_touched() -> None:
    rows, saves = ring(), Saves()
    write(rows, 20)
    rows.touch(15, 30)
    saves.save(rows)
    rows.touch(0, 12)
    rows.touch(20, 25)
    assert rows.log.changed() == []


def test_an_array_that_was_swapped_for_a_smaller_one_is_told() -> None:
    tensor = torch.zeros(8, 3)
    rows = Rows({"a": tensor})
    tensor.data = torch.zeros(4, 3)
    with pytest.raises(UsageError, match=r"replay\.a"):
        flatten(rows, "replay")


def test_one_array_under_two_names_is_written_once_and_is_one_again() -> None:
    array = np.arange(8)
    rows, saves = Rows({"obs": array, "next_obs": array}, count=8), Saves()
    generation = saves.save(rows)
    assert saves.staged_bytes == array.nbytes
    built: Any = inflate(generation.tree, generation.records, generation)
    assert built.arrays["obs"] is built.arrays["next_obs"]
    apart = Rows({"obs": np.zeros(8, int), "next_obs": np.zeros(8, int)})
    restore(apart, generation.tree, generation.records, generation, "replay")
    assert apart.arrays["obs"].tolist() == apart.arrays["next_obs"].tolist() == list(range(8))


def test_two_saved_rings_into_one_live_one_leave_the_later() -> None:
    first, second = ring(), ring()
    write(first, 8)
    write(second, 5, salt=7)
    generation = Saves().save({"a": first, "b": second})
    live = ring()
    restore({"a": live, "b": live}, generation.tree, generation.records, generation, "replay")
    assert live.count == 5
    assert live.arrays["reward"][:5].tolist() == second.arrays["reward"][:5].tolist()


def test_one_ring_at_two_places_is_written_once_and_is_one_again() -> None:
    rows, saves = ring(), Saves(limits=Limits(piece_bytes=4096, small_bytes=4096, floor_bytes=1, fan=2))
    for _ in range(6):
        write(rows, 1)
        generation = saves.save({"a": rows, "b": [rows], "c": np.arange(3)})
    assert saves.staged_bytes == 6 * (rows.row_bytes + 24)
    assert saves.merged_bytes > 0
    built: Any = inflate(generation.tree, generation.records, generation)
    assert built["a"] is built["b"][0]
    assert built["a"].arrays["reward"][:6].tolist() == rows.arrays["reward"][:6].tolist()
    assert built["c"].tolist() == [0, 1, 2]


class Buffer:
    """Hold a ring as a replay buffer of somebody else's would."""

    def __init__(self) -> None:
        self.rows = ring()
        self.given: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "more": np.zeros(2)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state


def test_a_ring_that_an_objects_state_dict_gives_is_filled_where_it_is() -> None:
    saved, live, saves = Buffer(), Buffer(), Saves()
    write(saved.rows, 11)
    generation = saves.save({"buffer": saved})
    array = live.rows.arrays["reward"]
    assert compare({"buffer": live}, generation.tree, generation.records, "replay") == []
    restore({"buffer": live}, generation.tree, generation.records, generation, "replay")
    assert live.given["rows"] is live.rows
    assert live.rows.count == 11
    assert array.tolist() == saved.rows.arrays["reward"].tolist()
    staged = saves.staged_bytes
    saves.save({"buffer": live})
    assert saves.staged_bytes == staged + 16, "its ring is known to be as it was saved"


def test_the_rows_of_a_contiguous_array_are_read_straight_into_it() -> None:
    rows, saves = ring(16), Saves()
    write(rows, 16)
    generation = saves.save(rows)
    live, targets = ring(16), []
    read_into = generation.read_into
    generation.read_into = lambda at, into: (targets.append(np.frombuffer(into, np.uint8)), read_into(at, into))  # type: ignore[method-assign]
    restore(live, generation.tree, generation.records, generation, "replay")
    assert len(targets) == 8
    assert all(any(np.shares_memory(target, array) for array in live.arrays.values()) for target in targets)


def test_every_way_in_which_a_ring_does_not_fit_is_named() -> None:
    rows = Rows({"a": np.zeros((4, 2)), "b": np.zeros(4), "c": np.zeros(4), "d": np.zeros(4)})
    generation = Saves().save({"r": rows})
    live = Rows({"a": np.zeros((5, 3)), "b": torch.zeros(5), "c": np.zeros(5, int), "e": np.zeros(5)})
    found = compare({"r": live}, generation.tree, generation.records, "x")
    assert [(each.path, each.kind) for each in found] == [
        ("x/r", "shape"),
        ("x/r.a", "shape"),
        ("x/r.b", "type"),
        ("x/r.c", "dtype"),
        ("x/r.d", "missing"),
        ("x/r.e", "unexpected"),
    ]
    assert compare({"r": np.zeros(4)}, generation.tree, generation.records, "x")[0].kind == "type"
    stored: Any = skeleton(generation.tree, generation.records)
    assert stored["r"].arrays["a"] == LeafSpec("numpy", "float64", (4, 2))


def test_a_ring_built_anew_is_zero_where_nothing_was_written() -> None:
    rows, saves = Rows({"a": np.ones(5), "t": torch.ones(5, 2, dtype=torch.bfloat16)}, count=2), Saves()
    generation = saves.save(rows)
    built: Any = inflate(generation.tree, generation.records, generation)
    assert built.arrays["a"].tolist() == [1, 1, 0, 0, 0]
    assert built.arrays["t"].tolist() == [[1, 1], [1, 1], [0, 0], [0, 0], [0, 0]]
    assert built.arrays["t"].data_ptr() % 64 == 0


def test_a_load_forgets_what_was_touched_before_it() -> None:
    rows, saves = ring(), Saves()
    write(rows, 6)
    first = saves.save(rows)
    rows.arrays["reward"][1] = -1
    rows.touch(1, 2)
    restore(rows, first.tree, first.records, first, "replay")
    staged = saves.staged_bytes
    saves.save(rows)
    assert saves.staged_bytes == staged


def test_a_reset_starts_another_content_under_the_same_numbers() -> None:
    rows, saves = ring(), Saves()
    saves.checks = False
    write(rows, 6)
    saves.save(rows)
    rows.reset()
    write(rows, 6, salt=1)
    generation = saves.save(rows)
    built: Any = inflate(generation.tree, generation.records, generation)
    assert built.arrays["reward"].tolist() == rows.arrays["reward"].tolist()


def test_a_copy_of_a_ring_has_arrays_and_notes_of_its_own() -> None:
    rows, saves = ring(), Saves()
    write(rows, 6)
    saves.save(rows)
    copied = copy.deepcopy({"rows": rows, "reward": rows.arrays["reward"]})
    other: Any = copied["rows"]
    assert other.arrays["reward"] is copied["reward"]
    assert other.arrays["reward"] is not rows.arrays["reward"]
    assert (other.count, other.log.known) == (6, None)
