"""Two runs of Stable-Baselines3 that do the same are the same in all that is saved, but for the time of day. B20"""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from milepost.adapters.sb3 import Checkpointing
from milepost.clock import SystemClock
from milepost.lifecycle.divergence import Side, divergences
from milepost.lifecycle.triggers import every
from milepost.publish import layout
from milepost.publish.manifest import load_record
from milepost.publish.view import read
from milepost.records import Manifest
from milepost.state.clocked import is_clocked
from milepost.store.local import LocalStore
from tests.adapters.sb3_runs import in_child


def train(algorithm: str, folder: Path, every_steps: int) -> None:
    """Train with all that has a clock in it: monitors with csv files, episode statistics, log files."""

    def env(index: int) -> gym.Env:
        return Monitor(gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1")), str(folder / f"{index}"))

    folder.mkdir()
    net = {"policy_kwargs": {"net_arch": [8]}, "seed": 1, "device": "cpu"}
    torch.set_num_threads(1)
    with pytest.warns(UserWarning, match="already wrapped"):
        venv = VecMonitor(DummyVecEnv([lambda index=index: env(index) for index in range(2)]))  # type: ignore[misc]
    model = (
        PPO("MlpPolicy", venv, n_steps=32, batch_size=32, n_epochs=1, **net)
        if algorithm == "ppo"
        else DQN("MlpPolicy", venv, learning_starts=20, buffer_size=100, batch_size=8, **net)
    )
    model.set_logger(configure(str(folder / "log"), ["csv", "json", "log"]))
    checkpointing = Checkpointing(folder / "run", when=every(steps=every_steps), writer="inline")
    model.learn(256, log_interval=1, callback=checkpointing)


def newest(folder: Path) -> Side:
    store = LocalStore(folder / "run", SystemClock())
    head = read(store).head
    assert head is not None
    return Side(load_record(store, layout.manifest(head.number), Manifest), store)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_two_runs_that_do_the_same_are_the_same_but_for_the_time_of_day(algorithm: str, tmp_path: Path) -> None:
    # The second saves at other steps: rows of the replay buffer lie in other pieces.
    in_child(lambda: train(algorithm, tmp_path / "one", 64))
    in_child(lambda: train(algorithm, tmp_path / "other", 128))
    sides = newest(tmp_path / "one"), newest(tmp_path / "other")
    assert [apart.first for apart in divergences(*sides, is_clocked)] == []
    clocked = {apart.component for apart in divergences(*sides, lambda _: False)}
    assert clocked == {"counters", "envs", "extra"}
