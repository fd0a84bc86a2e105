"""Tell whether safe points come further apart than a grace period: what is left of a process after its notice to end."""

from __future__ import annotations

from collections import deque

from milepost.errors import UsageError
from milepost.lifecycle.amounts import seconds_of
from milepost.lifecycle.costs import RECENT


class Grace:
    """Compare the last times between two safe points with a grace period.

    What is usual decides: one evaluation that took minutes does not make long rollouts of short ones.

    >>> grace = Grace(30.0)
    >>> for gap_s in (45.0, 0.1, 50.0):
    ...     grace.note(gap_s)
    >>> grace.outlasted
    True
    """

    __slots__ = ("_over", "grace_s")

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self._over: deque[bool] = deque(maxlen=RECENT)

    def note(self, gap_s: float) -> None:
        """Learn how long training took from one safe point to the next."""
        self._over.append(gap_s > self.grace_s)

    @property
    def outlasted(self) -> bool:
        """Return whether it usually takes longer: then a notice finds the next safe point too far away."""
        return 2 * sum(self._over) > len(self._over)


def grace_of(setting: str | float | None) -> Grace | None:
    """Return what compares with a grace period given as ``30s`` or in seconds. Raises `UsageError` (kind ``bad-setting``)."""
    if setting is None:
        return None
    seconds = seconds_of(setting)
    if isinstance(setting, bool) or seconds <= 0:
        hint = 'grace="30s": what your platform leaves between its notice and the kill, less what a save takes'
        raise UsageError("a grace period is a length of time", kind="bad-setting", hint=hint, grace=setting)
    return Grace(seconds)
