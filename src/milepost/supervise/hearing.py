"""Hear signals where the loop of `milepost run` waits, and nowhere else: nothing is interrupted by one, and none is lost."""

from __future__ import annotations

import signal
import threading
from types import TracebackType

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Ask for an end. The second of these, a while after the first, is meant at once."""
HEARD = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)


class Hearing:
    """Block what is heard while it is open, and take it one by one. For the main thread.

    Blocked, it waits in the kernel: also as PID 1, where a signal without a handler is thrown away unless it is blocked. What is
    ignored when this is opened, as SIGINT and SIGHUP are under nohup, stays ignored.
    """

    def __init__(self, *, for_good: bool = False) -> None:
        """``for_good``: the process is about to end when this is closed, and a signal must not change what it ends with."""
        self._for_good = for_good
        self._heard = frozenset(each for each in HEARD if signal.getsignal(each) is not signal.SIG_IGN)
        self.before: set[signal.Signals | int] = set()
        """What was blocked before: a command is started with that, and no more."""

    def __enter__(self) -> Hearing:
        self.before = {*signal.pthread_sigmask(signal.SIG_BLOCK, {*self._heard, signal.SIGCHLD})}
        # Whoever started us may ignore it: the kernel would then throw the status of every child away.
        self._of_children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._for_good:
            return
        # What came too late to be heard was meant for the command, which is gone.
        while signal.sigtimedwait({*self._heard, signal.SIGCHLD}, 0) is not None:
            pass
        signal.signal(signal.SIGCHLD, self._of_children)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.before)

    def wait(self, seconds: float) -> int | None:
        """Wait so long for a signal, and return its number. None: none came, or a child has ended, which is worth a look."""
        found = signal.sigtimedwait({*self._heard, signal.SIGCHLD}, min(seconds, threading.TIMEOUT_MAX))
        return None if found is None or found.si_signo == signal.SIGCHLD else found.si_signo
