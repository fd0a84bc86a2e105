"""Know what is to end this process: who listens for it, what has fired, and what was done about it."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import weakref
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Protocol

from milepost.clock import Clock
from milepost.engine import supervised
from milepost.engine.overhead import Meter
from milepost.engine.save_errors import SaveErrors
from milepost.engine.saving import Saving
from milepost.engine.session import Session
from milepost.errors import UsageError
from milepost.lifecycle.amounts import seconds_of
from milepost.lifecycle.grace import Grace
from milepost.lifecycle.stopping import (
    EXIT_CODE,
    GRACE_S,
    Decision,
    Stop,
    StopBy,
    Stopped,
    decide,
    expected_s,
    last_call_ns,
    leading,
)
from milepost.lifecycle.triggers import Reading
from milepost.records import Summary

log = logging.getLogger("milepost")

GROUP = "milepost.stop"
_FOREVER_S = 1e9
"""A deadline lies no further ahead, whatever somebody has said: thirty years."""
_CALM_NS = 10**9
"""For how long at most it is not looked at again how much time is left."""
_MEASURE_NS = 60 * 10**9
"""How often it is found out how large a state is that no save has been measured of, while there is a deadline far away."""


class Listening(Protocol):
    """Tell one engine what was heard. Made by whoever stands behind the entry point ``signals`` of `GROUP`."""

    def poll(self) -> None:
        """Hand on what was heard since the last safe point. Free when that is nothing."""

    def close(self) -> None:
        """Listen for this engine no more."""


Listen = Callable[[Stop, Any], Listening]


def settings_of(stop: Stop | bool | None, grace: Grace | None) -> Stop | None:
    """Return what to listen to, with a ``grace`` in seconds; None: to nothing. Raises `UsageError` (kind ``bad-setting``)."""
    wanted: object = os.environ.get(supervised.STOP) == "1" if stop is None else stop
    if isinstance(wanted, bool):
        wanted = Stop() if wanted else None
    if wanted is None:
        return None
    if not isinstance(wanted, Stop):
        hint = 'stop=milepost.Stop(grace="90s"), stop=True, or stop=False to listen to nothing'
        raise UsageError("an engine cannot be stopped like that", kind="bad-setting", hint=hint, stop=wanted)
    seconds = seconds_of(wanted.grace) if wanted.grace is not None else grace.grace_s if grace else GRACE_S
    return dataclasses.replace(wanted, grace=seconds)


def listener() -> Listen:
    """Return what listens to signals, notices and limits for this process. Raises `UsageError` (kind ``no-listener``)."""
    for each in entry_points(group=GROUP, name="signals"):
        found: Listen = each.load()
        return found
    hint = "install milepost anew: its entry points are missing. stop=False listens to nothing"
    raise UsageError("nothing here can listen for signals", kind="no-listener", hint=hint, group=GROUP)


_claimed: weakref.WeakSet[Stops] = weakref.WeakSet()
"""Those of the engines of this process that hold a root."""


class Stops:
    """Be what one engine knows of the end that is coming. `by` and `withdraw` may be called from a signal handler."""

    def __init__(self, clock: Clock, settings: Stop | None, meter: Meter, saving: Saving, errors: SaveErrors) -> None:
        self.settings = settings
        self._clock = clock
        self._meter = meter
        self._saving = saving
        self._errors = errors
        self._requests: dict[str, StopBy] = {}
        """By path. Changed in single steps: a signal may strike between any two."""
        self._early: dict[str, int] = {}
        """The paths for which an early save was begun, with the number of saves that had failed by then."""
        self._told: frozenset[str] = frozenset()
        self._listening: Listening | None = None
        self._thread = 0
        self._asked: object = None
        """Another with each change of the requests: whoever has seen one has seen all before it."""
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

    def listen(self, engine: object) -> None:
        """Begin to listen, if that was asked for."""
        self._thread = threading.get_ident()
        _claimed.add(self)
        if self.settings is not None:
            self._listening = listener()(self.settings, engine)

    def close(self) -> None:
        """Listen no more. May be called again."""
        _claimed.discard(self)
        if self._listening is not None:
            self._listening.close()
            self._listening = None  # only now: interrupted, it is closed by the next who closes the engine

    def by(
        self, within: str | float | None, path: str, exit_code: int = EXIT_CODE, at_once: bool = True, early: bool = False
    ) -> None:
        """Note a request. One path that fires again cannot move its deadline back."""
        seconds = None if within is None else seconds_of(within)
        deadline_ns = None if seconds is None else self._clock.monotonic_ns() + round(min(seconds, _FOREVER_S) * 1e9)
        before = self._requests.get(path)
        if before is not None and before.deadline_ns is not None:
            deadline_ns = before.deadline_ns if deadline_ns is None else min(deadline_ns, before.deadline_ns)
        self._requests[path] = StopBy(path, deadline_ns, exit_code, at_once, early)
        self._asked = object()

    def withdraw(self, path: str) -> None:
        """Forget a request; an early save that was made for it was one more save."""
        self._early.pop(path, None)
        if self._requests.pop(path, None) is not None:
            self._meter.tell("withdrawn", {"path": path})
            self.has_left = self.has_left and bool(self._requests)
            self._asked = object()

    @property
    def leading(self) -> StopBy | None:
        """Return the request that decides, with the earliest deadline of all; None while nobody wants an end."""
        return leading(list(self._requests.values())) if self._requests else None

    @property
    def last_call_ns(self) -> int | None:
        """Return after which instant no save would be durable in time; None while there is no deadline."""
        return last_call_ns(list(self._requests.values()), self._meter.costs, self._saving.size_bytes)

    def decide(self, session: Session, now_ns: int, step: int) -> Decision:
        """Return what this safe point is for."""
        comes_again, self._at = self._at == step, step
        if self._listening is not None:
            self._listening.poll()
        asked = self._asked  # before the requests are looked at: one that comes meanwhile is seen at the next safe point
        if not self._requests or (asked is self._calm[0] and now_ns < self._calm[1]):
            return "train"
        requests, costs = list(self._requests.values()), self._meter.costs
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
        _leave_record(facts)
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
            _leave_record(facts)
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
        if self._listening is not None:
            self._listening.poll()
        return not self.has_left and any(each.at_once for each in list(self._requests.values()))


def _leave_record(facts: dict[str, object]) -> None:
    if (folder := supervised.folder()) is not None:
        supervised.leave_record(folder, f"stopped-{os.getpid()}", facts)
