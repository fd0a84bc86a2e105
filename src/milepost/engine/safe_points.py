"""Do at each safe point what is due: nothing mostly, a save, or the last one."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from milepost.clock import Clock
from milepost.engine.beats import Beat
from milepost.engine.components import can_be_left_out
from milepost.engine.metrics import Metrics
from milepost.engine.overhead import Meter
from milepost.engine.save_errors import SaveErrors
from milepost.engine.saving import Saving
from milepost.engine.scrubbing import Scrubbing
from milepost.engine.session import Session
from milepost.engine.settings import whole
from milepost.engine.stopping import Stops
from milepost.errors import SaveFailed
from milepost.lifecycle.stopping import Decision, Stopped
from milepost.lifecycle.triggers import Reading, Trigger
from milepost.records import Restored, Summary

log = logging.getLogger("milepost")

Counters = Mapping[str, int] | None


class SafePoints:
    """Be where training and saving meet. Used by one thread at a time: the engine sees to it."""

    def __init__(
        self,
        clock: Clock,
        when: Trigger | None,
        metrics: Metrics,
        meter: Meter,
        errors: SaveErrors,
        saving: Saving,
        stops: Stops,
        beat: Beat,
    ) -> None:
        self._clock = clock
        self._when = when
        self._metrics = metrics
        self._meter = meter
        self._saving = saving
        self._errors = errors
        self._stops = stops
        self._beat = beat
        self.scrubbing: Scrubbing | None = None
        self.last = Reading()
        """Where the last save was made."""
        self.stopped: Stopped | None = None
        """What is to be raised once the root is given up: all is saved."""

    def begin(self, session: Session, restored: Restored | Summary | None, *, ready: bool) -> None:
        """Count from here: the state is new, or was loaded."""
        now_ns = self._clock.monotonic_ns()
        self._saving.begin(restored, now_ns)
        if ready:
            self._saving.warm()
        self._meter.begin(now_ns, session.events, resumed=isinstance(restored, Restored))
        counters = restored.counters if restored else {}
        self.last = Reading(restored.step if restored else 0, now_ns, counters.get("episodes", 0), counters.get("epochs", 0))
        self._metrics.begin(session.chain.line)
        if restored is not None:
            self._beat.resumed = restored.generation if isinstance(restored, Restored) else restored.number
            self._beat.step = restored.step
        self._beat.enter("training" if ready else "claiming")

    def resumed(self, session: Session, restored: Restored | None, *, all_of_it: bool, mixed: bool) -> None:
        """Go on from what was loaded, or start anew. ``stopped`` is set if the process is to leave: there is nothing to save.

        ``mixed``: what an earlier resume left half loaded is not all overwritten.
        """
        if restored is not None:
            self._metrics.forget()
            if not mixed:
                self._errors.loaded()
        if not all_of_it and restored is not None and not restored.counted:
            # The loop is where it was, and only its past is another.
            self._metrics.begin(session.chain.line)
            return
        self.begin(session, restored, ready=True)
        if all_of_it and self._stops.decide(session, self.last.monotonic_ns, self.last.step) in ("leave", "leave-essential"):
            request = self._stops.leading
            self.stopped = self._stops.ended(session, request, self.last) if request is not None else None

    def read(self, step: int, episodes: int, epochs: int) -> Reading:
        """Note a safe point, and return where training stands."""
        step, now_ns = whole("step", step), self._clock.monotonic_ns()
        busy = self._saving.background.busy
        self._beat.at(step, "saving" if busy else "training")
        costs = self._meter.point(step, now_ns, busy=busy)
        return Reading(step, now_ns, whole("episodes", episodes), whole("epochs", epochs), costs)

    def save_if_due(self, session: Session, now: Reading, counters: Counters) -> bool:
        """Save if that is due, and return whether a save was begun. ``stopped`` is set after the last one."""
        decision = self._stops.decide(session, now.monotonic_ns, now.step)
        if decision in ("leave", "leave-essential"):
            self._errors.check()
            self._leave(session, now, decision, "", counters)
            return True
        if self._saving.background.busy:
            return False
        reason = self._stops.begin_early() if decision == "save" else self._reason(now)
        if reason is not None:
            self._save(session, now, reason, counters)
        elif self._meter.outlasts_grace:
            self._errors.check()
            self._saving.wait()
            self._saving.keep(session, now, counters)
        return reason is not None

    def save(self, session: Session, now: Reading, reason: str, counters: Counters, *, complete: bool) -> None:
        """Save now. ``stopped`` is set if it was the last one."""
        decision = self._stops.decide(session, now.monotonic_ns, now.step)
        if decision in ("leave", "leave-essential"):
            self._leave(session, now, decision, reason, counters, complete=complete)
            return
        if decision == "save":
            self._stops.begin_early()
        self._save(session, now, reason, counters, complete=complete)

    def _reason(self, now: Reading) -> str | None:
        damage = self.scrubbing.reason() if self.scrubbing else None
        due = self._when.due if self._when else lambda *_: None
        return damage or self._saving.owed() or self._metrics.new_best() or due(self.last, now)

    def _save(
        self,
        session: Session,
        now: Reading,
        reason: str,
        counters: Counters,
        *,
        complete: bool = True,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self._errors.check()
        self._saving.wait()
        self.last = now
        if self.scrubbing:
            self.scrubbing.answered()
        self._saving.save(session, now, reason, counters, complete=complete, without=without)

    def _leave(
        self, session: Session, now: Reading, decision: Decision, reason: str, counters: Counters, *, complete: bool = True
    ) -> None:
        """Make the last save, and wait until it is durable. Raises what it dies of, as the user chose: that is no clean stop."""
        request = self._stops.leading
        if request is None:  # withdrawn in this very moment
            self._save(session, now, reason or "manual", counters, complete=complete)
            return
        self._beat.at(now.step, "stopping")
        names = self._saving.state if decision == "leave-essential" else ()
        without = frozenset(name for name in names if can_be_left_out(name))
        why = self._stops.why(request, now.monotonic_ns, without)
        log.warning("%s: saving at step %d, and leaving", why, now.step)
        self._settle_the_one_before()
        failures = self._errors.failures
        try:
            self._save(
                session, now, f"{reason}, {why}" if reason else why, counters, complete=complete and not without, without=without
            )
            self._saving.wait()
        except SaveFailed:
            head = session.chain.head
            log.error(
                "asked to stop by %s, and the last save failed: the newest generation is %s", request.path, head and head.number
            )
            raise
        if self._errors.failures > failures:
            log.error("asked to stop by %s, and the last save failed: the next safe point tries again", request.path)
            return
        self.stopped = self._stops.ended(session, request, now, without)

    def _settle_the_one_before(self) -> None:
        """Wait for the save in flight. That it failed is no reason to make no last one."""
        try:
            self._saving.wait()
        except SaveFailed as failure:
            log.error("the save before the last one failed: %s", failure)
