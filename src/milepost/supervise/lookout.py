"""Be what listens in one process, for all of its engines: hand on what was heard, keep the deadlines, and end the process that
its training thread cannot end in time.
"""

from __future__ import annotations

import logging
import select
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from milepost.clock import Clock
from milepost.supervise.dispositions import TWICE_NS, Dispositions
from milepost.supervise.leaving import end_process
from milepost.supervise.notice_watch import NoticeWatch
from milepost.supervise.notices import Notice, Source

if TYPE_CHECKING:
    from milepost.supervise.listening import Listening

log = logging.getLogger("milepost")

EVERY_S = 5.0
"""How often notices are looked for, and whether somebody else has come to handle a signal."""
MARGIN_S = 1.0
"""How long before the deadline the process ends by itself, at the most: it is to be its own end, and not the platform's."""


class Lookout:
    """Be the thread that listens, from the first engine that does to the last."""

    def __init__(self, clock: Clock, abandoned: Callable[[Lookout], bool]) -> None:
        """``abandoned`` is called, by the thread, where no engine is left to listen for: each was dropped and not closed.

        It returns whether nobody listens any more for that reason.
        """
        self.dispositions = Dispositions(clock)
        self.notices = NoticeWatch(EVERY_S)
        self.ears: list[Listening] = []
        """Of each engine its own. Replaced and never changed: the thread may be going through it."""
        self.told = 0
        """How many of the signals that were heard some engine knows of."""
        self._clock = clock
        self._abandoned = abandoned
        self._said: dict[str, object] = {}
        self._sources: dict[str, Notice | None] = {}
        """The notices that are looked for, and what was found last."""
        self._ended = False
        self._first_ns: int | None = None
        self._failed: set[str] = set()

    def start(self) -> None:
        """Begin. The handlers are there by now: no Ctrl-C strikes in the midst of starting a thread."""
        threading.Thread(target=self._serve, name="milepost-stop", daemon=True).start()

    @property
    def ended(self) -> bool:
        """Return whether it listens no more."""
        return self._ended

    def since_s(self, at_ns: int) -> float:
        """Return how long ago that was, in seconds."""
        return (self._clock.monotonic_ns() - at_ns) / 1e9

    def look_for(self, notice: str, source: Source, listening: Listening) -> None:
        """Look for a notice, and tell all engines that look for the same."""
        listening.notice = notice
        found = self._sources.get(notice)
        if found is not None:
            listening.told(source.name, found, self._clock)
        if notice not in self._sources:
            self._sources[notice] = None
            self.notices.add(source, lambda found: self._tell(notice, source.name, found))

    def _tell(self, notice: str, name: str, found: Notice | None) -> None:
        self._sources[notice] = found
        for each in self.ears:
            if each.notice == notice:
                each.told(name, found, self._clock)
        if found is None:
            for key in (f"notice {name}", f"notice {name} vague"):
                self._said.pop(key, None)  # another one is news
            log.warning("notice %s was withdrawn: training goes on", name)

    def end(self) -> bool:
        """Let the threads end, and have all as it was before; return whether that can be, here and now: in the main thread."""
        self._ended = True
        self.notices.end()
        self.dispositions.poke()
        return self.dispositions.give_back()

    def say_once(self, key: str, text: str, *values: object, level: int = logging.WARNING) -> None:
        """Log this, unless that was done for ``key``. For any thread but not for handlers."""
        token = object()
        if self._said.setdefault(key, token) is token:  # one step: of two threads one says it
            log.log(level, text, *values)

    def _serve(self) -> None:
        ready = select.poll()
        ready.register(self.dispositions.pokes, select.POLLIN)
        try:
            while not self._ended:
                wait_s = self._guarded()
                if not self._ended:  # the poke that says so may have been read in that turn
                    ready.poll(round(wait_s * 1e3))
        except BaseException:
            log.exception("nothing listens to signals and notices any more: training goes on, and must be told to end otherwise")
        finally:
            self.dispositions.read_no_more()

    def _guarded(self) -> float:
        try:
            return self.turn()
        except Exception as error:
            # Neither silent nor the end of listening. Said once: it may come again with each turn.
            if type(error).__name__ not in self._failed:
                self._failed.add(type(error).__name__)
                log.exception("listening for what is to end this process failed; it goes on")
            return EVERY_S

    def turn(self) -> float:
        """Do what is to be done now, and return for how many seconds there will be nothing, unless something comes."""
        self._hear()
        if not any(each.lives for each in self.ears):
            if self._abandoned(self):
                self.dispositions.raise_again(self.told)
            return EVERY_S
        for each in self.ears:
            each.poll()
            each.warn_of_slow_saves()
        for name, who in self.dispositions.lost():
            self.say_once(
                f"lost {name}",
                "%s is handled by %s now, which came after milepost: unless that calls what was there before, nothing is saved "
                "when it comes (kind lost-signal). Install it before the engine begins",
                name,
                who,
            )
        return self._keep_deadlines()

    def _hear(self) -> None:
        """Note signals that came while no Python ran in the main thread, and end the process at a second one."""
        for signum in self.dispositions.come():
            now_ns = self._clock.monotonic_ns()
            self.dispositions.heard.setdefault(signum, now_ns)
            if signum in (signal.SIGTERM, signal.SIGINT):
                first_ns = self._first_ns = self._first_ns or now_ns
                if now_ns - first_ns > TWICE_NS:
                    self._end_unless_the_main_thread_does(signum)

    def _end_unless_the_main_thread_does(self, signum: int) -> None:
        def end() -> None:
            if not self._ended:
                log.warning("a second %s, and the main thread does not come to hear it", signal.Signals(signum).name)
                end_process(128 + signum)

        # It mostly does, at once, and then there is no process in which a timer could run out.
        timer = threading.Timer(MARGIN_S, end)
        timer.name, timer.daemon = "milepost-second", True
        timer.start()

    def _keep_deadlines(self) -> float:
        waits = [each.keep_deadline() for each in self.ears]
        over = [each for each in self.ears if each.is_over]
        if over and all(each.may_end for each in self.ears):
            self._leave(over[0])
        return min([EVERY_S, *waits])

    def _leave(self, first: Listening) -> None:
        """End the process in the place of its training thread, which does not come to a safe point: all is durable."""
        with ExitStack() as held:
            engines = [engine for each in self.ears if (engine := each.engine()) is not None]
            request = first.request
            if request is None or not all(held.enter_context(engine.apart.held()) for engine in engines):
                return
            log.warning(
                "%s: no safe point came in time; the last one is durable, and the process ends here with %d",
                request.path,
                request.exit_code,
            )
            for engine in engines:
                engine.apart.note_the_end(request)
            end_process(request.exit_code)
