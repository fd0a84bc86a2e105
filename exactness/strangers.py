"""Hold environments that milepost has never heard of."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from milepost.envs import register_plain


class Stranger(gym.Env[Any, Any]):
    """Be somebody else's environment: its state is where no walk over attributes finds it, and it speaks for itself.

    A point is blown about by a wind which outlives episodes; wind and point live in a closure, as in a native library.
    """

    def __init__(self, discrete: bool = False) -> None:
        self.observation_space = gym.spaces.Box(-100, 100, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(3) if discrete else gym.spaces.Box(-1, 1, (1,), np.float32)
        self._ask = _world()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the wind goes on."""
        super().reset(seed=seed, options=options)
        return self._ask("reset", self.np_random.uniform(-1, 1)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Push the point."""
        push = float(action) - 1.0 if isinstance(self.action_space, gym.spaces.Discrete) else float(np.ravel(action)[0])
        seen = self._ask("push", push + 0.1 * float(self.np_random.normal()))
        return seen, -abs(float(seen[0])), bool(abs(seen[0]) > 3), False, {"wind": float(seen[2])}

    def milepost_get_state(self) -> dict[str, Any]:
        """Return what it is made of."""
        return {"world": self._ask("get", None), "generator": self.np_random.bit_generator.state, "space": _generator(self)}

    def milepost_set_state(self, state: dict[str, Any]) -> None:
        """Be as it was."""
        self._ask("set", state["world"])
        self.np_random.bit_generator.state = state["generator"]
        if state["space"] is not None:
            self.action_space.np_random.bit_generator.state = state["space"]


class Nobody(gym.Env[Any, Any]):
    """Be an environment that says nothing of its state."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-100, 100, (3,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self._ask = _world()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed, options=options)
        return self._ask("reset", self.np_random.uniform(-1, 1)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Push the point."""
        seen = self._ask("push", float(np.ravel(action)[0]))
        return seen, -abs(float(seen[0])), bool(abs(seen[0]) > 3), False, {}


def _generator(env: gym.Env[Any, Any]) -> Any:
    generator = env.action_space._np_random
    return None if generator is None else generator.bit_generator.state


def _world() -> Any:
    point, speed, wind = 0.0, 0.0, 0.05

    def ask(verb: str, value: Any) -> Any:
        nonlocal point, speed, wind
        if verb == "get":
            return [point, speed, wind]
        if verb == "set":
            point, speed, wind = value
        elif verb == "reset":
            point, speed = float(value), 0.0
        else:
            wind = 0.9 * wind + 0.1 * np.sin(point + value)
            speed = 0.8 * speed + 0.2 * value + wind
            point += speed
        return np.array([point, speed, wind], np.float32)

    return ask


@register_plain
class Reach(gym.Env[Any, Any]):
    """Move a point on a line to where it is wanted: the smallest task with goals. Episodes end after 3 to 13 steps."""

    def __init__(self, discrete: bool = False) -> None:
        box = gym.spaces.Box(-10, 10, (1,), np.float32)
        self.observation_space = gym.spaces.Dict({"observation": box, "achieved_goal": box, "desired_goal": box})
        self.action_space = gym.spaces.Discrete(3) if discrete else gym.spaces.Box(-1, 1, (1,), np.float32)
        self.state = np.zeros(2, np.float32)
        self._elapsed_steps = self.longest = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Put point and goal anywhere."""
        super().reset(seed=seed, options=options)
        self.state = self.np_random.uniform(-3, 3, 2).astype(np.float32)
        self._elapsed_steps, self.longest = 0, int(self.np_random.integers(3, 14))
        return self._observed(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Move the point."""
        offset = np.float32(isinstance(self.action_space, gym.spaces.Discrete))
        self.state[0] += np.clip(np.float32(np.ravel(action)[0]) - offset, -1, 1)
        self._elapsed_steps += 1
        seen = self._observed()
        reward = float(self.compute_reward(seen["achieved_goal"], seen["desired_goal"], [{}])[0])
        return seen, reward, reward == 0, self._elapsed_steps >= self.longest, {"is_success": reward == 0}

    def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> Any:  # noqa: ARG002 - HER hands it over
        """Return 0 near the goal, else -1."""
        return -(np.abs(achieved - desired).reshape(-1) > 0.3).astype(np.float32)

    def _observed(self) -> dict[str, Any]:
        return {
            "observation": self.state[:1].copy(),
            "achieved_goal": self.state[:1].copy(),
            "desired_goal": self.state[1:].copy(),
        }


@register_plain
class Masked(gym.Env[Any, Any]):
    """Allow other actions at each step; the rest end the episode. A walk along a ring of eight places."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(4)
        self.place, self.allowed = 0, np.ones(4, bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Stand anywhere."""
        super().reset(seed=seed, options=options)
        self.place = int(self.np_random.integers(8))
        return self._next(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Walk; a forbidden step ends the episode."""
        fell = not self.allowed[int(action)]
        self.place = (self.place + int(action) - 1) % 8
        return self._next(), float(self.place == 0), fell or self.place == 0, False, {}

    def action_masks(self) -> Any:
        """Return what is allowed now."""
        return self.allowed

    def _next(self) -> Any:
        self.allowed = self.np_random.random(4) < 0.6
        self.allowed[int(self.np_random.integers(4))] = True
        angle = self.place * np.pi / 4
        return np.array([np.sin(angle), np.cos(angle), self.allowed[0], self.allowed[1]], np.float32)
