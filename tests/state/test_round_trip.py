"""Whatever goes in comes out, to the last bit: built anew, and into live objects."""

from __future__ import annotations

import copy
from collections import OrderedDict, deque
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given

from milepost.records import LeafSpec
from milepost.state.compare import compare
from milepost.state.inflate import inflate, skeleton
from milepost.state.kinds import register_in_place
from milepost.state.restore import restore
from milepost.state.stored import StoredItems, StoredRows
from milepost.state.tree import flatten
from tests.state.trees import Stored, bits, has_keys_that_equal_nothing, trees


@given(trees)
def test_any_tree_comes_back_bit_for_bit(tree: Any) -> None:
    stored = Stored(tree)
    assert bits(inflate(stored.node, stored.leaves, stored)) == bits(tree)


@given(trees, trees)
def test_any_tree_is_restored_over_any_other(tree: Any, live: Any) -> None:
    stored = Stored([tree])
    holder = [live]
    assert restore(holder, stored.node, stored.leaves, stored, "x") is holder
    assert bits(holder) == bits([_as_live(tree, live)])


@given(trees)
def test_a_tree_fits_itself_and_is_restored_over_itself(tree: Any) -> None:
    assume(not has_keys_that_equal_nothing(tree))
    stored = Stored([tree])
    live = [tree]
    assert compare(live, stored.node, stored.leaves, "x") == []
    before = bits(live)
    restore(live, stored.node, stored.leaves, stored, "x")
    assert bits(live) == before


@given(trees)
def test_a_skeleton_has_a_spec_for_each_array(tree: Any) -> None:
    stored = Stored(tree)
    made = skeleton(stored.node, stored.leaves)
    if isinstance(tree, np.ndarray):
        assert isinstance(made, LeafSpec)
        assert made.shape == tree.shape
    else:
        assert (type(made) is type(tree)) or isinstance(made, dict | LeafSpec | StoredRows | StoredItems)


def _as_live(tree: Any, live: Any) -> Any:
    """Return ``tree`` with the one thing restoring keeps of the live one: whether a dict is an OrderedDict."""
    if type(tree) in (dict, OrderedDict) and type(live) in (dict, OrderedDict):
        return type(live)((k, _as_live(v, live[k]) if k in live else v) for k, v in tree.items())
    if type(tree) is type(live) and type(tree) in (list, tuple) and len(tree) == len(live):
        return type(tree)(_as_live(a, b) for a, b in zip(tree, live, strict=True))
    return tree


def test_live_objects_are_overwritten_and_kept() -> None:
    def make(fill: float) -> dict[str, Any]:
        return {
            "array": np.full((2, 3), fill),
            "fortran": np.asfortranarray(np.full((2, 3), fill)),
            "strided": np.full((4, 6), fill)[::2, ::3],
            "list": [np.full(2, fill), fill],
            "tuple": (np.full(2, fill),),
            "deque": deque([fill], 5),
            "set": {fill},
            "bytes": bytearray(b"%d" % fill),
            "rng": np.random.default_rng(int(fill)),
        }

    saved, live = make(1.0), make(2.0)
    stored = Stored(saved)
    parts = dict(live)
    inner = live["list"][0]
    assert restore(live, stored.node, stored.leaves, stored, "x") is live
    assert all(live[name] is part for name, part in parts.items())
    assert live["list"][0] is inner
    assert bits(live) == bits(saved)
    assert live["fortran"].flags.f_contiguous


def test_the_bytes_of_a_contiguous_array_are_read_straight_into_it() -> None:
    live = np.zeros(5)
    stored = Stored(np.arange(5.0))
    targets = []
    fill = stored.read_into
    stored.read_into = lambda index, into: (targets.append(np.frombuffer(into)), fill(index, into))  # type: ignore[method-assign]
    restore(live, stored.node, stored.leaves, stored, "x")
    assert np.shares_memory(targets[0], live)


def test_a_read_only_array_is_replaced_in_its_container() -> None:
    live = {"a": np.zeros(2)}
    live["a"].flags.writeable = False
    stored = Stored({"a": np.ones(2)})
    restore(live, stored.node, stored.leaves, stored, "x")
    assert live["a"].tolist() == [1.0, 1.0]
    assert live["a"].flags.writeable


def test_arrays_over_the_same_memory_are_one_leaf_and_one_array_again() -> None:
    array = np.arange(6.0)
    tree = {"a": array, "b": [array[:]], "turned": array.reshape(2, 3), "part": array[:3], "empty": [np.zeros(0)] * 2}
    stored = Stored(tree)
    assert len(stored.leaves) == 5  # the array, its two other views, and each empty one
    made: Any = inflate(stored.node, stored.leaves, stored)
    assert made["a"] is made["b"][0]
    assert not np.shares_memory(made["a"], made["part"])


