"""Draw how a start is struck: where, with what, and who else is about."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from tests.siege.strikes import PHASES, Strike

CHOSEN = tuple(phase for phase in PHASES if phase != "ended")
ONCE = ("start", "claim", "resume", "closing", "exit", "late")
"""Phases that come once in a start."""
SINGLE = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGKILL, signal.SIGSTOP)
DOUBLE = (
    (signal.SIGTERM, signal.SIGTERM),
    (signal.SIGINT, signal.SIGINT),
    (signal.SIGUSR1, signal.SIGTERM),
    (signal.SIGTERM, signal.SIGINT),
    (signal.SIGTERM, signal.SIGKILL),
    (signal.SIGINT, signal.SIGKILL),
    (signal.SIGSTOP, signal.SIGTERM),
)
TWICE = tuple(pair for pair in DOUBLE if signal.SIGSTOP not in pair)
AFTER = ("stopping", "staging", "waiting", "writing", "publishing", "retiring", "closing", "exit", "late")
"""Where a second signal finds one that leaves."""
ALONE, REFUSED, WAITS, TAKES_OVER = "alone", "refused", "waits", "takes over"
"""Who else is about: nobody; one that is started while the first is stopped; one that waits for its end; one that does not."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Say how one start is struck."""

    strikes: tuple[Strike, ...]
    outside: bool
    """By us, at any moment, and not by itself at the chosen line."""
    everyone: bool
    """Whoever strikes from outside strikes the writer process, too, as one who ends a whole job."""
    rival: str
    cold: bool
    """In an interpreter of its own, and not in a fork of a warm one."""

    @property
    def signals(self) -> list[int]:
        return [strike.signal for strike in self.strikes]


class Plans:
    """Draw plans. Every phase comes up as often as every other."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self._deck: list[str] = []

    def draw(self, lines: Mapping[str, int], *, taken_over: bool = True, rivals: bool = True, outside: float = 0.2) -> Plan:
        """Draw one. ``lines`` says how many lines run in each phase that there is."""
        chance = self.chance
        signals = (chance.choice(SINGLE),) if chance.random() < 0.75 else chance.choice(DOUBLE)
        first = self._phase(lines)
        if first == "stopping":  # what leaves has heard of it before
            first, signals = "training", chance.choice(TWICE)
        phases = [first, *(chance.choice([each for each in AFTER if each in lines]) for _ in signals[1:])]
        if "stopping" in lines and len(signals) > 1 and chance.random() < 0.3:
            phases[1] = "stopping"
        strikes = tuple(
            Strike(
                phase,
                1 if phase in ONCE or number else chance.randint(1, 4),
                chance.randint(0, lines[phase]),
                int(signals[number]),
            )
            for number, phase in enumerate(phases)
        )
        if signal.SIGSTOP in signals:
            rival = chance.choice((ALONE, ALONE, REFUSED, WAITS, TAKES_OVER if taken_over else REFUSED))
        else:
            rival = chance.choice((ALONE, ALONE, ALONE, WAITS))
        rival = rival if rivals else ALONE
        everyone = chance.random() < 0.5
        return Plan(strikes, chance.random() < outside, everyone, rival, chance.random() < 0.01)

    def _phase(self, lines: Mapping[str, int]) -> str:
        while True:
            if not self._deck:
                self._deck = self.chance.sample(CHOSEN, len(CHOSEN))
            phase = self._deck.pop()
            if phase in lines:
                return phase
