"""Count which batches are consumed: all below a position, and some beyond it. Small, however many there were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from milepost.errors import UsageError


@dataclass(frozen=True, slots=True)
class Consumed:
    """Be the positions that are trained or dropped. This is what a trainer's checkpoint holds."""

    below: int = 0
    """All positions below this one: the frontier."""
    beyond: tuple[int, ...] = ()
    """Those beyond it, rising: batches may be trained in another order than they came in."""

    def __post_init__(self) -> None:
        rising = (self.below, *self.beyond)
        if self.below < 0 or any(left >= right for left, right in pairwise(rising)):
            raise UsageError(
                "these are not the positions of consumed batches",
                kind="bad-consumed",
                hint="load what Consumed has given, unchanged",
                below=self.below,
                beyond=self.beyond[:8],
            )

    def __contains__(self, position: object) -> bool:
        return isinstance(position, int) and (position < self.below or position in self.beyond)

    @property
    def end(self) -> int:
        """Return the position after the last that is consumed."""
        return self.beyond[-1] + 1 if self.beyond else self.below

    def open(self, end: int) -> Iterator[int]:
        """Yield the positions below ``end`` that are not consumed, rising."""
        beyond = {*self.beyond}
        return (position for position in range(self.below, end) if position not in beyond)


class Frontier:
    """Be a `Consumed` that grows."""

    def __init__(self, consumed: Consumed = Consumed()) -> None:
        self._below = consumed.below
        self._beyond = {*consumed.beyond}

    def __contains__(self, position: object) -> bool:
        return isinstance(position, int) and (position < self._below or position in self._beyond)

    def add(self, positions: Iterable[int]) -> None:
        """Consume these; one that is consumed already changes nothing."""
        self._beyond.update(position for position in positions if position >= self._below)
        while self._below in self._beyond:
            self._beyond.remove(self._below)
            self._below += 1

    def open(self, end: int) -> Iterator[int]:
        """Yield the positions below ``end`` that are not consumed, rising."""
        return (position for position in range(self._below, end) if position not in self._beyond)

    @property
    def consumed(self) -> Consumed:
        """Return what is consumed now."""
        return Consumed(self._below, tuple(sorted(self._beyond)))
