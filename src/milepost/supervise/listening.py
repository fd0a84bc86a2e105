"""Be what one engine hears: hand on to it what has come, and keep its deadline while its training thread is far away."""

from __future__ import annotations

import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable

from milepost.clock import Clock
from milepost.engine.between import Stoppable
from milepost.errors import MilepostError
from milepost.lifecycle.stopping import INTERRUPTED, StopBy
from milepost.supervise.lookout import EVERY_S, MARGIN_S, Lookout
from milepost.supervise.notices import Notice

log = logging.getLogger("milepost")

_AGAIN_S = 1.0


class Listening:
    """Be what one engine hears. Any thread may call `poll`; `close` gives signals back in the main thread only."""

    def __init__(self, engine: Stoppable, lookout: Lookout, grace_s: float, closed: Callable[[Listening], object]) -> None:
        self.engine = weakref.ref(engine)
        """Not held: an engine that nobody uses any more is to be freed."""
        self.grace_s = grace_s
        self.notice = ""
        """The notice that it looks for."""
        self.is_over = self.may_end = False
        """Its deadline has come; its last safe point was staged, and is durable."""
        self._lookout = lookout
        self._closed = closed
        self._heard = 0
        self._turn = threading.Lock()
        self._pid = os.getpid()
        self._told_s = grace_s
        self._vague = False
        """The notice that was told last says nothing of a deadline."""
        self._failed = False

    @property
    def lives(self) -> bool:
        """Return whether there is still somebody to be told."""
        return self.engine() is not None

    @property
    def request(self) -> StopBy | None:
        """Return what the engine is to end for."""
        engine = self.engine()
        return engine.stopping if engine is not None else None

    @property
    def step(self) -> int:
        """Return the last safe point of the engine; -1 if there was none, or it is gone."""
        engine = self.engine()
        return engine.apart.step if engine is not None else -1

    def poll(self) -> None:
        """Tell the engine of signals that came since the last time."""
        heard = self._lookout.dispositions.heard
        if self._heard == len(heard) or self._pid != os.getpid():
            return
        engine = self.engine()
        if engine is None:
            return
        with self._turn:
            for signum, at_ns in list(heard.items())[self._heard :]:
                self._tell(engine, signal.Signals(signum).name, at_ns)
                self._heard += 1  # only now: another's handler may raise in the midst of it
                self._lookout.told = max(self._lookout.told, self._heard)

    def _tell(self, engine: Stoppable, path: str, at_ns: int) -> None:
        if path == "SIGINT":
            engine.stop_by(None, path=path, exit_code=INTERRUPTED)
            text = "%s: training stops at its next safe point, once all is saved; another one ends it at once"
            self._lookout.say_once(path, text, path)
        else:
            # From when it came: where one is late to say so, the platform does not wait longer for that.
            engine.stop_by(max(0.0, self.grace_s - self._lookout.since_s(at_ns)), path=path)
            text = "%s: training stops at its next safe point, within %g s"
            self._lookout.say_once(path, text, path, self.grace_s)

    def told(self, source: str, notice: Notice | None, clock: Clock) -> None:
        """Tell the engine of a notice, or that it was withdrawn."""
        engine, path = self.engine(), f"notice {source}"
        if engine is None:
            return
        if notice is None:
            engine.withdraw(path)
            self._vague = False
            return
        within_s = self.grace_s if notice.within_s is None else notice.within_s
        if notice.deadline_wall_ns is not None:
            # Turned into a length of time once: whatever becomes of the wall clock, the deadline stays where it is.
            within_s = max(0.0, (notice.deadline_wall_ns - clock.wall_ns()) / 1e9)
        if self._vague and notice != Notice():
            engine.withdraw(path)  # what was read of it first was a file that was not yet written to its end
        self._vague = notice == Notice()
        engine.stop_by(within_s, path=path, at_once=False, early=True)
        text = "%s: this machine goes in %.0f s; all is saved at the next safe point, and once more before the end"
        self._lookout.say_once(f"{path} vague" if self._vague else path, text, path, within_s)
        self._lookout.dispositions.poke()

    def keep_deadline(self) -> float:
        """Have what is staged written where no later safe point would be in time, and return when to look again, in seconds."""
        engine, request = self.engine(), self.request
        last_ns = engine.last_call_ns if engine is not None else None
        self.is_over = self.may_end = False
        if engine is None or request is None or request.deadline_ns is None or last_ns is None:
            return EVERY_S
        before_s = (last_ns - engine.apart.now_ns) / 1e9
        if before_s > 0:
            return before_s
        if engine.apart.is_only_staged and not self._flush(engine, request):
            return _AGAIN_S
        self.may_end = engine.apart.is_published
        after_s = (request.deadline_ns - engine.apart.now_ns) / 1e9 - MARGIN_S
        self.is_over = after_s <= 0
        return _AGAIN_S if self.is_over else min(after_s, _AGAIN_S)

    def _flush(self, engine: Stoppable, request: StopBy) -> bool:
        try:
            saved = engine.apart.flush(f"stopped by {request.path}, in the midst of a rollout")
        except MilepostError as error:
            if not self._failed:
                log.error("%s: the last safe point could not be saved, which is tried again: %s", request.path, error)
            self._failed = True
            return False
        self._failed = False
        if saved is not None:
            log.warning("%s: the last safe point is durable, as generation %d of step %d", request.path, saved.number, saved.step)
        return True

    def warn_of_slow_saves(self) -> None:
        """Say it when a save has taken longer than a signal leaves; and again when one takes much longer still."""
        engine = self.engine()
        slowest_s = engine.apart.slowest_s if engine is not None else 0.0
        if slowest_s > self._told_s:
            self._told_s = 1.5 * slowest_s
            log.warning(
                "a save has taken %.1f s, and a signal leaves %g s (grace): the last one may have to do without replay, or come "
                "too late. Have the platform wait longer, or save less (kind grace-too-short)",
                slowest_s,
                self.grace_s,
            )

    def close(self) -> None:
        """Listen for this engine no more. With the last engine of the process all is as it was before. May be called again."""
        if self._pid == os.getpid():
            self._closed(self)
