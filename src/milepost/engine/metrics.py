"""Remember what was measured since the last generation, each number with its own step."""

from __future__ import annotations

import math
from collections.abc import Mapping

from milepost.errors import UsageError
from milepost.lifecycle.retain import Keep, rank
from milepost.records import Metric, Summary


class Metrics:
    """Collect metrics until a generation carries them; a value belongs to exactly one generation."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._pending: dict[str, Metric] = {}
        self._best: float | None = None
        self._new_best = False
        """The best so far is newer than the last save was."""
        self._holds_best = False
        """The best so far is pending: no generation carries it."""

    def begin(self, live: Mapping[int, Summary]) -> None:
        """Learn the best score so far from the generations on disk: after a resume the next score is no new best by itself."""
        ranked = rank(live, self._keep.by, self._keep.mode) if self._keep.by else ()
        self._best = live[ranked[0]].metrics[self._keep.by].number if ranked and self._keep.by else None

    def forget(self) -> None:
        """Drop what no generation carries yet: a resume has left the line on which it was measured."""
        self._pending, self._new_best, self._holds_best = {}, False, False

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note numbers measured at ``step``; a later value of the same name takes the place of one not saved yet,
        unless that was the best so far.
        """
        for name, number in [(name, number_of(name, value)) for name, value in metrics.items()]:
            if name == self._keep.by and self._keep.best:
                if self._is_better(number):
                    self._best, self._new_best, self._holds_best = number, True, True
                elif self._holds_best:
                    continue
            self._pending[name] = Metric(number.hex(), step)

    def _is_better(self, number: float) -> bool:
        if math.isnan(number):
            return False
        if self._best is None:
            return True
        return number > self._best if self._keep.mode == "max" else number < self._best

    def new_best(self) -> str | None:
        """Return why a save is due: a new best that no generation carries yet; else None."""
        return f"new best {self._keep.by}" if self._new_best else None

    def pending(self) -> dict[str, Metric]:
        """Return what the next generation would carry; it stays pending."""
        return dict(self._pending)

    def hand_over(self, noted: Mapping[str, Metric]) -> None:
        """Let a generation carry what was `pending` once; what was reported since then belongs to the next."""
        for name, metric in noted.items():
            if self._pending.get(name) is metric:
                del self._pending[name]
                if name == self._keep.by:
                    self._new_best = self._holds_best = False

    def give_back(self, taken: Mapping[str, Metric]) -> None:
        """Take back what a failed save did not store; what was reported meanwhile is newer, but no better than the best.

        The next save carries it. It is not due because of it: a failing disk is not to be tried at every safe point.
        """
        by = self._keep.by or ""
        self._holds_best = self._holds_best or (by in taken and taken[by].number == self._best)
        best = {by: taken[by]} if self._holds_best and by in taken and taken[by].number == self._best else {}
        self._pending = {**taken, **self._pending, **best}


def number_of(name: str, value: float) -> float:
    """Return a metric's value as a float. Raises `UsageError` (kind ``bad-metric``) if it is no number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(
            "a metric is a number",
            kind="bad-metric",
            hint='engine.report(step, {"eval/return": 21.5})',
            metric=name,
            value=repr(value),
        ) from None
