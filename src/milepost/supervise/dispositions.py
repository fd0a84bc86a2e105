"""Hear this process's signals, and give them back: a handler only notes that its signal came, and wakes a thread."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from milepost.clock import Clock

log = logging.getLogger("milepost")

TWICE_NS = 10**9
"""What comes later than this after the first SIGTERM or SIGINT is a second one: platforms send the first to a process and to its
group at once."""
_ENDING = (signal.SIGTERM, signal.SIGINT)
_POKE = b"\0"

_listens: set[Dispositions] = set()
"""The one that is in charge, if one is: for it those before have no say any more."""
_silenced: dict[int, Any] = {}
"""Of a forked child: the signals that it ignores because we said so, and what was there before. It may train itself."""


class Dispositions:
    """Be what handles some signals of this process, from `take` to `give_back`."""

    def __init__(self, clock: Clock) -> None:
        self.heard: dict[int, int] = {}
        """When each signal came first, on the monotonic clock."""
        self._clock = clock
        self._before: dict[int, Any] = {}
        """What handled each signal when it was taken."""
        self._handler = self._struck  # kept: a bound method is another object each time it is looked up
        self._first_ns: int | None = None
        self._lost: set[int] = set()
        self._closed = False
        self.pokes, self._poker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        """What becomes readable when a signal has come."""
        self._open, self._is_read = [self.pokes], True

    def take(self, names: Iterable[str]) -> None:
        """Handle these signals, where that can be and may be; what stays as it was is told. Only in the main thread."""
        _listens.add(self)
        for name in names:
            self._take(signal.Signals[f"SIG{name}"])
        if self._before:
            # Written by the interpreter's own handler, in C: the thread hears of a signal though the one that trains is far
            # away in a kernel or a simulator, where no Python runs.
            others = signal.set_wakeup_fd(self._poker, warn_on_full_buffer=False)
            if others != -1:  # asyncio's, say, which finds by it that a signal came
                signal.set_wakeup_fd(others, warn_on_full_buffer=False)

    def _take(self, signum: signal.Signals) -> None:
        before = signal.getsignal(signum)
        if before == signal.SIG_IGN:
            before = _silenced.pop(signum, before)
        if signum == signal.SIGINT and before is signal.SIG_IGN:
            log.info("SIGINT is ignored in this process (nohup, or a job in the background of a script), and stays so")
        elif before is None or (not callable(before) and signum in caught_in_c()):
            log.warning(
                "%s is not listened to: something that is not written in Python handles it (kind foreign-handler)", signum.name
            )
        else:
            self._before[signum] = before
            signal.signal(signum, self._handler)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the signals that are handled, as ``SIGTERM``."""
        return tuple(signal.Signals(signum).name for signum in self._before)

    def _struck(self, signum: int, frame: FrameType | None) -> None:
        # May come between any two steps of the thread that trains, of itself, and of the logging or the engine it interrupts:
        # nothing is logged, locked or asked here.
        if self._closed:
            self._as_before(signum, frame)
            return
        now_ns = self._clock.monotonic_ns()
        self.heard.setdefault(signum, now_ns)
        self.poke()
        if signum in _ENDING:
            if self._first_ns is None:
                self._first_ns = now_ns
            elif now_ns - self._first_ns > TWICE_NS:
                end_at_once(signum)
        before = self._before.get(signum)
        if callable(before) and not interrupts(before):
            before(signum, frame)

    def _as_before(self, signum: int, frame: FrameType | None) -> None:
        """Do what would have been done without us: we could not leave in time, or somebody who came later calls us still."""
        self.give_back()
        before = self._before.get(signum, signal.SIG_DFL)
        if callable(before) and not (_listens and interrupts(before)):
            before(signum, frame)
        elif before == signal.SIG_DFL and not _listens:
            end_at_once(signum)

    def poke(self) -> None:
        """Wake who waits for `pokes`."""
        try:
            os.write(self._poker, _POKE)
        except OSError:  # it is full: it is awake
            return

    def come(self) -> Iterator[int]:
        """Yield the signals that the interpreter has said came since the last time, also while no Python runs. Never waits."""
        try:
            told = os.read(self.pokes, 4096)
        except OSError:
            return
        yield from (signum for signum in told if self._is_ours(signum))

    def _is_ours(self, signum: int) -> bool:
        return signum in self._before and signal.getsignal(signum) is self._handler

    def lost(self) -> list[tuple[str, str]]:
        """Return the signals that somebody else has come to handle since the last time, and who."""
        lost = [signum for signum in self._before if signum not in self._lost and not self._is_ours(signum)]
        self._lost.update(lost)
        return [(signal.Signals(signum).name, name_of(signal.getsignal(signum))) for signum in lost]

    def give_back(self) -> bool:
        """Have all as it was, but for what others have changed since. Return whether that can be: in the main thread only."""
        self._closed = True
        _listens.discard(self)
        if threading.current_thread() is not threading.main_thread():
            return False
        for signum, before in self._before.items():
            if self._is_ours(signum):
                signal.signal(signum, before)
        self._close()
        return True

    def raise_again(self, told: int) -> None:
        """Send this process the signals again that were heard after the first ``told``: nobody was left to be told of them.

        A handler that was there before has been called for them.
        """
        for signum in list(self.heard)[told:]:
            if not callable(self._before.get(signum)) or interrupts(self._before[signum]):
                os.kill(os.getpid(), signum)

    def let_go_in_the_child(self) -> None:
        """Have a forked child do what it would have done, but leave to its parent when to end.

        A worker that a Ctrl-C ends before the trainer is at its safe point takes the step with it that the trainer is in.
        SIGTERM ends it: that is how `multiprocessing` ends its workers.
        """
        self._closed = True
        _listens.clear()
        for signum, before in self._before.items():
            if self._is_ours(signum):
                stays = callable(before) and not interrupts(before)
                ours = signal.SIG_DFL if signum == signal.SIGTERM else signal.SIG_IGN
                signal.signal(signum, before if stays or before == signal.SIG_IGN else ours)
                if not stays and ours == signal.SIG_IGN:
                    _silenced[signum] = before
        self._close()
        self.read_no_more()

    def read_no_more(self) -> None:
        """Say that nobody waits for `pokes` any more."""
        self._is_read = False
        if self._poker == -1:
            self._close_pokes()

    def _close_pokes(self) -> None:
        try:
            pokes = self._open.pop()
        except IndexError:  # the other side of it was faster
            return
        os.close(pokes)

    def _close(self) -> None:
        if self._poker == -1:
            return
        others = signal.set_wakeup_fd(-1)
        if others not in (-1, self._poker):
            signal.set_wakeup_fd(others)
        poker, self._poker = self._poker, -1
        os.close(poker)  # whoever waits for `pokes` sees its end
        if not self._is_read:
            self._close_pokes()


