"""Where two runs part is found to the element, whatever the pieces that their logs were saved in. B20"""

from __future__ import annotations

from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import milepost
from milepost.clock import SystemClock
from milepost.lifecycle import divergence
from milepost.lifecycle.divergence import Apart, Side, divergences
from milepost.publish import layout
from milepost.publish.manifest import load_record
from milepost.publish.view import read
from milepost.records import Manifest
from milepost.store.local import LocalStore


def side(root: Path, *, data: bool = True) -> Side:
    store = LocalStore(root, SystemClock())
    head = read(store).head
    assert head is not None
    return Side(load_record(store, layout.manifest(head.number), Manifest), store if data else None)


def compared(tmp_path: Path, one: Any, other: Any, *, data: bool = True) -> list[Apart]:
    for name, tree in (("one", one), ("other", other)):
        milepost.save(tmp_path / name, {"extra": tree})
    return divergences(side(tmp_path / "one", data=data), side(tmp_path / "other", data=data), lambda _: False)


def test_the_first_element_that_differs_is_shown_with_both_values_and_all_are_counted(tmp_path: Path) -> None:
    one, other = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)
    other[1, 2], other[2, 3] = 0.5, -0.0
    (apart,) = compared(tmp_path, {"w": one}, {"w": other})
    first = apart.first
    assert (first.path, first.one, first.count, first.total) == ("extra/w", "numpy float32[3, 4]", 2, 12)
    assert (first.index, first.values) == ((1, 2), ("0.0", "0.5"))


def test_without_data_it_is_known_that_and_not_where(tmp_path: Path) -> None:
    (apart,) = compared(tmp_path, {"w": np.zeros(2)}, {"w": np.ones(2)}, data=False)
    assert (apart.first.path, apart.first.count, apart.first.values) == ("extra/w", 0, ("", ""))


PAIRS: dict[str, tuple[Any, Any, str]] = {
    "another value": ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "extra/b"),
    "a value that one lacks": ({"a": 1}, {"a": 1, "b": 3}, "extra/b"),
    "another dtype": ({"a": np.zeros(2)}, {"a": np.zeros(2, np.float32)}, "extra/a"),
    "another type": ({"a": 1}, {"a": True}, "extra/a"),
    "minus zero": ({"a": 0.0}, {"a": -0.0}, "extra/a"),
    "a longer list": ({"a": [1, 2]}, {"a": [1, 2, 3]}, "extra/a"),
    "another item": ({"a": (1, [2, 5])}, {"a": (1, [2, 6])}, "extra/a[1][1]"),
    "another limit": ({"a": deque([1], 3)}, {"a": deque([1], 4)}, "extra/a"),
    "another order of keys": ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}, "extra/a"),
    "another key": ({"a": OrderedDict({3: 1})}, {"a": OrderedDict({4: 1})}, "extra/a[3]"),
    "another set": ({"a": {1, 2}}, {"a": {1, 3}}, "extra/a"),
    "another generator": ({"a": np.random.default_rng(1)}, {"a": np.random.default_rng(2)}, "extra/a/state/state"),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_any_difference_is_found_at_its_place(pair: str, tmp_path: Path) -> None:
    one, other, path = PAIRS[pair]
    (apart,) = compared(tmp_path, one, other)
    assert apart.paths[0] == path
    assert apart.first.one != apart.first.other or apart.first.count


def test_sets_have_no_order_and_a_whole_component_may_be_missing(tmp_path: Path) -> None:
    assert compared(tmp_path, {"a": set("abcdefgh")}, {"a": set("hgfedcba")}) == []
    milepost.save(tmp_path / "one", {"extra": 1, "policy": {"w": 1}})
    (apart,) = divergences(side(tmp_path / "one"), side(tmp_path / "other"), lambda path: path.startswith("extra"))
    assert (apart.component, apart.first.one, apart.first.other) == ("policy", "saved", "")


def ring(root: Path, rows: list[tuple[int, bool]], last: int = 0) -> None:
    """Fill a ring of 8 rows with these values, and save after those that say so; the last row is ``last`` different."""
    values = np.zeros((8, 3), np.int64)
    log = milepost.Rows({"values": values})
    episodes = milepost.Items(deque(maxlen=4))
    with milepost.CheckpointEngine(root, state={"replay": {"rows": log, "episodes": episodes}}) as engine:
        for step, (value, saves) in enumerate(rows):
            values[log.position] = value + (last if step == len(rows) - 1 else 0)
            log.advance()
            episodes.append({"return": value + (last if step == len(rows) - 1 else 0), "x": np.full(2, value)})
            if saves:
                engine.save(step)
        engine.save(len(rows))


@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), min_size=1, max_size=14),
    last=st.sampled_from([0, 1]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
def test_logs_are_what_they_hold_and_not_how_they_were_cut(
    rows: list[tuple[int, bool, bool]], last: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rings")
    ring(folder / "one", [(value, first) for value, first, _ in rows])
    ring(folder / "other", [(value, second) for value, _, second in rows], last)
    found = divergences(side(folder / "one"), side(folder / "other"), lambda _: False)
    if not last:
        assert found == []
        return
    (apart,) = found
    assert set(apart.paths) == {"replay/rows.values", f"replay/episodes[{len(rows) - 1}]/return"}
    assert (apart.first.index, apart.first.count) == ((len(rows) - 1, 0), 3)
    assert apart.first.values == (str(rows[-1][0]), str(rows[-1][0] + 1))


def test_rings_of_another_count_or_shape_differ_and_are_not_read(tmp_path: Path) -> None:
    ring(tmp_path / "one", [(1, False)] * 3)
    ring(tmp_path / "other", [(1, False)] * 4)
    (apart,) = divergences(side(tmp_path / "one"), side(tmp_path / "other"), lambda _: False)
    assert set(apart.paths) == {"replay/rows", "replay/episodes"}
    assert "3 rows written" in apart.first.one


def test_memory_is_bounded_whatever_the_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "PIECE_BYTES", 16)
    one, other = np.arange(101, dtype=np.float64), np.arange(101, dtype=np.float64)
    other[[7, 100]] += 1
    (apart,) = compared(tmp_path, {"w": one}, {"w": other})
    assert (apart.first.count, apart.first.index, apart.first.values) == (2, (7,), ("7.0", "8.0"))
