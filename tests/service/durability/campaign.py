"""Tell one story: a service is struck again and again while others commit and fetch; what was promised has to hold."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from typing import Any

from milepost.errors import MilepostError
from milepost.service import connect
from milepost.service.index import place_of_weights
from tests.service.durability.actors import notes
from tests.service.durability.judge import Rest, at_of, broken, lost_by_beginning, went_back
from tests.service.durability.points import Strike
from tests.siege.nursery import LONGEST_S, Hang, Nursery

MODULE = "tests.service.durability.actors"
ENOUGH = 60
"""After so many commits without it a strike is not to be expected any more."""
TICK_S = 0.02


@dataclass(frozen=True, slots=True)
class Turn:
    """Say what befalls the service next, and who else goes with it."""

    strike: Strike | None
    trainer: Strike | None = None
    """Where the trainer dies, in the same turn."""
    renews_trainer: bool = False
    """Whether another trainer comes with it."""
    takes_trainer: bool = False
    """Whether the trainer is killed as soon as the service is gone."""
    takes_host: bool = False
    """Whether memory goes, too. A trainer that is not taken was on another host."""
    leaves_service: bool = False
    """Whether another trainer comes to the same service, before that goes."""
    rolls_back: bool = False
    """Whether somebody goes back to an older version meanwhile."""

    def __str__(self) -> str:
        others = [
            *(["with the trainer"] if self.takes_trainer else []),
            *(["and the host"] if self.takes_host else []),
            *([f"the trainer {self.trainer}"] if self.trainer else []),
            *(["and another comes"] if self.leaves_service else []),
            *(["during a rollback"] if self.rolls_back else []),
        ]
        return " ".join([str(self.strike or "no strike"), *others])


@dataclass(frozen=True, slots=True)
class Setting:
    """Say how the service is set, and how bytes come and go."""

    name: str
    service: dict[str, Any] = field(default_factory=dict)
    transport: str = "auto"
    reads_by: str = "auto"


@dataclass
class Told:
    """Count what was tried, and keep what did not hold."""

    strikes: int = 0
    missed: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    acks: int = 0
    durable: int = 0
    fetched: int = 0


class Story:
    """Be the run of one setting, below ``place``."""

    def __init__(self, place: Path, setting: Setting) -> None:
        self.place = place
        self.setting = setting
        self.told = Told()
        self.attempt = 0
        (place / "shm").mkdir(parents=True)
        (place / "lost").mkdir()

    def tell(self, turns: Sequence[Turn], on_turn: Callable[[Turn], None] = lambda _: None) -> Told:
        """Let all turns come, one after the other; then let the service end in good order, and look at all of it."""
        with ExitStack() as held:
            self.server, self.trainer, self.sampler = (
                held.enter_context(Nursery(self._home(name), MODULE)) for name in ("server", "trainer", "sampler")
            )
            self._start_sampler()
            for turn in turns:
                on_turn(turn)
                self._turn(turn)
                if self.told.lost:
                    return self.told
            self._end()
        return self.told

    def _home(self, name: str) -> Path:
        home = self.place / name
        home.mkdir()
        return home

    def _turn(self, turn: Turn) -> None:
        if turn.trainer is not None or turn.renews_trainer:
            self._kill(self.trainer)
        if not self.trainer.lives:
            self._start_trainer(turn.trainer)
        self._start_server(turn.strike)
        if turn.rolls_back:
            self._roll_back()
        if turn.strike is None:
            if self._until(lambda: self._has_ended(self.trainer)):
                self.told.strikes += 1
            else:
                self.told.missed.append(str(turn))
            if turn.leaves_service:
                self._kill(self.trainer)
                self._start_trainer(None)
                before = len(notes(self.place, "acks"))
                self._until(lambda: self._has_ended(self.trainer) or len(notes(self.place, "acks")) > before + 4)
            self._kill(self.server)
        elif self._until(lambda: self._has_ended(self.server)):
            self.told.strikes += 1
        else:
            self.told.missed.append(str(turn))
            self._kill(self.server)
        if turn.takes_trainer:
            self._kill(self.trainer)
        self._judge(turn)

    def _judge(self, turn: Turn) -> None:
        rest = Rest(self.place)
        self.told.lost += [f"{self.setting.name}, {turn}: {what}" for what in broken(rest)]
        if turn.takes_host:
            rest.forget_memory()
            (self.place / "lost" / str(rest.catalogue.term + 1)).touch()
            self.told.lost += [f"{self.setting.name}, {turn}, once memory was gone: {what}" for what in broken(rest)]

    def _roll_back(self) -> None:
        """Go back to the oldest version that is on disk, if the service lives long enough to be asked."""
        with (
            suppress(MilepostError),
            connect(self.place / "run", component="operator", role="sampler", timeout=30.0, fetch_timeout=5.0) as service,
        ):
            kept = [each.weights.at for each in service.status().versions if "disk" in each.tiers and not each.is_lost]
            if len(kept) > 1:
                service.rollback(min(kept), "to see what comes of it")

    def _end(self) -> None:
        """Serve once more, without a strike; let all stop by themselves, and compare the newest with what was told last."""
        if not self.trainer.lives:
            self._start_trainer(None)
        before = self._done()
        self._start_server(None)
        self._until(lambda: self._done()[0] > before[0] + 5 and self._done()[1] > before[1] + 4)
        (self.place / "stop-training").touch()
        self._ended(self.trainer, "the trainer")
        (self.place / "stop-sampling").touch()
        self._ended(self.sampler, "the sampler")
        last = notes(self.place, "acks")[-1]
        with connect(self.place / "run", component="judge", role="sampler") as service:
            weights = service.fetch(parts=("weights", "optimizer"))
            if weights is None or weights.at != at_of(last):
                self.told.lost.append(f"{self.setting.name}: {last} was committed last, and {weights} is fetched")
        os.kill(self.server.pid, signal.SIGTERM)
        self._ended(self.server, "the service")
        rest = Rest(self.place)
        self.told.lost += [*broken(rest), *lost_by_beginning(rest), *went_back(rest), *self._left_over(rest)]
        acks = notes(self.place, "acks")
        self.told.acks, self.told.durable = len(acks), sum(ack["durable"] for ack in acks)
        self.told.fetched = len(notes(self.place, "fetched"))

    def _left_over(self, rest: Rest) -> list[str]:
        """Return what lies there and belongs to nothing."""
        if {*rest.disk.places()} != {place_of_weights(rest.catalogue.weights[at]) for at in rest.catalogue.stored}:
            return [f"on disk are {rest.disk.places()}, and stored are {sorted(rest.catalogue.stored)}"]
        return []

    # Processes.

    def _start_server(self, strike: Strike | None) -> None:
        order = {"role": "server", "settings": self.setting.service, "strike": _plain(strike)}
        self.server.start({**order, "place": str(self.place)})

    def _start_trainer(self, strike: Strike | None) -> None:
        self.attempt += 1
        order = {"role": "trainer", "attempt": self.attempt, "transport": self.setting.transport, "strike": _plain(strike)}
        self.trainer.start({**order, "place": str(self.place)})

    def _start_sampler(self) -> None:
        order = {"role": "sampler", "name": "sampler", "transport": self.setting.reads_by}
        self.sampler.start({**order, "place": str(self.place)})

    def _has_ended(self, nursery: Nursery) -> bool:
        """Say whether a process has ended. What it ended with, other than a kill, is kept as a loss."""
        status = nursery.heard(0)
        if status is not None and not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            self.told.lost.append(f"a process ended with status {status}: {nursery.output.read_text()[-2000:]}")
        return not nursery.lives

    def _until(self, is_so: Callable[[], bool]) -> bool:
        """Look again and again whether something is so, until so much was done that it will not be; return whether it is."""
        before = self._done()
        for _ in range(round(LONGEST_S / TICK_S)):
            if is_so():
                return True
            select([], [], [], TICK_S)
            others = [each for each in (self.server, self.trainer, self.sampler) if each.heard(0) not in (None, signal.SIGKILL)]
            self.told.lost += [f"a process ended by itself: {each.output.read_text()[-2000:]}" for each in others]
            done = self._done()
            if (done[0] > before[0] + ENOUGH and done[1] > before[1] + 5) or self.told.lost:
                return False
        raise Hang("nothing gets on:\n" + "\n".join(map(self._stacks, ("server", "trainer", "sampler"))))

    def _done(self) -> tuple[int, int]:
        """Return how many commits were acknowledged, and how many versions fetched."""
        return len(notes(self.place, "acks")), len(notes(self.place, "fetched"))

    def _stacks(self, role: str) -> str:
        """Return where the threads of a process are."""
        nursery: Nursery = getattr(self, role)
        if nursery.lives:
            os.kill(nursery.pid, signal.SIGQUIT)
            nursery.heard(1.0)
        return f"{role}:\n{nursery.output.read_text()[-6000:]}"

    def _kill(self, nursery: Nursery) -> None:
        if nursery.lives:
            os.kill(nursery.pid, signal.SIGKILL)
            nursery.changed()

    def _ended(self, nursery: Nursery, who: str) -> None:
        status = nursery.changed() if nursery.lives else 0
        if status:
            self.told.lost.append(f"{who} ended with status {status}: {nursery.output.read_text()[-2000:]}")


def _plain(strike: Strike | None) -> list[Any] | None:
    return None if strike is None else [strike.point, strike.when, strike.nth, strike.lingers]


def told_of(place: Path, setting: Setting, turns: Sequence[Turn]) -> Told:
    """Tell a story in a directory that is removed if all went well."""
    told = Story(place, setting).tell(turns)
    if not told.lost:
        shutil.rmtree(place)
    return told
