"""Strike the process that this runs in: by a real signal, in a chosen phase of saving, before a line of code counted from there.

A phase is the time in which one function runs. Which one runs is written into shared memory, so that what was struck from
outside, at any moment, can be asked afterwards where it was.
"""

from __future__ import annotations

import importlib
import mmap
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

_ENGINE = "milepost.engine.checkpoint_engine:CheckpointEngine"
FUNCTIONS = {
    "claim": (f"{_ENGINE}.claim",),
    "resume": (f"{_ENGINE}.resume",),
    "safe point": (f"{_ENGINE}.save_if_due", f"{_ENGINE}.save"),
    "staging": ("milepost.engine.saving:capture",),
    "waiting": (f"{_ENGINE}.wait",),
    "stopping": ("milepost.engine.safe_points:SafePoints._leave",),
    "writing": ("milepost.engine.writer:place",),
    "publishing": ("milepost.engine.writer:_commit",),
    "retiring": ("milepost.engine.saving:clear_up", "milepost.engine.writer_process:clear_up"),
    "closing": (f"{_ENGINE}.close",),
}
"""Which functions make up a phase, where they are looked up. The trainer itself says when it is in the others."""
PHASES = ("start", "training", *FUNCTIONS, "ended", "exit", "late")


@dataclass(frozen=True, slots=True)
class Strike:
    """Strike with ``signal`` before line ``line`` of what runs from the ``entry``-th time on that ``phase`` begins, from 1.

    Where fewer lines run it strikes at their end.
    """

    phase: str
    entry: int
    line: int
    signal: int


class Slots:
    """Hold the phase of the thread that trains and of the one that writes, where they outlive the process."""

    def __init__(self, path: Path) -> None:
        path.touch()
        with path.open("r+b") as file:
            file.truncate(2)
            self._map = mmap.mmap(file.fileno(), 2)

    def put(self, slot: int, phase: str) -> str:
        """Enter a phase and return the one before."""
        before = self.get(slot)
        self._map[slot] = PHASES.index(phase) + 1 if phase else 0
        return before

    def get(self, slot: int) -> str:
        number = self._map[slot]
        return PHASES[number - 1] if number else ""


class Watch:
    """Know in which phase this process is, and strike ``target`` when it is time. The second strike counts from the first."""

    def __init__(
        self, strikes: list[Strike], slots: Slots, note: Callable[..., object], target: int, *, counting: bool = False
    ) -> None:
        self.counting = counting
        """Note how many lines run in each phase, when it is there first."""
        self.strikes = strikes
        self.slots = slots
        self.note = note
        self.target = target
        self.entries = dict.fromkeys(PHASES, 0)
        self.main = threading.get_ident()

    def watch_all(self) -> None:
        """Put a watch around every function that makes up a phase."""
        for phase, places in FUNCTIONS.items():
            for place in places:
                module, _, path = place.partition(":")
                holder: Any = importlib.import_module(module)
                *parents, name = path.split(".")
                for parent in parents:
                    holder = getattr(holder, parent)
                setattr(holder, name, self.watched(phase, getattr(holder, name)))

    def watched(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if phase == "claim" and args[0]._open is not None:
                return function(*args, **kwargs)  # it is claimed already, and every verb asks
            with During(self, phase):
                return function(*args, **kwargs)

        return call

    def during(self, phase: str) -> During:
        return During(self, phase)

    def strike(self, chosen: Strike, line: int) -> None:
        """Strike; what follows counts from here."""
        if not self.strikes or self.strikes[0] is not chosen:
            return
        del self.strikes[0]
        self.entries = dict.fromkeys(PHASES, 0)
        self.note("struck", chosen.signal, chosen.phase, line, self.slots.get(0) or "-", self.slots.get(1) or "-")
        os.kill(self.target, chosen.signal)


class During:
    """Be in one phase; count its lines where a strike is due in it."""

    __slots__ = ("before", "chosen", "counts", "line", "outer", "phase", "slot", "watch")

    def __init__(self, watch: Watch, phase: str) -> None:
        self.watch, self.phase = watch, phase
        self.line = 0
        self.chosen: Strike | None = None
        self.counts = False

    def __enter__(self) -> None:
        watch = self.watch
        self.slot = 0 if threading.get_ident() == watch.main else 1
        self.before = watch.slots.put(self.slot, self.phase)
        watch.entries[self.phase] += 1
        self.counts = watch.counting and watch.entries[self.phase] == 1
        due = watch.strikes[0] if watch.strikes else None
        if due is not None and due.phase == self.phase and due.entry <= watch.entries[self.phase]:
            self.chosen = due
        if self.counts or self.chosen is not None:
            self.outer = sys.gettrace()
            sys.settrace(self.trace)

    def trace(self, frame: Any, event: str, _: object) -> Any:
        if frame.f_code.co_filename == __file__:
            return None
        if event == "line":
            self.line += 1
            if self.chosen is not None and self.line > self.chosen.line:
                sys.settrace(None)
                chosen, self.chosen = self.chosen, None
                self.watch.strike(chosen, self.line)
        return self.trace

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        chosen, self.chosen = self.chosen, None
        if self.counts or chosen is not None:
            sys.settrace(self.outer)
        if self.counts:
            self.watch.note("lines", self.phase, self.line)
        if chosen is not None:
            self.watch.strike(chosen, self.line)
        self.watch.slots.put(self.slot, self.before)


class Late:
    """Strike when the interpreter takes its modules apart: the last code of Python's that runs in a process."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.stop = During.__enter__, During.__exit__

    def __del__(self) -> None:
        during = During(self.watch, "late")
        self.stop[0](during)
        self.stop[1](during, None, None, None)
