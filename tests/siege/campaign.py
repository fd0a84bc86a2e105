"""Strike a run again and again, wherever it is, and judge it after every strike."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import milepost
from tests.siege import plans
from tests.siege.judge import End, Root, check_end, check_steps, read_notes, wait_for_the_end_of
from tests.siege.nursery import Nursery
from tests.siege.plans import CHOSEN, Plan, Plans
from tests.siege.strikes import PHASES, Slots
from tests.siege.training import alone


@dataclass(frozen=True, slots=True)
class Kind:
    """Be one kind of run: who trains, and with which settings."""

    settings: dict[str, Any]
    trainer: str = "tests.siege.trainer"
    elastic: bool = True
    """It is told with each start how far to train; else there is one end to it."""
    outside: float = 0.2
    """How many of the strikes come from outside, at any moment."""
    rivals: bool = True
    """Others may be started beside it."""
    lines: dict[str, int] = field(default_factory=dict)
    """How many lines run in each phase, about; counted if it is not said."""


KINDS = {
    "thread": Kind({"writer": "thread"}),
    "inline": Kind({"writer": "inline"}),
    "thread, kept staged": Kind({"writer": "thread", "grace": 1e-9}),
    "process": Kind({"writer": "process"}),
    "worker": Kind({"writer": "thread", "worker": True}, outside=0.6),
    "two engines": Kind({"writer": "thread", "roots": ["actor", "critic"]}),
}
_LINES = {"start": 10_000, "claim": 9_000, "staging": 10_000, "training": 2_000, "writing": 8_000, "stopping": 1_600}
_FEW = {"resume": 400, "safe point": 200, "publishing": 1_500, "retiring": 800, "closing": 400, "exit": 100, "late": 0}
SB3 = {
    name: Kind({"scenario": name}, "tests.siege.sb3_trainer", elastic=False, outside=0.4, rivals=False, lines=_LINES | _FEW)
    for name in ("ppo", "dqn")
}
STARTS_PER_ROOT = 10
"""Every claim leaves a term for good, and reading them costs time."""
MOST_STEPS = 400
_LIVES_S = 0.03
"""About how long a start lives: a blow from outside falls anywhere in it."""


@dataclass
class Toll:
    """Count what was struck, where, and how it ended."""

    strikes: int = 0
    starts: int = 0
    hits: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each signal found a start in each phase: of the thread that trains, or of the one that writes."""
    ends: Counter[int] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)

    def count(self, ends: Iterable[End]) -> None:
        for end in ends:
            self.starts += 1
            self.ends[end.code] += 1
            for number, *where in end.struck:
                self.strikes += 1
                self.hits.update((signal.Signals(number).name, phase) for phase in {*where} & {*PHASES})

    def missed(self, phases: Iterable[str] = CHOSEN) -> list[str]:
        """Return the phases in which nothing was ever struck."""
        hit = {phase for _, phase in self.hits}
        return [phase for phase in phases if phase not in hit]

    def __str__(self) -> str:
        signals = sorted({name for name, _ in self.hits})
        rows = [f"{phase:<12}" + "".join(f"{self.hits[name, phase]:>7,}" for name in signals) for phase in PHASES]
        ends = ", ".join(f"{count:,} with {code}" for code, count in sorted(self.ends.items()))
        head = f"{self.strikes:,} strikes on {self.starts:,} starts, which ended: {ends}"
        return "\n".join([head, f"{'':<12}" + "".join(f"{name[3:]:>7}" for name in signals), *rows])


