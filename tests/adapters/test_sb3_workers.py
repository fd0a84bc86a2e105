"""A run whose envs live in worker processes, killed and run again, ends with the bits of the run without milepost."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack, VecMonitor, VecNormalize

from milepost.adapters.sb3 import Checkpointing
from milepost.lifecycle.triggers import every
from tests.adapters.sb3_runs import KILLED, in_child, off_policy, pieces, ppo_model

pytestmark = pytest.mark.slow


class Workers(SubprocVecEnv):
    """Show what is in the workers to `pieces`, which looks for envs in its own process."""

    def __init__(self, make: Callable[[], Any], count: int, seed: int) -> None:
        super().__init__([make] * count, start_method="fork")
        self.seed(seed)

    @property
    def envs(self) -> list[Any]:
        found = []
        for index in range(self.num_envs):
            names = ("unwrapped", "rewards", "_elapsed_steps")
            there = [name for name in names if self.env_method("has_wrapper_attr", name, indices=[index])[0]]
            seen = {name: self.get_attr(name, indices=[index])[0] for name in there}
            found.append(SimpleNamespace(**seen, get_wrapper_attr=seen.__getitem__))
        return found


class KillAll(BaseCallback):
    """End this process and its workers at a step without a word, as the end of a job does."""

    def __init__(self, step: int | None) -> None:
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        if self.step is not None and self.num_timesteps >= self.step:
            end_workers()
            os._exit(KILLED)
        return True


def end_workers() -> None:
    # Forked workers hold each other's pipes open, and would outlive a parent that just goes.
    for child in active_children():
        child.kill()
        child.join()


def cartpole() -> Any:
    return gym.make("CartPole-v1")


def ppo(seed: int) -> tuple[Any, list[BaseCallback]]:
    venv = VecNormalize(VecFrameStack(VecMonitor(Workers(cartpole, 3, 3)), 2))
    evaluated = VecNormalize(VecFrameStack(VecMonitor(Workers(cartpole, 1, 77)), 2), training=False)
    evaluation = EvalCallback(evaluated, eval_freq=40, n_eval_episodes=1, deterministic=False, verbose=0, warn=False)
    return ppo_model(seed, Path(), env=venv, n_steps=24, batch_size=24), [evaluation]


def sac(seed: int) -> tuple[Any, list[BaseCallback]]:
    return off_policy(SAC, seed, Workers(lambda: Monitor(gym.make("Pendulum-v1")), 2, 3)), []


def run(build: Callable[[int], Any], folder: Path | None, total: int, seed: int = 1, kill_at: int | None = None) -> Any:
    """Run a script once, attached where there is a folder."""

    def script() -> Any:
        torch.set_num_threads(1)
        try:
            model, callbacks = build(seed)
            ours = [Checkpointing(folder, when=every(steps=40), writer="inline")] if folder is not None else []
            model.learn(total, callback=[*callbacks, *ours, KillAll(kill_at)])
            return pieces(model, callbacks)
        finally:
            end_workers()

    return in_child(script)


@pytest.mark.parametrize(("build", "total", "kills"), [(ppo, 360, (130, 250)), (sac, 160, (70, 130))])
def test_a_run_with_worker_processes_ends_with_the_bits_of_one_left_alone(
    build: Callable[[int], Any], total: int, kills: tuple[int, ...], tmp_path: Path
) -> None:
    alone = run(build, None, total)
    assert run(build, tmp_path / "attached", total) == alone
    for index, kill_at in enumerate(kills):
        assert run(build, tmp_path / "killed", total, 1 + index, kill_at) == KILLED
    assert run(build, tmp_path / "killed", total, 9) == alone
