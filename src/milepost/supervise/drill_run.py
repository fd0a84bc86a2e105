"""Be one run of a command in a drill, start after start: watch its run roots and its beats, and note when what was seen."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from milepost.clock import Clock
from milepost.engine.beats import Beats
from milepost.engine.supervised import ATTEMPT, SUPERVISED
from milepost.supervise.beating import beats_of
from milepost.supervise.child import Child, from_elsewhere, redirected_environment
from milepost.supervise.watching import Watch

FASTEST_S, SLOWEST_S = 0.001, 0.02
Followed: TypeAlias = Literal["until", "ended", "timed out"]


@dataclass(slots=True)
class Bench:
    """Hold what a drill works with: where, by which clock, how it waits, whom it tells."""

    scratch: Path
    clock: Clock
    pause: Callable[[float], object]
    say: Callable[[str], None]
    draw: Callable[[], float]
    """Return a number in [0, 1) by chance."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Be what one engine had told at one look."""

    at_ns: int
    beats: Beats


@dataclass(slots=True)
class Pulse:
    """Read the beats of one start, and keep those of other steps or phases than the look before."""

    folder: Path
    seen: dict[str, list[Seen]] = field(default_factory=dict)
    """By file, oldest first."""
    trains: bool = False
    """It has been seen to train."""

    def look(self, now_ns: int) -> bool:
        """Note what is new, and return whether anything is."""
        new = False
        # Under `milepost run` each attempt has a folder within.
        folders = [Path(folder) for folder, _, _ in os.walk(self.folder)]
        for name, beats in ((str(folder / name), beats) for folder in folders for name, beats in beats_of(folder).items()):
            before = self.seen.setdefault(name, [])
            if not before or before[-1].beats != beats:
                before.append(Seen(now_ns, beats))
                self.trains = self.trains or beats.phase == "training"
                new = True
        return new

    @property
    def all(self) -> list[Seen]:
        """Return everything that was seen, oldest first."""
        return sorted((each for seen in self.seen.values() for each in seen), key=lambda each: each.at_ns)

    def of_runs(self) -> dict[str, list[Seen]]:
        """Return the same by run."""
        found: dict[str, list[Seen]] = {}
        for each in self.all:
            if each.beats.run_id:
                found.setdefault(each.beats.run_id, []).append(each)
        return found


@dataclass(slots=True)
class Start:
    """Be one start of the command."""

    number: int
    child: Child
    began_ns: int
    pulse: Pulse
    ended_ns: int = 0
    exit_code: int | None = None

    @property
    def is_running(self) -> bool:
        """Return whether the command has not ended yet."""
        return self.child.exit_code is None


@dataclass(slots=True)
class Run:
    """Be one run: its run roots, its working directory, and all that was seen of its starts."""

    name: str
    command: tuple[str, ...]
    bench: Bench
    folder: Path
    roots: Path
    timeout_s: float
    here: Path | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    starts: list[Start] = field(default_factory=list)
    copied: dict[str, int] = field(default_factory=dict)
    """By run root, the newest generation that was there before its first start."""
    copied_generations: dict[str, int] = field(default_factory=dict)
    """By run root, how many there were."""
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = Watch(self.roots, self.bench.clock)
        for path in (self.roots, self.folder / "work"):
            path.mkdir(parents=True, exist_ok=True)

    @property
    def work(self) -> Path:
        """Return the directory that the command runs in."""
        return self.here or self.folder / "work"

    def begin(self) -> Start:
        """Start the command."""
        if not self.starts:
            self.watch.look()
            self.copied = {name: max(root.manifests) for name, root in self.watch.saved.items()}
            self.copied_generations = {name: len(root.manifests) for name, root in self.watch.saved.items()}
        number = len(self.starts) + 1
        log, supervised = self.folder / f"start-{number}", self.folder / f"supervised-{number}"
        supervised.mkdir()
        environment = redirected_environment(self.command, self.roots, here=self.here is not None)
        environment |= {SUPERVISED: str(supervised), ATTEMPT: str(number), **self.extra}
        began_ns = self.bench.clock.monotonic_ns()
        child = Child(from_elsewhere(self.command), cwd=self.work, environment=environment, log=log)
        self.starts.append(Start(number, child, began_ns, Pulse(supervised)))
        return self.starts[-1]

    def follow(
        self,
        start: Start,
        until: Callable[[int], bool] = lambda _: False,
        *,
        within_s: float | None = None,
        keen: bool = False,
    ) -> Followed:
        """Watch a start until it ends, ``until`` says so (it is given the time), or it takes too long. ``keen``: look often."""
        clock = self.bench.clock
        within_ns = round((self.timeout_s if within_s is None else within_s) * 1e9)
        stop_ns = within_ns + (start.began_ns if within_s is None else clock.monotonic_ns())
        pause_s = FASTEST_S
        while True:
            running = start.is_running
            pause_s = FASTEST_S if self.look(start) or keen else min(pause_s * 1.1, SLOWEST_S)
            if not running:
                self._over(start)
                return "ended"
            now_ns = clock.monotonic_ns()
            if until(now_ns):
                return "until"
            if now_ns >= stop_ns:
                return "timed out"
            self.bench.pause(pause_s)

    def look(self, start: Start) -> bool:
        """Note what is new, and return whether anything is."""
        return bool(start.pulse.look(self.bench.clock.monotonic_ns()) | self.watch.look())

    def kill(self, start: Start) -> bool:
        """Kill a start with all that it has started; return whether that is what ended it."""
        killed = start.child.kill()
        self._over(start)
        self.look(start)
        return killed

    def _over(self, start: Start) -> None:
        if not start.ended_ns:
            start.ended_ns = self.bench.clock.monotonic_ns()
            start.child.kill()  # what it has started, and left behind
            start.exit_code = start.child.exit_code

    def close(self) -> None:
        """Let nothing that was started here go on."""
        for start in self.starts:
            start.child.signal(signal.SIGCONT, group=True)
            self._over(start)
