"""Run one save at a time beside training, and keep what became of it until somebody asks."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Literal

Work = Callable[[], object]


class Background:
    """Run saves in a thread of their own (``thread``), or right away in the caller (``inline``, for tests).

    The thread is no daemon: a program that ends, or dies of an exception, waits for the save that is staged already.

    Whether a save is in flight is told by a lock of our own. `threading.Thread` cannot be asked: in Python 3.11 and 3.12
    a Ctrl-C inside ``join()`` marks the running thread as stopped, and the next save would be staged over the arena which
    that one is still writing from. Nor may it be a `threading.Event`: that is Python code, and a second Ctrl-C, of somebody
    who is in a hurry, may strike while it holds its own lock. The writer would wait for that for ever, and so would the exit.
    """

    def __init__(self, writer: Literal["thread", "inline"]) -> None:
        self._writer = writer
        self._done = threading.Lock()
        """Held while a save is in flight: another lock for each."""
        self._failure: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Return whether a save is in flight."""
        return self._done.locked()

    def start(self, work: Work) -> None:
        """Begin ``work``; none may be in flight."""
        if self._writer == "inline":
            try:
                work()
            except Exception as error:  # noqa: BLE001 - nothing is lost: `collect` hands it to the caller
                self._failure = error
            return
        waiting, done = [work], threading.Lock()
        done.acquire()
        try:
            self._done = done
            refused = self._launch(waiting, done)
        except BaseException:
            # A Ctrl-C. Did it start? Whoever takes the work out of the list decides.
            if _taken(waiting) is not None:
                done.release()
            raise
        if refused is not None:
            # No more threads to be had: a save that failed, like any other.
            self._failure = refused
            done.release()

    def _launch(self, waiting: list[Work], done: threading.Lock) -> RuntimeError | None:
        """Start the thread from a helper: a Ctrl-C inside `threading.Thread.start` could leave it stuck in its first line.

        Signals strike in the main thread only, and there never between taking a plain lock and being inside ``with``.
        Returns why there is no thread to be had.
        """
        # Made here: made in the helper, it would be a daemon, as that is.
        thread = threading.Thread(target=self._run, args=(waiting, done), name="milepost-writer")
        launched = threading.Lock()
        failures: list[BaseException] = []

        def launch() -> None:
            try:
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
        return None

    def _run(self, waiting: list[Work], done: threading.Lock) -> None:
        work = _taken(waiting)
        if work is None:
            return
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - a thread has nobody to raise to: `collect` hands it to the next caller
            self._failure = error
        finally:
            del work  # it holds the engine, which is not to be freed by this thread after it has said that it is done
            done.release()

    def join(self) -> None:
        """Wait until no save is in flight. May be interrupted, and called again."""
        done = self._done
        if done.locked():  # else it is not touched: a scrub asks at every piece, and `busy` is not to see that as a save
            with done:
                pass

    def collect(self) -> BaseException | None:
        """Return what the last save died of, once. Call `join` first."""
        failure, self._failure = self._failure, None
        return failure


def _taken(waiting: list[Work]) -> Work | None:
    try:
        return waiting.pop()
    except IndexError:
        return None
