"""Strike a run again and again, wherever it is, and judge it after every strike."""

from __future__ import annotations

import random
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import milepost
from tests.siege.judge import End, Note, Root, check_end, code_of, read_notes, check_steps, wait_for_the_end_of
from tests.siege.nursery import Nursery
from tests.siege.strikes import PHASES, TO_THE_END, Slots
from tests.siege.training import alone

VARIANTS: dict[str, dict[str, Any]] = {
    "thread": {"writer": "thread", "engines": 1},
    "inline": {"writer": "inline", "engines": 1},
    "thread, kept staged": {"writer": "thread", "engines": 1, "grace": 1e-9},
    "process": {"writer": "process", "engines": 1},
    "two engines": {"writer": "thread", "engines": 2},
}
STARTS_PER_ROOT = 10
"""Every claim leaves a term for good, and reading them costs time."""
MOST_STEPS = 400
SINGLE = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGKILL, signal.SIGSTOP)
DOUBLE = (
    (signal.SIGTERM, signal.SIGTERM),
    (signal.SIGINT, signal.SIGINT),
    (signal.SIGUSR1, signal.SIGTERM),
    (signal.SIGTERM, signal.SIGINT),
    (signal.SIGTERM, signal.SIGKILL),
    (signal.SIGINT, signal.SIGKILL),
    (signal.SIGSTOP, signal.SIGTERM),
)


@dataclass
class Toll:
    """Count what was struck, and where."""

    strikes: int = 0
    starts: int = 0
    hits: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each signal found the run in each phase."""
    ends: Counter[int] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        signals = sorted({name for name, _ in self.hits})
        rows = [f"{'':<12}" + "".join(f"{name[3:]:>7}" for name in signals)]
        for phase in PHASES:
            rows.append(f"{phase:<12}" + "".join(f"{self.hits[name, phase]:>7,}" for name in signals))
        ends = ", ".join(f"{code}: {count:,}" for code, count in sorted(self.ends.items()))
        return "\n".join([f"{self.strikes:,} strikes on {self.starts:,} starts, which ended with {ends}", *rows])

    def missed(self) -> list[str]:
        """Return the phases in which nothing was ever struck."""
        return [phase for phase in PHASES if phase != "ended" and not any(count for (_, where), count in self.hits.items() if where == phase)]


class Campaign:
    """Lay siege to one run."""

    def __init__(self, place: Path, variant: str, chance: random.Random, nurseries: tuple[Nursery, Nursery], hashes: list[str], listens: bool, lines: dict[str, int]) -> None:
        place.mkdir(parents=True)
        self.place, self.variant, self.chance, self.hashes = place, variant, chance, hashes
        self.settings = VARIANTS[variant]
        self.nursery, self.other = nurseries
        self.listens = listens
        self.lines = lines
        self.roots = {name: Root(place / name) for name in (("run",) if self.settings["engines"] == 1 else ("actor", "critic"))}
        self.starts = 0
        self.noted = 0
        self.typical_s = 0.03

    @property
    def step(self) -> int:
        return min(root.head()[1] for root in self.roots.values())

    def order(self, name: str, strikes: list[tuple[str, int, int, int]], **more: Any) -> dict[str, Any]:
        until = self.step + self.chance.randint(2, 6)
        return {"place": str(self.place), "name": name, "until": until, "strikes": strikes, **self.settings, **({"stop": True} if self.listens else {}), **more}

    def draw(self) -> list[tuple[str, int, int, int]]:
        """Draw one strike or two, in the phases of which there are some."""
        signals = (self.chance.choice(SINGLE),) if self.chance.random() < 0.75 else self.chance.choice(DOUBLE)
        strikes = []
        for number in signals:
            phase = self.chance.choice(list(self.lines))
            entry = 1 if phase in ("start", "claim", "resume", "closing", "exit", "late") else self.chance.randint(1, 4)
            strikes.append((phase, entry, self.chance.randint(0, self.lines[phase]), int(number)))
        return strikes

    def strike(self) -> list[End]:
        """Start the run, strike it, perhaps with somebody else about, and judge what is left."""
        self.starts += 1
        name = str(self.starts)
        outside = self.chance.random() < 0.2
        strikes = self.draw()
        stops = any(number == signal.SIGSTOP for *_, number in strikes)
        rival = self.chance.choice(("none", "none", "refused", "waits", "takes over") if stops else ("none", "none", "none", "waits"))
        if rival == "takes over" and len(self.roots) > 1:
            rival = "refused"  # a process that stood still between two claims has one root and not the other: nobody promises more
        patient = {"lease_wait": 60.0} if rival == "waits" else {}
        order = self.order(name, [] if outside else strikes, **patient, cold=self.chance.random() < 0.02)
        rivals = self.order(f"{name} rival", [], **patient, take_over=rival == "takes over")
        self.nursery.start(order)
        if rival == "waits":
            self.other.start(rivals)
        if outside:
            self.strike_from_outside(name, [number for *_, number in strikes])
        status = self.nursery.changed()
        codes = {}
        while code_or_stop(status) is None:
            if rival in ("refused", "takes over") and rivals["name"] not in codes:
                self.other.start(rivals)
                codes[rivals["name"]] = code_of(self.other.changed())
            signal_to(self.nursery.pid, signal.SIGCONT)
            status = self.nursery.changed()
        codes[name] = code_of(status)
        if rival == "waits":
            codes[rivals["name"]] = code_of(self.other.changed())
        return self.judge(codes)

    def strike_from_outside(self, name: str, signals: list[int]) -> None:
        """Strike at any moment: about as long after the start as one lives."""
        slots = Slots(self.place / f"slots-{name}")
        for number in signals:
            threading.Event().wait(self.chance.random() * self.typical_s)
            with (self.place / "notes").open("a") as file:
                main, beside = slots.get(0) or "-", slots.get(1) or "-"
                file.write(f'["{name}", "struck", {number}, "?", 0, "{main}", "{beside}"]\n')
            signal_to(self.nursery.pid, number)

    def judge(self, codes: dict[str, int]) -> list[End]:
        if self.settings["writer"] == "process":
            wait_for_the_end_of(str(self.place))
        notes = read_notes(self.place / "notes")
        ends = [End(name, code, [note for note in notes if note.name == name], self.listens, len(codes) == 1) for name, code in codes.items()]
        for root in self.roots.values():
            root.look()
        for name, root in self.roots.items():
            root.check_acknowledged([note.rest[1:3] for note in notes if note.word == "acknowledged" and note.rest[0] == name])
        check_steps(notes, self.hashes)
        for end in ends:
            check_end(end)
            self.check_where_it_left(end)
        for root in self.roots.values():
            if (root.path / "milepost.json").exists():
                assert milepost.verify(root.path).ok
        return ends

    def check_where_it_left(self, end: End) -> None:
        if end.code not in (75, 130):
            return
        for name, root in self.roots.items():
            safe = [note.rest[1] for note in end.all_of("safe") if note.rest[0] == name]
            if safe:
                root.check_left_at(safe[-1], f"start {end.name} left with {end.code}")

    def finish(self) -> None:
        """Let the run come to an end that nobody disturbs."""
        self.starts += 1
        order = self.order(f"{self.starts} end", [])
        self.nursery.start(order)
        ends = self.judge({order["name"]: code_of(self.nursery.changed())})
        assert ends[0].code == 0
        assert ends[0].all_of("end")[0].rest == (order["until"], self.hashes[order["until"]])


def code_or_stop(status: int) -> int | None:
    import os

    return None if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)


def signal_to(pid: int, number: int) -> None:
    """Send a signal to a trainer of the nursery's, which may have ended: until its status is read the PID is its own."""
    import os
    from contextlib import suppress

    with suppress(ProcessLookupError):
        os.kill(pid, number)


