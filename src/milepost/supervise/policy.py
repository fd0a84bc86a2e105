"""Decide what comes after an end: start again, when, and from where; or stop, and with which exit code. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from milepost.supervise.causes import Cause, End
from milepost.supervise.kinds import KINDS, Kind

REQUEUE = 75
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Limits:
    """Say how often a command is started again without having published a generation between; -1: without limit."""

    failures: int = 3
    infrastructure: int = 10
    preemptions: int = -1
    backoff_s: tuple[float, float] = (5.0, 300.0)
    """The first wait and the longest, each at most: a wait is drawn between 0 and twice the one before."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Say what comes next."""

    action: Literal["done", "restart", "requeue", "stop"]
    wait_s: float
    exit_code: int
    """What `milepost run` exits with if it ends here; of a restart the one it would have had."""
    why: str
    skip: tuple[tuple[str, int], ...] = ()
    """Generations that the next attempt marks as ``kills-loader`` (``MILEPOST_SKIP``)."""
    resume: tuple[tuple[str, int], ...] = ()
    """What the next attempt goes on from instead of its latest (``MILEPOST_RESUME``)."""


class Policy:
    """Remember what has ended since the last new generation, and decide. Not thread-safe; one thread asks."""

    def __init__(self, limits: Limits, draw: Callable[[], float]) -> None:
        self._limits = limits
        self._draw = draw
        self._spent: Counter[str] = Counter()
        self._by_kind: Counter[str] = Counter()
        self._standing = ""

    @property
    def standing(self) -> str:
        """Return where the budget stands that paid last, like ``retry 1/3``."""
        return self._standing

    def decide(self, end: End, cause: Cause, *, asked_to_stop: bool) -> Decision:
        """Return what comes after ``end``. ``asked_to_stop``: `milepost run` itself was told to end."""
        code = exit_code_of(end, KINDS[cause.kind])
        if cause.kind == "done":
            return Decision("done", 0.0, 0, cause.text)
        if cause.budget == "none":
            return Decision("stop", 0.0, code, cause.text)
        if end.published:
            self._spent.clear()
            self._by_kind.clear()
        if not self._is_affordable(cause):
            return Decision("stop", 0.0, code, cause.text)
        self._spent[cause.budget] += 1
        self._by_kind[cause.kind] += 1
        self._standing = f"retry {self._spent[cause.budget]}/{self._limit(cause)}"
        if asked_to_stop or KINDS[cause.kind].is_leaving:
            return Decision("requeue", 0.0, REQUEUE, cause.text)
        return Decision("restart", self._wait(cause, end), code, cause.text)

    def _limit(self, cause: Cause) -> int:
        limits = self._limits
        return {"user": limits.failures, "infrastructure": limits.infrastructure}.get(cause.budget, limits.preemptions)

    def _is_affordable(self, cause: Cause) -> bool:
        limit, retries = self._limit(cause), KINDS[cause.kind].retries
        return (limit < 0 or self._spent[cause.budget] < limit) and (retries is None or self._by_kind[cause.kind] < retries)

    def _wait(self, cause: Cause, end: End) -> float:
        if cause.budget == "preemption" and end.published:
            return 0.0
        first, longest = self._limits.backoff_s
        return self._draw() * min(longest, first * 2.0 ** min(self._spent[cause.budget] - 1, 32))


def exit_code_of(end: End, kind: Kind) -> int:
    """Return what `milepost run` exits with if it ends with ``end``: 128 + N for a signal, else the command's own code."""
    if kind.exit_code is not None:
        return kind.exit_code
    return 128 + end.signal if end.signal is not None else end.exit_code or 0
