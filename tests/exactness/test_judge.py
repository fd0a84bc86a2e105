"""A judge that finds everything exact proves nothing: each thing that is lost or changed must be found, and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exactness import judge as judging
from exactness import script, strikes
from exactness.axes import Cell
from exactness.judge import DIFFERS, EXACT, FAILED, TOLD, first_difference, judge
from exactness.strikes import Strike
from milepost.adapters.sb3 import rounds
from milepost.adapters.sb3.checkpointing import Checkpointing
from milepost.state.rng import Rng

pytestmark = pytest.mark.slow

CELL = Cell("PPO", "CartPole")


def test_a_run_that_is_exact_is_found_to_be(tmp_path: Path) -> None:
    verdict = judge(CELL, tmp_path)
    assert (verdict.outcome, verdict.kills, verdict.resumes) == (EXACT, 2, 2), verdict.detail
    assert list(tmp_path.iterdir()) == []


def test_generators_that_do_not_come_back_are_found_by_what_was_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rng, "load_state_dict", lambda *_: None)
    verdict = judge(CELL, tmp_path)
    assert verdict.outcome == DIFFERS
    assert verdict.detail.startswith("parameters")


def test_logs_at_other_steps_are_found_though_nothing_else_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # B2: learn() counts its rounds from 0 again, and with log_interval=2 writes its rows elsewhere.
    monkeypatch.setattr(rounds._Idle, "__init__", lambda *_: None)
    monkeypatch.setattr("milepost.adapters.sb3.checkpointing.idle", lambda *_: None)
    verdict = judge(CELL, tmp_path)
    assert verdict.outcome == DIFFERS
    assert verdict.detail.endswith("(of metrics)"), verdict.detail


def test_a_callback_that_draws_a_number_is_found_without_any_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_step = Checkpointing._on_step

    def drawing(self: Checkpointing) -> bool:
        np.random.random()
        return on_step(self)

    monkeypatch.setattr(Checkpointing, "_on_step", drawing)
    verdict = judge(CELL, tmp_path)
    assert verdict.outcome == DIFFERS
    assert verdict.detail.startswith("attaching changed something")


def test_a_start_that_should_be_killed_and_is_not_fails_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(strikes.KILLS, "mid-rollout", lambda _: (Strike(at_step=10_000),))
    verdict = judge(CELL, tmp_path)
    assert verdict.outcome == FAILED
    assert "came to its end" in verdict.detail


def test_a_run_that_never_went_on_from_a_checkpoint_fails_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(strikes.KILLS, "mid-rollout", lambda _: (Strike(at_step=3, unsaved=True),) * 2)
    verdict = judge(CELL, tmp_path)
    assert verdict.outcome == FAILED
    assert "only 0 of its starts" in verdict.detail


def test_an_error_in_a_script_fails_the_cell_and_its_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("no such thing")

    monkeypatch.setattr(script, "parts_of", broken)
    verdict = judge(CELL, tmp_path)
    assert verdict.outcome == FAILED
    assert "ValueError: no such thing" in verdict.detail
    assert len(list(tmp_path.iterdir())) == 1


def test_what_cannot_be_exact_must_be_told_to_be(tmp_path: Path) -> None:
    cell = Cell("PPO", "nobody's")
    verdict = judge(cell, tmp_path)
    assert verdict.outcome == TOLD, verdict.detail
    assert judging._compared("a reason", [{"exact": True}] * 2, {"a": 1}, {"a": 1}, {"a": 2}) == (
        FAILED,
        "milepost calls exact what cannot be: a reason",
    )


def test_a_difference_is_named_with_its_place_and_both_values() -> None:
    one = {"parameters": {"net": {"w": np.arange(3.0)}}, "counters": [1, 2]}
    other = {"parameters": {"net": {"w": np.arange(3.0)}}, "counters": [1, 3]}
    assert first_difference(one, other) == "counters[1]: 2 and 3 (of counters)"
    assert first_difference(one, {**one}) == ""


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (np.float32(1), np.float64(1)), (True, 1), (np.nan, 0.0), ([1], (1,))])
def test_what_is_equal_but_not_the_same_bits_differs(one: Any, other: Any) -> None:
    assert (first_difference({"a": one}, {"a": other}) != "") or isinstance(one, list)
    assert first_difference({"a": one}, {"a": one}) == ""
