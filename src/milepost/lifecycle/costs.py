"""Estimate what the next save will take from what the last ones took: over bounded windows, and moved by no single freak.

What is usual is a median: it minds no outlier. But outliers are paid for, too: where one save in ten takes ten times as long,
the mean is twice the median, and a budget that knew only the median would be spent twice over. So what saves take beyond the
usual is smoothed into a surplus, a freak at most as ten times the usual.

How much slower training is beside a save is the difference of two noisy times. As a share of the time that the save takes
it changes little from save to save, and is a mean over many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

RECENT = 15
"""The saves whose median is the usual cost, unless the last three are cheaper: costs that fall are followed at once, since
until the next save it may be an hour.
"""
LONG = 32
"""The saves that are remembered for how they slow training."""
LONGER = 64
"""The saves that are remembered for the slowest of them, and for the most that was at risk."""
_FREAK = 10.0
_SMOOTHING = 1 / 16


@dataclass(frozen=True, slots=True)
class SaveCost:
    """Hold what one save took, as measured, in seconds."""

    stall_s: float
    """How long training stood still: waiting for the save before, copying; for ``writer="inline"``, writing, too."""
    beside_s: float
    """How long it went on beside training."""
    background_s: float
    """How much longer the steps beside it took than steps do else, at most ``beside_s``. May be below zero: two noisy times."""
    duration_s: float
    """From the state that it holds to the end of the save: only then is it sure to be durable."""
    gap_s: float
    """The longest time between two safe points since the save before."""
    at_risk_s: float
    """The time of progress that a kill just before its end would have lost."""
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Costs:
    """Hold what a save may be expected to take. Without any save yet, nothing is known and all is zero."""

    saves: int = 0
    """How many were measured, failed ones included."""
    failures: int = 0
    """How many failed since the last that did not."""
    stall_s: float = 0.0
    background_s: float = 0.0
    surplus_s: float = 0.0
    """What a save takes in the mean beyond the usual."""
    duration_s: float = 0.0
    slowest_s: float = 0.0
    gap_s: float = 0.0
    at_risk_s: float = 0.0
    staging_share: float = 0.0
    """The part of training time that it takes to keep safe points staged, where a grace period asks for it."""

    @property
    def cost_s(self) -> float:
        """Return how much training time a save takes away."""
        return self.stall_s + self.background_s + self.surplus_s


NOTHING = Costs()


class History:
    """Remember the last saves, and estimate the next one from them.

    The very first save of a process touches fresh memory and shares nothing with a base: once there is a second, it is forgotten.
    """

    def __init__(self) -> None:
        self._stalls: deque[float] = deque(maxlen=RECENT)
        self._beside: deque[float] = deque(maxlen=RECENT)
        self._slowing: deque[tuple[float, float]] = deque(maxlen=LONG)
        """What was lost beside each save, and how long it went on."""
        self._durations: deque[float] = deque(maxlen=RECENT)
        self._slow: deque[float] = deque(maxlen=LONGER)
        self._gaps: deque[float] = deque(maxlen=RECENT)
        self._risks: deque[float] = deque(maxlen=LONGER)
        self._staged: deque[tuple[float, float]] = deque(maxlen=RECENT)
        """What was spent on staging at a safe point, and the training after it."""
        self.costs = NOTHING

    def add(self, cost: SaveCost) -> Costs:
        """Learn from one save more, and return what the next may be expected to take."""
        before = self.costs
        surplus_s, usual_s = before.surplus_s, before.stall_s + before.background_s
        if before.saves == 1:
            for window in (self._stalls, self._beside, self._slowing, self._durations, self._slow):
                window.clear()
        took_s = cost.stall_s + self._share() * cost.beside_s
        # A save that failed at its first byte took next to nothing: to learn from it would be to try all the more often.
        if cost.ok or took_s >= usual_s:
            if before.saves > 1:
                surplus_s = max(0.0, surplus_s + _SMOOTHING * (min(took_s - usual_s, _FREAK * usual_s) - surplus_s))
            self._stalls.append(cost.stall_s)
            self._beside.append(cost.beside_s)
            self._slowing.append((cost.background_s, cost.beside_s))
        if cost.ok:
            self._durations.append(cost.duration_s)
            self._slow.append(cost.duration_s)
        self._gaps.append(cost.gap_s)
        self._risks.append(cost.at_risk_s)
        self.costs = Costs(
            saves=before.saves + 1,
            failures=0 if cost.ok else before.failures + 1,
            stall_s=_usual(self._stalls),
            background_s=self._share() * _usual(self._beside),
            surplus_s=surplus_s,
            duration_s=_usual(self._durations),
            slowest_s=max(self._slow, default=0.0),
            gap_s=median(self._gaps),
            at_risk_s=max(self._risks),
            staging_share=before.staging_share,
        )
        return self.costs

    def _share(self) -> float:
        """Return which part of the time beside a save is lost to training."""
        beside_s = sum(beside_s for _, beside_s in self._slowing)
        return max(0.0, sum(lost_s for lost_s, _ in self._slowing) / beside_s) if beside_s > 0 else 0.0

    def note_staging(self, staging_s: float, gap_s: float) -> None:
        """Learn what a safe point took that was staged and not saved, or 0, and how long training went on after it."""
        self._staged.append((staging_s, gap_s))
        trained_s = sum(gap_s for _, gap_s in self._staged)
        share = sum(staging_s for staging_s, _ in self._staged) / trained_s if trained_s > 0 else 0.0
        self.costs = replace(self.costs, staging_share=share)

    def note_at_risk(self, at_risk_s: float) -> Costs:
        """Learn, while a save is still in flight, how much is at risk already."""
        self.costs = replace(self.costs, at_risk_s=max(self.costs.at_risk_s, at_risk_s))
        return self.costs


def _usual(window: deque[float]) -> float:
    return min(median(window), median(list(window)[-3:]))


def median(values: Iterable[float]) -> float:
    """Return the value in the middle; 0 for none.

    >>> median([3.0, 100.0, 1.0]), median([1.0, 2.0]), median([])
    (3.0, 1.5, 0.0)
    """
    ranked = sorted(values)
    half = len(ranked) // 2
    return 0.0 if not ranked else ranked[half] if len(ranked) % 2 else (ranked[half - 1] + ranked[half]) / 2


def middle(values: Iterable[float]) -> float:
    """Return the mean of the middle half: as deaf to outliers as a median, and less coarse. There is at least one value.

    >>> middle([1.0, 2.0, 3.0, 1000.0])
    2.5
    """
    ranked = sorted(values)
    cut = len(ranked) // 4
    kept = ranked[cut : len(ranked) - cut]
    return sum(kept) / len(kept)
