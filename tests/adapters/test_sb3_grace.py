"""A run that is flushed in the middle of a rollout and killed goes on from that rollout's start to the same bits. B2, B9, B10"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common.callbacks import BaseCallback

from milepost.adapters.sb3 import Checkpointing
from milepost.lifecycle.triggers import every
from milepost.publish.view import read
from milepost.testing.faults import HANG_S
from tests.adapters.sb3_runs import KILLED, in_child, pieces
from tests.adapters.sb3_scenarios import SCENARIOS, alone, build
from tests.engine.training import local

pytestmark = pytest.mark.slow

ALWAYS = 1e-9
"""A grace period that every rollout outlasts."""


class Notice(BaseCallback):
    """Be told at a step that the process is to end, and end it some steps later. ``told`` is what is to be done about it."""

    def __init__(self, ours: Checkpointing, step: int, how: str) -> None:
        super().__init__()
        self.ours, self.step, self.how = ours, step, how
        self.flushing = threading.Thread(target=ours.flush_staged, name="flush")

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.step:
            if self.how == "thread":
                if self.flushing.ident is None:
                    self.flushing.start()  # and training goes on beside it
                if self.num_timesteps < self.step + 3:
                    return True
                self.flushing.join(HANG_S)
            else:
                assert self.ours.flush_staged() is not None
            os._exit(KILLED)
        return True


def run(name: str, folder: Path, *, seed: int = 1, when: int = 10**9, how: str = "", at: int = 0, **options: Any) -> Any:
    """Run a scenario's script once, with a notice ``at`` a step if there is one."""

    def script() -> Any:
        model, callbacks = build(name, seed, folder)
        ours = Checkpointing(folder / "run", when=every(steps=when), grace=ALWAYS, **options)
        notice = [Notice(ours, at, how)] if how else []
        model.learn(SCENARIOS[name][1], callback=[*callbacks, ours, *notice])
        return pieces(model, callbacks)

    return in_child(script)


@pytest.mark.parametrize("how", ["callback", "thread"])
@pytest.mark.parametrize(
    ("name", "when", "at", "lands_at"),
    [
        ("ppo", 10**9, 200, 192),
        ("ppo, 2 envs, VecNormalize, evaluation", 10**9, 230, 192),
        ("dqn", 40, 129, 128),
        ("dqn, HER, infos", 40, 130, 128),
    ],
)
def test_a_flush_in_the_middle_of_a_rollout_resumes_at_its_start_and_ends_with_the_same_bits(
    name: str, when: int, at: int, lands_at: int, how: str, tmp_path: Path
) -> None:
    left_alone = alone(name, tmp_path / "alone")
    inline = {"writer": "inline"} if when == 40 else {}  # else it depends on the disk what is in flight
    assert run(name, tmp_path / "killed", when=when, how=how, at=at, **inline) == KILLED
    head = read(local(tmp_path / "killed/run")).head
    assert head is not None
    assert (head.step, head.reason) == (lands_at, "preempted")
    assert run(name, tmp_path / "killed", seed=2, when=when, **inline) == left_alone


def test_a_second_notice_after_the_resume_loses_no_bit_either(tmp_path: Path) -> None:
    left_alone = alone("dqn", tmp_path / "alone")
    for at, seed in ((57, 1), (114, 2), (173, 3)):
        assert run("dqn", tmp_path / "killed", seed=seed, how="callback", at=at) == KILLED
        head = read(local(tmp_path / "killed/run")).head
        assert head is not None
        assert at - 4 <= head.step < at
    assert run("dqn", tmp_path / "killed", seed=4) == left_alone


@pytest.mark.parametrize("name", ["ppo", "td3, HER, 3 envs, around between saves"])
def test_staging_every_rollout_changes_no_bit_of_training(name: str, tmp_path: Path) -> None:
    assert run(name, tmp_path / "attached") == alone(name, tmp_path / "alone")


def test_where_no_learn_runs_there_is_nothing_to_flush(tmp_path: Path) -> None:
    assert Checkpointing(tmp_path, grace="30s").flush_staged() is None
