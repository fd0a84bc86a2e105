"""Environments that are captured well or badly, in ways that tests of a single process do not see."""

from __future__ import annotations

import os
import sys
from typing import Any

import gymnasium as gym
import numpy as np

from milepost.envs import register_plain

_HELD: dict[str, float] = {"offset": 0.0}


class Unknown(gym.Env[Any, Any]):
    """Walk at random along a line. Nobody knows its state. Episodes end where it is far from home."""

    longest = 9.0

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1e9, 1e9, (2,), np.float64)
        self.action_space = gym.spaces.Discrete(2)
        self.noise = np.random.default_rng(4)
        self.x, self.level = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.level += 1
        self.x = float(self.np_random.normal())
        return self.observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.x += float(action) - 0.5 + float(self.noise.normal())
        return self.observed(), self.x, abs(self.x) > self.longest, False, {}

    def observed(self) -> Any:
        return np.array([self.x, self.level])


@register_plain
class Plain(Unknown):
    """Be captured by its attributes."""


class Own(Unknown):
    """Speak for itself, and leave nothing out."""

    def milepost_get_state(self) -> dict[str, Any]:
        made = {"x": self.x, "level": self.level, "noise": self.noise.bit_generator.state}
        return {**made, "seeded": self.np_random.bit_generator.state}

    def milepost_set_state(self, state: dict[str, Any]) -> None:
        self.x, self.level = state["x"], state["level"]
        self.noise.bit_generator.state = state["noise"]
        self.np_random.bit_generator.state = state["seeded"]


class ForgetsItsNoise(Own):
    """Leave out a generator, and pass every test that looks at the state alone."""

    def milepost_get_state(self) -> dict[str, Any]:
        return {key: value for key, value in super().milepost_get_state().items() if key != "noise"}

    def milepost_set_state(self, state: dict[str, Any]) -> None:
        super().milepost_set_state({**state, "noise": self.noise.bit_generator.state})


class ForgetsItsLevel(Own):
    """Show the level at resets only, and come back at another."""

    longest = 1e9

    def observed(self) -> Any:
        return np.array([self.x, 0.0])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return np.array([self.x, self.level]), {}

    def milepost_get_state(self) -> dict[str, Any]:
        return {**super().milepost_get_state(), "level": 0}


class Lies(Own):
    """Come back a little beside where it was."""

    def milepost_set_state(self, state: dict[str, Any]) -> None:
        super().milepost_set_state({**state, "x": state["x"] + 1e-12})


@register_plain
class DrawsFromTheProcess(Unknown):
    """Draw from the generator of the whole process."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.x += float(np.random.normal())
        return super().step(action)


class LeavesItsGenerator(gym.Wrapper[Any, Any, Any, Any]):
    """Speak for a layer in which a generator is drawn from once, and forget that it was."""

    def __init__(self) -> None:
        super().__init__(Plain())
        self.luck = np.random.default_rng(os.getpid())

    def milepost_get_state(self) -> dict[str, Any]:
        return {"drawn": int(self.luck.bit_generator.state["state"]["state"] % 2**31)}

    def milepost_set_state(self, state: dict[str, Any]) -> None:
        pass

    def milepost_observe(self) -> int:
        return 0


@register_plain
class KeepsItInTheModule(Unknown):
    """Have a part of its state where no instance has it."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _HELD["offset"] += 0.125
        observation, *rest = super().step(action)
        return observation + _HELD["offset"], *rest  # type: ignore[return-value]


class CannotBeSet(Own):
    """Fail when it is brought back."""

    def milepost_set_state(self, state: dict[str, Any]) -> None:
        raise RuntimeError("no way back")


def _monitored() -> gym.Env[Any, Any]:
    from stable_baselines3.common.monitor import Monitor

    return Monitor(gym.make("CartPole-v1"))


def dummy() -> Any:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    return VecNormalize(DummyVecEnv([_monitored] * 2))


def subproc() -> Any:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    return SubprocVecEnv([_monitored] * 2, start_method="fork")


def sync() -> Any:
    return gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")


def asynchronous() -> Any:
    return gym.make_vec("CartPole-v1", 2, vectorization_mode="async")


def not_an_env() -> int:
    return 5


def raises() -> Any:
    raise KeyError("nothing here")


def exits() -> Any:
    sys.exit(0)
