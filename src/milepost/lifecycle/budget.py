"""Choose the time between two saves from what a save costs, so that two bounds hold: on overhead and on lost progress."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.errors import UsageError
from milepost.lifecycle.amounts import seconds_of
from milepost.lifecycle.costs import Costs
from milepost.lifecycle.triggers import AnyOf, Reading, Trigger

FIRST_S = 30.0
"""When the first save of a process is due (or after half of ``max_loss``, if that is less): until then nothing is known."""
LEAST_S = 10.0
"""No more often than this, unless ``max_loss`` asks for it: a state that is saved in a millisecond needs no 20 saves a second."""
_GROWTH = 4
_LEARNT = 5
"""The saves after which costs are believed without reserve. Until then the interval is at most `FIRST_S` times 4 per save:
a first save that met a stalled disk for ten minutes must not put the second one off for eight hours.
"""
_AIM = 0.98
"""The part of ``max_loss`` that is aimed at, so that a few milliseconds more than usual do not exceed it."""
_RETRIES = 16
"""After a failed save that puts ``max_loss`` at risk, the next is due after this fraction of it, then after twice that."""

Bound: TypeAlias = Literal["first", "learning", "least", "max_overhead", "mtbf", "max_loss"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Say how long to wait from the start of one save to that of the next, which bound made it so, and what comes of it."""

    interval_s: float
    bound: Bound
    overhead: float
    """The part of training time that saving may be expected to take."""
    loss_s: float
    """The time of progress that may be expected to be lost at the worst moment."""
    strain: float = 0.0
    """The interval that the overhead asks for as a part of the one that ``max_loss`` allows, or staging for a grace period as
    a part of the half of the overhead that it may take: above 1 not all of it can hold.
    """


