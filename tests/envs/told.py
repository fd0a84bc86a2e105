"""Envs for the tests of replay, and what they give as bits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from milepost import envs

LANDERS: dict[str, dict[str, Any]] = {
    "discrete": {},
    "continuous": {"continuous": True},
    "wind": {"enable_wind": True, "wind_power": 12.0, "turbulence_power": 1.7},
    "continuous, wind": {"continuous": True, "enable_wind": True},
    "drawn": {"render_mode": "rgb_array"},
}


def lander(**options: Any) -> gym.Env[Any, Any]:
    return gym.make("LunarLander-v3", **options)


def walker(**options: Any) -> gym.Env[Any, Any]:
    return gym.make("BipedalWalker-v3", **options)


def bits(value: Any) -> Any:
    """Return something that is equal only where every bit is."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items() if key != "episode"}
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    return repr(value)


def play(env: Any, steps: int) -> list[Any]:
    """Return the bits of all that the env gives for actions drawn from its own space, resets included."""
    given = []
    for _ in range(steps):
        given.append(bits(env.step(env.action_space.sample())))
        if given[-1][2] == "True" or given[-1][3] == "True":
            given.append(bits(env.reset()))
    return given


def captured(env: Any) -> Any:
    """Return the whole state of ``env``."""
    state = envs.capture(env)
    assert state.left_out == ()
    assert envs.is_whole(state.tree)
    return copy.deepcopy(state.tree)


def reason(env: Any) -> str:
    """Return the one reason why ``env`` is not captured at this moment."""
    state = envs.capture(env)
    (left,) = state.left_out
    assert not envs.is_whole(state.tree)
    return left.reason


def goes_on_alike(make: Callable[[], Any], original: Any, steps: int) -> bool:
    """Return whether another env, brought to the state of ``original``, goes on as that one does."""
    saved = captured(original)
    expected = play(original, steps)
    other = make()
    other.action_space.seed(4)
    other.reset(seed=99)
    play(other, 11)
    envs.restore(other, saved)
    return play(other, steps) == expected


class Walk(gym.Env[Any, Any]):
    """Walk at random on a line, a little pushed; the smallest env whose steps draw numbers. Its state is hidden."""

    action_space: Any
    observation_space: Any

    def __init__(self, size: int = 1) -> None:
        self.action_space = spaces.Box(-1, 1, (size,), np.float64)
        self.observation_space = spaces.Box(-1e9, 1e9, (size,), np.float64)
        self._hidden = lambda: None
        self._hidden.place = np.zeros(size)  # type: ignore[attr-defined] # a function's attributes are nobody's idea of data
        self.given: list[Any] = []
        self.fails = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._hidden.place[:] = self.np_random.normal() + (options or {}).get("from", 0)  # type: ignore[attr-defined]
        self.step(np.zeros(len(self._hidden.place)))  # type: ignore[attr-defined]
        return self._hidden.place, {}  # type: ignore[attr-defined]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._hidden.place += action + self.np_random.normal()  # type: ignore[attr-defined]
        if self.fails:
            raise RuntimeError("half done")
        # The very same array each time: whoever keeps it keeps what it becomes.
        return self._hidden.place, 0.0, False, False, {}  # type: ignore[attr-defined]


envs.register_replayed(Walk)


def walked(steps: int = 5, size: int = 1, **reset: Any) -> Walk:
    """Return one that was listened to from the start, after some steps."""
    env = Walk(size)
    envs.attach(env)
    env.action_space.seed(1)
    env.reset(**{"seed": 3, **reset})
    play(env, steps)
    return env
