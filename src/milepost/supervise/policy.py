"""Decide what comes after an end: start again, when, and from where; or stop, and with which exit code. Pure.

Budgets are counted since the last new generation, whenever that was: a run that gets on may fail as often as it likes, and one
that does not ends after a known number of starts. Nothing here looks at a clock.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.errors import UsageError
from milepost.lifecycle.stopping import EXIT_CODE, INTERRUPTED
from milepost.supervise.causes import Cause, End
from milepost.supervise.kinds import KINDS, Kind

Generation: TypeAlias = tuple[str, int]
"""A run id and a number."""

FAILURES = 3
"""How often a command is started again after failures of its own, where neither it nor anybody else says."""
_SAVED = ("preempted", "notice", "time-up")
_LOADERS_KILLED = 2
_OF_ITSELF = frozenset(
    map(
        int,
        (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS),
    )
)
"""Signals that a process brings on itself. All others come from outside, and say nothing about what was being loaded."""
_NAMES = {"user": "retry", "infrastructure": "infrastructure retry", "preemption": "preemption"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Say how often a command is started again with no new generation between; -1: without limit.

    Raises `UsageError` (kind ``bad-setting``).
    """

    failures: int | None = None
    """After failures of its own. None: as often as the command wants (``retries`` of a `RecoverHandler`), else three times."""
    infrastructure: int = 10
    """After failures of machines, devices, networks and disks."""
    preemptions: int = -1
    backoff_s: tuple[float, float] = (5.0, 300.0)
    """The most that the first wait may be, and the most that any may be; each may be twice the one before."""

    def __post_init__(self) -> None:
        if min(self.failures or 0, self.infrastructure, self.preemptions) < -1:
            raise UsageError("a number of restarts is 0 or more; -1 is without limit", kind="bad-setting", limits=self)
        first, longest = self.backoff_s
        if not 0 <= first <= longest < float("inf"):
            hint = "the first wait and the longest, in seconds"
            raise UsageError("a wait does not shrink", kind="bad-setting", hint=hint, backoff_s=self.backoff_s)


@dataclass(frozen=True, slots=True)
class Decision:
    """Say what comes next."""

    action: Literal["done", "restart", "requeue", "stop"]
    wait_s: float
    exit_code: int
    """What `milepost run` exits with if it ends here."""
    why: str
    """Of the decision; the cause of the end has words of its own."""
    skip: tuple[Generation, ...] = ()
    """Generations that the next attempt marks as ``kills-loader`` (``MILEPOST_SKIP``)."""
    resume: tuple[Generation, ...] = ()
    """What the next attempt goes on from instead of its latest (``MILEPOST_RESUME``)."""


