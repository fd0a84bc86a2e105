"""Count what an attack tried, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field, fields


@dataclass
class Tally:
    """Hold the totals of one attack, or of several together."""

    operations: int = 0
    """Saves, claims, resumes, rollbacks, pins, resets ... that were begun."""
    crash_points: int = 0
    power_cuts: int = 0
    faults: int = 0
    flips: int = 0
    deaths: int = 0
    """Of trainers, of writer processes, of both."""
    strikes: int = 0
    """Signals that struck a trainer, in whatever it was doing."""
    acknowledged: int = 0
    lost: list[str] = field(default_factory=list)
    """Each acknowledged generation that did not load, each mix, each byte that was not missed. Must stay empty."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))

    def __str__(self) -> str:
        rows = [
            ("operations tried", self.operations),
            ("crash points", self.crash_points),
            ("power cuts", self.power_cuts),
            ("faults injected", self.faults),
            ("bits flipped", self.flips),
            ("trainers and writers killed", self.deaths),
            ("signals in every phase", self.strikes),
            ("generations acknowledged", self.acknowledged),
            ("lost", len(self.lost)),
        ]
        return "\n".join(f"{name:<26}{count:>10,}" for name, count in rows)
