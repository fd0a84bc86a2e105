"""Know for how long somebody is willing to wait."""

from __future__ import annotations

from milepost.clock import Clock

_MOST_S = 1e6
"""What is said of more, or of ever: a deadline that every system knows how to keep, and a number that a message has room for."""


class Until:
    """Be a time to be done by. ``None``: there is none."""

    def __init__(self, clock: Clock, timeout_s: float | None) -> None:
        self._clock = clock
        self._began_ns = clock.monotonic_ns()
        self._timeout_s = timeout_s

    @property
    def passed_s(self) -> float:
        """Return how long it is since this was made."""
        return (self._clock.monotonic_ns() - self._began_ns) / 1e9

    @property
    def left_s(self) -> float:
        """Return how long there is left; 0 where it is over."""
        return _MOST_S if self._timeout_s is None else max(0.0, min(_MOST_S, self._timeout_s - self.passed_s))

    @property
    def left_ms(self) -> int:
        """Return the same in whole milliseconds."""
        return int(self.left_s * 1000)

    @property
    def is_over(self) -> bool:
        """Say whether it is."""
        return self.left_s <= 0