def end_at_once(signum: int) -> None:
    """End this process as the signal does where nobody handles it."""
    signal.signal(signum, signal.SIG_DFL)
    signal.raise_signal(signum)
    os._exit(128 + signum)  # the first process of a container: the kernel keeps from it what it does not handle


def interrupts(handler: Callable[..., Any]) -> bool:
    """Return whether a handler is Python's own for Ctrl-C, or asyncio's: what they raise is what a safe point is waited for."""
    function = getattr(handler, "func", handler)
    return handler is signal.default_int_handler or (
        getattr(function, "__module__", "") == "asyncio.runners" and getattr(function, "__name__", "") == "_on_sigint"
    )


def caught_in_c() -> frozenset[int]:
    """Return the signals of this process that have a handler, whoever has put it there; none where the system does not say."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            mask = next((int(line.split()[1], 16) for line in file if line.startswith("SigCgt:")), 0)
    except OSError:
        return frozenset()
    return frozenset(signum for signum in range(1, 65) if mask >> (signum - 1) & 1)


def name_of(handler: object) -> str:
    """Return what a log line calls a handler."""
    if isinstance(handler, signal.Handlers):
        return handler.name
    function = getattr(handler, "func", handler)
    place = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return ".".join(part for part in place if part) or type(handler).__name__
