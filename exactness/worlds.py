"""Make the environments of the matrix, each seeded, with short episodes, so that many of them end within a run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from exactness.strangers import Masked, Reach, Stranger

LIMIT = 23
"""Steps of an episode at most: a prime, so that episodes end at other places of a rollout each time."""


@dataclass(frozen=True, slots=True)
class World:
    """Describe one family of environments, and make one of them."""

    make: Callable[[], gym.Env[Any, Any]]
    actions: str
    """``discrete`` or ``box``."""
    sees: str
    """``vector``, ``number``, ``picture`` or ``goal``."""
    needs: str = ""
    """The package without which there is no such environment."""
    masked: bool = False
    seconds: float = 1.0
    """How much longer a cell takes with it, against CartPole."""
    not_exact: str = ""
    """Why a resumed run cannot be exact here; then what is asked is that milepost says so."""

    @property
    def missing(self) -> bool:
        """Return whether a package that it needs is not installed."""
        return bool(self.needs) and importlib.util.find_spec(self.needs) is None


def _known(name: str, **options: Any) -> Callable[[], gym.Env[Any, Any]]:
    return lambda: gym.make(name, **{"max_episode_steps": LIMIT, **options})


def _atari(name: str) -> gym.Env[Any, Any]:
    """Return a game as it is trained on: no-ops, frame skip, lost lives, small grey pictures, sticky actions."""
    import ale_py
    from stable_baselines3.common.atari_wrappers import AtariWrapper

    gym.register_envs(ale_py)
    game = gym.make(name, frameskip=1, repeat_action_probability=0.1)
    return gym.wrappers.TimeLimit(AtariWrapper(game, noop_max=5, screen_size=36), LIMIT)


def _stacked_atari(name: str) -> gym.Env[Any, Any]:
    """Return a game by way of Gymnasium's own wrappers."""
    import ale_py

    gym.register_envs(ale_py)
    game = gym.wrappers.AtariPreprocessing(gym.make(name, frameskip=1), noop_max=5, screen_size=36, terminal_on_life_loss=True)
    return gym.wrappers.FrameStackObservation(gym.wrappers.TimeLimit(game, LIMIT), 4)


def _short(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(env, LIMIT)


WORLDS: Mapping[str, World] = {
    "CartPole": World(_known("CartPole-v1"), "discrete", "vector"),
    "Acrobot": World(_known("Acrobot-v1"), "discrete", "vector"),
    "MountainCarContinuous": World(_known("MountainCarContinuous-v0"), "box", "vector"),
    "Pendulum": World(_known("Pendulum-v1"), "box", "vector"),
    "FrozenLake": World(_known("FrozenLake-v1"), "discrete", "number"),
    "Taxi": World(_known("Taxi-v4"), "discrete", "number"),
    "CliffWalking": World(_known("CliffWalking-v1"), "discrete", "number"),
    "goals": World(Reach, "box", "goal"),
    "goals, discrete": World(lambda: Reach(discrete=True), "discrete", "goal"),
    "masked": World(lambda: _short(Masked()), "discrete", "vector", masked=True),
    "third party, discrete": World(lambda: _short(Stranger(discrete=True)), "discrete", "vector"),
    "third party": World(lambda: _short(Stranger()), "box", "vector"),
}


def make_env(name: str, monitor: Path | None, index: int) -> gym.Env[Any, Any]:
    """Return one environment in a Monitor, which writes its csv into ``monitor``."""
    from stable_baselines3.common.monitor import Monitor

    return Monitor(WORLDS[name].make(), None if monitor is None else str(monitor / f"{index}"))


def first_actions(space: gym.Space[Any], count: int, steps: int) -> list[Any]:
    """Return actions for ``steps`` steps of ``count`` environments, which no generator of the run has drawn."""
    dice = np.random.default_rng(97)
    if isinstance(space, gym.spaces.Discrete):
        return [dice.integers(space.n, size=count) for _ in range(steps)]
    assert isinstance(space, gym.spaces.Box)
    return [dice.uniform(space.low, space.high, (count, *space.shape)).astype(space.dtype) for _ in range(steps)]
