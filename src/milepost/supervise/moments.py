"""Choose when a run is killed, from what a run that was left alone has published, and know when that moment has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.supervise.watching import Watch

At: TypeAlias = Literal["mid-rollout", "during-save", "random", "each"]


@dataclass(frozen=True, slots=True)
class Moment:
    """Say when to kill: once so many generations are there, then at the next save's first data, or after a while."""

    published: int
    at_save: bool = False
    wait_ns: int = 0


@dataclass(slots=True)
class Hunt:
    """Wait for a moment, look by look."""

    moment: Moment
    _reached_ns: int | None = None
    _published: int = 0
    _blobs: int = 0

    def is_due(self, watch: Watch, now_ns: int) -> bool:
        """Return whether the moment has come."""
        if watch.published < self.moment.published:
            return False
        if self._reached_ns is None:
            self._reached_ns, self._published, self._blobs = now_ns, watch.published, watch.blobs
        # Where the next save is there already, it went faster than we look, or than the run that was left alone. To wait for one
        # more could be to wait for what never comes.
        if self.moment.at_save:
            return watch.blobs > self._blobs or watch.published > self.moment.published
        return now_ns - self._reached_ns >= self.moment.wait_ns or watch.published > self._published


def plan(alone: Watch, kills: int, at: At, draw: Callable[[], float]) -> list[Moment]:
    """Return at most ``kills`` moments, spread over the run; each start has to get further than the one before.

    ``draw`` returns a number in [0, 1), for ``random``. What has saved once, at its end, has no such moment.
    """
    last = alone.published - 1
    kills = min(kills, last)
    if at == "random":
        counts = sorted({1 + int(draw() * last) for _ in range(kills)})
    else:
        counts = [1 + last * (2 * index + 1) // (2 * kills) for index in range(kills)]
    return [_moment(alone, count, index, at, draw) for index, count in enumerate(counts)]


def _moment(alone: Watch, count: int, index: int, at: At, draw: Callable[[], float]) -> Moment:
    if at == "during-save" or (at == "each" and index % 2):
        return Moment(count, at_save=True)
    part = draw() if at == "random" else 0.5
    return Moment(count, wait_ns=int(alone.gap_ns(count) * part))
