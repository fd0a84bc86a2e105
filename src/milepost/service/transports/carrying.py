"""Do what is to be done over one source, by several links at once, each opened anew where it fails."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from milepost.errors import NotFoundError, ServiceError
from milepost.service.transports.base import Link
from milepost.service.transports.failures import FAILED
from milepost.threads import Member


class Job(Protocol):
    """Be a part of the work. One that has failed is run again, and goes on where it was."""

    def run(self, link: Link) -> Iterable[Job]:
        """Do it; return what is to be done after it. Raises as `Link` does."""

    @property
    def progress(self) -> int:
        """Return how far it has come: it rises as bytes move."""


class Crew:
    """Run jobs over links to one source.

    ``reach`` opens a link, or returns None. ``links``: how many at most. ``tries``: how often one in a row that brings nothing.
    """

    def __init__(self, reach: Callable[[], Link | None], *, links: int, tries: int) -> None:
        self._reach, self._links, self._tries = reach, links, tries
        self._jobs: deque[Job] = deque()
        self._open: set[Link] = set()
        self._changing = threading.Lock()
        self._over = False
        self._struck: BaseException | None = None
        self.failures: list[NotFoundError | ServiceError] = []
        """What went wrong, in its order, also where it went well after that."""
        self.was_reached = False

    def carry(self, jobs: Iterable[Job]) -> None:
        """Run these, and what follows from them, until all are done or the source has failed.

        Raises what no other source would do better: the service refuses, the caller is interrupted.
        """
        self._jobs.extend(jobs)
        others = [Member(self._work_apart, f"milepost-move-{n}") for n in range(1, min(self._links, len(self._jobs)))]
        started: list[Member] = []
        try:
            for other in others:
                other.start()
                started.append(other)
            self._work()
        except BaseException:
            self._stop()
            raise
        finally:
            for other in started:
                other.wait_out()
        if self._struck is not None:
            raise self._struck

    def _work_apart(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised by who waits for it
            self._struck = error
            self._stop()

    def _work(self) -> None:
        strikes = 0
        while strikes < self._tries and self._jobs and not self._over:
            link = self._opened()
            if link is None:
                return
            try:
                strikes = 0 if self._use(link) else strikes + 1
            finally:
                self._closed(link)

    def _use(self, link: Link) -> bool:
        """Run jobs until none is left or the link has failed; return whether that got anywhere."""
        moved = False
        while not self._over:
            try:
                job = self._jobs.popleft()
            except IndexError:
                return True
            before = job.progress
            try:
                self._jobs.extend(job.run(link))
                moved = True
            except NotFoundError as error:
                self.failures.append(error)
            except ServiceError as error:
                if error.kind != FAILED:
                    raise
                self.failures.append(error)
                self._jobs.append(job)
                return moved or job.progress > before
        return moved

    def _opened(self) -> Link | None:
        link = self._reach()
        if link is None:
            return None
        with self._changing:
            self.was_reached = True
            self._open.add(link)
            if self._over:
                link.interrupt()
        return link

    def _closed(self, link: Link) -> None:
        with self._changing:
            self._open.discard(link)
        link.close()

    def _stop(self) -> None:
        with self._changing:
            self._over = True
            for link in self._open:
                link.interrupt()
