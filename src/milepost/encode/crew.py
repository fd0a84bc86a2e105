"""Do work beside the caller, in its order, and hand the results back in that order. For calls that let go of the GIL.

The threads live as long as one call needs them: a save is rare, a thread costs microseconds, and nothing is left that a fork
could tear or an exit would have to wait for.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar

from milepost.threads import Member

T = TypeVar("T")
R = TypeVar("R")


class Crew(Generic[T, R]):
    """Apply ``work`` to items in ``threads`` threads, at most ``ahead`` further than the result that the caller waits for.

    With no threads, or where none can be started, it is done by the caller. After the first failure nothing that was not
    begun is begun: no piece of a file is written behind one that is missing.

    Enter it twice, ``with crew, crew:``. A Ctrl-C may strike just as the first exit begins. Whoever leaves then closes the
    file, and a thread that was still writing would write to whatever file gets its number next.
    """

    def __init__(self, work: Callable[[T], R], *, threads: int, ahead: int, name: str, nice: int = 0) -> None:
        self._work = work
        self._wanted = threads
        self._ahead = ahead
        self._name = name
        self._nice = nice
        self._threads: list[Member] = []
        self._inbox: SimpleQueue[_Task[T, R] | None] = SimpleQueue()
        self._broken: BaseException | None = None
        self._stopped = False

    def __enter__(self) -> Crew[T, R]:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the threads, whatever strikes meanwhile: what is being done is finished, what waits is dropped."""
        self._stopped = True
        struck: BaseException | None = None
        for _ in self._threads:
            self._inbox.put(None)
        for thread in self._threads:
            try:
                thread.wait_out()
            except BaseException as error:  # noqa: BLE001 - Ctrl-C: told when nobody uses the caller's files any more
                struck = error
        self._threads = [thread for thread in self._threads if thread.works]
        if struck is not None:
            raise struck

    def map(self, items: Iterable[T]) -> Iterator[R]:
        """Yield the result for each item, in order. Items are taken as the work gets on, so that they need not all exist."""
        under_way: deque[_Task[T, R]] = deque()
        for item in items:
            under_way.append(self._begin(item))
            if len(under_way) > (self._ahead if self._threads else 0):
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()

    def _begin(self, item: T) -> _Task[T, R]:
        task: _Task[T, R] = _Task(item)
        if len(self._threads) < self._wanted:
            self._hire()
        if self._threads:
            self._inbox.put(task)
        else:
            task.run(self._work)
        return task

    def _hire(self) -> None:
        thread = Member(self._serve, self._name)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:
            # The machine has no more threads to give. One, or none, does the same work later.
            self._threads.pop()
            self._wanted = len(self._threads)

    def _serve(self) -> None:
        if self._nice:
            _stand_back(self._nice)
        while (task := self._inbox.get()) is not None:
            if self._stopped:
                continue
            if self._broken is not None:
                task.fail(self._broken)
            elif not task.run(self._work):
                self._broken = task.error


class _Task(Generic[T, R]):
    """Hold one item, then what came of it."""

    __slots__ = ("_done", "_item", "_result", "error")

    def __init__(self, item: T) -> None:
        self._item = item
        self._result: list[R] = []
        self._done = threading.Event()
        self.error: BaseException | None = None

    def run(self, work: Callable[[T], R]) -> bool:
        """Do it, and return whether it went well."""
        try:
            self._result.append(work(self._item))
        except BaseException as error:  # noqa: BLE001 - raised again where the caller asks for the result
            self.fail(error)
            return False
        self._done.set()
        return True

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._done.set()

    def result(self) -> R:
        self._done.wait()
        if self.error is not None:
            raise self.error
        return self._result[0]


def _stand_back(nice: int) -> None:
    # Only Linux gives each thread a priority of its own; elsewhere this would slow down training too.
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):  # a sandbox may forbid it: then the work is done at the usual priority
            os.setpriority(os.PRIO_PROCESS, thread, min(os.getpriority(os.PRIO_PROCESS, thread) + nice, 19))
