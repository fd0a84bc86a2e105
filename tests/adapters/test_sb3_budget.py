"""A budget at the cadence of Stable-Baselines3: a safe point where each rollout starts, and no bit of training changed. B4"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

from milepost import Keep, budget
from milepost.adapters.sb3 import Checkpointing
from milepost.clock import FakeClock
from milepost.publish.view import read
from tests.adapters.sb3_runs import env_of, off_policy, ppo_model
from tests.engine.training import local, without_git


class Passing(BaseCallback):
    """Let a second pass with each step."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock

    def _on_step(self) -> bool:
        self.clock.advance(seconds=1)
        return True


def ppo(folder: Path) -> Any:
    return ppo_model(3, folder, n_steps=16, batch_size=16)


def dqn(folder: Path) -> Any:
    return off_policy(DQN, 3, env_of("CartPole-v1"))


def weights(model: Any) -> np.ndarray[Any, Any]:
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in model.policy.parameters()])


@pytest.mark.parametrize(
    ("make", "saved"), [(ppo, [32, 48, 64, 80, 96, 112, 128]), (dqn, [32, 44, 56, 68, 80, 92, 104, 116, 128])]
)
def test_the_first_save_is_early_and_the_next_are_as_often_as_rollouts_and_costs_allow(
    make: Any, saved: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_git(monkeypatch)
    clock = FakeClock()
    callback = Checkpointing(tmp_path, when=budget(max_loss="5min"), keep=Keep(last=50), clock=clock, writer="inline")
    model = make(tmp_path)
    model.learn(128, callback=[callback, Passing(clock)])
    live = read(local(tmp_path)).live
    assert [live[number].step for number in sorted(live)] == saved
    assert live[1].reason == "budget: first"
    assert live[2].reason == "budget: least", "on this clock saves cost nothing"
    alone = make(tmp_path)
    alone.learn(128)
    assert np.array_equal(weights(model), weights(alone))
