"""Measure what saves cost training, from what an engine sees: when safe points come, and how long it keeps them waiting."""

from __future__ import annotations

import logging
from collections import deque
from types import TracebackType
from typing import NamedTuple

from milepost.clock import Clock
from milepost.engine.events import Events, milliseconds
from milepost.lifecycle.budget import FIRST_S, Choice, Overhead, budget_in
from milepost.lifecycle.costs import Costs, History, SaveCost, middle
from milepost.lifecycle.grace import Grace
from milepost.lifecycle.triggers import Trigger

log = logging.getLogger("milepost")

_STRETCHES = 32
"""The stretches of training without a save that are remembered. Each is as long as is fit to be compared with a save."""
_CHANGE = 1.2
"""By how much an interval has to change to be told."""
_NEVER = 1 << 63


class Flight:
    """Be one save, from its safe point to its end. The writer's thread is within it; the trainer's looks at it from outside."""

    def __init__(self, clock: Clock, events: Events | None, news: list[_News], began_ns: int, *, flush: bool = False) -> None:
        self._clock = clock
        self._events = events
        self._news = news
        self.began_ns = self.freed_ns = began_ns
        """``freed_ns``: when training went on."""
        self.ended_ns: int | None = None
        self.ok = False
        self.is_flush = flush
        """It was staged at an earlier safe point, and says little of what the next save will take."""

    def __enter__(self) -> None:
        # Told here and not where it was found: a training thread touches no disk, which may hang.
        for event, facts in self._news:
            if self._events is not None:
                self._events.write(event, **facts)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.ok = kind is None
        self.ended_ns = self._clock.monotonic_ns()


class _News(NamedTuple):
    event: str
    facts: dict[str, object]


class _Told(NamedTuple):
    interval_s: float
    exceeded: frozenset[str]


