"""Run one save at a time beside training, and keep what became of it until somebody asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

Work = Callable[[], object]


class Background:
    """Run saves in a thread of their own (``thread``), or right away in the caller (``inline``, for tests).

    The thread is no daemon: a program that ends, or dies of an exception, waits for the save that is staged already.

    Whether a save is in flight is told by an event of our own. `threading.Thread` cannot be asked: in Python 3.11 and 3.12
    a Ctrl-C inside ``join()`` marks the running thread as stopped, and the next save would be staged over the arena which
    that one is still writing from.
    """

    def __init__(self, writer: Literal["thread", "inline"]) -> None:
        self._writer = writer
        self._idle = threading.Event()
        self._idle.set()
        self._waiting: list[Work] = []
        self._failure: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Return whether a save is in flight."""
        return not self._idle.is_set()

    def start(self, work: Work) -> None:
        """Begin ``work``; none may be in flight."""
        if self._writer == "inline":
            try:
                work()
            except Exception as error:  # noqa: BLE001 - nothing is lost: `collect` hands it to the caller
                self._failure = error
            return
        self._waiting.append(work)
        self._idle.clear()
        try:
            threading.Thread(target=self._run, name="milepost-writer").start()
        except BaseException:
            # A Ctrl-C, or no more threads to be had. Did it start? Whoever takes the work out of the list decides.
            if self._taken() is not None:
                self._idle.set()
            raise

    def _taken(self) -> Work | None:
        try:
            return self._waiting.pop()
        except IndexError:
            return None

    def _run(self) -> None:
        work = self._taken()
        if work is None:
            return
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - a thread has nobody to raise to: `collect` hands it to the next caller
            self._failure = error
        finally:
            del work  # it holds the engine, which is not to be freed by this thread after it has said that it is done
            self._idle.set()

    def join(self) -> None:
        """Wait until no save is in flight. May be interrupted, and called again."""
        self._idle.wait()

    def collect(self) -> BaseException | None:
        """Return what the last save died of, once. Call `join` first."""
        failure, self._failure = self._failure, None
        return failure