def lines_of(place: Path, variant: str, nursery: Nursery, listens: bool) -> dict[str, int]:
    """Count the lines that run in each phase, by starts in which nothing is struck."""
    counted = {}
    place.mkdir()
    for phase in PHASES:
        if phase == "ended":
            continue
        where = place / phase
        where.mkdir()
        order = {"place": str(where), "name": "count", "until": 3, "strikes": [(phase, 1, TO_THE_END, 0)], **VARIANTS[variant]}
        nursery.start(order | ({"stop": True} if listens else {}))
        assert code_of(nursery.changed()) == 0, (where.parents[2] / "output").read_text()
        found = [note for note in read_notes(where / "notes") if note.word == "struck"]
        if found:
            counted[phase] = found[0].rest[2]
    shutil.rmtree(place)
    return counted


def besiege(place: Path, count: int, seed: int, *, listens: bool = True, variants: tuple[str, ...] = tuple(VARIANTS), tell: Callable[[str], object] = print) -> Toll:
    """Strike ``count`` times, on runs of every kind in turn; return what was struck and what was lost."""
    place.mkdir(exist_ok=True)
    chance, toll, hashes = random.Random(seed), Toll(), alone(MOST_STEPS)
    with Nursery(place) as one, Nursery(place) as two:
        lines: dict[str, dict[str, int]] = {}
        number = 0
        while toll.strikes < count and not toll.lost:
            variant = variants[number % len(variants)]
            if variant not in lines:
                lines[variant] = lines_of(place / f"lines-{number}", variant, one, listens)
                tell(f"{variant}: {lines[variant]}")
            campaign = Campaign(place / str(number), variant, chance, (one, two), hashes, listens, lines[variant])
            try:
                for _ in range(STARTS_PER_ROOT):
                    count_up(toll, campaign.strike())
                    if toll.strikes >= count:
                        break
                campaign.finish()
                shutil.rmtree(campaign.place)
            except AssertionError as error:
                toll.lost.append(f"seed {seed}, root {number} ({variant}), start {campaign.starts}: {error}")
            number += 1
    return toll


def count_up(toll: Toll, ends: list[End]) -> None:
    for end in ends:
        toll.starts += 1
        toll.ends[end.code] += 1
        for number, main, beside in end.struck:
            toll.strikes += 1
            for where in {main, beside} - {"-"}:
                toll.hits[signal.Signals(number).name, where] += 1


__all__ = ["Note", "besiege"]
