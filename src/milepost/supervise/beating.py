"""Tell from the beats of its engines whether a command lives, is suspected to hang, or hangs; and read what it has left behind.

`Pulse` is arithmetic on what was seen and when. `beats_of` and the others read the folder of an attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from milepost.engine import beats
from milepost.engine.beats import Beats
from milepost.engine.supervised import files_in, read_records
from milepost.store.process import process_start_time
from milepost.supervise.causes import RetriesRecord, StoppedRecord

Life: TypeAlias = Literal["unknown", "beating", "suspect", "hung"]

LEAST_S, LEAST_AT_FIRST_S = 600.0, 3600.0
TIMES = 10.0
_PATIENCE = 6.0
_TICK_S = 5.0
"""More than this between two of our own looks does not count as silence: it was we who did not run."""
_AT_WORK = ("training", "stopping")


@dataclass(slots=True)
class Pulse:
    """Say after each look whether the beats go on.

    Silence is counted by our own looks: what lies between two of them is cut to a few seconds, so that a machine that was
    suspended, a container that was frozen, or a supervisor that was stopped is no hang of the command. A command whose engines
    are all closed is at work that has no safe points, and is not judged; nor is one that has not beaten yet.

    A claim, a load and a save have no safe points within; and how far safe points lie apart is known from the third on. Until
    then, and while nobody trains, it is given more time: a large state that loads slowly is not to be taken for a damaged one.
    """

    after_s: float | None = None
    """How long a silence makes it suspect, six times that while nobody trains. None: ten times the longest seen so far, and at
    least ten minutes; at least an hour while nobody trains, and until two gaps between safe points were seen."""
    _last: dict[str, int] = field(default_factory=dict)
    _longest_s: float = 0.0
    _silent_s: float = 0.0
    _gaps: int = 0
    """How many there were between two beats in training."""
    _trains: bool = False
    _at_ns: int | None = None

    @property
    def limit_s(self) -> float:
        """Return how long a silence makes it suspect, now."""
        if self.after_s is not None:
            return self.after_s if self._trains else _PATIENCE * self.after_s
        return max(LEAST_S if self._trains and self._gaps >= 2 else LEAST_AT_FIRST_S, TIMES * self._longest_s)

    @property
    def silent_s(self) -> float:
        """Return for how long nothing has beaten."""
        return self._silent_s

    def look(self, counts: Mapping[str, int], now_ns: int, *, trains: bool = True, stands_still: bool = False) -> Life:
        """Note the count of each engine that is not closed, by a name that stays.

        ``trains``: one of them is between two safe points; ``stands_still``: somebody has stopped the command.
        """
        passed_s = 0.0 if self._at_ns is None else min((now_ns - self._at_ns) / 1e9, _TICK_S)
        self._at_ns = now_ns
        if not counts:
            self._last, self._silent_s, self._trains = {}, 0.0, False
            return "unknown"
        if counts != self._last:
            if self._last:
                self._longest_s = max(self._longest_s, self._silent_s + passed_s)
                self._gaps += self._trains and trains
            self._last, self._silent_s = dict(counts), 0.0
        elif not stands_still:
            self._silent_s += passed_s
        self._trains = trains
        if self._silent_s < self.limit_s:
            return "beating"
        # A second look, some time later: what comes back to life meanwhile was slow, and is not killed.
        return "hung" if self._silent_s >= self.limit_s + min(30.0, self.limit_s / 10) else "suspect"


def beats_of(folder: Path) -> dict[str, Beats]:
    """Return the last beat of each engine, by the name of its file."""
    found = ((path.name, beats.read(path)) for path in files_in(folder, "beat-*"))
    return {name: each for name, each in found if each is not None}


def counts_of(found: Mapping[str, Beats]) -> dict[str, int]:
    """Return what `Pulse.look` takes: of the engines that are in use by a process that lives."""
    return {
        name: each.count for name, each in found.items() if each.phase != "closed" and process_start_time(each.pid) is not None
    }


def trains(found: Mapping[str, Beats]) -> bool:
    """Say whether one of them is between two safe points."""
    return any(each.phase in _AT_WORK for each in found.values())


def stopped_of(folder: Path) -> StoppedRecord | None:
    """Return how an engine of this attempt left when it was told to; of several the first that can be read."""
    return next(read_records(folder, "stopped", StoppedRecord), None)


def retries_of(folder: Path) -> int | None:
    """Return how often the command of this attempt wants to be started again; of several the most. None: none says."""
    return max((each.retries for each in read_records(folder, "retries", RetriesRecord) if each.retries >= 0), default=None)


def stopped_behind(folder: Path, leader: int) -> bool:
    """Say whether all that listened have left because they were told to, and ``leader``, whose code is known, is none of them."""
    left, listened = (
        {path.stem.rpartition("-")[2] for path in files_in(folder, f"{each}-*.json")} for each in ("stopped", "listening")
    )
    return bool(left) and str(leader) not in listened and listened <= left
