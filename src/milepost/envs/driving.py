"""Step any kind of environment with given actions, and write down all that it gives back."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from milepost.envs.plain import ABSENT, Recorder
from milepost.errors import UsageError


class Driver(Protocol):
    """Be one kind of interface. What it returns is plain data of its own, no live arrays."""

    def reset(self, seed: int | None) -> dict[str, Any]:
        """Begin new episodes; with a seed, from that."""
        ...

    def step(self, action: Any) -> dict[str, Any]:
        """Take one step, and begin a new episode where one has ended."""
        ...

    def actions(self, seed: int) -> Iterator[Any]:
        """Yield random actions without end, without drawing from the env's own spaces."""
        ...


def driver_of(env: Any) -> Driver:
    """Return how to drive ``env``. Raises `UsageError` (kind ``no-env``) for what is no environment."""
    if hasattr(env, "step_wait") and hasattr(env, "num_envs") and not _is_gymnasiums_vector(env):
        return _StableBaselines(env)
    if hasattr(env, "step") and hasattr(env, "reset") and hasattr(env, "action_space"):
        return _Vector(env) if _is_gymnasiums_vector(env) else _Single(env)
    hint = "the factory has to return a Gymnasium env, a Gymnasium vector env or a Stable-Baselines3 VecEnv"
    raise UsageError("this is no environment", kind="no-env", hint=hint, type=type(env).__qualname__)


def _is_gymnasiums_vector(env: Any) -> bool:
    return hasattr(env, "single_action_space")


def ends(outputs: dict[str, Any]) -> int:
    """Return how many episodes a step has ended, by what it gave back."""
    flags = np.asarray(outputs.get("terminated", False)) | np.asarray(outputs.get("truncated", False))
    return int(np.count_nonzero(flags | np.asarray(outputs.get("done", False))))


class _Single:
    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, seed: int | None) -> dict[str, Any]:
        observation, info = self.env.reset(seed=seed)
        return _noted({"observation": observation, "info": info})

    def step(self, action: Any) -> dict[str, Any]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        flags = {"reward": reward, "terminated": terminated, "truncated": truncated}
        # Written down before the reset: that may overwrite what was returned.
        noted = _noted({"observation": observation, **flags, "info": info})
        return {**noted, "reset": self.reset(None)} if terminated or truncated else noted

    def actions(self, seed: int) -> Iterator[Any]:
        yield from _samples(self.env.action_space, seed)


class _Vector(_Single):
    def step(self, action: Any) -> dict[str, Any]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        flags = {"reward": reward, "terminated": terminated, "truncated": truncated}
        return _noted({"observation": observation, **flags, "info": info})


class _StableBaselines:
    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, seed: int | None) -> dict[str, Any]:
        if seed is not None:
            self.env.seed(seed)
        return _noted({"observation": self.env.reset()})

    def step(self, action: Any) -> dict[str, Any]:
        observation, reward, done, infos = self.env.step(action)
        return _noted({"observation": observation, "reward": reward, "done": done, "infos": list(infos)})

    def actions(self, seed: int) -> Iterator[Any]:
        samples = _samples(self.env.action_space, seed)
        while True:
            yield np.array([next(samples) for _ in range(self.env.num_envs)])


def _samples(space: Any, seed: int) -> Iterator[Any]:
    own = copy.deepcopy(space)
    own.seed(seed)
    while True:
        yield own.sample()


def _noted(outputs: dict[str, Any]) -> dict[str, Any]:
    """Return copies as a plain tree; what is no plain data is left out, as it is from a checkpoint."""
    recorder = Recorder()
    found = {name: recorder.value(value, name) for name, value in outputs.items()}
    return copy.deepcopy({name: value for name, value in found.items() if value is not ABSENT})
