"""Run one save at a time beside training, and keep what became of it until somebody asks."""

from __future__ import annotations

import _thread
import logging
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Literal

log = logging.getLogger("milepost")

Work = Callable[[], object]


class Job:
    """Be one save: what is to be done until it is acknowledged, what is left to be done afterwards, and how it ended."""

    __slots__ = ("answer", "done", "failure", "over", "waiting")

    def __init__(self, work: Work, rest: Work) -> None:
        self.waiting = [(work, rest)]
        """Whoever takes it out decides what becomes of it: the thread, or a Ctrl-C that struck before."""
        self.done = threading.Lock()
        """Held until the save is acknowledged, or has failed."""
        self.over = threading.Lock()
        """Held until nothing of it is under way any more."""
        self.answer: object = None
        self.failure: BaseException | None = None
        self.done.acquire()
        self.over.acquire()

    def run(self, told: type[BaseException] = BaseException) -> None:
        """Do it, unless somebody has taken it. What it raises is kept if it is ``told`` that way: a thread has no caller."""
        taken = self.take()
        if taken is None:
            return
        work, rest = taken
        del taken
        is_told = False
        try:
            try:
                self.answer = work()
            except told as error:  # nothing is lost: `collect` hands it to the caller
                self.failure = error
            del work
            self.done.release()
            is_told = True
            if self.failure is None:
                try:
                    rest()
                except told:
                    log.exception("what follows a save failed; the save counts")
        finally:
            del rest  # it holds the engine, which is not to be freed by this thread after it has said that it is over
            # Once told, whoever holds this lock is one who waited for it, and is about to give it up: a signal may keep him there
            # for as long as the deletions take.
            if not is_told and self.done.locked():
                self.done.release()
            self.over.release()

    def take(self) -> tuple[Work, Work] | None:
        try:
            return self.waiting.pop()
        except IndexError:
            return None

    def give_up(self) -> None:
        """Be over without having begun, unless the thread was faster."""
        if self.take() is not None:
            self.done.release()
            self.over.release()


class _Desk:
    """Be what the engine's side and the thread share: the thread knows nothing else, and so keeps no engine alive."""

    __slots__ = ("__weakref__", "closed", "jobs")

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        """Written in C: putting is one step, which no Ctrl-C, finalizer or fork finds half done."""
        self.closed = False
        """Nobody waits at the queue any more."""

    def close(self) -> None:
        self.jobs.put(None)

    def serve(self) -> None:
        while (job := self.jobs.get()) is not None:
            job.run()
            del job  # nothing of a save is held while the next is waited for
        self.closed = True
        # Whoever puts a job in after this sees ``closed``, and does it without us; what came before is done here.
        while (job := self._last()) is not None:
            job.run()
            del job
        self.jobs.put(None)  # for a second thread at this desk

    def _last(self) -> Job | None:
        try:
            return self.jobs.get_nowait()
        except queue.Empty:
            return None


