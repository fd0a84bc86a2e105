"""A Stable-Baselines3 run that is told to end leaves ``learn()`` at a rollout's start, and goes on to the same bits. B2, B11"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common.callbacks import BaseCallback

from milepost import Stopped
from milepost.adapters.sb3 import Checkpointing
from milepost.engine import stopping
from milepost.lifecycle.triggers import every
from milepost.publish.view import read
from tests.adapters.sb3_runs import in_child, pieces
from tests.adapters.sb3_scenarios import SCENARIOS, alone, build
from tests.engine.training import local

pytestmark = pytest.mark.slow


class Notice(BaseCallback):
    """Ask for an end at a step, in the middle of a rollout."""

    def __init__(self, ours: Checkpointing, step: int, within: str | float | None) -> None:
        super().__init__()
        self.ours, self.step, self.within = ours, step, within

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.step:
            self.ours._running.stop_by(self.within, path="SIGTERM")
        return True


def run(
    name: str,
    folder: Path,
    *,
    seed: int = 1,
    at: int = 10**9,
    within: str | float | None = "30s",
    when: int = 10**9,
    **environment: str,
) -> Any:
    """Run a scenario's script once; return what it ends with, or how it was stopped."""

    def script() -> Any:
        os.environ.update(environment)
        model, callbacks = build(name, seed, folder)
        ours = Checkpointing(folder / "run", when=every(steps=when), writer="inline")
        try:
            model.learn(SCENARIOS[name][1], callback=[*callbacks, ours, Notice(ours, at, within)])
        except Stopped as stopped:
            with local(folder / "run").guard(wait_s=0, take_over=False):  # free, while this process lives
                return stopped.code, stopped.path, stopped.summary and stopped.summary.step
        return pieces(model, callbacks)

    return in_child(script)


@pytest.mark.parametrize(
    ("name", "stops"),
    [
        ("ppo", {130: 192}),
        ("ppo, 2 envs, VecNormalize, evaluation", {70: 128, 200: 256}),
        ("dqn", {57: 60, 129: 132}),
        ("dqn, HER, infos", {57: 64}),
    ],
)
def test_it_stops_at_the_next_rollout_and_ends_with_the_bits_of_a_run_left_alone(
    name: str, stops: dict[int, int], tmp_path: Path
) -> None:
    left_alone = alone(name, tmp_path / "alone")
    for seed, (at, lands_at) in enumerate(stops.items(), start=1):
        assert run(name, tmp_path / "stopped", seed=seed, at=at) == (75, "SIGTERM", lands_at)
    assert run(name, tmp_path / "stopped", seed=9) == left_alone


def test_where_the_buffer_does_not_fit_the_next_start_goes_on_from_the_newest_complete_one_to_the_same_bits(
    tmp_path: Path,
) -> None:
    left_alone = alone("dqn", tmp_path / "alone")
    code, path, step = run("dqn", tmp_path / "stopped", at=129, within=1e-6, when=40)
    assert (code, path) == (75, "SIGTERM")
    view = read(local(tmp_path / "stopped/run"))
    assert view.head is not None
    assert (view.head.step, view.head.complete) == (step, True), "late, but alive: all of it is saved"
    assert run("dqn", tmp_path / "stopped", seed=2, when=40) == left_alone


def test_a_generation_without_its_buffer_is_passed_over_for_a_complete_one(tmp_path: Path) -> None:
    left_alone = alone("dqn", tmp_path / "alone")
    hurry = pytest.MonkeyPatch()
    hurry.setattr(stopping, "decide", lambda requests, *_, **__: "leave-essential" if requests else "train")
    try:
        assert run("dqn", tmp_path / "stopped", at=129, when=40) == (75, "SIGTERM", 132)
    finally:
        hurry.undo()
    view = read(local(tmp_path / "stopped/run"))
    assert view.head is not None
    assert (view.head.step, view.head.complete) == (132, False)
    assert run("dqn", tmp_path / "stopped", seed=2, when=40) == left_alone


def test_a_generation_without_its_buffer_is_gone_on_from_where_there_is_no_other(tmp_path: Path) -> None:
    hurry = pytest.MonkeyPatch()
    hurry.setattr(stopping, "decide", lambda requests, *_, **__: "leave-essential" if requests else "train")
    try:
        assert run("dqn", tmp_path / "stopped", at=129) == (75, "SIGTERM", 132)
    finally:
        hurry.undo()
    ended = run("dqn", tmp_path / "stopped", seed=2)
    assert ended["policy"] != run("dqn", tmp_path / "other")["policy"], "it had to fill its buffer anew"
    head = read(local(tmp_path / "stopped/run")).head
    assert head is not None
    assert (head.step, head.complete, head.reason) == (SCENARIOS["dqn"][1], True, "final")


def test_a_run_that_is_told_to_end_at_its_end_is_over_when_it_is_started_again(tmp_path: Path) -> None:
    left_alone = alone("ppo", tmp_path / "alone")
    last = SCENARIOS["ppo"][1]
    assert run("ppo", tmp_path / "stopped", at=last) == (75, "SIGTERM", last)
    assert run("ppo", tmp_path / "stopped", seed=2) == left_alone


@pytest.mark.parametrize("variable", ["MILEPOST_RESUME", "MILEPOST_SKIP"])
def test_a_run_that_is_stepped_back_ends_with_the_same_bits(variable: str, tmp_path: Path) -> None:
    left_alone = alone("dqn", tmp_path / "alone")
    assert run("dqn", tmp_path / "stopped", at=129, when=40) == (75, "SIGTERM", 132)
    view = read(local(tmp_path / "stopped/run"))
    newest, before = sorted(view.live, reverse=True)[:2]
    asked = {variable: f"{view.run_id}:{before if variable == 'MILEPOST_RESUME' else newest}"}
    assert run("dqn", tmp_path / "stopped", seed=2, when=40, **asked) == left_alone
    view = read(local(tmp_path / "stopped/run"))
    assert view.head is not None
    assert newest not in view.head.line
    assert set(view.marks) == ({newest} if variable == "MILEPOST_SKIP" else set())
