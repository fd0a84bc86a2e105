"""Every difference is listed before anything is changed, and nothing that fits is called one."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import numpy as np
import pytest

from milepost.errors import CorruptError, UsageError
from milepost.records import Difference, LeafSpec
from milepost.state.compare import compare
from tests.state.trees import Stored, bits


def found(saved: Any, live: Any) -> list[tuple[str, str]]:
    stored = Stored(saved)
    before = bits(live)
    differences = compare(live, stored.node, stored.leaves, "x")
    assert bits(live) == before
    assert not stored.queued
    return [(each.path, each.kind) for each in differences]


def test_every_difference_is_listed_and_not_only_the_first() -> None:
    saved = {"w": np.zeros((2, 3)), "b": np.zeros(2, "f4"), "gone": 1, "t": np.zeros(1), "s": "text", "l": [1, {"k": 1}]}
    live = {"w": np.zeros((2, 4)), "b": np.zeros(2, "f8"), "new": 1, "t": [0.0], "s": 1, "l": [1, {"q": 1}]}
    assert found(saved, live) == [
        ("x/w", "shape"),
        ("x/b", "dtype"),
        ("x/gone", "missing"),
        ("x/t", "type"),
        ("x/s", "type"),
        ("x/l[1]/k", "missing"),
        ("x/l[1]/q", "unexpected"),
        ("x/new", "unexpected"),
    ]


def test_a_difference_says_what_was_saved_and_what_is_here() -> None:
    stored = Stored({"w": np.zeros((2, 3), "f4")})
    (difference,) = compare({"w": np.zeros((4, 3), "f4")}, stored.node, stored.leaves, "policy")
    assert str(difference) == "policy/w: saved numpy float32[2, 3], here numpy float32[4, 3]"


@pytest.mark.parametrize(
    ("saved", "live"),
    [
        (1, 2),
        (0.5, 0),
        (np.float64(0.5), float("-inf")),
        (np.int64(3), 3),
        (2**9000, 0),
        (np.bool_(True), False),
        ("a" * 5000, ""),
        (np.str_("a"), "b"),
        (None, 1.0),
        (None, np.zeros(3)),
        (1.0, None),
        (np.zeros(3), None),
        ({"history": {"a": 1}}, {"history": {}}),
        ([1, 2, 3], []),
        ([np.zeros(2), np.zeros(3)], [np.zeros(5)]),
        (deque([np.zeros(2)], 4), deque([np.zeros(3)], 4)),
        ((1, 2), (1, 2, 3)),
        ({1, 2}, {"a"}),
        (b"a" * 5000, b""),
        (OrderedDict(a=1), {"a": 2}),
    ],
)
def test_what_restoring_overwrites_or_replaces_is_no_difference(saved: Any, live: Any) -> None:
    assert found({"a": saved}, {"a": live}) == []


@pytest.mark.parametrize(
    ("saved", "live", "kind"),
    [
        (True, 1, "type"),
        ("1", 1, "type"),
        (b"a", "a", "type"),
        ([1], (1,), "type"),
        ({1}, frozenset([1]), "type"),
        (np.zeros(1), 0.0, "type"),
        (deque(maxlen=3), deque(maxlen=4), "shape"),
        (np.random.default_rng(1), np.random.RandomState(1), "type"),
        ({"a": 1}, np.random.default_rng(1), "type"),
        (None, np.random.default_rng(1), "type"),
    ],
)
def test_what_does_not_fit_is_a_difference(saved: Any, live: Any, kind: str) -> None:
    assert found({"a": saved}, {"a": live}) == [("x/a", kind)]


def test_another_bit_generator_is_a_difference() -> None:
    saved = {"g": np.random.Generator(np.random.PCG64DXSM(1))}
    assert found(saved, {"g": np.random.Generator(np.random.PCG64(1))}) == [("x/g/bit_generator", "type")]


class Thing:
    """Has a state like most objects have."""

    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


class Chooser(Thing):
    """Decides for itself what fits."""

    def state_differences(self, saved: Any) -> list[Difference]:
        return [Difference("[0]", str(saved["a"]), "nothing", "value"), Difference("deep/er", "1", "2"), Difference("", "a", "b")]


def test_an_object_is_compared_by_its_state() -> None:
    assert found({"t": Thing(a=np.zeros(2))}, {"t": Thing(a=np.zeros(3), b=1)}) == [("x/t/a", "shape"), ("x/t/b", "unexpected")]


def test_an_object_that_can_compare_is_asked_with_specs_in_the_place_of_arrays() -> None:
    stored = Stored(Chooser(a=np.zeros(2)))
    differences = compare(Chooser(), stored.node, stored.leaves, "x")
    assert [each.path for each in differences] == ["x[0]", "x/deep/er", "x"]
    assert differences[0].saved == str(LeafSpec("numpy", "float64", (2,)))


def test_an_object_that_cannot_read_the_saved_state_is_a_difference_beside_the_others() -> None:
    stored = Stored({"c": Chooser(b=1), "n": 1})
    differences = compare({"c": Chooser(), "n": "1"}, stored.node, stored.leaves, "x")
    assert [(each.path, each.kind) for each in differences] == [("x/c", "format"), ("x/n", "type")]
    assert "KeyError" in differences[0].saved


@pytest.mark.parametrize(("saved", "live"), [([Thing()], []), ([0, Thing()], [0, None]), ({"a": (Thing(),)}, {})])
def test_an_objects_state_without_an_object_to_load_it_into_is_a_difference(saved: Any, live: Any) -> None:
    assert [kind for _, kind in found(saved, live)] == ["missing"]


def test_a_live_object_nobody_knows_is_named() -> None:
    stored = Stored({"a": 1})
    with pytest.raises(UsageError) as caught:
        compare({"a": object()}, stored.node, stored.leaves, "extra")
    assert (caught.value.kind, caught.value.facts["path"]) == ("unknown-object", "extra/a")


def test_a_damaged_tree_is_damage_and_not_a_difference() -> None:
    with pytest.raises(CorruptError):
        compare({}, ["dict", [["a"]]], (), "x")
