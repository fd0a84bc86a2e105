"""Kill the process, for real and with SIGKILL, at an exact place."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from milepost.store.posix import Posix

PATIENCE_S = 0.25
"""How long a step that is to be the last waits for a save that may be under way."""
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Strike:
    """Say where one start of a script dies; at none of the places, it runs to its end."""

    at_step: int | None = None
    """At the first step from this one on, counted over all environments, once a save of this start is on the disk."""
    unsaved: bool = False
    """Die at that step even if nothing was saved by this start."""
    at_save: int | None = None
    """When the data of this start's save number ``at_save`` (from 1) is on the disk, and its manifest is not."""
    in_restore: bool = False
    """When everything was brought back but NumPy's global generator, which comes back last of all."""


KILLS: dict[str, Callable[[int], tuple[Strike, ...]]] = {
    "mid-rollout": lambda steps: (Strike(at_step=steps * 4 // 10 + 3), Strike(at_step=steps * 7 // 10 + 3)),
    "during a save": lambda _: (Strike(at_save=2), Strike(at_save=1)),
    "during a restore": lambda steps: (
        Strike(at_step=steps * 4 // 10 + 3),
        Strike(in_restore=True),
        Strike(at_step=steps * 7 // 10 + 3),
    ),
    "twice in a row": lambda steps: (Strike(at_step=steps * 5 // 10 + 3), Strike(at_step=0, unsaved=True)),
}
"""Where the starts of a run die, one after the other, given its number of steps. The start after the last runs to the end."""


def die() -> NoReturn:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody survives SIGKILL")


def _dying(pid: int, set_state: Callable[..., None]) -> Callable[..., None]:
    """Return a function that dies in this process, and does as ever in the environments' workers."""

    def die_here(*args: Any, **kwargs: Any) -> None:
        if os.getpid() == pid:
            die()
        set_state(*args, **kwargs)

    return die_here


class DyingPosix(Posix):
    """Die before the ``nth`` manifest is given its name: the blobs are there, and nobody knows of them."""

    def __init__(self, nth: int) -> None:
        self._left = nth

    def perform(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Make the call, unless it is that one."""
        if name in ("link", "rename_new", "replace") and "/generations/" in str(args[1]):
            self._left -= 1
            if self._left == 0:
                die()
        return function(*args, **kwargs)


class Striking:
    """Watch the steps of one start, and end it where it is to end."""

    def __init__(self, strike: Strike, root: Path) -> None:
        self._strike = strike
        self._root = root
        self._before = self._generations()
        self._taken = 0
        if strike.in_restore:
            np.random.set_state = _dying(os.getpid(), np.random.set_state)  # type: ignore[assignment] # numpy's own name

    def milepost_get_state(self) -> dict[str, int]:
        """Say that nothing of it is state: each start counts for itself."""
        return {}

    def milepost_set_state(self, state: dict[str, int]) -> None:
        """Take nothing back."""

    def step(self, number: int) -> None:
        """Look whether this is the step."""
        self._taken += 1
        at = self._strike.at_step
        # Two steps at least: what is done right after a restore is to be in danger, too.
        if at is not None and number >= at and self._taken > 2 and (self._strike.unsaved or self._saved()):
            die()

    def _saved(self) -> bool:
        """Return whether there is a new generation, now or soon: these runs are over before a process has begun to write."""
        ends = time.monotonic() + PATIENCE_S
        while self._generations() <= self._before:
            if time.monotonic() > ends:
                return False
            time.sleep(0.005)
        return True

    def _generations(self) -> int:
        """Return the number of the newest manifest that is there."""
        folder = self._root / "generations"
        names = os.listdir(folder) if folder.is_dir() else []
        return max((int(name.partition(".")[0]) for name in names if name[:1].isdigit()), default=0)


class StrikingCallback(BaseCallback):
    """Let a model's ``learn()`` be watched."""

    def __init__(self, striking: Striking) -> None:
        super().__init__()
        self._striking = striking

    def _on_step(self) -> bool:
        self._striking.step(self.num_timesteps)
        return True