class Campaign:
    """Lay siege to one run. ``hashes`` say what an undisturbed run has after each step."""

    def __init__(self, place: Path, kind: Kind, nurseries: tuple[Nursery, Nursery], hashes: Mapping[int, str]) -> None:
        place.mkdir(parents=True)
        self.place, self.kind, self.hashes = place, kind, hashes
        self.nursery, self.other = nurseries
        self.roots = {name: Root(place / name) for name in kind.settings.get("roots", ["run"])}
        self.starts = 0
        self.has_ended = False
        """It came to the one end that there is to it."""

    @property
    def step(self) -> int:
        return min(root.head()[1] for root in self.roots.values())

    def order(self, name: str, until: int, **more: Any) -> dict[str, Any]:
        return {"place": str(self.place), "name": name, "until": until, "strikes": [], **self.kind.settings, **more}

    def strike(self, plan: Plan, steps: int) -> list[End]:
        """Start the run for some steps, strike it as planned, and judge what is left."""
        self.starts += 1
        name, until = str(self.starts), self.step + steps
        patient = {"lease_wait": 60.0} if plan.rival == plans.WAITS else {}
        strikes = [] if plan.outside else [dataclasses.astuple(strike) for strike in plan.strikes]
        order = self.order(name, until, strikes=strikes, cold=plan.cold, **patient)
        self.rival = self.order(f"{name} rival", until, take_over=plan.rival == plans.TAKES_OVER, **patient)
        self.codes: dict[str, int] = {}
        self.nursery.start(order)
        if plan.rival == plans.WAITS:
            self.other.start(self.rival)
        if plan.outside:
            self.strike_from_outside(name, plan)
        self.codes[name] = self.end_of(plan)
        if plan.rival == plans.WAITS:
            self.codes[self.rival["name"]] = os.waitstatus_to_exitcode(self.other.changed())
        return self.judge()

    def end_of(self, plan: Plan) -> int:
        """Wait for the end. While it is stopped, let another one try its luck; then let it go on."""
        while os.WIFSTOPPED(status := self.nursery.changed()):
            if plan.rival in (plans.REFUSED, plans.TAKES_OVER) and self.rival["name"] not in self.codes:
                self.other.start(self.rival)
                self.codes[self.rival["name"]] = os.waitstatus_to_exitcode(self.other.changed())
            self.send(signal.SIGCONT)
        return os.waitstatus_to_exitcode(status)

    def send(self, number: int) -> None:
        """Send it a signal. It may have ended, but its status was not read yet, so that the PID is its own."""
        with suppress(ProcessLookupError):
            os.kill(self.nursery.pid, number)

    def strike_from_outside(self, name: str, plan: Plan) -> None:
        slots = Slots(self.place / f"slots-{name}")
        for strike in plan.strikes:
            threading.Event().wait(strike.line % 1000 / 1000 * _LIVES_S)
            with (self.place / "notes").open("a") as file:
                main, beside = slots.get(0) or "-", slots.get(1) or "-"
                file.write(f'["{name}", "struck", {strike.signal}, "outside", 0, "{main}", "{beside}"]\n')
            # Nobody promises a trainer more, whose worker is killed or stopped; SIGTERM is how its kind is told to end.
            spared = (signal.SIGSTOP, *((signal.SIGTERM, signal.SIGKILL) if self.kind.settings.get("worker") else ()))
            others = children_of(self.nursery.pid) if plan.everyone and strike.signal not in spared else []
            self.send(strike.signal)
            for other in others:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(other, strike.signal)
                os.close(other)

    def judge(self) -> list[End]:
        if self.kind.settings.get("writer") == "process":
            wait_for_the_end_of(str(self.place))
        notes = read_notes(self.place / "notes")
        alone = len(self.codes) == 1
        ends = [End(name, code, [note for note in notes if note.name == name], alone) for name, code in self.codes.items()]
        self.has_ended = not self.kind.elastic and any(end.all_of("end") for end in ends)
        for end in ends:
            check_end(end)
        for name, root in self.roots.items():
            root.look()
            root.check_acknowledged([note.rest[1:3] for note in notes if note.word == "acknowledged" and note.rest[0] == name])
            for end in ends:
                root.check_where_it_left(end, name)
            if (root.path / "milepost.json").exists():
                assert milepost.verify(root.path).ok
        check_steps(notes, self.hashes)
        return ends

    def finish(self) -> None:
        """Let the run come to an end that nobody disturbs."""
        self.starts += 1
        order = self.order(f"{self.starts} end", self.step + 3)
        self.nursery.start(order)
        self.codes = {order["name"]: os.waitstatus_to_exitcode(self.nursery.changed())}
        (end,) = self.judge()
        assert end.code == 0
        step, bits = end.all_of("end")[0].rest
        assert bits == self.hashes[step], f"the end at step {step} has other bits"
        assert step == order["until"] or not self.kind.elastic


def children_of(pid: int) -> list[int]:
    """Return a descriptor of each process that this one has started."""
    found = []
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(ProcessLookupError):
                found.append(os.pidfd_open(int(child)))
    return found


def lines_of(place: Path, kind: Kind, nursery: Nursery) -> dict[str, int]:
    """Count the lines that run in each phase, where nothing is struck but at the end, so that it leaves."""
    place.mkdir()
    last = ("training", 4, 0, int(signal.SIGUSR1))
    nursery.start({"place": str(place), "name": "0", "until": 4, "strikes": [last], "counting": True, **kind.settings})
    assert os.waitstatus_to_exitcode(nursery.changed()) == 75, nursery.output.read_text()
    counted = {note.rest[0]: note.rest[1] for note in read_notes(place / "notes") if note.word == "lines"}
    shutil.rmtree(place)
    return counted


def alone_at(place: Path, kind: Kind, nursery: Nursery) -> Mapping[int, str]:
    """Return the bits of a run that nobody disturbs and that is not saved either, at each step at which it may end."""
    if kind.elastic:
        return dict(enumerate(alone(MOST_STEPS)))
    place.mkdir()
    nursery.start({"place": str(place), "name": "0", "until": 0, "strikes": [], "alone": True, **kind.settings})
    assert nursery.changed() == 0, nursery.output.read_text()
    found: dict[int, str] = {note.rest[0]: note.rest[1] for note in read_notes(place / "notes") if note.word == "end"}
    shutil.rmtree(place)
    return found


def besiege(
    place: Path, count: int, seed: int, kinds: Mapping[str, Kind] = KINDS, *, tell: Callable[[str], object] = lambda _: None
) -> Toll:
    """Strike ``count`` times, runs of every kind in turn; return what was struck and what was lost."""
    place.mkdir(exist_ok=True)
    chance, toll = random.Random(seed), Toll()
    drawn = Plans(chance)
    known: dict[str, tuple[dict[str, int], Mapping[int, str]]] = {}
    trainer = next(iter(kinds.values())).trainer
    with Nursery(place, trainer) as one, Nursery(place, trainer) as two:
        for number, (name, kind) in enumerate(itertools.cycle(kinds.items())):
            if name not in known:
                known[name] = kind.lines or lines_of(place / "lines", kind, one), alone_at(place / "alone", kind, one)
                tell(f"{name}, lines: {known[name][0]}")
            lines, hashes = known[name]
            campaign = Campaign(place / str(number), kind, (one, two), hashes)
            try:
                for _ in range(STARTS_PER_ROOT):
                    plan = drawn.draw(lines, taken_over=len(campaign.roots) == 1, rivals=kind.rivals, outside=kind.outside)
                    toll.count(campaign.strike(plan, chance.randint(2, 6)))
                    if toll.strikes >= count or campaign.has_ended:
                        break
                campaign.finish()
                shutil.rmtree(campaign.place)
            except AssertionError as error:
                toll.lost.append(f"seed {seed}, root {number} ({name}), start {campaign.starts}: {error}")
            tell(f"{name}: {toll.strikes:,} strikes so far")
            if toll.strikes >= count or toll.lost:
                return toll
    raise AssertionError("unreachable")
