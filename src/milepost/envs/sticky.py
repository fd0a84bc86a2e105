"""Remember the actions that an Atari emulator has got, since it may repeat the last one and tells nobody which that was.

With ``repeat_action_probability`` above zero a frame takes the action of the frame before in place of its own. The action that
counts as the last is in no state that the emulator gives: restored without it, a game goes another way at the first frame that
repeats. A reset makes it a no-op, and every action that is not repeated replaces it. So the actions since a reset, or enough of
the newest, given once more to an emulator whose random generator stood where it did then, leave the right one behind.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_DOUBT = 1e-15
"""How likely it may be that each of so many actions was the repetition of the one before."""
_MOST, _WINDOW = 4096, 256


@dataclass(slots=True)
class _Stretch:
    """Hold the emulator's state at one moment, and every action from then on."""

    begin: Any
    acts: list[tuple[Any, float]] = field(default_factory=list)


class FollowedAle:
    """Stand in the place of an env's emulator, do what it does, and remember its actions. It takes two microseconds a frame."""

    def __init__(self, ale: Any) -> None:
        self._ale = ale
        self._act = ale.act
        # Found without a detour: a frame asks half a dozen of them.
        vars(self).update({name: getattr(ale, name) for name in dir(ale) if name[0] != "_" and not hasattr(FollowedAle, name)})
        chance = ale.getFloat("repeat_action_probability")
        self._enough = _MOST if chance >= 1 else min(_MOST, math.ceil(math.log(_DOUBT) / math.log(chance)))
        self._window = max(_WINDOW, self._enough)
        self._stretches: list[_Stretch] = []
        self._acts: list[tuple[Any, float]] = []
        """Those of the newest stretch."""
        # No frame since the reset: nobody has acted.
        self._begin(known=ale.getEpisodeFrameNumber() == 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ale, name)

    def act(self, action: Any, paddle_strength: float = 1.0) -> Any:
        """Act, and remember it."""
        acts = self._acts
        if len(acts) >= self._window:
            self._stretches = [self._stretches[-1], _Stretch(self._ale.cloneState(include_rng=True))]
            self._acts = acts = self._stretches[-1].acts
        acts.append((action, paddle_strength))
        return self._act(action, paddle_strength)

    def reset_game(self) -> None:
        """Reset, and begin anew: the last action is a no-op."""
        self._ale.reset_game()
        self._begin(known=True)

    def loadROM(self, path: Any) -> None:  # noqa: N802
        """Load a game, and begin anew: nobody has acted."""
        self._ale.loadROM(path)
        self._begin(known=True)

    def restoreState(self, state: Any) -> None:  # noqa: N802
        """Let somebody go to another state of the game: which action was the last, the state does not say."""
        self._ale.restoreState(state)
        self._begin(known=False)

    def remembered(self) -> tuple[Any, list[tuple[int, float]], bool]:
        """Return a state, the actions since then, and whether these leave the right one behind for certain."""
        acts = [
            (int(getattr(action, "value", action)), float(strength))
            for stretch in self._stretches
            for action, strength in stretch.acts
        ]
        return self._stretches[0].begin, acts, self._known or len(acts) >= self._enough

    def bring_back(self, state: Any, begin: Any, acts: Sequence[tuple[int, float]], *, known: bool) -> None:
        """Go to ``state`` with the last action that it had."""
        action = sys.modules["ale_py"].Action
        self._ale.reset_game()
        self._ale.restoreState(begin)
        for number, strength in acts:
            self._ale.act(action(number), strength)
        self._ale.restoreState(state)
        self._start(_Stretch(begin, list(acts)), known=known)

    def _begin(self, *, known: bool) -> None:
        self._start(_Stretch(self._ale.cloneState(include_rng=True)), known=known)

    def _start(self, stretch: _Stretch, *, known: bool) -> None:
        self._stretches, self._acts, self._known = [stretch], stretch.acts, known


def follow(env: Any) -> None:
    """Begin to remember the actions of an Atari env, if its emulator repeats any."""
    if not isinstance(env.ale, FollowedAle) and env.ale.getFloat("repeat_action_probability") > 0:
        env.ale = FollowedAle(env.ale)


def capture_acts(env: Any) -> dict[str, Any] | None:
    """Return what `restore_acts` needs, or None where no action is ever repeated."""
    if not isinstance(env.ale, FollowedAle):
        return None
    begin, acts, known = env.ale.remembered()
    numbers, strengths = zip(*acts, strict=True) if acts else ((), ())
    return {
        "begin": np.frombuffer(begin.serialize(), np.uint8),
        "actions": np.array(numbers, np.int16),
        "strengths": np.array(strengths, np.float32),
        "known": known,
    }


def restore_acts(env: Any, emulator: Any, acts: dict[str, Any] | None) -> None:
    """Bring the emulator back to its state, and to the action that it may repeat."""
    make = sys.modules["ale_py"].ALEState
    follow(env)
    if acts is None or not isinstance(env.ale, FollowedAle):
        env.ale.restoreState(make(emulator.tobytes()))
        return
    taken = list(zip(acts["actions"].tolist(), acts["strengths"].tolist(), strict=True))
    env.ale.bring_back(make(emulator.tobytes()), make(acts["begin"].tobytes()), taken, known=acts["known"])