class Meter:
    """Measure saves, learn from them, and tell what a budget makes of it. Used by the thread that trains."""

    def __init__(self, clock: Clock, when: Trigger | None, grace: Grace | None = None) -> None:
        self.grace = grace
        self._clock = clock
        self._budget = budget_in(when)
        self._history = History()
        self._events: Events | None = None
        self._news: list[_News] = []
        self._told = _Told(0.0, frozenset())
        self._flight: Flight | None = None
        self._step = 0
        self._left_ns: int | None = None
        """When training went on after the last safe point; None: what follows it is no training."""
        self._began_ns = self._saved_ns = self._durable_ns = 0
        self._alarm_ns = _NEVER
        self._gap_ns = self._begun_ns = self._first_gap_ns = 0
        """``_first_gap_ns``: to the first safe point since ``_begun_ns``. It says little, and counts until there is a save."""
        self._beside = [0, 0]
        """Nanoseconds and steps of training beside the save in flight."""
        self._alone = [0, 0]
        self._alone_ns: deque[float] = deque(maxlen=_STRETCHES)
        """Nanoseconds a step, of the last stretches without a save."""
        self._stretch_ns = round(FIRST_S * 1e9 / _STRETCHES / 2)
        self._saves = self._failed = self._stall_ns = self._background_ns = 0
        self._stagings = self._staged_bytes = self._staging_ns = 0
        self._staged_now_ns = 0
        """What staging took at the last safe point."""
        self._told_staged = (0, 0, 0)
        self._resumed_ns: int | None = None

    def begin(self, now_ns: int, events: Events | None, *, resumed: bool = False) -> None:
        """Count from here: the state is new, or was loaded. What a save costs in this process stays known.

        ``resumed``: it was loaded at a safe point, and training goes on from that to the next one.
        """
        self._resumed_ns = now_ns if resumed else None
        if self._flight is not None:
            self._settle(now_ns)
        if self._left_ns is None and not self._saves:
            self._began_ns = now_ns
        self._events, self._left_ns, self._gap_ns, self._begun_ns = events, None, 0, now_ns
        self._saved_ns = now_ns
        self._made_durable(now_ns)

    def point(self, step: int, now_ns: int, *, busy: bool) -> Costs:
        """Note a safe point, and return what is known by now."""
        if self._left_ns is not None:
            self._pass(step - self._step, self._left_ns, now_ns)
        else:
            self._first_gap_ns = now_ns - self._begun_ns
        if self.grace is not None:
            self._look_at_grace(self.grace, now_ns)
        self._step, self._left_ns = step, now_ns
        if self._flight is not None and not busy:
            self._settle(now_ns)
        elif now_ns > self._alarm_ns:
            self._alarm_ns = _NEVER
            self._tell(self._history.note_at_risk((now_ns - self._durable_ns) / 1e9))
        return self._history.costs

    @property
    def costs(self) -> Costs:
        """Return what the next save may be expected to take. From any thread."""
        return self._history.costs

    @property
    def gap_s(self) -> float:
        """Return how long it may be from one safe point to the next."""
        first_ns = 0 if self._history.costs.saves else self._first_gap_ns
        return max(self._history.costs.gap_s, self._gap_ns / 1e9, first_ns / 1e9)

    def tell(self, event: str, facts: dict[str, object]) -> None:
        """Have an event written with the next save: a training thread touches no disk."""
        self._news.append(_News(event, facts))

    @property
    def outlasts_grace(self) -> bool:
        """Return whether the next safe point usually comes too late for a grace period, if there is one to keep."""
        return self.grace is not None and self.grace.outlasted

    def staged(self, began_ns: int, size_bytes: int) -> None:
        """Note that this safe point was staged and not saved, and that training goes on."""
        now_ns = self._left_ns = self._clock.monotonic_ns()
        self._staged_now_ns = now_ns - began_ns
        self._stagings += 1
        self._staged_bytes += size_bytes
        self._staging_ns += self._staged_now_ns
        if self._stagings == 1 and self.grace is not None:
            log.info(
                "safe points come further apart than the grace period of %g s: from now on each is kept staged; "
                "this one took %.1f ms for %d bytes",
                self.grace.grace_s,
                self._staged_now_ns / 1e6,
                size_bytes,
            )

    def save(self, began_ns: int, *, flush: bool = False) -> Flight:
        """Note that a save is about to start, which began at this safe point. None is in flight any more.

        ``flush``: the safe point is an earlier one, and training is on its way to the next, or waits.
        """
        if self._flight is not None:
            self._settle(self._clock.monotonic_ns())
        self._tell_staged()
        self._flight = Flight(self._clock, self._events, self._news, began_ns, flush=flush)
        self._news = []
        return self._flight

    def released(self) -> None:
        """Note that training goes on."""
        assert self._flight is not None
        self._flight.freed_ns = self._left_ns = self._clock.monotonic_ns()

    def overhead(self) -> Overhead:
        """Return what was measured so far."""
        stall_ns = self._stall_ns + (self._flight.freed_ns - self._flight.began_ns if self._flight else 0)
        spent_ns = stall_ns + max(0, self._background_ns) + self._staging_ns
        costs = self._history.costs
        return Overhead(
            saves=self._saves,
            failed=self._failed,
            training_s=max(0, self._clock.monotonic_ns() - self._began_ns - spent_ns) / 1e9,
            stall_s=stall_ns / 1e9,
            background_s=max(0, self._background_ns) / 1e9,
            costs=costs,
            choice=self._budget.choose(costs) if self._budget else None,
            stagings=self._stagings,
            staged_bytes=self._staged_bytes,
            staging_s=self._staging_ns / 1e9,
        )

    def _look_at_grace(self, grace: Grace, now_ns: int) -> None:
        """Learn how far apart safe points come, and which part of the time in between it took to stage the last one."""
        left_ns = self._resumed_ns if self._left_ns is None else self._left_ns
        self._resumed_ns = None
        if left_ns is None:
            return
        grace.note((now_ns - left_ns) / 1e9)
        if self._stagings:
            self._history.note_staging(self._staged_now_ns / 1e9, (now_ns - left_ns) / 1e9)
            self._staged_now_ns = 0

    def _tell_staged(self) -> None:
        """Tell with a save what was staged since the save before, if anything was."""
        before, now = self._told_staged, (self._stagings, self._staged_bytes, self._staging_ns)
        self._told_staged = now
        stagings, staged_bytes, staging_ns = (later - earlier for earlier, later in zip(before, now, strict=True))
        if stagings:
            share = f"{self._history.costs.staging_share:.5f}"
            took = milliseconds({"staging": staging_ns})
            self._news.append(
                _News("staged", {"stagings": stagings, "bytes": staged_bytes, "milliseconds": took, "share": share})
            )

    def _pass(self, steps: int, left_ns: int, now_ns: int) -> None:
        """Note the training between two safe points."""
        gap_ns = now_ns - left_ns
        self._gap_ns = max(self._gap_ns, gap_ns)
        if steps < 0:
            return  # the counter went back, and how many steps it was nobody knows
        flight = self._flight
        if flight is not None and (flight.ended_ns is None or flight.ended_ns > left_ns):
            self._beside[0] += gap_ns
            self._beside[1] += steps
            return
        alone = self._alone
        alone[0] += gap_ns
        alone[1] += steps
        if alone[0] >= self._stretch_ns and alone[1]:
            self._alone_ns.append(alone[0] / alone[1])
            self._alone = [0, 0]

    def _settle(self, now_ns: int) -> None:
        """Learn from the save that is over."""
        flight, self._flight = self._flight, None
        assert flight is not None
        ended_ns = now_ns if flight.ended_ns is None else flight.ended_ns
        self._saves += 1
        self._failed += not flight.ok
        if flight.is_flush:
            self._settle_flush(flight)
            return
        stall_ns = flight.freed_ns - flight.began_ns
        in_background_ns = max(0, ended_ns - flight.freed_ns)
        background_ns = self._slowed_ns(in_background_ns)
        at_risk_ns = ended_ns - self._durable_ns
        cost = SaveCost(
            stall_s=stall_ns / 1e9,
            beside_s=in_background_ns / 1e9,
            background_s=background_ns / 1e9,
            duration_s=(ended_ns - flight.began_ns) / 1e9,
            gap_s=self._gap_ns / 1e9,
            at_risk_s=at_risk_ns / 1e9,
            ok=flight.ok,
        )
        self._stretch_ns = max(in_background_ns // 4, (flight.began_ns - self._saved_ns) // (2 * _STRETCHES), 1_000_000)
        self._stall_ns += stall_ns
        self._background_ns += background_ns
        self._saved_ns, self._gap_ns, self._beside = flight.began_ns, 0, [0, 0]
        if flight.ok:
            self._made_durable(flight.began_ns)
        self._tell(self._history.add(cost))

    def _settle_flush(self, flight: Flight) -> None:
        """Note what is durable by now. Training may have stood still for it, or not: nothing is learned of the next save."""
        self._saved_ns, self._beside = flight.began_ns, [0, 0]
        if flight.ok:
            self._made_durable(flight.began_ns)

    def _slowed_ns(self, most_ns: int) -> int:
        """Return how much longer the training beside a save took than its steps take else.

        At most as long as the save was in flight: an evaluation that happened to fall into it was not its fault.
        """
        if not self._alone_ns:
            return 0
        spent_ns, steps = self._beside
        return max(-most_ns, min(most_ns, round(spent_ns - steps * middle(self._alone_ns))))

    def _made_durable(self, state_ns: int) -> None:
        self._durable_ns = state_ns
        if self._budget is not None and self._budget.max_loss_s is not None:
            self._alarm_ns = state_ns + round(self._budget.max_loss_s * 1e9)

    def _tell(self, costs: Costs) -> None:
        """Tell a choice that is new, or much changed, or begins or ceases to exceed a bound."""
        if self._budget is None:
            return
        choice = self._budget.choose(costs)
        exceeded = self._exceeded(choice, costs)
        before = self._told
        alike = before.interval_s / _CHANGE <= choice.interval_s <= before.interval_s * _CHANGE
        if alike and exceeded == before.exceeded:
            return
        self._told = _Told(choice.interval_s, exceeded)
        overhead = self.overhead()
        self._news.append(_News("budget", _facts(self._step, choice, overhead, exceeded)))
        if exceeded - before.exceeded:
            log.warning("the save budget cannot hold (%s): %s", ", ".join(sorted(exceeded)), _story(choice, costs))
        else:
            often = f"every {choice.interval_s:.1f} s" if choice.interval_s > costs.duration_s else "one after the other"
            log.info("saves %s (%s): %s", often, choice.bound, _story(choice, costs))

    def _exceeded(self, choice: Choice, costs: Costs) -> frozenset[str]:
        found: set[str] = set()
        assert self._budget is not None
        # Begins above the bound and ends below it, so that a cost right at it is not told again and again.
        if costs.saves > 1 and choice.strain > (0.95 if "max_overhead" in self._told.exceeded else 1.05):
            found.add("max_overhead")
        most_s = self._budget.max_loss_s
        if most_s is not None and max(choice.loss_s, costs.at_risk_s) > most_s * (1 + 1e-9):
            found.add("max_loss")
        return frozenset(found)


def _facts(step: int, choice: Choice, overhead: Overhead, exceeded: frozenset[str]) -> dict[str, object]:
    costs = overhead.costs
    seconds = {
        "interval_s": choice.interval_s,
        "loss_s": choice.loss_s,
        "at_risk_s": costs.at_risk_s,
        "stall_s": costs.stall_s,
        "background_s": costs.background_s,
        "surplus_s": costs.surplus_s,
        "duration_s": costs.duration_s,
        "gap_s": costs.gap_s,
        "staging_s": overhead.staging_s,
    }
    ratios = {"staging_share": costs.staging_share, "expected_overhead": choice.overhead, "overhead": overhead.ratio}
    head: dict[str, object] = {"step": step, "bound": choice.bound, "exceeded": sorted(exceeded), "saves": overhead.saves}
    return head | {name: f"{value:.3f}" for name, value in seconds.items()} | {name: f"{x:.5f}" for name, x in ratios.items()}


def _story(choice: Choice, costs: Costs) -> str:
    if not costs.saves:
        return f"no save is durable yet, and {costs.at_risk_s:.1f} s of progress are at risk"
    return (
        f"a save takes {costs.cost_s:.3f} s of training and {costs.duration_s:.3f} s until it is durable; "
        f"expected overhead {choice.overhead:.2%}, at most {max(choice.loss_s, costs.at_risk_s):.1f} s of progress at risk"
    )
