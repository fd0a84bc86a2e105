"""Hear signals where the loop of `milepost run` waits, and nowhere else: nothing is interrupted by one, and none is lost."""

from __future__ import annotations

import select
import signal
from collections import deque
from types import FrameType, TracebackType
from typing import Any

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Ask for an end. The second of these, a while after the first, is meant at once."""
_LOOK_S = 0.05
HEARD = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)


class Hearing:
    """Block what is heard while it is open, and take it one by one. For the main thread.

    Blocked, it waits in the kernel: also as PID 1, where a signal without a handler is thrown away unless it is blocked. What is
    ignored when this is opened, as SIGINT and SIGHUP are under nohup, stays ignored.

    A thread that was there before blocks nothing: the BLAS of numpy starts some when it is imported. The kernel gives a signal
    to such a one while this thread is at work, and that would end the process without a word: so there is a handler, too.
    """

    def __init__(self, *, for_good: bool = False) -> None:
        """``for_good``: the process is about to end when this is closed, and a signal must not change what it ends with."""
        self._for_good = for_good
        self._heard = frozenset(each for each in HEARD if signal.getsignal(each) is not signal.SIG_IGN)
        self.before: set[signal.Signals | int] = set()
        """What was blocked before: a command is started with that, and no more."""
        self._by_others: deque[int] = deque()
        """What other threads got."""
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Hearing:
        self.before = {*signal.pthread_sigmask(signal.SIG_BLOCK, {*self._heard, signal.SIGCHLD})}
        # Whoever started us may ignore it: the kernel would then throw the status of every child away.
        self._of_children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._handlers = {each: signal.signal(each, self._note) for each in self._heard}
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._by_others.append(number)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._for_good:
            return
        # What came too late to be heard was meant for the command, which is gone.
        while signal.sigtimedwait({*self._heard, signal.SIGCHLD}, 0) is not None:
            pass
        for number, handler in {**self._handlers, signal.SIGCHLD: self._of_children}.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.before)

    def wait(self, seconds: float) -> int | None:
        """Wait so long for a signal, and return its number. None: none came, or a child has ended, which is worth a look."""
        while not self._by_others:
            # Asked and never waited in: Python (3.11 at least) makes up a signal, SIGHUP mostly, where such a wait is stopped
            # (Ctrl-Z) and goes on when its time is over.
            found = signal.sigtimedwait({*self._heard, signal.SIGCHLD}, 0)
            if found is not None:
                return None if found.si_signo == signal.SIGCHLD else found.si_signo
            if seconds <= 0:
                return None
            select.select((), (), (), min(seconds, _LOOK_S))
            seconds -= _LOOK_S
        return self._by_others.popleft()
