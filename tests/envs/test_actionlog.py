"""Actions are kept by value, with their types, in pieces that only grow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from milepost.envs.actionlog import PIECE_BYTES, ActionLog, NotAnAction, Pieces
from milepost.errors import CorruptError
from milepost.state.tree import flatten

NUMBERS = of_numpy.boolean_dtypes() | of_numpy.integer_dtypes() | of_numpy.floating_dtypes() | of_numpy.complex_number_dtypes()
ARRAYS = of_numpy.arrays(NUMBERS, of_numpy.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
LEAVES = st.one_of(
    ARRAYS,
    ARRAYS.filter(lambda array: array.size > 0).map(lambda array: array.reshape(-1)[0]),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.none(),
)
KEYS = st.text("ab", max_size=2) | st.integers(0, 3)
ACTIONS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)


def bits(action: Any) -> Any:
    if isinstance(action, (np.ndarray, np.generic)):
        return type(action), action.dtype.str, action.shape, action.tobytes()
    if isinstance(action, dict):
        return dict, [(key, bits(part)) for key, part in action.items()]
    if isinstance(action, (list, tuple)):
        return type(action), [bits(part) for part in action]
    return type(action), repr(action)


@given(st.lists(ACTIONS, max_size=12))
def test_actions_of_every_form_come_back_in_order_with_their_types_and_bits(actions: list[Any]) -> None:
    log = ActionLog()
    for action in actions:
        log.append(action)
    assert log.steps == len(actions)
    again = ActionLog(log.tree())
    assert [bits(action) for action in again] == [bits(action) for action in actions]
    assert again.tree() == log.tree()
    flatten(log.tree(), "log")


@given(st.lists(st.binary(max_size=PIECE_BYTES + 3), max_size=8))
def test_pieces_only_grow_and_full_ones_are_the_same_objects_each_time(parts: list[bytes]) -> None:
    log, before = Pieces(), list[bytes]()
    for part in parts:
        log.append(part)
        now = log.pieces()
        assert all(one is other for one, other in zip(before, now, strict=False) if len(one) == PIECE_BYTES)
        before = now
    assert b"".join(before) == b"".join(parts)
    assert len(log) == len(b"".join(parts))
    assert Pieces(before).pieces() == before


@pytest.mark.parametrize("action", [object(), "left", 2**63, np.array([None]), {1.5: 2}, [1, object()], {"a": "left"}])
def test_what_is_not_made_of_numbers_is_refused_and_nothing_is_added(action: Any) -> None:
    log = ActionLog()
    log.append(1)
    with pytest.raises(NotAnAction):
        log.append(action)
    assert list(log) == [1]


def test_an_action_is_kept_as_it_was_whatever_becomes_of_its_array() -> None:
    log, action = ActionLog(), np.array([1.0, 2.0], np.float32)
    log.append(action)
    action[:] = 9
    (kept,) = log
    assert kept.tolist() == [1.0, 2.0]
    kept[:] = 5  # an env may change the array that it was given


def test_a_thousand_actions_of_one_form_are_one_string_of_bytes() -> None:
    log = ActionLog()
    for number in range(10_000):
        log.append(np.int64(number))
    (run,) = log.tree()
    assert run["count"] == 10_000
    assert len(run["data"]) == -(-80_000 // PIECE_BYTES)


@pytest.mark.parametrize("change", [{"count": 4}, {"count": 2}, {"size": 7}, {"data": []}])
def test_a_log_that_is_not_as_long_as_it_says_is_refused(change: dict[str, Any]) -> None:
    log = ActionLog()
    for number in range(3):
        log.append(number)
    with pytest.raises(CorruptError, match="shorter or longer"):
        ActionLog([{**log.tree()[0], **change}])


@pytest.mark.parametrize(("count", "said"), [(10**9, "more actions"), (-1, "shorter or longer")])
def test_a_log_of_actions_without_bytes_cannot_keep_a_resume_for_ever(count: int, said: str) -> None:
    with pytest.raises(CorruptError, match=said):
        ActionLog([{"form": ["none"], "size": 0, "count": count, "data": []}], 1_000)
