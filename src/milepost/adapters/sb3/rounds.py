"""Let an on-policy ``learn()`` that goes on count its rounds from where it was: they decide when logs are written.

``learn()`` keeps the number in a local variable, logs it, and writes its logs at every ``log_interval``-th round. A loop
that begins again at 0 writes other rows, at other steps. So the rounds that are over are gone through once more, idly.
"""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

_CALLED = ("collect_rollouts", "_update_current_progress_remaining", "dump_logs", "train")
"""What the loop of ``learn()`` calls in each round, in this order."""


class _Idle:
    """Stand in for what a round calls, and do nothing, until so many rounds are over; True lets the loop go on."""

    def __init__(self, model: BaseAlgorithm, rounds: int) -> None:
        self._model = model
        self._left = rounds
        self.before = {name: vars(model)[name] for name in _CALLED if name in vars(model)}
        """What somebody else has put in the place of these methods."""

    def nothing(self, *_: object, **__: object) -> bool:
        return True

    def end_of_round(self) -> None:
        self._left -= 1
        if self._left == 0:
            _put_back(self._model, self)


def idle(model: BaseAlgorithm, rounds: int) -> None:
    """Let the next ``rounds`` rounds of the model's loop do nothing. Called before every loop begins.

    So an idle round that was interrupted leaves nothing behind for the next ``learn()``.
    """
    if not isinstance(model, OnPolicyAlgorithm):
        return
    left: Any = getattr(vars(model).get("train"), "__self__", None)
    if isinstance(left, _Idle):
        _put_back(model, left)
    if rounds:
        made = _Idle(model, rounds)
        vars(model).update(dict.fromkeys(_CALLED, made.nothing) | {"train": made.end_of_round})


def _put_back(model: BaseAlgorithm, idle_: _Idle) -> None:
    for name in _CALLED:
        vars(model).pop(name, None)
    vars(model).update(idle_.before)
