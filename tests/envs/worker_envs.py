"""Environments for worker processes: importable, so that any start method can make them, and short, so that they end often."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import FrameStackObservation, NormalizeObservation, RecordEpisodeStatistics

from milepost.envs import Reachable, register_plain


def cartpole() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", max_episode_steps=11)


def reachable() -> gym.Env[Any, Any]:
    return Reachable(cartpole())


def wrapped_pendulum() -> gym.Env[Any, Any]:
    return NormalizeObservation(RecordEpisodeStatistics(FrameStackObservation(gym.make("Pendulum-v1", max_episode_steps=13), 2)))


def ant() -> gym.Env[Any, Any]:
    return gym.make("Ant-v5", max_episode_steps=9)


def breakout() -> gym.Env[Any, Any]:
    import ale_py  # noqa: F401 - registers the games

    return gym.make("ALE/Breakout-v5", obs_type="ram", max_episode_steps=12)


def lander() -> gym.Env[Any, Any]:
    return gym.make("LunarLander-v3", max_episode_steps=20)


class Dice(gym.Env[Any, Any]):
    """Roll dice that belong to the process: python's, NumPy's and torch's generators."""

    observation_space = gym.spaces.Box(0, 1, (4,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.rolls = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self.rolls = 0
        return self._roll(), {"weather": random.random()}

    def step(self, action: Any) -> Any:
        self.rolls += 1
        return self._roll(), float(action), random.random() < 0.1, self.rolls >= 20, {"rolls": self.rolls}

    def _roll(self) -> Any:
        import torch

        return np.array([random.random(), np.random.random(), torch.rand(1).item(), self.np_random.random()])


@register_plain
class PlainDice(Dice):
    """Dice of which it is known that they hold nothing but data."""


class Calm(gym.Env[Any, Any]):
    """Speak for itself."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        return 0, {}

    def step(self, action: Any) -> Any:
        return int(action), 0.0, False, False, {}

    def milepost_get_state(self) -> Any:
        return {}

    def milepost_set_state(self, state: Any) -> None:
        pass


class Counting(gym.Env[Any, Any]):
    """Count steps, for functions that speak for it and for pickles."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.int64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        return np.array([self.count]), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return np.array([self.count]), 0.0, False, False, {}


class OtherCounting(Counting):
    """Count steps."""


def count_of(env: Counting) -> dict[str, int]:
    return {"count": env.count}


def set_count(env: Counting, state: dict[str, int]) -> None:
    env.count = state["count"]


class Liar(Calm):
    """Show something else than it did when it was saved: where it stands is not in its state."""

    def milepost_observe(self) -> Any:
        return {"place": random.randrange(1_000_000)}


class Broken(Calm):
    """Fail when it is asked."""

    def milepost_get_state(self) -> Any:
        raise ZeroDivisionError("no state today")


class Killed(Calm):
    """Die when it is asked."""

    def milepost_get_state(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def hidden_worker(index: int, env_fn: Any, pipe: Any, parent_pipe: Any, shared_memory: Any, errors: Any, *_: Any) -> None:
    """Be a worker function of one's own, which keeps its env where nobody looks for it."""
    parent_pipe.close()
    kept = [env_fn()]
    while True:
        command, data = pipe.recv()
        if command == "reset":
            answer: Any = kept[0].reset(**data)
        elif command == "step":
            answer = kept[0].step(data)
        elif command == "_call":
            answer = kept[0].get_wrapper_attr(data[0])(*data[1], **data[2])
        elif command == "_setattr":
            answer = kept[0].set_wrapper_attr(*data)
        else:
            answer = (True, True)
        pipe.send((answer, True))
        if command == "close":
            return
