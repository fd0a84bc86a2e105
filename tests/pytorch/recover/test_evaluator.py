"""Evaluations come after the same steps whatever kills and resumes; what has not seen a step is not saved with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from milepost.clock import FakeClock
from milepost.errors import CorruptError, UsageError
from milepost.pytorch import Evaluator, Saver, StepInfo
from milepost.pytorch.recover.seen import check_seen

PER_EPOCH = 10


def at(step: int) -> StepInfo:
    return StepInfo(step // PER_EPOCH, step % PER_EPOCH, step, PER_EPOCH)


def train(evaluator: Evaluator, steps: range) -> list[int]:
    """Return after which steps it evaluated."""
    found = []
    for step in steps:
        if evaluator.due(at(step)):
            evaluator.evaluated(at(step))
            found.append(step)
        check_seen(at(step), {"evaluator": evaluator})
    return found


@pytest.mark.parametrize("killed", [[5], [3], [2], [4], [0], [3, 7, 11], [1, 2, 3, 4, 5, 6, 7, 8], [19]])
def test_evaluations_come_after_steps_3_7_11_15_19_whatever_kills_and_resumes(killed: list[int]) -> None:
    found: list[int] = []
    state, begin = None, 0
    for end in [*killed, 19]:
        evaluator = Evaluator(freq_steps=4, clock=FakeClock())
        if state is not None:
            evaluator.load_state_dict(state)
        found += train(evaluator, range(begin, end + 1))
        state, begin = evaluator.state_dict(), end + 1
    assert found == [3, 7, 11, 15, 19]


@given(st.integers(1, 7), st.lists(st.integers(0, 39), max_size=6), st.booleans())
def test_no_kill_moves_an_evaluation(interval: int, kills: list[int], by_epochs: bool) -> None:
    every: dict[str, Any] = {"freq_epochs": 1 + interval % 3} if by_epochs else {"freq_steps": interval}
    alone = train(Evaluator(**every, clock=FakeClock()), range(40))
    found, state, begin = [], None, 0
    for end in [*sorted(set(kills)), 39]:
        evaluator = Evaluator(**every, clock=FakeClock())
        if state is not None:
            evaluator.load_state_dict(state)
        found += train(evaluator, range(begin, end + 1))
        state, begin = evaluator.state_dict(), end + 1
    assert found == alone


def test_a_kill_after_steps_that_were_not_saved_evaluates_them_again_and_no_others() -> None:
    evaluator = Evaluator(freq_steps=4, clock=FakeClock())
    assert train(evaluator, range(6)) == [3]
    saved = evaluator.state_dict()
    assert train(evaluator, range(6, 9)) == [7]
    evaluator = Evaluator(freq_steps=4, clock=FakeClock())
    evaluator.load_state_dict(saved)
    assert train(evaluator, range(6, 20)) == [7, 11, 15, 19]


def test_time_that_a_run_was_not_there_does_not_make_an_evaluation_due() -> None:
    clock = FakeClock()
    evaluator = Evaluator(freq_secs=60, clock=clock)
    assert not evaluator.due(at(0))
    clock.advance(seconds=45)
    state = evaluator.state_dict()
    clock = FakeClock(epoch_ns=clock.epoch_ns + 10**15)
    evaluator = Evaluator(freq_secs=60, clock=clock)
    evaluator.load_state_dict(state)
    assert not evaluator.due(at(1))
    clock.advance(seconds=15)
    assert evaluator.due(at(2)) == "every 60 seconds"


def test_without_an_interval_nothing_is_ever_due() -> None:
    assert train(Evaluator(clock=FakeClock()), range(100)) == []


@pytest.mark.parametrize("state", [{}, None, {"version": 1, "engines": {"evaluator": {}}}, "x"])
def test_what_are_no_counters_changes_nothing(state: Any) -> None:
    evaluator = Evaluator(freq_steps=4, clock=FakeClock())
    train(evaluator, range(6))
    before = evaluator.state_dict()
    with pytest.raises(CorruptError) as caught:
        evaluator.load_state_dict(state)
    assert caught.value.kind == "bad-counters"
    assert evaluator.state_dict() == before


def test_a_step_that_an_evaluator_was_not_asked_about_is_not_saved() -> None:
    evaluator = Evaluator(freq_steps=4, clock=FakeClock())
    check_seen(at(0), {"evaluator": evaluator})  # who was never asked may never be
    train(evaluator, range(2))
    with pytest.raises(UsageError, match=r"evaluator: due\(\) was not asked after step 2") as caught:
        check_seen(at(2), {"evaluator": evaluator, "stats_logger": object(), "saver": None})
    assert caught.value.kind == "dumped-early"
    assert not evaluator.due(at(2))
    check_seen(at(2), {"evaluator": evaluator})


def test_a_step_whose_evaluation_is_due_and_not_made_is_not_saved() -> None:
    evaluator = Evaluator(freq_steps=4, clock=FakeClock())
    train(evaluator, range(3))
    assert evaluator.due(at(3))
    with pytest.raises(UsageError, match="an evaluation is due after step 3"):
        check_seen(at(3), {"evaluator": evaluator})
    evaluator.evaluated(at(3))
    check_seen(at(3), {"evaluator": evaluator})


def test_an_interval_of_time_that_is_over_between_asking_and_saving_is_no_matter() -> None:
    clock = FakeClock()
    evaluator = Evaluator(freq_secs=60, clock=clock)
    assert not evaluator.due(at(0))
    clock.advance(seconds=90)
    check_seen(at(0), {"evaluator": evaluator})


def test_a_step_that_a_saver_was_not_asked_about_is_not_saved(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    saver = Saver(tmp_path, experiment="e", trial="t", user="u", freq_steps=100, clock=FakeClock())
    for engine in ("default", "critic"):
        assert saver.save_if_due(model, at(0), engine=engine) is None
    check_seen(at(0), {"saver": saver})
    saver.save_if_due(model, at(1))
    with pytest.raises(UsageError, match="not called for critic after step 1"):
        check_seen(at(1), {"saver": saver})
    saver.save_if_due(model, at(1), engine="critic")
    check_seen(at(1), {"saver": saver})
    again = Saver(tmp_path, experiment="e", trial="t", user="u", freq_steps=100, clock=FakeClock())
    again.load_state_dict(saver.state_dict())
    again.save_if_due(model, at(2))
    check_seen(at(2), {"saver": again})  # the critic is exported no more


def test_a_saver_that_is_never_due_is_asked_by_nobody(tmp_path: Path) -> None:
    saver = Saver(tmp_path, experiment="e", trial="t", user="u")
    saver.save_if_due(torch.nn.Linear(1, 1), at(0))
    check_seen(at(5), {"saver": saver})
