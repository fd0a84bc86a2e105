"""A log's node that lies is damage, found before memory is taken or a live array is touched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from milepost import CorruptError, Items, Rows, UsageError
from milepost.records import LeafRecord
from milepost.state.compare import compare
from milepost.state.inflate import check_tree, inflate, skeleton
from milepost.state.restore import restore
from tests.state.saves import Generation, Saves


def ring() -> Rows:
    made = Rows({"a": np.zeros((4, 2)), "b": np.zeros(4, np.int8)}, count=6)
    made.log.piece_bytes = 1 << 20
    return made


def sound() -> Generation:
    """Rows 2 to 4 and 4 to 6, in two pieces of four leaves."""
    live, saves = ring(), Saves()
    live.log.piece_bytes = 2 * live.row_bytes
    return saves.save(live)


A = ["a", "numpy", "float64", [2], [0, 2]]
B = ["b", "numpy", "int8", [], [1, 3]]
SPANS = [[2, 4], [4, 6]]

LIES: dict[str, Any] = {
    "no capacity": ["rows", 0, 6, SPANS, [A, B]],
    "a capacity that is true": ["rows", True, 6, SPANS, [A, B]],
    "a count beyond all numbers": ["rows", 4, 1 << 70, SPANS, [A, B]],
    "a negative count": ["rows", 4, -6, SPANS, [A, B]],
    "rows that are missing": ["rows", 4, 7, SPANS, [A, B]],
    "a piece that is missing": ["rows", 4, 6, [[2, 4]], [["a", *A[1:4], [0]], ["b", *B[1:4], [1]]]],
    "a piece of no rows": ["rows", 4, 6, [[2, 4], [4, 4]], [A, B]],
    "a piece of more rows than there are": ["rows", 4, 6, [[2, 4], [4, 7]], [A, B]],
    "a piece of more rows than there is room for": ["rows", 1, 6, [[2, 4], [4, 6]], [A, B]],
    "a range that is a number": ["rows", 4, 6, [2, 4], [A, B]],
    "a range of three": ["rows", 4, 6, [[2, 4, 5], [4, 6]], [A, B]],
    "a range of halves": ["rows", 4, 6, [[2.0, 4], [4, 6]], [A, B]],
    "no arrays": ["rows", 4, 6, SPANS, []],
    "one array twice": ["rows", 4, 6, SPANS, [A, A]],
    "a leaf twice": ["rows", 4, 6, SPANS, [["a", *A[1:4], [0, 0]], B]],
    "a leaf of two arrays": ["rows", 4, 6, SPANS, [A, ["b", *A[1:4], [0, 2]], ["c", *A[1:4], [2, 0]]]],
    "a leaf that is not there": ["rows", 4, 6, SPANS, [["a", *A[1:4], [0, 9]], B]],
    "a leaf that is true": ["rows", 4, 6, SPANS, [["a", *A[1:4], [False, 2]], B]],
    "too few leaves": ["rows", 4, 6, SPANS, [["a", *A[1:4], [0]], B]],
    "another shape": ["rows", 4, 6, SPANS, [["a", "numpy", "float64", [3], [0, 2]], B]],
    "another dtype": ["rows", 4, 6, SPANS, [["a", "numpy", "int64", [2], [0, 2]], B]],
    "a shape of text": ["rows", 4, 6, SPANS, [["a", "numpy", "float64", ["2"], [0, 2]], B]],
    "an array without end": ["rows", 4, 0, [], [["a", "numpy", "float64", [1 << 62], []]]],
    "an array of objects": ["rows", 4, 0, [], [["a", "numpy", "object", [], []]]],
    "a name of half a character": ["rows", 4, 0, [], [["\ud800", "numpy", "int8", [], []]]],
    "more": ["rows", 4, 6, SPANS, [A, B], 1],
    "less": ["rows", 4, 6, SPANS],
    "nothing": ["rows"],
    "items before they begin": ["items", 3, 2, [], []],
    "items that are missing": ["items", 0, 2, [], []],
    "items without data": ["items", 0, 2, [[0, 2]], [[0]]],
    "items of arrays": ["items", 0, 2, [[0, 2]], [[0, 1]]],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_node_that_lies_is_damage_and_a_live_ring_is_left_alone(lie: str) -> None:
    generation, node = sound(), LIES[lie]
    live = ring()
    live.arrays["a"][:] = 7
    for read in (
        lambda: inflate(node, generation.records, generation),
        lambda: check_tree(node, generation.records),
        lambda: restore(live, node, generation.records, generation, "x"),
    ):
        with pytest.raises(CorruptError):
            read()
    assert not generation.reads
    assert (live.arrays["a"] == 7).all()
    if lie != "an array of objects":  # what an array is, a skeleton just repeats
        with pytest.raises(CorruptError):
            skeleton(node, generation.records)


def test_a_ring_of_which_a_piece_is_missing_is_damage() -> None:
    generation = sound()
    node = ["rows", 4, 6, [[2, 4], [2, 4]], generation.tree[4]]
    with pytest.raises(CorruptError, match="pieces of a stored log are missing"):
        check_tree(node, generation.records)


def test_no_two_logs_are_read_from_one_leaf() -> None:
    generation = sound()
    other = ["rows", 4, 6, SPANS, [["c", *A[1:]]]]
    with pytest.raises(CorruptError):
        check_tree(["list", [generation.tree, other]], generation.records)
    check_tree(["list", [generation.tree, generation.tree]], generation.records)


def test_a_piece_whose_record_lies_about_its_size_is_damage() -> None:
    generation = sound()
    records = [replace(generation.records[0], stop=31), *generation.records[1:]]
    with pytest.raises(CorruptError):
        check_tree(generation.tree, records)


def test_a_ring_larger_than_all_memory_is_told_and_one_that_is_nearly_empty_takes_none() -> None:
    huge = ["rows", 1 << 56, 0, [], [["a", "numpy", "uint8", [], []]]]
    with pytest.raises(UsageError) as caught:
        inflate(huge, (), sound())
    assert caught.value.kind == "too-large"
    sparse: Any = inflate(["rows", 1 << 32, 0, [], [["a", "numpy", "uint8", [], []]]], (), sound())
    assert sparse.capacity == 1 << 32


def test_a_kind_that_nobody_registered_names_what_to_import() -> None:
    node = ["rows", 4, 0, [], [["a", "jaxlike.array", "float32", [], []]]]
    with pytest.raises(UsageError, match="import jaxlike"):
        check_tree(node, ())
    with pytest.raises(UsageError, match="import bytes"):
        check_tree(["rows", 4, 0, [], [["a", "bytes", "uint8", [], []]]], ())


def test_ten_thousand_pieces_that_lie_over_each_other_are_read_in_a_time_that_grows_as_their_number() -> None:
    n = 10_000
    node = ["rows", n, n, [[place, n] for place in range(n)], [["a", "numpy", "uint8", [], list(range(n))]]]
    records = [LeafRecord("x", "numpy", "uint8", (n - place,), 0, 0, n - place, "") for place in range(n)]
    check_tree(node, records)


def test_where_a_log_was_saved_and_none_is_live_or_the_other_way_round_is_a_difference() -> None:
    generation = Saves().save({"a": ring(), "b": Items([1]), "c": 1})
    live = {"a": {}, "b": ring(), "c": Items([])}
    found = compare(live, generation.tree, generation.records, "x")
    assert [(each.path, each.kind) for each in found] == [("x/a", "type"), ("x/b", "type"), ("x/c", "type")]
    assert "a ring of rows" in found[0].saved
