"""Stand between the loop of a worker process and its environment, so that the loop can be told what it remembered.

A worker's loop keeps something in variables of its own: whether the next step begins an episode, the last observation, the
infos of the last reset. Nobody may write those. But the loop sets them by what ``step`` and ``reset`` return: for one
command after a restore the gate answers in the env's stead, and where an episode is to begin with the next step, it
begins it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from milepost.envs.inplace import InPlace, standing_in, take_away


class Gate:
    """Pass ``step`` and ``reset`` on to an env, but for the answers that a restore has prepared."""

    def __init__(self, step: Callable[[Any], Any], reset: Callable[..., Any], done: Callable[[], None] = lambda: None) -> None:
        self._step, self._reset, self._done = step, reset, done
        self._standing_in: tuple[Any, dict[str, Any]] | None = None
        self._reset_pays = False
        self.owes_reset = False
        """The next step begins an episode: the loop has forgotten that, and the gate has not."""

    @classmethod
    def before(cls, env: Any) -> Gate:
        """Return the gate before ``env``: in the place of its two methods, from when it is told something until it is done."""
        hung = next((found for found in standing_in(env, "step") if isinstance(found, _Hung)), None)
        return _Borrowed(env) if hung is None else hung.gate

    def stand_in(self, observation: Any, info: dict[str, Any]) -> None:
        """Answer the next call, of whichever method, by these, and leave the env alone."""
        self._standing_in = (observation, info)

    def owe_reset(self, owed: bool, *, reset_pays: bool) -> None:
        """Begin an episode at the next step if ``owed``, unless a reset comes first and, as in some loops, pays for it."""
        self.owes_reset, self._reset_pays = owed, reset_pays

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take the gate out while somebody looks at what the env holds."""
        yield

    def step(self, action: Any) -> Any:
        """Return what the env, or whoever stands in for it, says."""
        if self._standing_in is not None:
            observation, _ = self._take()
            return observation, 0.0, False, False, {}
        if self.owes_reset:
            self.owes_reset = False
            self._done()
            observation, info = self._reset()
            return observation, 0, False, False, info
        return self._step(action)

    def reset(self, **options: Any) -> Any:
        """Return what the env, or whoever stands in for it, says."""
        if self._standing_in is not None:
            return self._take()
        if self._reset_pays:
            self.owes_reset = False
            self._done()
        return self._reset(**options)

    def _take(self) -> tuple[Any, dict[str, Any]]:
        assert self._standing_in is not None
        answer, self._standing_in = self._standing_in, None
        if not self.owes_reset:
            self._done()
        return answer


class _Hung(InPlace):
    """Lead the calls of a method to a gate."""

    def __init__(self, owner: Any, name: str, gate: Gate) -> None:
        super().__init__(owner, name)
        self.gate = gate

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return getattr(self.gate, self._name)(*arguments, **options)


class _Borrowed(Gate):
    """Be a gate that hangs in an env's own attributes while it has something to say, and is taken out afterwards."""

    def __init__(self, env: Any) -> None:
        super().__init__(env.step, env.reset, lambda: take_away(env, _Hung))
        self._env = env

    def stand_in(self, observation: Any, info: dict[str, Any]) -> None:
        super().stand_in(observation, info)
        self._hang()

    @contextmanager
    def aside(self) -> Iterator[None]:
        hung = self.owes_reset or self._standing_in is not None
        self._done()
        try:
            yield
        finally:
            if hung:
                self._hang()

    def _hang(self) -> None:
        take_away(self._env, _Hung)
        for name in ("step", "reset"):
            _Hung(self._env, name, self).put()
