"""Decide for one engine what to do about the end that is coming, and note what was done about it."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import weakref

from milepost.clock import Clock
from milepost.engine import supervised
from milepost.engine.between import Stoppable
from milepost.engine.overhead import Meter
from milepost.engine.requests import Requests
from milepost.engine.save_errors import SaveErrors
from milepost.engine.saving import Saving
from milepost.engine.session import Session
from milepost.lifecycle.stopping import Decision, Stop, StopBy, Stopped, decide, expected_s, last_call_ns
from milepost.lifecycle.triggers import Reading
from milepost.records import Summary

log = logging.getLogger("milepost")

_CALM_NS = 10**9
"""For how long at most it is not looked at again how much time is left."""
_MEASURE_NS = 60 * 10**9
"""How often it is found out how large a state is that no save has been measured of, while there is a deadline far away."""

_claimed: weakref.WeakSet[Stops] = weakref.WeakSet()
"""Those of the engines of this process that hold a root."""


class Stops(Requests):
    """Be what one engine knows of the end that is coming."""

    def __init__(self, clock: Clock, settings: Stop | None, meter: Meter, saving: Saving, errors: SaveErrors) -> None:
        super().__init__(clock, settings)
        self._meter = meter
        self._saving = saving
        self._errors = errors
        self._early: dict[str, int] = {}
        """The paths for which an early save was begun, with the number of saves that had failed by then."""
        self._told: frozenset[str] = frozenset()
        self._thread = 0
        self._calm: tuple[object, int] = (None, 0)
        """Which requests leave time to train until when, whatever the next safe points find."""
        self._measure_ns = 0
        """When the state is to be measured again."""
        self._takes_s = 0.0
        """How long a save was thought to take at the last safe point."""
        self._at = -1
        """The step of the last safe point."""
        self.has_left = False
        """The last save was made; the process waits for another engine of this thread."""

    def listen(self, engine: Stoppable) -> None:
        self._thread = threading.get_ident()
        _claimed.add(self)
        super().listen(engine)

    def close(self) -> None:
        _claimed.discard(self)
        super().close()

    def withdraw(self, path: str) -> bool:
        """Forget a request; an early save that was made for it was one more save."""
        self._early.pop(path, None)
        is_gone = super().withdraw(path)
        if is_gone:
            self._meter.tell("withdrawn", {"path": path})
            self.has_left = self.has_left and bool(self._requests)
        return is_gone

    @property
    def last_call_ns(self) -> int | None:
        """Return after which instant no save would be durable in time; None while there is no deadline."""
        return last_call_ns(self.all, self._meter.costs, self._saving.size_bytes)

    def decide(self, session: Session, now_ns: int, step: int) -> Decision:
        """Return what this safe point is for."""
        comes_again, self._at = self._at == step, step
        self.poll()
        asked = self._asked  # before the requests are looked at: one that comes meanwhile is seen at the next safe point
        if not self._requests or (asked is self._calm[0] and now_ns < self._calm[1]):
            return "train"
        requests, costs = self.all, self._meter.costs
        self._tell(requests, now_ns)
        is_late = not comes_again and self._others_have_passed(step)
        if is_late:
            requests = [dataclasses.replace(each, at_once=False) for each in requests]
        size_bytes = 0 if costs.duration_s > 0 else self._size_bytes(session, requests, now_ns)
        self._takes_s = expected_s(costs, size_bytes)
        gap_s = self._meter.gap_s
        decision = decide(requests, now_ns, costs, size_bytes=size_bytes, gap_s=gap_s, saved=self._saved_early())
        if decision == "train" and not is_late:
            last_ns = last_call_ns(requests, costs, size_bytes)
            spare_ns = _CALM_NS if last_ns is None else last_ns - now_ns - round(gap_s * 1e9)
            # A rollout or a save that turns out longer than any before has taken that time when it is heard of.
            self._calm = (asked, now_ns + min(_CALM_NS, spare_ns // 4))
        return decision

    def _size_bytes(self, session: Session, requests: list[StopBy], now_ns: int) -> int:
        """Return what a save would write. To find that out takes as long as a small save: not at each of a day's safe points."""
        if any(each.at_once for each in requests) or now_ns >= self._measure_ns:
            self._measure_ns = now_ns + _MEASURE_NS
            return self._saving.measure(session)
        return self._saving.size_bytes

    def why(self, request: StopBy, now_ns: int, left_out: frozenset[str]) -> str:
        """Return what a last save gives as its reason."""
        if not left_out or request.deadline_ns is None:
            return f"stopped by {request.path}"
        left_s = (request.deadline_ns - now_ns) / 1e9
        short = f"{left_s:.1f} s were left, and to save all takes about {self._takes_s:.1f} s"
        return f"stopped by {request.path}, without {', '.join(sorted(left_out))}: {short}"

    def begin_early(self) -> str:
        """Note that a save begins which is the early one of every notice there is; return why."""
        waiting = {path for path, each in list(self._requests.items()) if each.early} - set(self._saved_early())
        self._early.update(dict.fromkeys(waiting, self._failures))
        return "ahead of the end: " + ", ".join(sorted(waiting))

    def _saved_early(self) -> list[str]:
        """Return the paths for which there is an early save, or one in flight. One that failed is none."""
        return [path for path, before in list(self._early.items()) if self._failures == before]

    @property
    def _failures(self) -> int:
        """Return how many saves have failed, the one included of which nobody has heard yet."""
        return self._errors.failures + (self._saving.background.failure is not None)

    def _tell(self, requests: list[StopBy], now_ns: int) -> None:
        for each in requests:
            if each.path not in self._told:
                left = f"{(each.deadline_ns - now_ns) / 1e9:.3f}" if each.deadline_ns is not None else None
                facts: dict[str, object] = {"path": each.path, "left_s": left, "at_once": each.at_once, "early": each.early}
                self._meter.tell("stopping", facts)
        self._told = frozenset(each.path for each in requests)

    def ended(self, session: Session, request: StopBy, now: Reading, left_out: frozenset[str] = frozenset()) -> Stopped | None:
        """Note that all is durable, and return what to raise; None while another engine of this thread has to save."""
        facts = self.note_the_end(session, request, now, left_out)
        if not self.has_left and self._others_are_due():
            self.has_left = True
            return None
        leave_stopped(facts)
        summary: Summary | None = session.chain.head
        return Stopped(request.exit_code, request.path, summary)

    def note_the_end(
        self, session: Session, request: StopBy, now: Reading, left_out: frozenset[str], *, record: bool = False
    ) -> dict[str, object]:
        """Write down that this engine has left, and as of which step; with ``record``, where a supervisor looks, too."""
        head = session.chain.head
        facts: dict[str, object] = {
            "path": request.path,
            "exit_code": request.exit_code,
            "generation": head.number if head else 0,
            "step": now.step,
            "complete": not left_out,
        }
        session.events.write("stopped", **facts, left_out=sorted(left_out))
        log.info("stopped by %s at step %d: the newest generation is %s", request.path, now.step, head and head.number)
        if record:
            leave_stopped(facts)
        return facts

    def _others_are_due(self) -> bool:
        """Return whether another engine that this thread uses is to end as well, and has not made its last save.

        An actor's that left first would leave the critic's behind, a whole save interval older. Whoever comes to a second safe
        point leaves without the others.
        """
        return any(other.is_due for other in list(_claimed) if other is not self and other._thread == self._thread)

    def _others_have_passed(self, step: int) -> bool:
        """Return whether another engine that is to end as well was at this very safe point before it heard of that.

        An actor's that trains on to its next safe point would be one ahead of a critic's that leaves here, and nothing would
        bring the two back to one step. Where there is time, both leave at the next one.
        """
        others = (other for other in list(_claimed) if other is not self and other._thread == self._thread)
        return any(other._at == step and other.is_due for other in others)

    @property
    def is_due(self) -> bool:
        """Return whether this engine is to leave, and has not saved for it."""
        self.poll()
        return not self.has_left and any(each.at_once for each in self.all)


def leave_stopped(facts: dict[str, object]) -> None:
    """Leave word for a supervisor, if there is one, that this process ends because it was told to."""
    if (folder := supervised.folder()) is not None:
        supervised.leave_record(folder, f"stopped-{os.getpid()}", facts)
