"""Who is well is judged by who listens, by what was heard while it could hear. C8"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import UsageError
from milepost.service.core.events import Caller
from milepost.service.health.pulses import Change, Health, Pulses

S = 10**9
ONE, OTHER = Caller("trainer", "a"), Caller("sampler-0", "b")


def looking(pulses: Pulses, start_s: float, stop_s: float) -> list[Change]:
    """Look four times a second, as a service does."""
    times = range(round(start_s * S), round(stop_s * S) + 1, S // 4)
    return [change for now_ns in times for change in pulses.look(now_ns)]


def test_silence_makes_suspect_after_three_beats_and_failed_after_six() -> None:
    pulses = Pulses(Health())
    assert pulses.hear(ONE, 0) == []
    assert looking(pulses, 0, 14.75) == []
    assert looking(pulses, 15, 29.75) == [Change(ONE, "well", "suspect", 15 * S, "silence")]
    assert looking(pulses, 30, 90) == [Change(ONE, "suspect", "failed", 30 * S, "silence")]


def test_who_is_heard_again_is_well_also_after_it_was_given_up() -> None:
    pulses = Pulses(Health())
    pulses.hear(ONE, 0)
    looking(pulses, 0, 20)
    assert pulses.hear(ONE, 20 * S) == [Change(ONE, "suspect", "well", 20 * S, "heard")]
    assert looking(pulses, 20, 34.75) == []
    looking(pulses, 35, 50)
    assert pulses.state(ONE) == "failed"
    assert pulses.hear(ONE, 51 * S) == [Change(ONE, "failed", "well", 31 * S, "heard")]


def test_a_death_that_is_seen_needs_no_silence() -> None:
    pulses = Pulses(Health())
    pulses.hear(ONE, 0)
    assert pulses.died(ONE, S) == [Change(ONE, "well", "failed", S, "death")]
    assert pulses.died(ONE, 2 * S) == []
    assert pulses.died(OTHER, S) == []
    assert looking(pulses, 1, 90) == []


def test_who_has_left_is_not_missed() -> None:
    pulses = Pulses(Health())
    pulses.hear(ONE, 0)
    pulses.leave(ONE)
    assert looking(pulses, 0, 90) == []
    assert pulses.state(ONE) is None


def test_time_in_which_the_service_itself_did_not_run_counts_against_nobody() -> None:
    pulses = Pulses(Health())
    pulses.hear(ONE, 0)
    looking(pulses, 0, 4)
    assert pulses.look(3600 * S) == []
    # It was silent for four seconds before, and gets what is left of its time.
    assert looking(pulses, 3600.25, 3610.75) == []
    assert [change.now for change in looking(pulses, 3611, 3626)] == ["suspect", "failed"]


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=200))
def test_nobody_is_failed_who_was_heard_often_enough_while_the_service_ran(steps: list[tuple[int, bool]]) -> None:
    """Beats that come at least every five seconds that the service ran, whatever its pauses, raise no alarm."""
    pulses, now_ns, since_s = Pulses(Health()), 0, 0
    pulses.hear(ONE, 0)
    pulses.look(0)
    for quarters, pauses in steps:
        now_ns += S * 1000 if pauses else 0
        assert pulses.look(now_ns) == []
        for _ in range(quarters):
            now_ns += S // 4
            since_s += 1
            if since_s == 20:
                pulses.hear(ONE, now_ns)
                since_s = 0
            assert pulses.look(now_ns) == []


@pytest.mark.parametrize(("beat", "suspect", "failed"), [(0, 3, 6), (1, 0, 6), (1, 6, 6), (1, 7, 6)])
def test_settings_by_which_nobody_can_be_judged_are_refused(beat: int, suspect: int, failed: int) -> None:
    with pytest.raises(UsageError) as caught:
        Health(beat, suspect, failed)
    assert caught.value.kind == "bad-setting"
