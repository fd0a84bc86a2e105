"""What a strike has cost is arithmetic on what was seen: tables of it, and what is lost whatever happens. B11"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.engine.beats import Beats
from milepost.publish.view import Listing, Terms, View
from milepost.records import Summary
from milepost.supervise.drill import moment_of
from milepost.supervise.drill_measure import Cost, Strike, Way, cost, lost, middle, passed_over, worst, writers_overlap
from milepost.supervise.drill_run import Seen

S = 10**9
STEPS = {1: 10, 2: 20}


def seen(at_s: float, step: int, phase: Any = "training", resumed: int = 0) -> Seen:
    return Seen(round(at_s * S), Beats(7, "file:///r", "run", 1, step, phase, 0, resumed, 0))


def struck(at_s: float, **settings: Any) -> Strike:
    return Strike("SIGKILL", round(at_s * S), {"run": 27}, {"r": frozenset({1, 2})}, **settings)


TRAINED = [seen(1, 0), seen(2, 10), seen(3, 20, "saving"), seen(3.5, 27)]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        # It resumes at 6, is at the next step at 7, and where it was at 9.
        ([seen(6, 20, resumed=2), seen(7, 21, resumed=2), seen(9, 27, resumed=2)], Cost(2, 20, 7, 1.0, 3.0, 2.0, 5.0)),
        # From an older one.
        ([seen(6, 10, resumed=1), seen(8, 11, resumed=1)], Cost(1, 10, 17, 2.0, 4.0, 2.0, None)),
        # It began anew: nothing of that can be told, and it is not called nothing.
        ([seen(5, 0), seen(6, 1)], Cost(None, None, None, None, None, None, None)),
        # It never came to train.
        ([seen(5, -1, "claiming")], Cost(None, None, None, None, None, None, None)),
        ([], Cost(None, None, None, None, None, None, None)),
        # It hangs after its resume.
        ([seen(6, 20, resumed=2)], Cost(2, 20, 7, 1.0, None, 2.0, None)),
        # There was nothing left to train.
        ([seen(6, 20, resumed=2), seen(6.5, 20, "closed", resumed=2)], Cost(2, 20, 7, 1.0, 2.5, 2.0, None)),
    ],
)
def test_what_a_kill_costs(after: Sequence[Seen], expected: Cost) -> None:
    assert cost(Way(TRAINED, after, STEPS), struck(4), 27) == expected


def test_what_goes_on_by_itself_has_lost_nothing_and_is_counted_from_when_it_was_let_go() -> None:
    strike = struck(4, restarts=False, since_ns=9 * S)
    on = Way(TRAINED, [*TRAINED, seen(9.5, 27), seen(10, 28)], STEPS)
    assert cost(on, strike, 27) == Cost(None, None, 0, 0.0, 1.0, None, None)


def test_where_only_saves_were_seen_it_is_not_said_when_it_had_resumed() -> None:
    way = Way([seen(3, 20)], [seen(8, 30, resumed=2)], STEPS, by_saves=True)
    assert cost(way, struck(4), 27) == Cost(2, 20, 7, 1.0, 4.0, None, 4.0)


def summary(number: int, term: int = 1, keep: Sequence[int] = ()) -> Summary:
    return Summary(2, "run", number, term, f"w{number}", number - 1, tuple(keep), None, 0, 1, number * 10, number, ())


def view(*live: Summary, void: Sequence[int] = ()) -> View:
    head = live[-1] if live else None
    numbers = {each.number: each for each in live}
    return View("run", head, numbers, frozenset(void), frozenset(), {}, Listing(), Terms({}, {}), 0, undecided=False)


@pytest.mark.parametrize(
    ("at_the_end", "went_on_from", "says"),
    [
        (view(summary(1), summary(2, keep=[1])), 2, []),
        (view(summary(2), summary(3, keep=[2])), 2, []),  # 1 was dropped by 3
        (view(summary(1), summary(2, keep=[1])), 1, ["g000002 had been acknowledged, and it went on from g000001"]),
        (view(summary(1), summary(2, keep=[1])), 0, ["g000001 had", "g000002 had"]),
        (view(summary(3, keep=[2])), 2, ["g000002 is gone"]),  # the newest says that it keeps it
        (view(summary(1)), None, ["g000002 is gone"]),
        (view(summary(1), void=[2]), None, ["g000002 has become void"]),
        (view(), None, ["g000001 is gone", "g000002 is gone"]),
    ],
)
def test_what_was_acknowledged_and_is_not_there_is_lost_unless_it_was_dropped(
    at_the_end: View, went_on_from: int | None, says: list[str]
) -> None:
    published = {number: summary(number, keep=range(1, number)) for number in (1, 2)} | dict(at_the_end.live)
    found = list(lost({1, 2}, (), at_the_end, went_on_from, published))
    assert [line.startswith(start) for line, start in zip(found, says, strict=True)] == [True] * len(says)


def test_a_generation_that_was_saved_in_a_hurry_is_passed_over_by_rule_and_not_lost() -> None:
    hurried = dataclasses.replace(summary(2, keep=[1]), complete=False)
    there = {1: summary(1), 2: hurried}
    assert list(lost({1, 2}, (), view(*there.values()), 1, there)) == []
    (told,) = passed_over(1, there, {1, 2})
    assert told == "g000002 was saved in a hurry, without all of the state, and was passed over"
    assert list(passed_over(2, there, {1, 2})) == []


@given(st.sets(st.integers(1, 9), min_size=1), st.sets(st.integers(1, 9)), st.integers(0, 9))
def test_a_generation_that_was_newer_than_what_it_went_on_from_is_lost_whatever_is_there(
    acknowledged: set[int], live: set[int], on: int
) -> None:
    there = [summary(number, keep=sorted(live)) for number in sorted(live)]
    found = list(lost(acknowledged, (), view(*there), on, {each.number: each for each in there}))
    assert {line.split()[0] for line in found} >= {f"g{number:06d}" for number in acknowledged if number > on}
    assert not list(lost(acknowledged, acknowledged, view(*there), on, {})), "what the drill has spoiled is not lost by it"


def test_two_writers_whose_generations_lie_among_each_other_are_found() -> None:
    assert not writers_overlap({number: summary(number, term) for number, term in ((1, 1), (2, 1), (3, 2))})
    assert writers_overlap({number: summary(number, term) for number, term in ((1, 1), (2, 2), (3, 1))})


@given(
    st.lists(st.integers(1, 10**9), min_size=3, max_size=9),
    st.integers(0, 3),
    st.integers(1, 9),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from(["kill9", "bitflip"]),
)
def test_a_moment_comes_after_what_there_is_to_go_on_from_and_before_the_last_save(
    gaps: list[int], copied: int, number: int, draw: float, verb: Any
) -> None:
    instants = [sum(gaps[:count]) for count in range(len(gaps))]
    moment = moment_of(instants, copied, number, draw, verb)
    assert (2 if verb == "bitflip" else 1) <= moment.published or len(instants) < 4
    assert moment.published < copied + len(instants) - 1 or not draw
    assert moment.at_save == (number % 3 == 0)
    saved = moment.published - copied
    assert moment.wait_ns <= instants[saved + 1] - instants[saved]


@given(st.lists(st.floats(0, 100), min_size=1))
def test_the_worst_is_no_better_than_the_middle_and_unknown_if_one_is(values: list[float]) -> None:
    highest = worst(values)
    assert highest is not None
    assert highest >= middle(values)
    assert worst([*values, None]) is None


def test_a_strike_says_what_it_counts_from() -> None:
    assert struck(4).recovery_ns == 4 * S
    assert dataclasses.replace(struck(4), since_ns=5 * S).recovery_ns == 5 * S
