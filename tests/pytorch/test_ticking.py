"""Each engine is due by counters of its own; what is configured now wins over what was restored. A3"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.clock import FakeClock
from milepost.errors import CorruptError, UsageError
from milepost.pytorch.ticking import Ticks
from tests.pytorch.export.made import step


def fired(ticks: Ticks, numbers: range, engine: str = "default") -> list[int]:
    found = []
    for number in numbers:
        if ticks.due(engine, step(number)):
            ticks.exported(engine, step(number))
            found.append(number)
    return found


def test_an_actor_and_a_critic_that_share_a_saver_are_both_due_at_each_mark() -> None:
    for interval in (2, 3, 4):
        ticks, found = Ticks(None, interval, None, FakeClock()), {"default": [], "critic": []}  # type: ignore[var-annotated]
        for number in range(12):
            for engine, numbers in found.items():
                numbers += fired(ticks, range(number, number + 1), engine)
        marks = [number for number in range(12) if (number + 1) % interval == 0]
        assert found == {"default": marks, "critic": marks}


def test_no_interval_is_never_due() -> None:
    assert fired(Ticks(None, None, None, FakeClock()), range(100)) == []


def test_epochs_are_due_with_their_last_step() -> None:
    assert fired(Ticks(1, None, None, FakeClock()), range(12)) == [3, 7, 11]
    assert fired(Ticks(2, None, None, FakeClock()), range(16)) == [7, 15]


def test_any_that_falls_due_is_enough() -> None:
    assert fired(Ticks(1, 3, None, FakeClock()), range(12)) == [2, 3, 5, 7, 8, 11]


def test_a_mark_that_a_jump_passes_over_is_due_after_it() -> None:
    ticks = Ticks(None, 10, None, FakeClock())
    assert not ticks.due("default", step(7))
    assert ticks.due("default", step(12))


def test_one_that_was_due_and_not_exported_stays_due() -> None:
    ticks = Ticks(None, 4, None, FakeClock())
    assert [bool(ticks.due("default", step(number))) for number in range(6)] == [False] * 3 + [True] * 3


def test_time_counts_from_the_last_export_of_the_engine_and_stands_still_while_nothing_runs() -> None:
    clock = FakeClock()
    ticks = Ticks(None, None, 60, clock)
    assert not ticks.due("default", step(0))
    clock.advance(seconds=61)
    assert ticks.due("default", step(1))
    ticks.exported("default", step(1))
    clock.advance(seconds=40)
    state = ticks.state_dict()
    clock = FakeClock(epoch_ns=clock.epoch_ns + 10**15)  # a week later, in another process
    ticks = Ticks(None, None, 60, clock)
    ticks.load_state_dict(state)
    assert not ticks.due("default", step(2))
    clock.advance(seconds=19)
    assert not ticks.due("default", step(3))
    clock.advance(seconds=1)
    assert ticks.due("default", step(4))


@given(st.integers(1, 7), st.integers(0, 30), st.booleans())
def test_a_run_that_is_resumed_is_due_where_one_left_alone_is(interval: int, stop: int, with_state: bool) -> None:
    alone = fired(Ticks(None, interval, None, FakeClock()), range(40))
    ticks = Ticks(None, interval, None, FakeClock())
    before = fired(ticks, range(stop))
    resumed = Ticks(None, interval, None, FakeClock())
    if with_state:
        resumed.load_state_dict(ticks.state_dict())
    assert before + fired(resumed, range(stop, 40)) == alone


def test_a_changed_interval_wins_over_restored_counters() -> None:
    ticks = Ticks(None, 100, None, FakeClock())
    fired(ticks, range(150))
    changed = Ticks(None, 10, None, FakeClock())
    changed.load_state_dict(ticks.state_dict())
    assert fired(changed, range(150, 180)) == [150, 159, 169, 179]  # a mark of the new interval was passed since step 99
    assert "100" not in str(ticks.state_dict()["engines"]["default"].keys())


@pytest.mark.parametrize(
    "state", [{}, {"version": 2, "engines": {}}, {"version": 1, "engines": {"default": {"steps": "x"}}}, None]
)
def test_what_are_no_counters_changes_nothing(state: Any) -> None:
    ticks = Ticks(None, 4, None, FakeClock())
    fired(ticks, range(5))
    before = ticks.state_dict()
    with pytest.raises(CorruptError, match="not counters by engine"):
        ticks.load_state_dict(state)
    assert ticks.state_dict() == before


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError):
        Ticks(None, 0, None, FakeClock())