def test_temporary_arrays_at_one_address_are_not_taken_for_one() -> None:
    class Source:
        def state_dict(self) -> Any:
            return {"fresh": np.full(1000, self.value)}

        def load_state_dict(self, state: Any) -> None:
            self.value = state["fresh"][0]

        def __init__(self, value: float) -> None:
            self.value = value

    stored = Stored([Source(value) for value in (1.0, 2.0, 3.0)])
    live = [Source(0.0) for _ in range(3)]
    restore(live, stored.node, stored.leaves, stored, "x")
    assert [each.value for each in live] == [1.0, 2.0, 3.0]


def test_two_saved_arrays_over_one_live_memory_are_read_one_after_the_other() -> None:
    shared = np.zeros(3)
    stored = Stored([np.full(3, 1.0), np.full(3, 2.0)])
    live = [shared, shared]
    restore(live, stored.node, stored.leaves, stored, "x")
    assert shared.tolist() == [2.0, 2.0, 2.0]


def test_what_was_flattened_is_a_reference_until_it_is_copied() -> None:
    array = np.zeros(2)
    flat = flatten({"a": array}, "x")
    array[:] = 7
    memory = bytearray(16)
    flat.leaves[0].copy_into(memoryview(memory))
    assert np.frombuffer(memory).tolist() == [7, 7]


def test_an_object_inside_a_tree_gets_its_state_and_stays() -> None:
    class Counter:
        def __init__(self, n: int) -> None:
            self.n = n

        def state_dict(self) -> dict[str, int]:
            return {"n": self.n}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.n = state["n"]

    stored = Stored({"c": Counter(5)})
    counter = Counter(0)
    live = {"c": counter}
    restore(live, stored.node, stored.leaves, stored, "x")
    assert live["c"] is counter
    assert counter.n == 5
    assert inflate(stored.node, stored.leaves, stored) == {"c": {"n": 5}}


class Twofold:
    """Has two arrays whose paths read alike, and copies the second one first."""

    def __init__(self, first: float, second: float) -> None:
        self.first, self.second = np.full(3, first), np.full(3, second)

    def state_dict(self) -> Any:
        return {"a/b": self.first, "a": {"b": self.second}}

    def load_state_dict(self, state: Any) -> None:
        np.copyto(self.second, state["a"]["b"])
        np.copyto(self.first, state["a/b"])


def test_a_path_that_two_arrays_share_is_not_trusted_to_name_one() -> None:
    register_in_place(Twofold)
    stored = Stored(Twofold(1, 2))
    live = Twofold(0, 0)
    restore(live, stored.node, stored.leaves, stored, "x")
    assert (live.first.tolist(), live.second.tolist()) == ([1] * 3, [2] * 3)


class Adopter:
    """Takes the arrays it is given for its own."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def state_dict(self) -> Any:
        return {"array": self.array}

    def load_state_dict(self, state: Any) -> None:
        self.array = state["array"]


def test_two_objects_never_come_to_share_memory_by_being_restored() -> None:
    same = np.zeros(3)
    stored = Stored([Adopter(same), Adopter(same), same])
    live = [Adopter(np.ones(3)), Adopter(np.ones(3)), np.ones(3)]
    restore(live, stored.node, stored.leaves, stored, "x")
    live[0].array += 5
    assert live[1].array.tolist() == live[2].tolist() == [0, 0, 0]


def test_an_ordered_dict_keeps_the_attributes_torch_hangs_on_it() -> None:
    tree = OrderedDict(a=1)
    vars(tree)["_metadata"] = OrderedDict({"": {"version": 2}})
    stored = Stored(tree)
    made: Any = inflate(stored.node, stored.leaves, stored)
    assert vars(made) == vars(tree)


def test_values_which_share_nothing_are_deep_copies_of_what_was_saved() -> None:
    tree = {"a": [np.arange(3)], "d": deque([1], 3)}
    stored = Stored(copy.deepcopy(tree))
    first: Any = inflate(stored.node, stored.leaves, stored)
    second: Any = inflate(stored.node, stored.leaves, stored)
    first["a"][0][:] = 9
    assert second["a"][0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    "char", [*np.typecodes["AllInteger"], *np.typecodes["AllFloat"], "?", "M8[ns]", "m8[3s]", "U3", "S4", "V5"]
)
def test_every_dtype_comes_back(char: str, order: str) -> None:
    dtype = np.dtype(char).newbyteorder(order)  # type: ignore[arg-type]
    raw = bytes(12 * dtype.itemsize) if dtype.kind == "U" else np.random.default_rng(1).bytes(12 * dtype.itemsize)
    array = np.ndarray((3, 4), dtype, bytearray(raw))
    stored = Stored([array, array.T, array[1:1], array[0, 0:1].reshape(())])
    assert bits(inflate(stored.node, stored.leaves, stored)) == bits([array, array.T, array[1:1], array[0, 0:1].reshape(())])
