"""Know what is to end this process: who listens for it, and what has fired."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Protocol

from milepost.clock import Clock
from milepost.engine import supervised
from milepost.engine.between import Stoppable
from milepost.errors import UsageError
from milepost.lifecycle.amounts import seconds_of
from milepost.lifecycle.grace import Grace
from milepost.lifecycle.stopping import EXIT_CODE, GRACE_S, Stop, StopBy, leading

GROUP = "milepost.stop"
_FOREVER_S = 1e9
"""A deadline lies no further ahead, whatever somebody has said: thirty years."""


class Listening(Protocol):
    """Tell one engine what was heard. Made by whoever stands behind the entry point ``signals`` of `GROUP`."""

    def poll(self) -> None:
        """Hand on what was heard since the last safe point. Free when that is nothing."""

    def close(self) -> None:
        """Listen for this engine no more."""


Listen = Callable[[Stop, Stoppable], Listening]


def settings_of(stop: Stop | bool | None, grace: Grace | None) -> Stop | None:
    """Return what to listen to, with a ``grace`` in seconds; None: to nothing. Raises `UsageError` (kind ``bad-setting``)."""
    wanted: object = os.environ.get(supervised.STOP) == "1" if stop is None else stop
    if isinstance(wanted, bool):
        wanted = Stop() if wanted else None
    if wanted is None:
        return None
    if not isinstance(wanted, Stop):
        hint = 'stop=milepost.Stop(grace="90s"), stop=True, or stop=False to listen to nothing'
        raise UsageError("an engine cannot be stopped like that", kind="bad-setting", hint=hint, stop=wanted)
    seconds = seconds_of(wanted.grace) if wanted.grace is not None else grace.grace_s if grace else GRACE_S
    return dataclasses.replace(wanted, grace=seconds)


def listener() -> Listen:
    """Return what listens to signals, notices and limits for this process. Raises `UsageError` (kind ``no-listener``)."""
    for each in entry_points(group=GROUP, name="signals"):
        found: Listen = each.load()
        return found
    hint = "install milepost anew: its entry points are missing. stop=False listens to nothing"
    raise UsageError("nothing here can listen for signals", kind="no-listener", hint=hint, group=GROUP)


class Requests:
    """Hold what has fired. `by` and `withdraw` may be called from a signal handler, and from any thread."""

    def __init__(self, clock: Clock, settings: Stop | None) -> None:
        self.settings = settings
        self._clock = clock
        self._requests: dict[str, StopBy] = {}
        """By path. Changed in single steps: a signal may strike between any two."""
        self._listening: Listening | None = None
        self._asked: object = None
        """Another with each change of the requests: whoever has seen one has seen all before it."""

    def listen(self, engine: Stoppable) -> None:
        """Begin to listen, if that was asked for."""
        if self.settings is not None:
            self._listening = listener()(self.settings, engine)

    def close(self) -> None:
        """Listen no more. May be called again."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None  # only now: interrupted, it is closed by the next who closes the engine

    def poll(self) -> None:
        """Hear what came since the last time."""
        if self._listening is not None:
            self._listening.poll()

    def by(
        self, within: str | float | None, path: str, exit_code: int = EXIT_CODE, at_once: bool = True, early: bool = False
    ) -> None:
        """Note a request. One path that fires again cannot move its deadline back."""
        seconds = None if within is None else seconds_of(within)
        deadline_ns = None if seconds is None else self._clock.monotonic_ns() + round(min(seconds, _FOREVER_S) * 1e9)
        before = self._requests.get(path)
        if before is not None and before.deadline_ns is not None:
            deadline_ns = before.deadline_ns if deadline_ns is None else min(deadline_ns, before.deadline_ns)
        self._requests[path] = StopBy(path, deadline_ns, exit_code, at_once, early)
        self._asked = object()

    def withdraw(self, path: str) -> bool:
        """Forget a request, and return whether there was one."""
        if self._requests.pop(path, None) is None:
            return False
        self._asked = object()
        return True

    @property
    def all(self) -> list[StopBy]:
        """Return all that has fired."""
        return list(self._requests.values())

    @property
    def leading(self) -> StopBy | None:
        """Return the request that decides, with the earliest deadline of all; None while nobody wants an end."""
        return leading(self.all) if self._requests else None
