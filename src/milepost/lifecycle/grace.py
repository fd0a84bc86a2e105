"""Tell whether safe points come further apart than a grace period: what is left of a process after its notice to end."""

from __future__ import annotations

import os
from collections import deque

from milepost.errors import UsageError
from milepost.lifecycle.amounts import seconds_of
from milepost.lifecycle.costs import RECENT

GRACE = "MILEPOST_GRACE"


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


def grace_here(setting: str | float | None) -> Grace | None:
    """Return the grace period that was given, or else that of the environment (``MILEPOST_GRACE``)."""
    text = os.environ.get(GRACE)
    if setting is not None or not text:
        return grace_of(setting)
    try:
        return grace_of(text)
    except UsageError as error:
        raise UsageError(
            f"{GRACE} is not a length of time above 0", kind="bad-environment", hint='like "30s" or "2m"; or unset it', value=text
        ) from error
