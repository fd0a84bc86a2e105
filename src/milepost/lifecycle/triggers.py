"""Say when to save: small values that combine with ``|`` and are asked at each safe point.

A trigger is due when its mark was *crossed* since the last save, never when a counter happens to be a multiple: with four
environments a step counter goes 9,998, 10,002 and would miss ``step % 10_000 == 0`` for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from milepost.errors import UsageError
from milepost.lifecycle.costs import NOTHING, Costs


@dataclass(frozen=True, slots=True)
class Reading:
    """Hold what there is to decide with at one moment."""

    step: int = 0
    monotonic_ns: int = 0
    episodes: int = 0
    epochs: int = 0
    costs: Costs = NOTHING
    """What a save is known to take, by now."""


class Trigger(Protocol):
    """Decide from two readings, those of the last save and those of now."""

    def due(self, last: Reading, now: Reading) -> str | None:
        """Return the words for why a save is due, or None. Pure."""


@dataclass(frozen=True, slots=True)
class Every:
    """Be due each time ``counter`` crosses a multiple of ``interval``; for time, ``interval`` nanoseconds after the last save."""

    counter: Literal["step", "monotonic_ns", "episodes", "epochs"]
    interval: int
    words: str

    def due(self, last: Reading, now: Reading) -> str | None:
        before, after = int(getattr(last, self.counter)), int(getattr(now, self.counter))
        if self.counter == "monotonic_ns":
            return self.words if after - before >= self.interval else None
        # A counter that went back (a second learn() that counts anew, a rollback) starts its marks anew, too.
        crossed = after // self.interval > before // self.interval if after >= before else after >= self.interval
        return self.words if crossed else None

    def __or__(self, other: Trigger) -> AnyOf:
        return AnyOf((self, other))


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Be due when any of several triggers is."""

    triggers: tuple[Trigger, ...]

    def due(self, last: Reading, now: Reading) -> str | None:
        return next((words for trigger in self.triggers if (words := trigger.due(last, now))), None)

    def __or__(self, other: Trigger) -> AnyOf:
        return AnyOf((*self.triggers, other))


def every(
    *,
    steps: int | None = None,
    episodes: int | None = None,
    epochs: int | None = None,
    seconds: float | None = None,
    minutes: float | None = None,
    hours: float | None = None,
) -> Every | AnyOf:
    """Save each time one of the given counters crosses a multiple of its interval, or that much time has passed.

    Steps are the framework's own global step; time is monotonic and counts from the last save.

    >>> every(steps=10_000) | every(minutes=10)
    AnyOf(triggers=(Every(counter='step', interval=10000, words='every 10000 steps'), Every(counter='monotonic_ns', \
interval=600000000000, words='every 10 minutes')))
    >>> every(steps=1000).due(Reading(step=1998), Reading(step=2002))
    'every 1000 steps'
    """
    found: list[Every] = []
    _count(found, "step", "steps", steps)
    _count(found, "episodes", "episodes", episodes)
    _count(found, "epochs", "epochs", epochs)
    _time(found, "seconds", seconds, 1)
    _time(found, "minutes", minutes, 60)
    _time(found, "hours", hours, 3600)
    if not found:
        raise UsageError("every() needs an interval", kind="bad-trigger", hint="for example every(steps=10_000)")
    return found[0] if len(found) == 1 else AnyOf(tuple(found))


def _count(found: list[Every], counter: Literal["step", "episodes", "epochs"], unit: str, interval: int | None) -> None:
    if interval is None:
        return
    if not isinstance(interval, int) or isinstance(interval, bool) or interval < 1:
        raise UsageError(
            "an interval must be a whole number of at least 1",
            kind="bad-trigger",
            hint="every(steps=1) saves at each safe point",
            **{unit: interval},
        )
    found.append(Every(counter, interval, f"every {interval} {unit}"))


def _time(found: list[Every], unit: str, interval: float | None, seconds: int) -> None:
    if interval is None:
        return
    if isinstance(interval, bool) or not 0 < interval < float("inf"):
        raise UsageError(
            "an interval must be a positive number", kind="bad-trigger", hint="every(minutes=10)", **{unit: interval}
        )
    found.append(Every("monotonic_ns", round(interval * seconds * 1e9), f"every {interval:g} {unit}"))
