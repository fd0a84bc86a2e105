"""Any plain value comes back equal, in place where it can be, and nothing is invented."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from milepost.envs.plain import ABSENT, Recorder, Refiller, same

ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3) | st.binary(max_size=3)
KEYS = st.text(max_size=3) | st.integers() | st.tuples(st.integers(), st.booleans()) | st.just("$kind")


def inside(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(values, max_size=3)
    dicts = st.dictionaries(KEYS, values, max_size=3)
    plain = lists | lists.map(tuple) | dicts | st.sets(st.integers(), max_size=3) | st.frozensets(st.integers(), max_size=3)
    return plain | lists.map(lambda v: deque(v, maxlen=4)) | dicts.map(OrderedDict) | dicts.map(lambda v: defaultdict(list, v))


VALUES = st.recursive(ATOMS, inside, max_leaves=12)


class Owner:
    """Anything with attributes."""


@given(saved=st.lists(VALUES, min_size=3, max_size=3), live=st.lists(VALUES, min_size=3, max_size=3))
def test_attributes_come_back_whatever_is_live(saved: list[Any], live: list[Any]) -> None:
    one, other = Owner(), Owner()
    vars(one).update(zip("abc", saved, strict=True))
    vars(other).update(zip("abc", live, strict=True))
    recorder = Recorder()
    tree = copy.deepcopy(recorder.attributes(one, "owner"))
    assert recorder.left_out == []
    Refiller().attributes(other, tree, "owner")
    assert vars(other) == vars(one)
    assert list(map(type, vars(other).values())) == list(map(type, saved))


@given(one=VALUES, other=VALUES)
def test_two_recorded_trees_are_the_same_only_if_their_values_are(one: Any, other: Any) -> None:
    trees = Recorder().value(one, "x"), Recorder().value(other, "x")
    assert same(trees[0], copy.deepcopy(trees[0]))
    if same(*trees):
        assert one == other


@given(values=st.lists(st.sampled_from(["list", "dict", "array"]), min_size=2, max_size=5), data=st.data())
def test_the_pattern_of_sharing_comes_back(values: list[str], data: st.DataObject) -> None:
    pool = [{"list": [i], "dict": {"i": i}, "array": np.array([i])}[kind] for i, kind in enumerate(values)]
    saved_picks = data.draw(st.lists(st.sampled_from(range(len(pool))), min_size=4, max_size=4))
    live_picks = data.draw(st.lists(st.sampled_from(range(len(pool))), min_size=4, max_size=4))
    live_pool = copy.deepcopy(pool)
    one, other = Owner(), Owner()
    vars(one).update(zip("abcd", (pool[i] for i in saved_picks), strict=True))
    vars(other).update(zip("abcd", (live_pool[i] for i in live_picks), strict=True))
    Refiller().attributes(other, copy.deepcopy(Recorder().attributes(one, "owner")), "owner")
    here, there = list(vars(one).values()), list(vars(other).values())
    assert all(same(a, b) for a, b in zip(here, there, strict=True))
    assert [[a is b for b in here] for a in here] == [[a is b for b in there] for a in there]


def test_a_nan_and_a_negative_zero_are_told_apart_from_other_bits() -> None:
    assert same(float("nan"), float("nan"))
    assert not same(np.array([0.0]), np.array([-0.0]))
    assert not same(1, 1.0)
    assert Recorder().value([np.array([object()])], "x") is ABSENT
