"""Look for notices every few seconds, in a thread of its own: a server that does not answer keeps no deadline waiting."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from milepost.supervise.notices import Notice, Source, Unclear

log = logging.getLogger("milepost")

Tell = Callable[[Notice | None], object]


@dataclass(slots=True)
class Watched:
    """Be one source, and what it said last."""

    source: Source
    tell: Tell
    """Is called with a notice that is new or says something new, and with None for one that is gone."""
    seen: Notice | None = None
    trouble: bool = False

    def look(self) -> None:
        """Ask the source, and tell what is new. What cannot be told is no news: a notice that was there stands."""
        try:
            found = self.source.look()
        except Unclear as error:
            if not self.trouble:
                log.warning("whether there is a notice cannot be told (%s): %s; it is asked again", self.source.name, error)
            self.trouble = True
            return
        if self.trouble:
            log.info("it can be told again whether there is a notice (%s)", self.source.name)
        self.trouble = False
        if found == Notice() and self.seen is not None:
            return  # it says less than before: a file that is just being written anew
        if found != self.seen:
            self.seen = found
            self.tell(found)


class NoticeWatch:
    """Ask all sources in turn, the first time at once."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._watched: list[Watched] = []
        self._ended = threading.Event()
        self._failed: set[str] = set()
        self._started = False
        self._first: list[Callable[[], object]] = []

    def add(self, source: Source, tell: Tell) -> None:
        """Look there, too."""
        self._watched.append(Watched(source, tell))

    def ask_once(self, question: Callable[[], object]) -> None:
        """Have this done once, by the thread: it may take long."""
        self._first.append(question)

    def start(self) -> None:
        """Begin, if there is anything to look at. May be called again."""
        if (self._watched or self._first) and not self._started:
            self._started = True
            threading.Thread(target=self._serve, name="milepost-notice", daemon=True).start()

    def end(self) -> None:
        """Look no more; what is being asked just now is asked to its end."""
        self._ended.set()

    def _serve(self) -> None:
        while not self._ended.is_set():
            while self._first:
                self._guarded("a question", self._first.pop())
            for each in list(self._watched):
                if not self._ended.is_set():
                    self._guarded(each.source.name, each.look)
            self._ended.wait(self._every_s)

    def _guarded(self, name: str, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception:
            # Not silent, and no end of it: the next look may go well, and training goes on in any case.
            if name not in self._failed:
                self._failed.add(name)
                log.exception("looking for a notice failed (%s)", name)
