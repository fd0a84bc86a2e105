"""What cannot be saved is an error that names its path, never skipped."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import numpy as np
import pytest

from milepost.errors import UsageError
from milepost.state.inflate import inflate
from milepost.state.kinds import ObjectKind, register_object
from milepost.state.opaque import Opaque
from milepost.state.restore import check_restorable, restore
from milepost.state.tree import flatten
from tests.state.trees import Stored

STRINGS = getattr(np.dtypes, "StringDType", lambda: object)()
Point = namedtuple("Point", "x y")


class Registered(tuple):
    __slots__ = ()


STRANGERS = [object(), lambda: 0, Point(1, 2), defaultdict(list), type("L", (list,), {})(), type("I", (int,), {})()]
STRANGERS += [range(3), Ellipsis, dict, np.ma.masked_array([1]), np.zeros(1).view(np.recarray)]


@pytest.mark.parametrize("value", STRANGERS)
def test_an_object_nobody_knows_is_named_by_its_path_and_type(value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        flatten({"a": [0, {7: value}]}, "extra")
    assert caught.value.kind == "unknown-object"
    assert caught.value.facts["path"] == "extra/a[1][7]"
    assert type(value).__qualname__ in str(caught.value)
    assert "state_dict" in caught.value.hint


@pytest.mark.parametrize("key", [(1, object()), Point(1, 2), np.zeros((), "i4,i4")[()].__class__, frozenset([range(2)])])
def test_a_key_nobody_knows_is_refused(key: Any) -> None:
    with pytest.raises(UsageError) as caught:
        flatten({key: 1}, "extra")
    assert caught.value.kind == "unknown-object"


@pytest.mark.parametrize("dtype", [object, [("a", object)], [(("title", "a"), "i4")], (np.record, [("a", "i4")]), STRINGS])
def test_an_array_whose_bytes_do_not_say_what_it_holds_is_refused(dtype: Any) -> None:
    with pytest.raises(UsageError) as caught:
        flatten({"a": np.zeros(2, dtype)}, "extra")
    assert caught.value.kind == "unsupported-dtype"
    assert caught.value.facts["path"] == "extra/a"


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append({"again": loop})
    with pytest.raises(UsageError) as caught:
        flatten(loop, "extra")
    assert caught.value.kind == "cycle"
    assert caught.value.facts["path"] == "extra[0]/again"


def test_the_same_list_twice_is_no_cycle() -> None:
    once = [1]
    stored = Stored([once, once])
    assert inflate(stored.node, stored.leaves, stored) == [[1], [1]]


def test_paths_are_printable_whatever_the_keys_are() -> None:
    tree = {key: np.zeros(1) for key in ("", "\n", "\ud800", "é", 10**5000, (1, 2**99), b"\xff", None, 1.5, "x" * 999)}
    paths = [leaf.path for leaf in flatten(tree, "x").leaves]
    assert len(set(paths)) == len(paths)
    for path in paths:
        assert path.isprintable()
        assert path.encode()
        assert len(path) < 300


def test_an_opaque_value_needs_leave_to_be_pickled_and_to_be_unpickled() -> None:
    tree = {"o": Opaque(Point(1, [2]))}
    with pytest.raises(UsageError) as refused:
        flatten(tree, "extra")
    assert (refused.value.kind, refused.value.facts["path"]) == ("pickle-not-allowed", "extra/o")
    stored = Stored(tree, allow_pickle=True)
    with pytest.raises(UsageError) as distrusted:
        inflate(stored.node, stored.leaves, stored)
    assert (distrusted.value.kind, distrusted.value.facts["path"]) == ("pickle-not-trusted", "x/o")
    made: Any = inflate(stored.node, stored.leaves, stored, trust_pickle=True)
    assert made == tree
    live = Opaque(None)
    assert restore({"o": live}, stored.node, stored.leaves, stored, "x", trust_pickle=True)["o"] is live
    assert live.value == Point(1, [2])


def test_an_opaque_value_that_breaks_its_pickle_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        flatten({"o": Opaque(lambda: 0)}, "extra", allow_pickle=True)
    assert caught.value.facts["path"] == "extra/o"
    assert isinstance(caught.value.__cause__, pickle.PicklingError | AttributeError)


def test_a_registered_class_is_saved_made_and_set() -> None:
    register_object(Registered, ObjectKind("tests.Registered", list, make=Registered))
    stored = Stored({"r": Registered((1, 2))})
    made: Any = inflate(stored.node, stored.leaves, stored)
    assert type(made["r"]) is Registered
    live = {"r": Registered((0,))}
    restore(live, stored.node, stored.leaves, stored, "x")
    assert live["r"] == (1, 2)


@pytest.mark.parametrize(
    "value", [{}, OrderedDict(), [], deque(), set(), bytearray(), np.zeros(2), np.zeros((3, 4))[:, 1], Opaque(1)]
)
def test_what_can_be_overwritten_may_be_a_component(value: Any) -> None:
    check_restorable(value, "extra")


@pytest.mark.parametrize("value", [1, 1.5, "s", b"b", None, (np.zeros(1),), frozenset(), np.float64(1), object(), dict])
def test_what_cannot_be_overwritten_may_not_be_a_component(value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        check_restorable(value, "counters")
    assert (caught.value.kind, caught.value.facts["path"]) == ("not-restorable", "counters")


def test_a_read_only_array_may_not_be_a_component() -> None:
    array = np.zeros(2)
    array.flags.writeable = False
    with pytest.raises(UsageError):
        check_restorable(array, "extra")
