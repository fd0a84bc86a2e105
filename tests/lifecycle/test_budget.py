"""What a budget makes of what a save costs: one interval, the bound that made it, and what is to be expected of it. B4"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import UsageError
from milepost.lifecycle.budget import Budget, budget, budget_in
from milepost.lifecycle.costs import Costs, History, SaveCost
from milepost.lifecycle.triggers import AnyOf, Reading, every

SECOND = 1_000_000_000


def costs(**known: float) -> Costs:
    return Costs(**({"saves": 50} | known))  # type: ignore[arg-type]


CHOICES: dict[str, tuple[Budget, Costs, float, str]] = {
    "nothing is known yet: a first save is made early": (budget(), Costs(), 30, "first"),
    "it comes earlier where little may be lost": (budget(max_loss=20), Costs(), 10, "first"),
    "what a save takes is earned by training first": (budget(), costs(stall_s=1), 51, "max_overhead"),
    "slowing counts like standing still": (budget(), costs(stall_s=0.5, background_s=0.5), 51, "max_overhead"),
    "and so does what some saves take beyond": (budget(), costs(stall_s=0.6, surplus_s=0.4), 51, "max_overhead"),
    "a cheap save is not made twenty times a second": (budget(), costs(stall_s=0.001), 10, "least"),
    "unless so little may be lost": (budget(max_loss=4), costs(stall_s=0.001, duration_s=1), 2.92, "max_loss"),
    "max_loss holds where the overhead would be too long": (
        *(budget(max_loss="5min"), costs(stall_s=20, duration_s=30)),
        *(264, "max_loss"),
    ),
    "a safe point that may be late takes its part": (
        *(budget(max_loss="5min"), costs(stall_s=20, duration_s=30, gap_s=60)),
        *(204, "max_loss"),
    ),
    "so does a save that may be slow": (
        *(budget(max_loss="5min"), costs(stall_s=20, duration_s=30, slowest_s=80)),
        *(214, "max_loss"),
    ),
    "but no more than half, for the sake of one stall": (
        *(budget(max_loss="5min"), costs(stall_s=20, duration_s=30, slowest_s=9000)),
        *(132, "max_loss"),
    ),
    "a save that takes longer than may be lost follows the one before": (
        *(budget(max_loss="5min"), costs(stall_s=1, duration_s=400)),
        *(2, "max_loss"),
    ),
    "but leaves training half of the time": (
        *(budget(max_loss="5min"), costs(stall_s=400, duration_s=400)),
        *(800, "max_loss"),
    ),
    "rare failures ask for fewer saves": (budget(mtbf="6h"), costs(stall_s=1), (2 * 21600) ** 0.5, "mtbf"),
    "frequent ones for no more than the overhead allows": (budget(mtbf="10min"), costs(stall_s=1), 51, "max_overhead"),
    "and max_loss for no fewer than it allows": (
        *(budget(mtbf="30d", max_loss="5min"), costs(stall_s=1, duration_s=10)),
        *(284, "max_loss"),
    ),
    "one save that met a stall does not put off the second": (budget(), costs(saves=1, stall_s=600), 120, "learning"),
    "nor the third for long": (budget(), costs(saves=2, stall_s=600), 480, "learning"),
    "in the end it is believed": (budget(), costs(saves=5, stall_s=600), 30600, "max_overhead"),
}


@pytest.mark.parametrize("case", CHOICES)
def test_an_interval(case: str) -> None:
    trigger, known, interval_s, bound = CHOICES[case]
    choice = trigger.choose(known)
    assert (choice.interval_s, choice.bound) == (pytest.approx(interval_s), bound)
    start = 777 * SECOND
    end = start + round(interval_s * SECOND)
    last = Reading(monotonic_ns=start)
    if interval_s:
        assert trigger.due(last, Reading(monotonic_ns=end - 1000, costs=known)) is None
    assert trigger.due(last, Reading(monotonic_ns=end + 1000, costs=known)) == f"budget: {bound}"


def test_what_is_to_be_expected_is_said_of_both_bounds() -> None:
    known = costs(stall_s=20, duration_s=50, gap_s=1)
    choice = budget(max_loss="5min").choose(known)
    assert choice.loss_s == 294
    assert choice.overhead == pytest.approx(20 / (243 - 20))
    slow = budget(max_loss="5min").choose(costs(stall_s=20, duration_s=400, gap_s=1))
    assert (slow.loss_s, slow.overhead) == (801, pytest.approx(20 / 380)), "one save after the other"
    inline = budget(max_loss="5min").choose(costs(stall_s=400, duration_s=400, gap_s=4))
    assert (inline.loss_s, inline.overhead) == (1204, 1)


times = st.floats(0, 1000)


@given(
    st.floats(0.001, 0.5),
    st.none() | st.floats(1, 10_000),
    st.none() | st.floats(60, 1e6),
    st.builds(Costs, saves=st.integers(5, 99), stall_s=times, background_s=times, surplus_s=times, duration_s=times, gap_s=times),
)
def test_a_bound_is_exceeded_only_where_the_other_leaves_no_choice(
    part: float, loss: float | None, mtbf: float | None, known: Costs
) -> None:
    known = dataclasses.replace(known, duration_s=known.duration_s + known.stall_s, slowest_s=known.duration_s + known.stall_s)
    choice = budget(max_overhead=part, max_loss=loss, mtbf=mtbf).choose(known)
    if choice.overhead > part * 1.000001:
        assert choice.bound == "max_loss"
        assert choice.interval_s <= 2 * known.cost_s or choice.loss_s >= loss * 0.979999, "it could have waited longer"  # type: ignore[operator]
    if loss is not None and choice.loss_s > loss * 1.000001:
        assert choice.interval_s <= max(known.duration_s, 2 * known.cost_s), "it could have come sooner"


def test_after_failures_the_next_comes_sooner_where_max_loss_is_at_risk_and_then_later_and_later() -> None:
    trigger, known = budget(max_loss="5min"), costs(stall_s=20, duration_s=30)
    assert trigger.choose(known).interval_s == 264

    def waited_s(failures: int) -> int:
        failing = dataclasses.replace(known, failures=failures)
        return next(s for s in range(1000) if trigger.due(Reading(), Reading(monotonic_ns=s * SECOND, costs=failing)))

    assert [waited_s(failures) for failures in (0, 1, 2, 3, 4, 99)] == [264, 19, 38, 75, 75, 75]
    cheap = dataclasses.replace(costs(stall_s=0.5, duration_s=5), failures=3)
    assert trigger.due(Reading(), Reading(monotonic_ns=25 * SECOND, costs=cheap)) is None, "four intervals are well below"
    without = dataclasses.replace(known, failures=3)
    assert budget().due(Reading(), Reading(monotonic_ns=1000 * SECOND, costs=without)) is None, "it costs as much as ever"


def test_it_stands_wherever_every_does_and_is_found_there() -> None:
    trigger = budget(max_loss="2min")
    for combined in (every(steps=100) | trigger, trigger | every(steps=100), every(steps=100, minutes=9) | trigger):
        assert isinstance(combined, AnyOf)
        assert combined.due(Reading(), Reading(step=100)) == "every 100 steps"
        assert combined.due(Reading(), Reading(monotonic_ns=30 * SECOND)) == "budget: first"
        assert combined.due(Reading(), Reading(step=99, monotonic_ns=29 * SECOND)) is None
        assert budget_in(combined) is trigger
    assert budget_in(every(steps=1)) is None
    assert budget_in(None) is None


@pytest.mark.parametrize(
    "setting",
    [
        *({"max_overhead": 0}, {"max_overhead": 2}, {"max_overhead": -0.1}, {"max_overhead": True}),
        *({"max_loss": 0}, {"max_loss": "soon"}, {"max_loss": -1}, {"mtbf": "0h"}, {"mtbf": float("inf")}, {"mtbf": True}),
    ],
)
def test_a_budget_that_cannot_work_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        budget(**setting)
    assert caught.value.kind in ("bad-trigger", "bad-duration")
    assert caught.value.hint


def save_of(stall_s: float, *, beside_s: float = 0.0, background_s: float = 0.0, ok: bool = True) -> SaveCost:
    return SaveCost(stall_s, beside_s, background_s, stall_s + beside_s, gap_s=1.0, at_risk_s=60.0, ok=ok)


def learned(*saves: SaveCost) -> Costs:
    history = History()
    for save in saves:
        history.add(save)
    return history.costs


def test_the_first_save_of_a_process_is_forgotten_once_there_is_a_second() -> None:
    assert learned(save_of(8.0)).cost_s == 8.0
    assert learned(save_of(8.0), save_of(1.0)).cost_s == 1.0
    assert learned(save_of(8.0), save_of(1.0)).slowest_s == 1.0


def test_one_outlier_hardly_moves_what_is_expected_and_many_do() -> None:
    usual = [save_of(1.0)] * 20
    assert learned(*usual, save_of(10.0)).cost_s < 1.6
    assert learned(*usual, save_of(10_000.0)).cost_s < 1.7, "a freak counts as ten times the usual"
    tenth = learned(*([save_of(1.0)] * 9 + [save_of(10.0)]) * 20)
    assert 1.6 < tenth.cost_s < 2.4, "the mean is 1.9"


def test_a_lasting_change_is_followed_both_ways() -> None:
    up = [save_of(1.0)] * 40 + [save_of(60.0)] * 8
    assert learned(*up).cost_s >= 60
    assert learned(*up, *[save_of(1.0)] * 3).cost_s < 5


def test_how_much_training_is_slowed_is_a_mean_and_not_the_noise_of_one_save() -> None:
    noisy = [save_of(0.0, beside_s=10.0, background_s=1.0 + (5.0 if index % 2 else -5.0)) for index in range(33)]
    assert learned(*noisy).background_s == pytest.approx(1.0, abs=0.2)
    faster = [save_of(0.0, beside_s=10.0, background_s=-1.0)] * 9
    assert learned(*faster).cost_s == 0


def test_a_save_that_failed_at_once_is_no_reason_to_save_more_often() -> None:
    known = learned(*[save_of(2.0, beside_s=5.0)] * 20, *[save_of(0.0, ok=False)] * 12)
    assert (known.cost_s, known.duration_s, known.failures) == (2.0, 7.0, 12)
    assert learned(*[save_of(2.0)] * 20, *[save_of(9.0, ok=False)] * 9).cost_s >= 9.0, "one that took long is"
    assert learned(save_of(2.0, ok=False), save_of(2.0)).failures == 0
