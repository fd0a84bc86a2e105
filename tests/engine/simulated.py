"""Simulate hours of training beside saves in milliseconds: the calls that an engine makes of a `Meter`, in their order.

What saving really took is kept in books of the simulation's own: they know what a step would have taken without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from milepost.clock import FakeClock
from milepost.engine.overhead import Flight, Meter
from milepost.lifecycle.budget import Choice, budget_in
from milepost.lifecycle.triggers import Reading, Trigger

HOUR = 3600.0


@dataclass
class Saved:
    """One save, as it really was; times since the start, in seconds."""

    at_s: float
    stall_s: float
    lost_s: float = 0.0
    end_s: float = 0.0
    ok: bool = True
    chosen: Choice | None = None

    @property
    def cost_s(self) -> float:
        return self.stall_s + self.lost_s


@dataclass
class Simulated:
    """A training run. All functions are of the number of the save, from 0, but ``step_s``: of the time since the start."""

    trigger: Trigger
    stall_s: Callable[[int], float] = lambda number: 0.5
    write_s: Callable[[int], float] = lambda number: 5.0
    slower: float = 1.0
    """How many times as long a step takes while a save is written."""
    step_s: Callable[[float], float] = lambda time_s: 0.1
    steps_a_point: int = 10
    fails: Callable[[int], bool] = lambda number: False
    start_ns: int = 10**15
    saves: list[Saved] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = FakeClock(now_ns=self.start_ns)
        self.meter = Meter(self.clock, self.trigger)
        self.budget = budget_in(self.trigger)
        self.meter.begin(self.clock.now_ns, self)  # type: ignore[arg-type]
        self.flight: Flight | None = None
        self.last = Reading(monotonic_ns=self.clock.now_ns)
        self.step = 0

    def write(self, event: str, **facts: Any) -> None:
        """Take what would go to the event log."""
        assert event == "budget"
        self.events.append(facts)

    @property
    def now_s(self) -> float:
        return (self.clock.now_ns - self.start_ns) / 1e9

    def train(self, *, hours: float) -> Simulated:
        end_s = self.now_s + hours * HOUR
        while self.now_s < end_s:
            self._safe_point()
            self._work(self.steps_a_point * self.step_s(self.now_s))
            self.step += self.steps_a_point
        return self

    def _safe_point(self) -> None:
        busy = self.flight is not None
        costs = self.meter.point(self.step, self.clock.now_ns, busy=busy)
        now = Reading(self.step, self.clock.now_ns, costs=costs)
        if busy or not self.trigger.due(self.last, now):
            return
        self.last, number = now, len(self.saves)
        chosen = self.budget.choose(costs) if self.budget else None
        saved = Saved(self.now_s, self.stall_s(number), chosen=chosen)
        self.clock.advance(seconds=saved.stall_s)
        self.flight = self.meter.save(now.monotonic_ns)
        self.flight.__enter__()
        self.meter.released()
        saved.end_s = self.now_s + self.write_s(number)
        saved.ok = not self.fails(number)
        self.saves.append(saved)

    def _work(self, seconds: float) -> None:
        """Do work that would take so many seconds alone; beside a save it takes longer."""
        if self.flight is not None:
            saved = self.saves[-1]
            beside_s = min(seconds * self.slower, saved.end_s - self.now_s)
            self.clock.advance(seconds=beside_s)
            seconds -= beside_s / self.slower
            saved.lost_s += beside_s - beside_s / self.slower
            if self.now_s >= saved.end_s - 1e-6:
                self.flight.__exit__(None if saved.ok else OSError, None, None)
                self.flight = None
        self.clock.advance(seconds=seconds)

    def overhead(self, *, after_s: float = 0.0) -> float:
        """Return the part of training time that saves took, from the first save after a time to the last."""
        counted = [saved for saved in self.saves if saved.at_s >= after_s]
        cost_s = sum(saved.cost_s for saved in counted[:-1])
        return cost_s / (counted[-1].at_s - counted[0].at_s - cost_s)

    def losses(self, *, after_s: float = 0.0) -> list[float]:
        """Return what a kill at the end of each save would have lost: back to the state that was durable before it."""
        found, durable_s = [], 0.0
        for saved in self.saves:
            found.append((saved.at_s, saved.end_s - durable_s))
            durable_s = saved.at_s if saved.ok else durable_s
        return [loss_s for at_s, loss_s in found if at_s >= after_s]

    def intervals(self, *, after_s: float = 0.0) -> list[float]:
        """Return the intervals that were chosen."""
        return [saved.chosen.interval_s for saved in self.saves if saved.chosen and saved.at_s >= after_s]

    def bounds(self, *, after_s: float = 0.0) -> set[str]:
        return {saved.chosen.bound for saved in self.saves if saved.chosen and saved.at_s >= after_s}

    def warned_of(self) -> list[list[str]]:
        """Return what each event said to be exceeded."""
        return [event["exceeded"] for event in self.events]
