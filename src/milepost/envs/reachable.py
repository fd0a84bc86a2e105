"""Let an environment in a worker process be reached without a look at the worker's own variables."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from milepost.envs.gate import Gate


class Reachable(gym.Wrapper[Any, Any, Any, Any]):
    """Let milepost capture an env in a worker process of any kind. Put it on last: ``lambda: Reachable(gym.make(...))``.

    The workers of ``SubprocVecEnv`` and ``AsyncVectorEnv`` are reached without it. A worker function of your own, which
    does not call its environment ``env``, is reached by it. It changes nothing of what the env does, and is no part of
    what is saved: a script may begin or cease to use it.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        # Looked up at each call: a way to capture the env may have put something before its methods by then.
        self.milepost_gate = Gate(lambda action: self.env.step(action), lambda **options: self.env.reset(**options))
        self._messenger: Any = None

    def step(self, action: Any) -> Any:
        """Step the env."""
        return self.milepost_gate.step(action)

    def reset(self, **options: Any) -> Any:
        """Reset the env."""
        return self.milepost_gate.reset(**options)

    @property
    def milepost_messenger(self) -> Any:
        """Return whoever was sent last."""
        return self._messenger

    @milepost_messenger.setter
    def milepost_messenger(self, messenger: Any) -> None:
        self._messenger = messenger
        if messenger is not None:
            messenger.holder = self

    def milepost_get_state(self) -> dict[str, Any]:
        """Return nothing: outside of a worker process it is a layer that holds nothing."""
        return {}

    def milepost_set_state(self, state: Any) -> None:
        """Do nothing."""