@dataclass(frozen=True, slots=True)
class Budget:
    """Be due as soon as the cost of a save is paid for by the training since the last one. Made by `budget`."""

    max_overhead: float
    max_loss_s: float | None = None
    mtbf_s: float | None = None

    def due(self, last: Reading, now: Reading) -> str | None:
        """Return the bound because of which a save is due, or None. Pure: what was learned comes with the reading."""
        choice = self.choose(now.costs)
        wait_s = self._retry_s(choice, now.costs.failures) if now.costs.failures else choice.interval_s
        return f"budget: {choice.bound}" if now.monotonic_ns - last.monotonic_ns >= wait_s * 1e9 else None

    def choose(self, costs: Costs) -> Choice:
        """Return the interval for saves that cost this much, the bound that holds, and what is to be expected. Pure."""
        interval_s, bound = self._interval(costs)
        # A save is started at a safe point, and not while another is in flight.
        period_s = max(interval_s, costs.duration_s)
        cost_s = costs.cost_s
        training_s = max(period_s - cost_s, costs.gap_s)
        overhead = cost_s / training_s if training_s > 0 else math.inf if cost_s > 0 else 0.0
        strain = self._earned_s(costs) / max(self._tolerable(costs), costs.duration_s, 1e-9)
        strain = max(strain, costs.staging_share / (self.max_overhead / 2))
        return Choice(interval_s, bound, overhead + costs.staging_share, period_s + costs.gap_s + costs.duration_s, strain)

    def _interval(self, costs: Costs) -> tuple[float, Bound]:
        least_s, bound = self._affordable(costs)
        most_s = self._tolerable(costs)
        return (most_s, "max_loss") if most_s < least_s and bound != "first" else (min(least_s, most_s), bound)

    def _earned_s(self, costs: Costs) -> float:
        """Return the interval in which a save is paid for. What it takes is no training time: it is longer by that.

        What staging for a grace period takes is not there for saves, but half of the overhead is, whatever that takes.
        """
        left = max(self.max_overhead - costs.staging_share, self.max_overhead / 2)
        return costs.cost_s / left + costs.cost_s

    def _affordable(self, costs: Costs) -> tuple[float, Bound]:
        """Return the shortest interval that costs no more than wanted."""
        if not costs.saves:
            return FIRST_S, "first"
        cost_s = costs.cost_s
        bounds: list[tuple[float, Bound]] = [(LEAST_S, "least"), (self._earned_s(costs), "max_overhead")]
        if self.mtbf_s is not None:
            bounds.append((young_daly(cost_s, self.mtbf_s), "mtbf"))
        longest = max(bounds)
        return min(longest, (FIRST_S * _GROWTH**costs.saves, "learning")) if costs.saves < _LEARNT else longest

    def _tolerable(self, costs: Costs) -> float:
        """Return the longest interval with which no more than ``max_loss`` is at risk when the save after it is durable.

        The safe point may be as late as they usually come, and the save as slow as the slowest of the last ones; but for one
        stalled disk, saves do not come more than twice as often.
        """
        if self.max_loss_s is None or not costs.saves:
            return math.inf if self.max_loss_s is None else self.max_loss_s / 2
        most_s = _AIM * self.max_loss_s - costs.gap_s - costs.duration_s
        if most_s < costs.duration_s:
            # It cannot hold, not even with one save after the other. Half of the time is for training all the same.
            return 2 * costs.cost_s
        reserve_s = costs.slowest_s - costs.duration_s
        return most_s - max(0.0, min(reserve_s, most_s / 2))

    def _retry_s(self, choice: Choice, failures: int) -> float:
        """Return how long to wait after saves that failed: with as many intervals at risk, the next may have to come sooner.

        But later and later, up to a quarter of ``max_loss``: a disk that fails is not to be tried at every safe point.
        """
        if self.max_loss_s is None or choice.loss_s + failures * choice.interval_s <= self.max_loss_s:
            return choice.interval_s
        return self.max_loss_s / _RETRIES * min(1 << min(failures - 1, 10), _RETRIES // 4)

    def __or__(self, other: Trigger) -> AnyOf:
        return AnyOf((self, other))


@dataclass(frozen=True, slots=True)
class Overhead:
    """Say what saving has cost this process so far, and how it goes on. ``str()`` of it is one line."""

    saves: int
    failed: int
    training_s: float
    """Time since the start or the resume, without what saving took."""
    stall_s: float
    background_s: float
    costs: Costs
    """What a save may be expected to take."""
    choice: Choice | None = None
    """What the budget makes of it; None without a budget."""
    stagings: int = 0
    """How many safe points were staged and not saved, for a grace period."""
    staged_bytes: int = 0
    staging_s: float = 0.0

    @property
    def ratio(self) -> float:
        """Return the part of training time that saving took."""
        return (self.stall_s + self.background_s + self.staging_s) / self.training_s if self.training_s > 0 else 0.0

    def __str__(self) -> str:
        text = (
            f"saving took {self.ratio:.2%} of {self.training_s:.0f} s: {self.saves} saves ({self.failed} failed), "
            f"stall {self.stall_s:.2f} s, background {self.background_s:.2f} s"
        )
        if self.stagings:
            text += f", staging {self.staging_s:.2f} s ({self.stagings} safe points)"
        return f"{text}; next after {self.choice.interval_s:.1f} s ({self.choice.bound})" if self.choice else text


def budget(*, max_overhead: float = 0.02, max_loss: str | float | None = None, mtbf: str | float | None = None) -> Budget:
    """Save as often as costs no more than ``max_overhead`` of training time, and at least so often that ``max_loss`` holds.

    What a save costs is measured: the time that training stands still, and how much slower its steps are while the save is
    written. The first save is due 30 s after the start or a resume (or after half of ``max_loss``), and teaches what the
    interval should be; it moves both ways as costs change, and is never below 10 s, unless ``max_loss`` asks for it. Nothing
    learned outlives the process: the next one may have another disk.

    ``max_loss`` (``"5min"``, or seconds) bounds the time of progress that a kill at the worst moment loses: the interval, the
    wait for a safe point, and the save itself. Where both bounds cannot hold, ``max_loss`` wins, and the excess is told: a
    warning, an event ``budget``, `CheckpointEngine.overhead`.

    With ``mtbf``, the mean time between failures of what it runs on, saves are as far apart as loses least time in all, to saving
    and to work done twice: ``sqrt(2 * cost * mtbf)`` (J. W. Young, "A first order approximation to the optimum checkpoint
    interval", CACM 17(9), 1974; J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
    FGCS 22(3), 2006), if that is longer than the overhead demands and ``max_loss`` allows it.

    >>> budget(max_overhead=0.01, max_loss="5min", mtbf="6h")
    Budget(max_overhead=0.01, max_loss_s=300.0, mtbf_s=21600.0)
    """
    if isinstance(max_overhead, bool) or not 0 < max_overhead < 1:
        raise UsageError(
            "max_overhead is a part of training time, between 0 and 1",
            kind="bad-trigger",
            hint="budget(max_overhead=0.02) is two percent",
            max_overhead=max_overhead,
        )
    return Budget(float(max_overhead), _length("max_loss", max_loss), _length("mtbf", mtbf))


def _length(name: str, given: str | float | None) -> float | None:
    seconds = None if given is None else seconds_of(given)
    if isinstance(given, bool) or seconds == 0:
        hint = 'budget(max_loss="5min", mtbf="6h")'
        raise UsageError(f"{name} is a length of time", kind="bad-trigger", hint=hint, **{name: given})
    return seconds


def young_daly(cost_s: float, mtbf_s: float) -> float:
    """Return the time from one save to the next that loses least, to saves and to failures, to first order.

    >>> young_daly(2.0, 3600.0)
    120.0
    """
    return math.sqrt(2 * cost_s * mtbf_s)


def budget_in(when: Trigger | None) -> Budget | None:
    """Return the budget within a trigger, or None."""
    if isinstance(when, AnyOf):
        return next((found for each in when.triggers if (found := budget_in(each))), None)
    return when if isinstance(when, Budget) else None