class Policy:
    """Remember what has ended since the last new generation, and decide. For one command; one thread asks."""

    def __init__(self, limits: Limits, draw: Callable[[], float]) -> None:
        """Take what draws a number from 0 up to and without 1."""
        self._limits = limits
        self._draw = draw
        self._standing = ""
        self._wanted = FAILURES
        self._seen: set[tuple[str, int]] = set()
        self._doubted: set[Generation] = set()
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Forget what was held against the run: a generation is new."""
        self._spent: Counter[str] = Counter()
        self._by_kind: Counter[str] = Counter()
        self._loaders_killed: Counter[Generation] = Counter()
        self._doubtful = self._against = 0
        self._skip: tuple[Generation, ...] = ()
        self._resume: tuple[Generation, ...] = ()
        # A failure before the first step says nothing about where training stood, and may well come again in another month.
        self._seen = {(trace, step) for trace, step in self._seen if step >= 0}

    @property
    def standing(self) -> str:
        """Return where the budget stands that paid last, like ``retry 1/3``."""
        return self._standing

    def decide(self, end: End, cause: Cause, *, asked_to_stop: bool) -> Decision:
        """Return what comes after ``end``. ``asked_to_stop``: `milepost run` itself was told to end."""
        kind = KINDS[cause.kind]
        if end.retries is not None:
            self._wanted = end.retries
        code = exit_code_of(end, kind)
        if cause.kind == "done":
            return Decision("done", 0.0, 0, "it is done")
        if cause.budget == "none" or (asked_to_stop and signal.SIGINT in end.forwarded):
            return Decision("stop", 0.0, INTERRUPTED, "it was interrupted")
        if end.published:
            self._begin_anew()
        refusal = self._refusal(end, cause, kind)
        if refusal:
            return Decision("stop", 0.0, code, refusal)
        self._pay(end, cause, kind)
        if asked_to_stop or kind.is_leaving:
            why = "milepost run was told to end" if asked_to_stop else "this machine or its time is about to end"
            if end.phase and cause.kind not in _SAVED:
                why += ", and nothing was saved at this end"
            return Decision("requeue", 0.0, EXIT_CODE, f"{why}: start it again to go on")
        why = self._look_at_the_loader(end) or self._step_back(end, cause, kind) or self._standing
        return Decision("restart", self._wait(cause, kind), code, why, self._skip, self._resume)

    def _refusal(self, end: End, cause: Cause, kind: Kind) -> str:
        """Return why it is not started again; empty if it is."""
        limit = self._limit(cause)
        if kind.retries == 0:
            return "starting it again would not heal that"
        if cause.budget == "user" and self._came_before(end):
            return "the same failure at the same place: it would come again"
        if kind.retries is not None and self._by_kind[cause.kind] >= kind.retries:
            return f"that came {self._by_kind[cause.kind] + 1} times without a new generation between"
        if 0 <= limit <= self._spent[cause.budget]:
            spent = f"{_NAMES[cause.budget]} {limit}/{limit} is spent, and no generation is new since"
            return spent if limit else f"no {_NAMES[cause.budget]} is allowed"
        if kind.back_after and self._resume:
            back = ", ".join(f"generation {number}" for _, number in self._resume)
            return f"it ends so from {back} as well: the one after it is not what is wrong"
        if self._skip and _kills_its_loader(end):
            return "a second generation kills what loads it: it is rather the code or the machine than the data"
        return ""

    def _came_before(self, end: End) -> bool:
        failure = end.failure
        if failure is None or not failure.trace:
            return False
        here = (failure.trace, failure.step if failure.step >= 0 else end.step)
        came_before = here in self._seen
        self._seen.add(here)
        return came_before

    def _pay(self, end: End, cause: Cause, kind: Kind) -> None:
        self._spent[cause.budget] += 1
        self._by_kind[cause.kind] += 1
        self._doubtful += kind.back_after > 0
        self._against += kind.back_after > 0 and not end.published  # else it was published by that very attempt
        limit = self._limit(cause)
        self._standing = f"{_NAMES[cause.budget]} {self._spent[cause.budget]}" + (f"/{limit}" if limit >= 0 else "")

    def _limit(self, cause: Cause) -> int:
        limits = self._limits
        failures = self._wanted if limits.failures is None else limits.failures
        return {"user": failures, "infrastructure": limits.infrastructure}.get(cause.budget, limits.preemptions)

    def _look_at_the_loader(self, end: End) -> str:
        """Note what was being loaded when the process crashed or hung; the second time the next start marks and passes it over.

        Once between two new generations: where one after another kills its loader it is the loader that is ill, and good
        generations are not to be marked for it.
        """
        if end.loading is None or not _kills_its_loader(end):
            return ""
        self._loaders_killed[end.loading] += 1
        if self._loaders_killed[end.loading] < _LOADERS_KILLED:
            return ""
        self._skip = (end.loading,)
        self._doubted.add(end.loading)
        return f"{self._standing}; generation {end.loading[1]} has killed what loads it twice, and is passed over from now on"

    def _step_back(self, end: End, cause: Cause, kind: Kind) -> str:
        """Go back one generation, once, where ends without a new one speak against that which it went on from.

        The last start that there is goes back one end sooner: else there would be none after a budget of three.
        """
        enough = kind.back_after - self._is_the_last(cause, kind)
        if not kind.back_after or self._doubtful < 2 or self._against < enough or self._resume or self._skip:
            return ""
        # Of several roots all that it had come to: an actor is not to go back without its critic.
        came_from = dict((*((end.loading,) if end.loading else ()), *end.resumed))
        self._doubted |= set(came_from.items())
        targets = {run: self._before(run, number, end.older) for run, number in came_from.items()}
        self._resume = tuple((run, number) for run, number in targets.items() if number)
        if not self._resume:
            return ""
        steps = ", ".join(f"from generation {came_from[run]} to {number}" for run, number in self._resume)
        return f"{self._standing}; CRASH LOOP: {self._doubtful} ends without a newer generation, stepping back {steps}, once"

    def _is_the_last(self, cause: Cause, kind: Kind) -> bool:
        return self._spent[cause.budget] == self._limit(cause) or self._by_kind[cause.kind] == kind.retries

    def _before(self, run: str, number: int, older: Iterable[Generation] | None) -> int:
        """Return the newest generation before ``number`` that nothing speaks against; 0 if there is none."""
        known = range(1, number) if older is None else [other for owner, other in older if owner == run and other < number]
        return max((other for other in known if (run, other) not in self._doubted), default=0)

    def _wait(self, cause: Cause, kind: Kind) -> float:
        """Return a wait with full jitter: of a hundred jobs that a file server has thrown out no two come back at once."""
        first, longest = self._limits.backoff_s
        if kind.is_patient:
            return longest * (1 + self._draw()) / 2
        count = self._spent["preemption"] - 1 if cause.budget == "preemption" else self._spent.total() - self._spent["preemption"]
        if count < 1:
            return 0.0  # taken away, and nothing lost; but never twice in a row at once without anything saved between
        return self._draw() * min(longest, first * 2.0 ** min(count - 1, 64))


def _kills_its_loader(end: End) -> bool:
    return end.loading is not None and (end.hung or not _OF_ITSELF.isdisjoint((end.ended_by, end.rank_signal)))


def exit_code_of(end: End, kind: Kind) -> int:
    """Return what `milepost run` exits with if it ends with ``end``: the kind's own code, 128 + N for a signal, the command's."""
    if kind.exit_code is not None:
        return kind.exit_code
    return 128 + end.signal if end.signal is not None else end.exit_code or 0
