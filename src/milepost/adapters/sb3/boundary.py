"""Find the place in a learning loop at which nothing is live, where its callbacks do not tell it.

Augmented random search draws its candidates first and calls ``_on_rollout_start`` then: at that hook they exist in local
variables alone. The first thing an update does is to ask its noise schedule, which is the model's own attribute: what
stands in for it is called when the update before is over, and nothing of the next has been drawn.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

_SCHEDULES = {"sb3_contrib.ars.ars.ARS": "delta_std_schedule"}
"""By class, also of a base: the schedule that is asked first in each update."""


class Between:
    """Stand in for a schedule: tell that an update begins, then give the schedule's value.

    A saved or copied model gets the schedule itself, and needs no milepost to be loaded.
    """

    __slots__ = ("_begins", "_model", "inner")

    def __init__(self, inner: Callable[[float], float], model: Any, begins: Callable[[], None]) -> None:
        self.inner, self._model, self._begins = inner, model, begins

    def __reduce__(self) -> tuple[Any, ...]:
        return copy.copy, (self.inner,)

    def __call__(self, progress: float) -> float:  # noqa: ARG002
        self._begins()
        # The argument was read before a resume brought the progress back.
        return self.inner(self._model._current_progress_remaining)


def watch(model: Any, begins: Callable[[], None]) -> bool:
    """Call ``begins`` where each update begins; return whether ``model`` is one whose callbacks do not tell that."""
    name = _schedule_of(model)
    if name is not None and not isinstance(getattr(model, name), Between):
        setattr(model, name, Between(getattr(model, name), model, begins))
    return name is not None


def unwatch(model: Any) -> None:
    """Give the model its own schedule back."""
    name = _schedule_of(model)
    if name is not None and isinstance(getattr(model, name), Between):
        setattr(model, name, getattr(model, name).inner)


def _schedule_of(model: Any) -> str | None:
    names = (f"{base.__module__}.{base.__qualname__}" for base in type(model).__mro__)
    return next((_SCHEDULES[name] for name in names if name in _SCHEDULES), None)
