"""When a save is due: at each crossing, once, whatever the increments are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import UsageError
from milepost.lifecycle.triggers import AnyOf, Every, Reading, every

SECOND = 1_000_000_000

COUNTERS = {
    "short of the mark": (9_998, 9_999, False),
    "on the mark": (9_998, 10_000, True),
    "past the mark, which no step is a multiple of": (9_998, 10_002, True),
    "past several marks at once": (9_998, 50_001, True),
    "away from the mark on which it was saved": (10_000, 10_004, False),
    "nowhere": (10_000, 10_000, False),
    "back, as a second learn() counts anew, short of its first mark": (10_000, 500, False),
    "back, and past its first mark": (25_000, 10_000, True),
    "from the beginning": (0, 9_999, False),
}


@pytest.mark.parametrize("unit", ["steps", "episodes", "epochs"])
@pytest.mark.parametrize("case", COUNTERS)
def test_a_counter_that_goes(case: str, unit: str) -> None:
    before, after, due = COUNTERS[case]
    counter = {"steps": "step", "episodes": "episodes", "epochs": "epochs"}[unit]
    trigger = every(**{unit: 10_000})  # type: ignore[arg-type]
    last, now = Reading(**{counter: before}), Reading(**{counter: after})
    assert trigger.due(last, now) == (f"every 10000 {unit}" if due else None)


@pytest.mark.parametrize(
    ("trigger", "seconds", "words"),
    [
        (every(seconds=1.5), 1.5, "every 1.5 seconds"),
        (every(minutes=10), 600, "every 10 minutes"),
        (every(hours=2), 7200, "every 2 hours"),
    ],
)
def test_time_counts_from_the_last_save(trigger: Every, seconds: float, words: str) -> None:
    start = 12_345 * SECOND
    end = start + round(seconds * SECOND)
    assert trigger.due(Reading(monotonic_ns=start), Reading(monotonic_ns=end - 1)) is None
    assert trigger.due(Reading(monotonic_ns=start), Reading(monotonic_ns=end)) == words


def test_of_several_triggers_the_first_that_is_due_says_why() -> None:
    trigger = every(steps=100) | every(minutes=1) | every(episodes=7)
    assert isinstance(trigger, AnyOf)
    assert trigger.due(Reading(), Reading(99, 59 * SECOND, 6)) is None
    assert trigger.due(Reading(), Reading(99, 59 * SECOND, 7)) == "every 7 episodes"
    assert trigger.due(Reading(), Reading(100, 60 * SECOND, 7)) == "every 100 steps"
    assert every(steps=100, minutes=1) == every(steps=100) | every(minutes=1)


@pytest.mark.parametrize(
    "setting",
    [
        *({}, {"steps": 0}, {"steps": -5}, {"steps": 1.5}, {"steps": True}),
        *({"minutes": 0}, {"seconds": -1.0}, {"hours": float("inf")}, {"seconds": float("nan")}, {"minutes": True}),
    ],
)
def test_an_interval_that_cannot_work_is_refused(setting: dict[str, float]) -> None:
    with pytest.raises(UsageError) as caught:
        every(**setting)  # type: ignore[arg-type]
    assert caught.value.kind == "bad-trigger"
    assert caught.value.hint


increments = st.lists(st.integers(0, 30), max_size=60)


@given(st.integers(1, 20), st.integers(0, 100), increments)
def test_each_mark_is_saved_once_and_none_is_missed(interval: int, start: int, steps: list[int]) -> None:
    trigger, last, now, saved = every(steps=interval), Reading(step=start), start, []
    for more in steps:
        crossed = (now + more) // interval > now // interval
        now += more
        if trigger.due(last, Reading(step=now)):
            assert crossed, "due though this safe point crossed no mark"
            saved.append(now)
            last = Reading(step=now)
        else:
            assert not crossed, "a mark was crossed and missed"
    marks = [step // interval for step in saved]
    assert marks == sorted(set(marks)), "one mark was saved twice"


@given(st.integers(1, 20), increments, st.data())
def test_saves_for_other_reasons_neither_double_nor_lose_a_mark(interval: int, steps: list[int], data: st.DataObject) -> None:
    trigger, last, now = every(steps=interval), 0, 0
    for more in steps:
        now += more
        manual = data.draw(st.booleans())
        if trigger.due(Reading(step=last), Reading(step=now)) or manual:
            last = now
        assert now // interval == last // interval, "the newest mark is behind no save"


@given(st.integers(1, 10), st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40))
def test_a_trigger_that_fell_due_during_a_save_fires_at_the_first_safe_point_after_it(
    interval: int, points: list[tuple[int, bool]]
) -> None:
    trigger, last, now = every(steps=interval), 0, 0
    for more, busy in points:
        now += more
        if trigger.due(Reading(step=last), Reading(step=now)) and not busy:
            last = now
        if not busy:
            assert now // interval == last // interval