class Background:
    """Run saves in one long-lived thread (``thread``), or right away in the caller (``inline``, for tests).

    The thread begins with the first save and ends with `close`, with the garbage collection of this object, or as the program
    ends: it is no daemon, so that a program that ends, or dies of an exception, waits for the save that is staged already.

    Whether a save is in flight is told by a lock of our own. `threading.Thread` cannot be asked: in Python 3.11 and 3.12
    a Ctrl-C inside ``join()`` marks the running thread as stopped, and the next save would be staged over the arena which
    that one is still writing from. Nor may it be a `threading.Event`: that is Python code, and a second Ctrl-C, of somebody
    who is in a hurry, may strike while it holds its own lock. The writer would wait for that for ever, and so would the exit.
    """

    def __init__(self, writer: Literal["thread", "inline"]) -> None:
        self._writer = writer
        self._job: Job | None = None
        self._desk = _Desk()
        self._launched = False
        weakref.finalize(self, self._desk.close).atexit = False  # as the program ends `_close_all` does it, and earlier

    @property
    def busy(self) -> bool:
        """Return whether a save is in flight."""
        return self._job is not None and self._job.done.locked()

    def start(self, work: Work, rest: Work = lambda: None) -> Job:
        """Begin ``work``, and once it has succeeded ``rest``, for which only `settle` waits; no work may be in flight.

        Returns the job: once it is over, it has the ``answer`` of the work, or the ``failure``.

        This is to be a save's last act: the thread wakes at once, and gets the interpreter when training lets go of it.
        """
        job = Job(work, rest)
        if self._writer == "inline":
            self._job = job
            job.run(Exception)
            return job
        try:
            self._job = job
            refused = None if self._launched else self._launch()
            if refused is None:
                self._desk.jobs.put(job)
        except BaseException:
            # A Ctrl-C. Is it in the queue by now? Whoever takes the work out of the list decides.
            job.give_up()
            raise
        if refused is not None:
            # No more threads to be had: a save that failed, like any other.
            job.failure = refused
            job.give_up()
        elif self._desk.closed:
            job.run()  # the main thread has ended, and one that trains still has not: nothing is left to run beside it
        return job

    def _launch(self) -> RuntimeError | None:
        """Start the thread from a helper: a Ctrl-C inside `threading.Thread.start` could leave it stuck in its first line.

        Signals strike in the main thread only, and there never between taking a plain lock and being inside ``with``.
        Returns why there is no thread to be had. A thread that was started and not noted, for a Ctrl-C, does no harm: a
        second one waits at the same queue, and both end with it.
        """
        # Made here: made in the helper, it would be a daemon, as that is.
        thread = threading.Thread(target=self._desk.serve, name="milepost-writer")
        launched = threading.Lock()
        failures: list[BaseException] = []

        def launch() -> None:
            try:
                _close_with_the_program(self._desk)
                thread.start()
            except BaseException as error:  # noqa: BLE001 - whoever waits for it decides
                failures.append(error)
            finally:
                launched.release()

        launched.acquire()
        try:
            _thread.start_new_thread(launch, ())
        except RuntimeError as error:
            return error
        with launched:
            pass
        for failure in failures:
            if not isinstance(failure, RuntimeError):
                raise failure
            return failure
        self._launched = True
        return None

    def join(self) -> None:
        """Wait until no save is in flight. May be interrupted, and called again."""
        job = self._job
        if job is not None and job.done.locked():  # else it is not touched: a scrub asks at every piece, and `busy` is not to
            with job.done:  # see that as a save
                pass

    def settle(self) -> None:
        """Wait until nothing of any save is under way: of the last one not even the deletions which follow it."""
        job = self._job
        if job is not None:
            with job.over:
                pass

    def close(self) -> None:
        """Let the thread end, after what is waiting. May be called again; nothing is started after it."""
        self._desk.close()

    @property
    def failure(self) -> BaseException | None:
        """Return what the last save died of, if it is over and nobody has asked before."""
        return self._job.failure if self._job is not None and not self.busy else None

    def collect(self) -> BaseException | None:
        """Return what the last save died of, once. Call `join` first."""
        if self._job is None:
            return None
        failure, self._job.failure = self._job.failure, None
        return failure


_desks: weakref.WeakSet[_Desk] = weakref.WeakSet()
"""Where threads of this process wait."""
_arranged = threading.Lock()
"""Held once `_close_all` will be called."""


def _close_with_the_program(desk: _Desk) -> None:
    """See that the thread at this desk ends, after its last job, as the program ends.

    `threading` waits for what is no daemon before anything of `atexit` is called: a thread that waits there for work which never
    comes would keep the program from ending. What `concurrent.futures` ends its threads with is called before. Raises
    `RuntimeError` if the program is ending already.
    """
    _desks.add(desk)
    if _arranged.acquire(blocking=False):
        try:
            threading._register_atexit(_close_all)  # type: ignore[attr-defined]
        except RuntimeError:
            _arranged.release()
            raise


def _close_all() -> None:
    for desk in list(_desks):
        desk.close()
