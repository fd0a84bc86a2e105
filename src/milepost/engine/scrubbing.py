"""Read what is retained again while training goes on, so that what rots on the disk is found while there is a sound copy."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack

from milepost.engine.session import Session
from milepost.errors import ConflictError, MilepostError, StoreError, UsageError
from milepost.lifecycle.amounts import seconds_of
from milepost.lifecycle.scrub import RATE_BYTES_S, Pace, Scrub
from milepost.lifecycle.verify import Problem
from milepost.publish import quarantine
from milepost.publish.generation import check_still_ours
from milepost.publish.view import read_marks
from milepost.threads import Member

log = logging.getLogger("milepost")

_LOOKS = 20
"""How often within one period a scrub looks whether something is due, at least."""
_LOOK_S = 600.0
"""And how long it waits for a look at most: a run that starts anew every few hours would else never come to its first one."""
_STOP_S = 5.0


class _StoppedError(Exception):
    """End a scrub half-way: the engine is closed."""


class Scrubbing:
    """Read every retained blob again at least once within ``period_s``, in a daemon thread of its own.

    It begins with what was neither written nor read for half a period, so that the other half is there to read it in: slowly,
    and not at all while a save is in flight (``idle`` returns when none is). What is damaged is told, marked, and no longer
    trusted: the next save shares nothing with it. Forked children have no such thread.
    """

    def __init__(
        self,
        session: Session,
        period_s: float,
        idle: Callable[[], object],
        *,
        bytes_s: float = RATE_BYTES_S,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._session = session
        self._period_s = period_s
        self._idle = idle
        self._bytes_s = bytes_s
        self._ended = threading.Event()
        self._wait = wait or self._ended.wait
        self._told: set[tuple[str, int | None]] = set()
        self._found = threading.Event()
        self._thread = Member(self._run, "milepost-scrub")

    def start(self, held: ExitStack) -> None:
        """Begin; the thread ends when ``held`` is closed."""
        held.callback(self.stop)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. One that hangs in a read of a sick disk is left behind: it tells and marks nothing any more."""
        self._ended.set()
        # The garbage collector may free an engine in any thread, in this one too.
        if self._thread.works and threading.current_thread() is not self._thread:
            self._thread.wait(_STOP_S)

    def reason(self) -> str | None:
        """Return why the next safe point should save: what the newest generation stands on has been found damaged."""
        return "the scrub found damage" if self._found.is_set() else None

    def answered(self) -> None:
        """Note that a save begins: what was found up to now it does not stand on."""
        self._found.clear()

    def round(self) -> None:
        """Read what is due by now."""
        session = self._session
        scrub = Scrub(session.store, session.clock, older_than_s=self._period_s / 2, trust_writes=True)
        if not scrub.due:
            return
        # The period is a promise, the rate only a courtesy.
        pace = Pace(max(self._bytes_s, scrub.due_bytes / (self._period_s / 2)), session.clock, self._wait)

        def let_through(size_bytes: int) -> None:
            pace.spend(size_bytes)
            self._idle()
            if self._ended.is_set():
                raise _StoppedError

        self._idle()
        report = scrub.run(let_through, self._tell, piece_bytes=pace.piece_bytes)
        session.events.write("scrubbed", blobs=report.blobs_read, bytes=report.read_bytes, problems=len(report.problems))

    def _run(self) -> None:
        while not self._ended.wait(min(max(self._period_s / _LOOKS, 0.01), _LOOK_S)):
            try:
                self.round()
            except (_StoppedError, ConflictError):
                return  # closed; or another process is the writer now, and the marks are for that one to make
            except MilepostError as error:
                # A disk that cannot be read now is no damage: the next look begins where this one ended.
                self._session.events.write("scrub-failed", kind=error.kind, error=str(error))

    def _tell(self, problem: Problem) -> None:
        session = self._session
        if (problem.name, problem.generation) in self._told or self._ended.is_set():
            return
        check_still_ours(session.store, session.chain)
        self._told.add((problem.name, problem.generation))
        session.distrust(problem.name)
        head = session.chain.head
        if head is not None and head.number == problem.generation:
            self._found.set()
        session.events.write(
            "scrub-found",
            generation=problem.generation,
            blob=problem.name,
            problem=problem.problem,
            components=problem.components,
            rows=problem.rows,
        )
        log.warning(
            "generation %s is damaged on the disk; the next save writes anew what is shared with it: %s",
            problem.generation,
            problem,
        )
        self._mark(problem)

    def _mark(self, problem: Problem) -> None:
        session, number = self._session, problem.generation
        assert number is not None
        try:
            if number not in read_marks(session.store, session.run_id):
                run_id, term = session.run_id, session.chain.term
                quarantine.mark(
                    session.store, session.clock, run_id=run_id, term=term, number=number, kind="damaged", reason=str(problem)
                )
        except StoreError as error:
            session.events.write("mark-failed", error=error.message)


def period_of(scrub: str | float | None) -> float | None:
    """Return the period of a scrub in seconds, given as ``7d`` or as a number; None for no scrub."""
    if scrub is None:
        return None
    seconds = seconds_of(scrub)
    if seconds <= 0:
        raise UsageError("a scrub needs a period", kind="bad-setting", hint='scrub="7d", or None for no scrub', scrub=scrub)
    return seconds
