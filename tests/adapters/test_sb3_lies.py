"""A run whose env shows something else than it did does not train on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from milepost import every
from milepost.adapters.sb3 import Checkpointing
from milepost.engine import oneshot
from milepost.errors import MismatchError

WEATHER = {"wind": 0.0}


class Windy(gym.Env[Any, Any]):
    """An env whose wind blows outside of it."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.place = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.milepost_observe(), {}

    def step(self, action: Any) -> Any:
        WEATHER["wind"] += 0.25
        self.place += float(action)
        return self.milepost_observe(), 1.0, False, False, {}

    def milepost_observe(self) -> Any:
        return np.array([self.place, WEATHER["wind"]], np.float32)

    def milepost_get_state(self) -> Any:
        return {"place": self.place}

    def milepost_set_state(self, state: Any) -> None:
        self.place = state["place"]


def learn(root: Path, total: int, envs: int = 2) -> PPO:
    WEATHER["wind"] = 0.0
    model = PPO("MlpPolicy", DummyVecEnv([Windy] * envs), n_steps=16, batch_size=16, n_epochs=1, policy_kwargs={"net_arch": [4]})
    model.learn(total, callback=Checkpointing(root, when=every(steps=16)))
    return model


def test_learning_does_not_go_on_with_an_env_that_lies(tmp_path: Path) -> None:
    learn(tmp_path / "run", 64)
    newest = oneshot.verify(tmp_path / "run").resume_from
    with pytest.raises(MismatchError) as caught:
        learn(tmp_path / "run", 640)
    assert caught.value.kind == "env-lies"
    paths = [difference.path for difference in caught.value.differences]
    assert [path.rpartition("DummyVecEnv")[2] for path in paths] == [
        "[0]/Windy observation[1]",
        "[1]/Windy observation[1]",
    ]
    assert oneshot.verify(tmp_path / "run").resume_from == newest


def test_another_number_of_envs_is_refused_with_both_sides(tmp_path: Path) -> None:
    learn(tmp_path / "run", 64)
    with pytest.raises(MismatchError, match="num_envs: saved 2, here 3") as caught:
        learn(tmp_path / "run", 96, envs=3)
    # Not to be accepted: an env that is built otherwise does not come back.
    assert "make the script fit again" in caught.value.hint
    assert "on_mismatch" not in caught.value.hint
