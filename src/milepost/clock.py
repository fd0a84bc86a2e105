"""Own time, randomness and ids: the only module that imports ``time``, ``random``, ``secrets`` or ``uuid``.

Everything else receives a `Clock`, so that tests decide what time it is and which nonce comes next.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Tell time and make names that nobody else makes. All methods may be called from any thread."""

    def wall_ns(self) -> int:
        """Return nanoseconds since the epoch; may jump; for people and provenance, never for decisions."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds on a clock that never goes back; comparable within one process only."""

    def nonce(self) -> str:
        """Return 16 random hexadecimal digits (64 bits), never the same twice."""


class SystemClock:
    """Tell the machine's time and draw nonces from the operating system."""

    def wall_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def nonce(self) -> str:
        # What `secrets` does, without the three modules that it imports: a look at a run draws none.
        return os.urandom(8).hex()


@dataclass(slots=True)
class FakeClock:
    """Stand still until told otherwise; nonces count up. For tests of users, too.

    >>> clock = FakeClock()
    >>> clock.advance(seconds=1.5)
    >>> clock.monotonic_ns()
    1500000000
    >>> clock.nonce(), clock.nonce()
    ('0000000000000001', '0000000000000002')
    """

    now_ns: int = 0
    epoch_ns: int = 1_700_000_000_000_000_000
    nonces: int = 0
    prefix: str = ""

    def advance(self, *, seconds: float) -> None:
        """Move both clocks forward."""
        self.now_ns += round(seconds * 1e9)

    def wall_ns(self) -> int:
        return self.epoch_ns + self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def nonce(self) -> str:
        self.nonces += 1
        digits = f"{self.nonces:x}"
        return self.prefix + digits.rjust(16 - len(self.prefix), "0")


def draw(clock: Clock) -> float:
    """Return a number in [0, 1) by chance.

    >>> 0.999 < draw(FakeClock(prefix="f" * 15)) < 1
    True
    """
    return (int(clock.nonce(), 16) >> 11) / 2**53  # all 64 bits could round up to 1


def utc_text(wall_ns: int) -> str:
    """Return a wall-clock reading as ISO 8601 in UTC with seconds, e.g. ``2026-11-29T12:04:11Z``."""
    return datetime.fromtimestamp(wall_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
